// The PEM files of the server's certificate, read again when they change.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "server/access_flags.h"
#include "server/watched_file.h"

namespace pleiad {

// A certificate that fits its key; whole PEM files.
struct Certificate {
  std::string chain, key;
  std::string client_ca;  // empty: clients show none
  // When the first certificate of the chain expires that does, and the last one of client_ca.
  absl::Time chain_expiry, client_ca_expiry;
};

// Thread-safe.
class CertificateFiles {
 public:
  // With tls_cert and tls_key. Blocks as reads of small files do. InvalidArgument naming the flag, the file and the
  // rule.
  static absl::StatusOr<std::shared_ptr<CertificateFiles>> Open(const AccessFlags& flags);

  struct Version {
    uint64_t number = 0;  // grows with each change
    std::shared_ptr<const Certificate> certificate;
  };
  // As the files are now. Files that changed and do not hold together (half replaced, unreadable) leave the last good
  // ones in use, with an error in the log once for each change. Blocks as stat does, and as reads where they changed.
  Version Current() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Stamps {
    FileStamp cert, key, client_ca;
    bool operator==(const Stamps&) const = default;
  };

  explicit CertificateFiles(const AccessFlags& flags) : flags_(flags) {}
  Stamps StampAll() const;
  absl::StatusOr<Certificate> Read() const;

  const AccessFlags flags_;
  Mutex mutex_;
  Stamps tried_ ABSL_GUARDED_BY(mutex_);
  Version version_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
