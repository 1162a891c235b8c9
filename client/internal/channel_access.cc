#include "client/internal/channel_access.h"

#include <fcntl.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace pleiad::client::internal {
namespace {

absl::Status Refuse(absl::string_view member, const std::string& path, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(member, " ", path, ": ", rule));
}

// Without one OpenSSL asks the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

// As OpenSSL takes them; gRPC reads them by itself.
absl::Status CheckFiles(const TlsOptions& tls) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassword);
  absl::Status status;
  if (!tls.ca_file.empty() && SSL_CTX_load_verify_locations(context.get(), tls.ca_file.c_str(), nullptr) != 1) {
    status = Refuse("tls.ca_file", tls.ca_file, "must be a file with PEM certificates");
  } else if (tls.cert_file.empty()) {
  } else if (SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) != 1) {
    status = Refuse("tls.cert_file", tls.cert_file, "must be a file with a PEM certificate");
  } else if (SSL_CTX_use_PrivateKey_file(context.get(), tls.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    status = Refuse("tls.key_file", tls.key_file,
                    absl::StrCat("must be a file with the PEM key of tls.cert_file ", tls.cert_file, ", no password"));
  }
  ERR_clear_error();
  return status;
}

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const TlsOptions& tls) {
  if (tls.ca_file.empty() && tls.cert_file.empty()) return grpc::SslCredentials({});
  const auto interval = static_cast<unsigned>(absl::ToInt64Seconds(tls.reload_interval));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      tls.key_file, tls.cert_file, tls.ca_file, interval));
  if (!tls.ca_file.empty()) options.watch_root_certs();
  if (!tls.cert_file.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

bool SameFile(const struct ::stat& a, const struct ::stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ChannelAccess>> ChannelAccess::Open(const ClientOptions& options) {
  std::shared_ptr<ChannelAccess> access(new ChannelAccess);
  access->credentials_ = grpc::InsecureChannelCredentials();
  if (options.tls.has_value()) {
    if (absl::Status s = CheckFiles(*options.tls); !s.ok()) return s;
    access->credentials_ = MakeCredentials(*options.tls);
    access->server_name_ = options.tls->server_name;
  }
  access->affinity_key_ = options.affinity_key;
  access->token_file_ = options.token_file;
  if (options.token_file.empty()) return access;
  MutexLock lock(&access->mutex_);
  absl::StatusOr<std::string> token = ReadToken(options.token_file, &access->read_);
  if (!token.ok()) return token.status();
  access->authorization_ = absl::StrCat("Bearer ", *token);
  return access;
}

absl::StatusOr<std::string> ChannelAccess::ReadToken(const std::string& path, struct ::stat* info) {
  const auto refuse = [&path](absl::string_view rule) { return Refuse("token_file", path, rule); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return refuse(std::strerror(errno));
  std::array<char, 4097> bytes;
  const ssize_t size = ::fstat(fd, info) == 0 && S_ISREG(info->st_mode) ? ::read(fd, bytes.data(), bytes.size()) : -1;
  ::close(fd);
  if (size < 0) return refuse("must be a plain file");
  if ((info->st_mode & (S_IROTH | S_IWOTH)) != 0)
    return refuse("others can read or write it (chmod o= takes that away)");
  const absl::string_view token = absl::StripAsciiWhitespace({bytes.data(), static_cast<size_t>(size)});
  bool visible = !token.empty() && static_cast<size_t>(size) < bytes.size();
  for (const char c : token) visible = visible && absl::ascii_isgraph(static_cast<unsigned char>(c));
  if (!visible) return refuse("must hold one token: visible characters, at most 4096");
  return std::string(token);
}

void ChannelAccess::AddTo(grpc::ClientContext* context) {
  if (!affinity_key_.empty()) context->AddMetadata("x-pleiad-affinity", affinity_key_);
  if (token_file_.empty()) return;
  MutexLock lock(&mutex_);
  struct ::stat now {};
  if (::stat(token_file_.c_str(), &now) == 0 && !SameFile(now, read_)) {
    const absl::StatusOr<std::string> token = ReadToken(token_file_, &now);
    if (token.ok()) authorization_ = absl::StrCat("Bearer ", *token);
    read_ = now;
  }
  context->AddMetadata("authorization", authorization_);
}

}  // namespace pleiad::client::internal
