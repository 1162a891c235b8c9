#include "client/cli/token_file.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/trace.h"
#include "core/base/status_macros.h"

namespace pleiad::cli {
namespace {

absl::StatusOr<std::vector<uint32_t>> ReadRaw(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("--trace ", path, ": cannot be opened"));
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return absl::DataLossError(absl::StrCat("--trace ", path, ": cannot be read"));
  if (bytes.size() % sizeof(uint32_t) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--trace ", path, ": ", bytes.size(), " bytes, must be 32-bit ids (for a safetensors trace give --prefix)"));
  }
  std::vector<uint32_t> tokens(bytes.size() / sizeof(uint32_t));
  if (!tokens.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

absl::StatusOr<std::vector<uint32_t>> ReadTensor(const std::string& path, const std::string& prefix) {
  PLEIAD_ASSIGN_OR_RETURN(const Trace trace, Trace::Read(path));
  return trace.I32(prefix + ".tokens");
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> ReadTokens(const std::string& path, const std::string& prefix,
                                                 uint32_t vocab_size) {
  absl::StatusOr<std::vector<uint32_t>> tokens = prefix.empty() ? ReadRaw(path) : ReadTensor(path, prefix);
  if (!tokens.ok()) {
    if (prefix.empty()) return tokens.status();
    return absl::Status(tokens.status().code(),
                        absl::StrCat("--trace ", path, ", --prefix ", prefix, ": ", tokens.status().message()));
  }
  if (tokens->empty()) return absl::InvalidArgumentError(absl::StrCat("--trace ", path, ": no tokens, must hold some"));
  for (size_t i = 0; i < tokens->size(); ++i) {
    if ((*tokens)[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("--trace ", path, ": token ", i, " is ", (*tokens)[i],
                                                     ", must be below vocab_size ", vocab_size,
                                                     prefix.empty() ? " (for a safetensors trace give --prefix)" : ""));
    }
  }
  return tokens;
}

}  // namespace pleiad::cli
