#include "core/engine/aux_blob.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

static_assert(std::endian::native == std::endian::little, "aux blobs are little-endian");

uint32_t LoadU32(const char* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

}  // namespace

size_t AuxConvOffset(const Geometry& geometry) { return 4 + 4 * size_t{geometry.context_len()}; }

absl::StatusOr<AuxBlob> ParseAuxBlob(std::string_view bytes, const Geometry& geometry, uint32_t vocab_size) {
  if (bytes.size() < 4) {
    return absl::InvalidArgumentError("must be at least 4, for hist_len");
  }
  const uint32_t hist_len = LoadU32(bytes.data());
  const uint64_t rows_bytes = uint64_t{4} * geometry.state_len() * geometry.channels();
  if (hist_len != 0 && hist_len != geometry.context_len()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hist_len ", hist_len, ": must be ", geometry.context_len(), " or 0"));
  }
  const uint64_t expected = 4 + 4ull * hist_len + rows_bytes;
  if (bytes.size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat("must be ", expected, " with hist_len ", hist_len));
  }
  AuxBlob blob;
  if (hist_len == 0) {
    blob.fresh = true;
    return blob;
  }
  blob.history.resize(hist_len);
  std::memcpy(blob.history.data(), bytes.data() + 4, 4ull * hist_len);
  for (uint32_t i = 0; i < hist_len; ++i) {
    if (blob.history[i] >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("history[", i, "] ", blob.history[i], ": must be below vocab_size ", vocab_size));
    }
  }
  blob.conv_rows.resize(rows_bytes / 4);
  if (rows_bytes > 0) std::memcpy(blob.conv_rows.data(), bytes.data() + 4 + 4ull * hist_len, rows_bytes);
  return blob;
}

std::string MakeAuxBlob(absl::Span<const uint32_t> history, const Geometry& geometry) {
  std::string bytes(geometry.aux_bytes(), '\0');
  const uint32_t hist_len = geometry.context_len();
  std::memcpy(bytes.data(), &hist_len, 4);
  std::memcpy(bytes.data() + 4, history.data(), 4ull * hist_len);
  return bytes;
}

}  // namespace pleiad
