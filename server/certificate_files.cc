#include "server/certificate_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace pleiad {
namespace {

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* object) const { Free(object); }
};
using X509Ptr = std::unique_ptr<X509, Freer<X509, X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
struct BioFreer {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using BioPtr = std::unique_ptr<BIO, BioFreer>;

BioPtr Over(const std::string& pem) { return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// Without one OpenSSL asks the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

std::vector<X509Ptr> ParseCertificates(const std::string& pem) {
  std::vector<X509Ptr> certificates;
  const BioPtr bio = Over(pem);
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) certificates.emplace_back(next);
  ERR_clear_error();
  return certificates;
}

KeyPtr ParseKey(const std::string& pem) {
  const BioPtr bio = Over(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

absl::Time ExpiryOf(const X509& certificate) {
  std::tm utc{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &utc) != 1) return absl::UnixEpoch();
  return absl::FromTM(utc, absl::UTCTimeZone());
}

absl::Status Refuse(absl::string_view flag, const std::string& path, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", path, ": ", rule));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CertificateFiles>> CertificateFiles::Open(const AccessFlags& flags) {
  std::shared_ptr<CertificateFiles> files(new CertificateFiles(flags));
  MutexLock lock(&files->mutex_);
  files->tried_ = files->StampAll();
  PLEIAD_ASSIGN_OR_RETURN(Certificate certificate, files->Read());
  files->version_ = {.number = 1, .certificate = std::make_shared<const Certificate>(std::move(certificate))};
  return files;
}

CertificateFiles::Stamps CertificateFiles::StampAll() const {
  Stamps stamps{.cert = StampOf(flags_.tls_cert), .key = StampOf(flags_.tls_key), .client_ca = {}};
  if (!flags_.tls_client_ca.empty()) stamps.client_ca = StampOf(flags_.tls_client_ca);
  return stamps;
}

absl::StatusOr<Certificate> CertificateFiles::Read() const {
  Certificate read;
  PLEIAD_ASSIGN_OR_RETURN(read.chain, ReadSmallFile("tls-cert", flags_.tls_cert, Secrecy::kPublic));
  PLEIAD_ASSIGN_OR_RETURN(read.key, ReadSmallFile("tls-key", flags_.tls_key, Secrecy::kSecret));
  const std::vector<X509Ptr> chain = ParseCertificates(read.chain);
  if (chain.empty()) return Refuse("tls-cert", flags_.tls_cert, "holds no PEM certificate");
  const KeyPtr key = ParseKey(read.key);
  if (key == nullptr) return Refuse("tls-key", flags_.tls_key, "holds no PEM private key without a password");
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    ERR_clear_error();
    return Refuse("tls-key", flags_.tls_key,
                  absl::StrCat("is not the key of the first certificate in --tls-cert ", flags_.tls_cert));
  }
  if (X509_cmp_current_time(X509_get0_notAfter(chain.front().get())) < 0) {
    spdlog::warn("--tls-cert {}: the certificate has expired; clients will refuse it", flags_.tls_cert);
  }
  read.chain_expiry = absl::InfiniteFuture();
  for (const X509Ptr& certificate : chain) read.chain_expiry = std::min(read.chain_expiry, ExpiryOf(*certificate));
  read.client_ca_expiry = absl::InfinitePast();
  if (!flags_.tls_client_ca.empty()) {
    PLEIAD_ASSIGN_OR_RETURN(read.client_ca, ReadSmallFile("tls-client-ca", flags_.tls_client_ca, Secrecy::kPublic));
    const std::vector<X509Ptr> authorities = ParseCertificates(read.client_ca);
    if (authorities.empty()) return Refuse("tls-client-ca", flags_.tls_client_ca, "holds no PEM certificate");
    for (const X509Ptr& authority : authorities) {
      read.client_ca_expiry = std::max(read.client_ca_expiry, ExpiryOf(*authority));
    }
  }
  return read;
}

CertificateFiles::Version CertificateFiles::Current() {
  MutexLock lock(&mutex_);
  // Taken before the files are read: what changes meanwhile is seen the next time.
  const Stamps stamps = StampAll();
  if (stamps == tried_) return version_;
  const bool again = tried_ == Stamps();
  tried_ = stamps;
  absl::StatusOr<Certificate> certificate = Read();
  if (certificate.ok()) {
    version_ = {.number = version_.number + 1,
                .certificate = std::make_shared<const Certificate>(*std::move(certificate))};
    spdlog::info("--tls-cert {}: read again", flags_.tls_cert);
  } else {
    // What is wrong with the machine may be over at the next connection.
    if (absl::IsUnavailable(certificate.status())) tried_ = Stamps();
    spdlog::log(again ? spdlog::level::debug : spdlog::level::err,
                "{}; new connections get the certificate from before", std::string(certificate.status().message()));
  }
  return version_;
}

}  // namespace pleiad
