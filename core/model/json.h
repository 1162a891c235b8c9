// Bounded JSON reading for files that may be hostile. Internal to core/model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

// Parses `text`; `source` names it in errors. Refuses, with InvalidArgument: syntax errors, nesting deeper than 32,
// more than 8 million values, and a key given twice in one object. Throws nothing.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view source);

// The value as JSON for an error message, cut to 100 characters.
std::string ShowJson(const nlohmann::json& value);

}  // namespace pleiad
