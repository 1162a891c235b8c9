// Models for the oracle: read from a small checkpoint, or made up.
#pragma once

#include <cstdint>
#include <string>

#include "tests/oracle/oracle.h"

namespace pleiad::oracle {

// The PLE layer with one-based id `layer_id` (as config.json lists it) of the checkpoint in `directory`. Reads every
// file whole, so for small checkpoints only. The buffers stored in the file replace the derived hash numbers.
Model LoadModel(const std::string& directory, uint32_t layer_id);

// Random weights and a random BF16 table of `numbers.padded_rows` rows, made from `seed`, sized so that no term of
// the formula vanishes.
Model RandomModel(const HashConfig& hash, const Shape& shape, uint64_t seed);

// [count] normal values as FP32 would hold them.
std::vector<double> RandomValues(size_t count, double deviation, uint64_t seed);

}  // namespace pleiad::oracle
