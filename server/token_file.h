// Bearer tokens of a file that is read again when it changes.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/mutex.h"
#include "server/watched_file.h"

namespace pleiad {

// Lines of NAME TOKEN; empty lines and those that begin with # aside. A name may have several tokens, so that one can
// be replaced while the other is in use. Thread-safe.
class TokenFile {
 public:
  static constexpr size_t kMinTokenBytes = 16;

  // Blocks as the read of a small file does. InvalidArgument naming --auth-tokens, the file, the line and the rule, and
  // no token.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path);

  // The name whose token `authorization` ("Bearer TOKEN") holds; nothing: it holds none. Takes the same time whichever
  // of the tokens it is or is not. A changed file that is no good leaves the tokens from before in use, with an error
  // in the log once. Blocks as stat does, and as a read where the file changed.
  std::optional<std::string> NameOf(absl::string_view authorization) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    std::string name;
    Digest digest;  // SHA-256 of the token, which is not kept
  };
  using Entries = std::vector<Entry>;

  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  static Digest DigestOf(absl::string_view token);
  absl::StatusOr<Entries> Read() const;
  std::shared_ptr<const Entries> Current() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  Mutex mutex_;
  FileStamp tried_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Entries> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
