#include "core/model/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/model/json.h"

namespace pleiad {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxRank = 16;

static_assert(std::endian::native == std::endian::little, "files are little-endian and read in place");

absl::Status Wrong(absl::string_view path, absl::string_view tensor, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": tensor ", absl::Utf8SafeCEscape(tensor.substr(0, 200)), ": ", what));
}

// Bytes of an element, 0 where the dtype is not known.
uint64_t ElementBytes(absl::string_view dtype) {
  struct Known {
    absl::string_view name;
    uint64_t bytes;
  };
  constexpr std::array<Known, 16> kKnown = {{{"BOOL", 1},
                                             {"U8", 1},
                                             {"I8", 1},
                                             {"F8_E4M3", 1},
                                             {"F8_E5M2", 1},
                                             {"F8_E8M0", 1},
                                             {"U16", 2},
                                             {"I16", 2},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"U32", 4},
                                             {"I32", 4},
                                             {"F32", 4},
                                             {"U64", 8},
                                             {"I64", 8},
                                             {"F64", 8}}};
  for (const Known& known : kKnown) {
    if (known.name == dtype) return known.bytes;
  }
  return 0;
}

absl::StatusOr<std::vector<uint64_t>> ReadIntegers(const json& entry, const char* field, absl::string_view path,
                                                   absl::string_view tensor) {
  const auto it = entry.find(field);
  if (it == entry.end()) return Wrong(path, tensor, absl::StrCat(field, " is missing"));
  if (!it->is_array() || it->size() > kMaxRank) {
    return Wrong(path, tensor,
                 absl::StrCat(field, " is ", ShowJson(*it), "; it must be a list of at most ", kMaxRank, " integers"));
  }
  std::vector<uint64_t> integers;
  for (const json& value : *it) {
    if (!value.is_number_unsigned()) {
      return Wrong(path, tensor, absl::StrCat(field, " holds ", ShowJson(value), "; it must hold integers from 0 up"));
    }
    integers.push_back(value.get<uint64_t>());
  }
  return integers;
}

// Shape times element size equals the bytes given; in 64 bits without wrapping.
absl::Status CheckSize(const TensorInfo& info, absl::string_view path, absl::string_view tensor) {
  uint64_t expected = ElementBytes(info.dtype);
  if (expected == 0) return absl::OkStatus();
  for (const uint64_t extent : info.shape) {
    if (__builtin_mul_overflow(expected, extent, &expected)) {
      return Wrong(path, tensor,
                   absl::StrCat("shape [", absl::StrJoin(info.shape, ", "), "] of ", info.dtype, " passes 2^64 bytes"));
    }
  }
  if (expected == info.bytes) return absl::OkStatus();
  return Wrong(path, tensor,
               absl::StrCat("shape [", absl::StrJoin(info.shape, ", "), "] of ", info.dtype, " is ", expected,
                            " bytes, data_offsets span ", info.bytes));
}

// One entry of the header; `data_start` is where offsets count from.
absl::StatusOr<TensorInfo> ParseTensor(const json& entry, uint64_t data_start, absl::string_view path,
                                       absl::string_view tensor) {
  if (!entry.is_object()) return Wrong(path, tensor, absl::StrCat("is ", ShowJson(entry), "; it must be an object"));
  TensorInfo info;
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return Wrong(path, tensor, "dtype is missing or not a string");
  info.dtype = dtype->get<std::string>();
  PLEIAD_ASSIGN_OR_RETURN(info.shape, ReadIntegers(entry, "shape", path, tensor));
  PLEIAD_ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets, ReadIntegers(entry, "data_offsets", path, tensor));
  constexpr uint64_t kMaxOffset = std::numeric_limits<int64_t>::max() - kMaxSafetensorsHeaderBytes - kLengthBytes;
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > kMaxOffset) {
    return Wrong(path, tensor,
                 absl::StrCat("data_offsets are [", absl::StrJoin(offsets, ", "),
                              "]; they must be a begin and an end not below it, under 2^63"));
  }
  info.offset = data_start + offsets[0];
  info.bytes = offsets[1] - offsets[0];
  PLEIAD_RETURN_IF_ERROR(CheckSize(info, path, tensor));
  return info;
}

absl::Status TooShort(absl::string_view path, uint64_t expected, uint64_t actual) {
  return absl::DataLossError(absl::StrCat(path, ": the file is cut short: its header needs ", expected,
                                          " bytes, the file has ", actual, " bytes"));
}

absl::Status CheckRanges(const SafetensorsHeader& header, uint64_t file_bytes, absl::string_view path) {
  std::vector<const SafetensorsHeader::value_type*> order;
  order.reserve(header.size());
  for (const auto& tensor : header) {
    if (tensor.second.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->second.offset < b->second.offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = order[i - 1]->second;
    if (before.offset + before.bytes > order[i]->second.offset) {
      return Wrong(path, order[i]->first,
                   absl::StrCat("overlaps tensor ", absl::Utf8SafeCEscape(order[i - 1]->first.substr(0, 200))));
    }
  }
  if (!order.empty()) {
    const uint64_t needed = order.back()->second.offset + order.back()->second.bytes;
    if (needed > file_bytes) return TooShort(path, needed, file_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text, uint64_t file_bytes,
                                                         absl::string_view path) {
  PLEIAD_ASSIGN_OR_RETURN(const json root, ParseJson(text, path));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the header is ", ShowJson(root), "; it must be an object"));
  }
  SafetensorsHeader header;
  header.reserve(root.size());
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") continue;
    PLEIAD_ASSIGN_OR_RETURN(TensorInfo info, ParseTensor(entry, kLengthBytes + text.size(), path, name));
    header.emplace(name, std::move(info));
  }
  PLEIAD_RETURN_IF_ERROR(CheckRanges(header, file_bytes, path));
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(int fd, uint64_t file_bytes, absl::string_view path) {
  if (file_bytes < kLengthBytes) return TooShort(path, kLengthBytes, file_bytes);
  uint64_t length = 0;
  PLEIAD_RETURN_IF_ERROR(ReadExactly(fd, 0, &length, kLengthBytes, path));
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header length is ", length, "; it must be at most ",
                                                   kMaxSafetensorsHeaderBytes, ": not a safetensors file?"));
  }
  if (length > file_bytes - kLengthBytes) return TooShort(path, kLengthBytes + length, file_bytes);
  std::string text(length, '\0');
  PLEIAD_RETURN_IF_ERROR(ReadExactly(fd, kLengthBytes, text.data(), length, path));
  return ParseSafetensorsHeader(text, file_bytes, path);
}

absl::Status ReadExactly(int fd, uint64_t offset, void* out, uint64_t bytes, absl::string_view path) {
  constexpr uint64_t kMaxRead = 1 << 30;
  char* next = static_cast<char*>(out);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd, next + done, std::min(bytes - done, kMaxRead), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(absl::StrCat(path, ": reading ", bytes, " bytes at offset ", offset, " gave ", done,
                                              got == 0 ? ": end of file" : absl::StrCat(": ", std::strerror(errno))));
    }
    done += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace pleiad
