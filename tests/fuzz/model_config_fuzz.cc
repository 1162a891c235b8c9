// Any bytes as config.json: refused, or a config whose derived sizes are all usable.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = pleiad::ParseModelConfig({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) {
    if (config.status().message().empty()) std::abort();
    return 0;
  }
  const pleiad::Geometry& g = config->geometry;
  if (!config->Validate().ok()) std::abort();
  if (g.heads() == 0 || g.head_dim() == 0 || g.head_dim() * g.heads() != g.embed_dim || g.channels() == 0) std::abort();
  if (config->eos_token_id >= config->vocab_size || config->ple_layers.empty()) std::abort();
  for (const pleiad::LayerIndex layer : config->ple_layers) {
    if (layer.value() >= config->num_hidden_layers || !config->Ordinal(layer)) std::abort();
  }
  return 0;
}
