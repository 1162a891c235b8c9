// Reads named tensors of one safetensors file, for golden data and checkpoints in tests. Trusts the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pleiad::oracle {

class TraceFile {
 public:
  // Ends the process with a message when the file cannot be read, as do the readers below on a missing tensor.
  explicit TraceFile(const std::string& path);

  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  std::vector<size_t> ShapeOf(const std::string& name) const;
  // F32, BF16 and F8_E4M3 (without scale).
  std::vector<double> Values(const std::string& name) const;
  // I32 and I64.
  std::vector<int64_t> Integers(const std::string& name) const;
  // Token ids.
  std::vector<uint32_t> Tokens(const std::string& name) const;
  // The tensor's bytes as little-endian 16-bit words: BF16 bits.
  std::vector<uint16_t> Words(const std::string& name) const;
  std::vector<std::string> Names() const;

 private:
  struct Tensor {
    std::string dtype;
    std::vector<size_t> shape;
    std::vector<unsigned char> bytes;
  };
  const Tensor& Get(const std::string& name) const;

  std::string path_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace pleiad::oracle
