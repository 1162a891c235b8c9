// Seeded random contents of synthetic tensors: a pure function of seed and place, written a buffer at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/base/numeric.h"

namespace pleiad {

// Words `first_word` and on of the stream `seed`, 8 bytes each; `bytes` holds whole words. Finite values in any
// dtype: BF16 of magnitude 2^-8 to 2^-4, E4M3 below 2, F32 of magnitude 2^-8 to 2^-4.
void FillRandomRows(DType dtype, uint64_t seed, uint64_t first_word, absl::Span<std::byte> bytes);

// Uniform BF16 in [-limit, limit), values `first` and on of the stream `seed`.
void FillUniformBf16(float limit, uint64_t seed, uint64_t first, absl::Span<Bf16> values);

}  // namespace pleiad
