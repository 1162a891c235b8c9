#include "core/device/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstring>

#include "absl/strings/ascii.h"

namespace pleiad {

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "?";
}

std::optional<Isa> ParseIsa(absl::string_view name) {
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (name == Name(isa)) return isa;
  }
  return std::nullopt;
}

Isa DetectIsa() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kPortable;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? Isa::kAvx512Bf16 : Isa::kAvx512;
#else
  return Isa::kPortable;
#endif
}

std::string ProcessorName() {
#if defined(__x86_64__)
  // The brand string: leaves 0x80000002 to 0x80000004, 16 bytes each.
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* w = &words[leaf * 4];
    if (!__get_cpuid(0x80000002u + leaf, &w[0], &w[1], &w[2], &w[3])) return "unknown processor";
  }
  char name[sizeof(words) + 1] = {};
  std::memcpy(name, words.data(), sizeof(words));
  return std::string(absl::StripAsciiWhitespace(name));
#else
  return "unknown processor";
#endif
}

}  // namespace pleiad
