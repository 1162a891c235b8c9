#include "core/model/checkpoint.h"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/model/ple_tensors.h"
#include "core/model/tensor_index.h"

namespace pleiad {
namespace {

constexpr uint64_t kMaxConfigBytes = 16 << 20;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(uint64_t value) { EVP_DigestUpdate(context_, &value, sizeof(value)); }
  // With the length ahead, so that neighbours cannot trade values.
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(values.size());
    EVP_DigestUpdate(context_, values.data(), values.size() * sizeof(T));
  }
  std::string Hex() {
    std::array<char, EVP_MAX_MD_SIZE> digest{};
    unsigned int bytes = 0;
    EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.data()), &bytes);
    return absl::BytesToHexString(absl::string_view(digest.data(), bytes));
  }

 private:
  EVP_MD_CTX* const context_;
};

}  // namespace

struct Checkpoint::Impl {
  ModelConfig config;
  std::vector<PleLayer> layers;
  std::vector<DenseTensors> dense;  // [layers]
  std::vector<CheckpointFile> files;
};

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const std::vector<PleLayer>& Checkpoint::layers() const { return impl_->layers; }
const std::vector<CheckpointFile>& Checkpoint::files() const { return impl_->files; }

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const CheckpointOptions& options) {
  auto impl = std::make_unique<Impl>();
  ModelConfig& config = impl->config;
  PLEIAD_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.dir + "/config.json", kMaxConfigBytes));
  PLEIAD_ASSIGN_OR_RETURN(config, ParseModelConfig(text, options.eos_token_id));

  std::vector<std::string> prefixes;
  for (const LayerIndex layer : config.ple_layers) {
    for (std::string& prefix : PlePrefixes(layer)) prefixes.push_back(std::move(prefix));
  }
  PLEIAD_ASSIGN_OR_RETURN(TensorIndex index, FindTensors(options.dir, prefixes));

  for (const LayerIndex layer : config.ple_layers) {
    PLEIAD_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(index, layer));
    const LayerOrdinal ordinal(static_cast<uint32_t>(impl->layers.size()));
    HashConstants hash = DeriveHashConstants(config, ordinal);
    PLEIAD_RETURN_IF_ERROR(CheckHashBuffers(index, prefix, hash));
    PLEIAD_ASSIGN_OR_RETURN(TableLayout table, FindTable(index, prefix, config.geometry.head_dim(), hash.usable_rows));
    PLEIAD_ASSIGN_OR_RETURN(DenseTensors dense, FindDenseTensors(index, prefix, config.geometry));
    if (!impl->layers.empty() && impl->layers.front().table.dtype != table.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("the table of ", prefix, " is ", Name(table.dtype), ", that of the first PLE layer ",
                       Name(impl->layers.front().table.dtype), "; all PLE layers must have one row dtype"));
    }
    impl->layers.push_back({layer, std::move(hash), std::move(table)});
    impl->dense.push_back(std::move(dense));
  }
  impl->files = std::move(index.files);
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

absl::StatusOr<LayerWeights> Checkpoint::LoadWeights(LayerOrdinal layer) const {
  const DenseTensors& dense = impl_->dense[layer.value()];
  const auto append = [this](const FoundTensor& tensor, std::vector<Bf16>* out) {
    const size_t before = out->size();
    out->resize(before + tensor.info.bytes / sizeof(Bf16));
    const CheckpointFile& file = impl_->files[tensor.file];
    return ReadExactly(file.fd.get(), tensor.info.offset, out->data() + before, tensor.info.bytes, file.path);
  };
  LayerWeights weights;
  weights.key_value.reserve((dense.key_proj.info.bytes + dense.value_proj.info.bytes) / sizeof(Bf16));
  PLEIAD_RETURN_IF_ERROR(append(dense.key_proj, &weights.key_value));
  PLEIAD_RETURN_IF_ERROR(append(dense.value_proj, &weights.key_value));
  PLEIAD_RETURN_IF_ERROR(append(dense.norm_key, &weights.norm_key));
  PLEIAD_RETURN_IF_ERROR(append(dense.norm_query, &weights.norm_query));
  PLEIAD_RETURN_IF_ERROR(append(dense.norm_conv, &weights.norm_conv));
  PLEIAD_RETURN_IF_ERROR(append(dense.conv, &weights.conv));
  return weights;
}

std::string Checkpoint::ModelId(const std::vector<LayerWeights>& weights) const {
  constexpr uint64_t kFormat = 1;
  const ModelConfig& config = impl_->config;
  const Geometry& g = config.geometry;
  Sha256 sha;
  for (const uint64_t value :
       {kFormat, uint64_t{g.hidden_size}, uint64_t{g.hc_count}, uint64_t{g.embed_dim}, uint64_t{g.conv_kernel_size},
        uint64_t{g.ngram_size}, uint64_t{g.heads_per_ngram}, uint64_t{std::bit_cast<uint32_t>(g.rms_norm_eps)},
        uint64_t{config.vocab_size}, uint64_t{config.eos_token_id}, uint64_t{impl_->layers.size()}}) {
    sha.Add(value);
  }
  for (const PleLayer& layer : impl_->layers) {
    sha.Add(layer.index.value());
    sha.Add(layer.hash.multipliers);
    sha.Add(layer.hash.head_sizes);
    sha.Add(layer.hash.head_offsets);
  }
  for (const LayerWeights& layer : weights) {
    sha.Add(layer.key_value);
    sha.Add(layer.norm_key);
    sha.Add(layer.norm_query);
    sha.Add(layer.norm_conv);
    sha.Add(layer.conv);
  }
  return sha.Hex();
}

}  // namespace pleiad
