// Counts by size, as plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pleiad {

// Buckets 10 us, 20 us, ... doubling; the last catches the rest. kBounds doublings reach 10.5 s.
struct DurationHistogram {
  static constexpr int kBounds = 21;
  static constexpr double BoundSeconds(int i) { return 10e-6 * static_cast<double>(uint64_t{1} << i); }

  std::array<uint64_t, kBounds + 1> counts{};
  double sum_seconds = 0;

  void Add(double seconds);
};

// Buckets 1, 2, 4, ... 2^15 tokens; the last catches the rest.
struct TokenHistogram {
  static constexpr int kBounds = 16;
  static constexpr double Bound(int i) { return static_cast<double>(uint64_t{1} << i); }

  std::array<uint64_t, kBounds + 1> counts{};
  double sum = 0;

  void Add(uint64_t tokens);
};

}  // namespace pleiad
