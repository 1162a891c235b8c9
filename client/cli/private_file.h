// Files that nobody but their owner may read: carries and traces hold the tokens of users.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pleiad::cli {

// Replaces the file as a whole with `parts`, one behind the other; it has mode 0600, whatever was there had. Written
// and synced beside it under a name that nobody can foresee. Blocks. Unknown naming the path and the reason when it
// cannot be written: what was there is as it was, and nothing new is left.
absl::Status WritePrivateFile(const std::string& path, absl::Span<const absl::string_view> parts);

}  // namespace pleiad::cli
