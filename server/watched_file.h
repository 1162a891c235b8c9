// Small files that are read again when they change.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

// Which file a path names and in which state; links are followed. Equal stamps: most likely the same bytes.
struct FileStamp {
  uint64_t device = 0, inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;

  bool operator==(const FileStamp&) const = default;
};

// Zero where there is no such file. Blocks as stat does.
FileStamp StampOf(const std::string& path);

enum class Secrecy : uint8_t { kPublic, kSecret };

// The whole file, at most 1 MiB. Blocks. Naming `flag`, the path and the rule, Unavailable: the machine cannot read it
// now; InvalidArgument: it cannot be read, is no plain file, is too large, or is a secret that others (not its owner,
// not its group) can read. Never names its content.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag, const std::string& path, Secrecy secrecy);

}  // namespace pleiad
