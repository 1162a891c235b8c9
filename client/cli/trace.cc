#include "client/cli/trace.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/private_file.h"

namespace pleiad::cli {
namespace {

using Json = nlohmann::json;

size_t ValueBytes(std::string_view dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  return dtype == "I64" ? 8 : 0;
}

absl::Status Bad(const std::string& name, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": ", rule));
}

template <typename T>
std::vector<T> Values(const TraceTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

template <typename T>
TraceTensor Make(std::string dtype, std::vector<uint64_t> shape, const std::vector<T>& values) {
  return {std::move(dtype), std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

absl::StatusOr<std::vector<uint64_t>> Naturals(const Json& json) {
  std::vector<uint64_t> values;
  if (!json.is_array()) return absl::InvalidArgumentError("must be a list");
  for (const Json& value : json) {
    if (!value.is_number_unsigned()) return absl::InvalidArgumentError("must hold integers from 0");
    values.push_back(value.get<uint64_t>());
  }
  return values;
}

struct Range {
  uint64_t begin = 0, end = 0;
  std::string name;
};

absl::Status ReadEntry(const std::string& name, const Json& json, std::string_view data, TraceTensor* tensor,
                       Range* range) {
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return Bad(name, "needs dtype, shape and data_offsets");
  }
  tensor->dtype = json["dtype"].get<std::string>();
  const absl::StatusOr<std::vector<uint64_t>> shape = Naturals(json["shape"]), offsets = Naturals(json["data_offsets"]);
  if (!shape.ok()) return Bad(name, absl::StrCat("shape ", shape.status().message()));
  if (!offsets.ok()) return Bad(name, absl::StrCat("data_offsets ", offsets.status().message()));
  if (offsets->size() != 2) return Bad(name, "data_offsets must be two");
  if (ValueBytes(tensor->dtype) == 0)
    return Bad(name, absl::StrCat("dtype ", tensor->dtype, " is not F32, I32 or I64"));
  tensor->shape = *shape;
  *range = {(*offsets)[0], (*offsets)[1], name};
  if (range->begin > range->end || range->end > data.size()) {
    return Bad(name,
               absl::StrCat("bytes ", range->begin, " to ", range->end, " leave the ", data.size(), " bytes of data"));
  }
  uint64_t bytes = ValueBytes(tensor->dtype);
  for (uint64_t axis : tensor->shape) {
    if (axis != 0 && bytes > std::numeric_limits<uint64_t>::max() / axis) return Bad(name, "shape overflows");
    bytes *= axis;
  }
  if (bytes != range->end - range->begin) {
    return Bad(name, absl::StrCat("shape takes ", bytes, " bytes, data_offsets give ", range->end - range->begin));
  }
  tensor->bytes = std::string(data.substr(range->begin, bytes));
  return absl::OkStatus();
}

}  // namespace

uint64_t TraceTensor::size() const { return bytes.size() / std::max<size_t>(1, ValueBytes(dtype)); }

absl::StatusOr<Trace> Trace::Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) return absl::InvalidArgumentError(absl::StrCat(path, ": shorter than a safetensors header"));
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > bytes.size() - 8) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header of ", header_bytes, " bytes leaves the file"));
  }
  const std::string_view all(bytes);
  const Json header = Json::parse(all.substr(8, header_bytes), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": the header is not a JSON object"));
  const std::string_view data = all.substr(8 + header_bytes);
  Trace trace;
  std::vector<Range> ranges;
  for (const auto& [name, json] : header.items()) {
    if (name == "__metadata__") continue;
    if (absl::Status s = ReadEntry(name, json, data, &trace.tensors_[name], &ranges.emplace_back()); !s.ok()) return s;
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t end = 0;
  for (const Range& range : ranges) {
    if (range.begin != end) return Bad(range.name, "its bytes overlap another tensor's or leave a gap");
    end = range.end;
  }
  if (end != data.size()) return absl::InvalidArgumentError(absl::StrCat(path, ": bytes behind the last tensor"));
  return trace;
}

absl::Status Trace::Write(const std::string& path) const {
  Json header = Json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors_) {
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size();
  std::vector<absl::string_view> parts = {{reinterpret_cast<const char*>(&header_bytes), 8}, text};
  for (const auto& [name, tensor] : tensors_) parts.push_back(tensor.bytes);
  return WritePrivateFile(path, parts);
}

void Trace::PutF32(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values) {
  Put(name, Make("F32", std::move(shape), values));
}
void Trace::PutI32(const std::string& name, std::vector<uint64_t> shape, const std::vector<int32_t>& values) {
  Put(name, Make("I32", std::move(shape), values));
}
void Trace::PutI64(const std::string& name, std::vector<uint64_t> shape, const std::vector<int64_t>& values) {
  Put(name, Make("I64", std::move(shape), values));
}

absl::StatusOr<const TraceTensor*> Trace::Find(const std::string& name, std::string_view dtype) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat("the trace has no tensor ", name));
  if (it->second.dtype != dtype)
    return Bad(name, absl::StrCat("dtype ", it->second.dtype, " must be ", std::string(dtype)));
  return &it->second;
}

absl::StatusOr<std::vector<float>> Trace::F32(const std::string& name, uint64_t rows) const {
  const absl::StatusOr<const TraceTensor*> tensor = Find(name, "F32");
  if (!tensor.ok()) return tensor.status();
  if ((*tensor)->shape.size() != 2 || (*tensor)->shape[0] != rows) {
    return Bad(name, absl::StrCat("must have 2 axes and ", rows, " rows"));
  }
  return Values<float>(**tensor);
}

absl::StatusOr<std::vector<uint64_t>> Trace::I64(const std::string& name, uint64_t rows) const {
  const absl::StatusOr<const TraceTensor*> tensor = Find(name, "I64");
  if (!tensor.ok()) return tensor.status();
  if ((*tensor)->shape.size() != 2 || (*tensor)->shape[0] != rows) {
    return Bad(name, absl::StrCat("must have 2 axes and ", rows, " rows"));
  }
  const std::vector<int64_t> values = Values<int64_t>(**tensor);
  if (std::any_of(values.begin(), values.end(), [](int64_t v) { return v < 0; }))
    return Bad(name, "values are below 0");
  return std::vector<uint64_t>(values.begin(), values.end());
}

absl::StatusOr<std::vector<uint32_t>> Trace::I32(const std::string& name) const {
  const absl::StatusOr<const TraceTensor*> tensor = Find(name, "I32");
  if (!tensor.ok()) return tensor.status();
  if ((*tensor)->shape.size() != 1) return Bad(name, "must have one axis");
  const std::vector<int32_t> values = Values<int32_t>(**tensor);
  if (std::any_of(values.begin(), values.end(), [](int32_t v) { return v < 0; }))
    return Bad(name, "values are below 0");
  return std::vector<uint32_t>(values.begin(), values.end());
}

}  // namespace pleiad::cli
