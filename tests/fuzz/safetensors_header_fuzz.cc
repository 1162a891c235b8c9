// Any bytes as a safetensors file: refused, or every promise of the parsed header holds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first four bytes are the bytes of tensors behind the header.
  uint32_t tail = 0;
  if (size < sizeof(tail)) return 0;
  std::memcpy(&tail, data, sizeof(tail));
  const absl::string_view json(reinterpret_cast<const char*>(data) + sizeof(tail), size - sizeof(tail));
  const uint64_t file_bytes = 8 + json.size() + tail;
  const auto header = pleiad::ParseSafetensorsHeader(json, file_bytes, "input");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return 0;
  }
  uint64_t total = 0;
  for (const auto& [name, info] : *header) {
    if (info.bytes == 0) continue;
    if (info.offset < 8 + json.size() || info.offset > file_bytes || info.bytes > file_bytes - info.offset)
      std::abort();
    total += info.bytes;
  }
  if (total > tail) std::abort();  // some overlap
  return 0;
}
