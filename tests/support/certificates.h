// Certificates of authorities of a test's own, made by the openssl command.
#pragma once

#include <cstdint>
#include <string>

namespace pleiad::testing {

enum class Validity : uint8_t { kNow, kExpired };

struct CertificatePaths {
  std::string cert, key;
};

// Aborts where openssl does.
class CertificateAuthority {
 public:
  // Its files lie in `folder`, which is there; their names begin with `name`.
  CertificateAuthority(const std::string& folder, const std::string& name);

  // Its own certificate, PEM.
  const std::string& cert() const { return cert_; }

  // FOLDER/NAME.pem and .key, for CN NAME, localhost and 127.0.0.1; with the key 0600. They replace what was there by
  // renaming, the certificate first.
  CertificatePaths Issue(const std::string& name, Validity validity = Validity::kNow) const;

 private:
  const std::string folder_;
  std::string cert_, key_;
};

// Writes a file with this mode in place of another, by renaming.
void ReplaceFile(const std::string& path, const std::string& text, uint32_t mode = 0600);
std::string ReadWholeFile(const std::string& path);

}  // namespace pleiad::testing
