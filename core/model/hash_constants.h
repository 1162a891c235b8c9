// The constants of the n-gram hash of one PLE layer, derived from the config.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/strong_id.h"
#include "core/model/config.h"

namespace pleiad {

struct HashConstants {
  std::vector<uint64_t> multipliers;   // [N], odd
  std::vector<uint64_t> head_sizes;    // [heads], primes
  std::vector<uint64_t> head_offsets;  // [heads], running sum of head_sizes
  uint64_t usable_rows = 0;            // sum of head_sizes: no id reaches it
  uint64_t padded_rows = 0;            // rounded up to a multiple of the divisor

  friend bool operator==(const HashConstants&, const HashConstants&) = default;
};

// splitmix64 multipliers and consecutive primes, as the reference of the Transformers library (5.17) makes them.
// `config` has passed Validate().
HashConstants DeriveHashConstants(const ModelConfig& config, LayerOrdinal layer);

}  // namespace pleiad
