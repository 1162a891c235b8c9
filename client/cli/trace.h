// Traces: named tensors in one safetensors file. Small and strict: what this tool reads and writes, nothing more.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pleiad::cli {

struct TraceTensor {
  std::string dtype;  // "F32", "I32" or "I64"
  std::vector<uint64_t> shape;
  std::string bytes;  // row-major, little-endian

  uint64_t size() const;  // values
};

class Trace {
 public:
  // Reads a whole file. NotFound; InvalidArgument naming the tensor and the rule: other dtypes, bytes that do not fit
  // the shape, overlap, leave the file or leave a gap.
  static absl::StatusOr<Trace> Read(const std::string& path);
  // Replaces the file as a whole, readable by its owner alone. Unknown when it cannot be written.
  absl::Status Write(const std::string& path) const;

  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  void Put(const std::string& name, TraceTensor tensor) { tensors_[name] = std::move(tensor); }
  void PutF32(const std::string& name, std::vector<uint64_t> shape, const std::vector<float>& values);
  void PutI32(const std::string& name, std::vector<uint64_t> shape, const std::vector<int32_t>& values);
  void PutI64(const std::string& name, std::vector<uint64_t> shape, const std::vector<int64_t>& values);

  // NotFound without it, InvalidArgument unless it has `dtype` and a shape of `rows` x anything (F32, I64) or of one
  // axis (I32). Integers below 0 are refused.
  absl::StatusOr<std::vector<float>> F32(const std::string& name, uint64_t rows) const;
  absl::StatusOr<std::vector<uint64_t>> I64(const std::string& name, uint64_t rows) const;
  absl::StatusOr<std::vector<uint32_t>> I32(const std::string& name) const;

 private:
  absl::StatusOr<const TraceTensor*> Find(const std::string& name, std::string_view dtype) const;

  std::map<std::string, TraceTensor> tensors_;
};

}  // namespace pleiad::cli
