#include "tests/oracle/trace_file.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/oracle/numbers.h"

namespace pleiad::oracle {
namespace {

[[noreturn]] void Die(const std::string& path, const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", path.c_str(), what.c_str());
  std::abort();
}

template <typename T>
T Load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

}  // namespace

TraceFile::TraceFile(const std::string& path) : path_(path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Die(path, "cannot be opened");
  const std::vector<unsigned char> file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (file.size() < 8) Die(path, "shorter than its length field");
  const uint64_t header = Load<uint64_t>(file.data());
  if (header > file.size() - 8) Die(path, "shorter than its header");
  const auto json = nlohmann::json::parse(file.begin() + 8, file.begin() + 8 + static_cast<ptrdiff_t>(header));
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    Tensor tensor;
    tensor.dtype = entry.at("dtype").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<size_t>>();
    const auto offsets = entry.at("data_offsets").get<std::vector<size_t>>();
    if (8 + header + offsets[1] > file.size()) Die(path, name + " ends past the file");
    const auto data = file.begin() + 8 + static_cast<ptrdiff_t>(header);
    tensor.bytes.assign(data + static_cast<ptrdiff_t>(offsets[0]), data + static_cast<ptrdiff_t>(offsets[1]));
    tensors_.emplace(name, std::move(tensor));
  }
}

const TraceFile::Tensor& TraceFile::Get(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) Die(path_, "has no tensor " + name);
  return it->second;
}

std::vector<size_t> TraceFile::ShapeOf(const std::string& name) const { return Get(name).shape; }

std::vector<double> TraceFile::Values(const std::string& name) const {
  const Tensor& tensor = Get(name);
  std::vector<double> values;
  const unsigned char* p = tensor.bytes.data();
  const unsigned char* end = p + tensor.bytes.size();
  if (tensor.dtype == "F32") {
    for (; p != end; p += 4) values.push_back(Load<float>(p));
  } else if (tensor.dtype == "BF16") {
    for (; p != end; p += 2) values.push_back(Bf16Value(Load<uint16_t>(p)));
  } else if (tensor.dtype == "F8_E4M3") {
    for (; p != end; ++p) values.push_back(E4m3Value(*p));
  } else {
    Die(path_, name + " is " + tensor.dtype + ", not a number format");
  }
  return values;
}

std::vector<int64_t> TraceFile::Integers(const std::string& name) const {
  const Tensor& tensor = Get(name);
  std::vector<int64_t> values;
  const size_t size = tensor.dtype == "I32" ? 4 : 8;
  if (tensor.dtype != "I32" && tensor.dtype != "I64") Die(path_, name + " is " + tensor.dtype + ", not an integer");
  for (size_t at = 0; at < tensor.bytes.size(); at += size) {
    const unsigned char* p = tensor.bytes.data() + at;
    values.push_back(size == 4 ? Load<int32_t>(p) : Load<int64_t>(p));
  }
  return values;
}

std::vector<uint32_t> TraceFile::Tokens(const std::string& name) const {
  const std::vector<int64_t> values = Integers(name);
  return std::vector<uint32_t>(values.begin(), values.end());
}

std::vector<uint16_t> TraceFile::Words(const std::string& name) const {
  const Tensor& tensor = Get(name);
  std::vector<uint16_t> words(tensor.bytes.size() / 2);
  std::memcpy(words.data(), tensor.bytes.data(), words.size() * 2);
  return words;
}

std::vector<std::string> TraceFile::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

}  // namespace pleiad::oracle
