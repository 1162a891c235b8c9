// Instruction sets the CPU home has kernels for.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace pleiad {

// Ascending: each has all before it.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

const char* Name(Isa isa);

// "portable", "avx2", "avx512", "avx512_bf16".
std::optional<Isa> ParseIsa(absl::string_view name);

// The best this processor and system offer.
Isa DetectIsa();

// The processor's own name, or "unknown processor".
std::string ProcessorName();

}  // namespace pleiad
