// Counters of the engine as a plain snapshot; the server exports them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/rows/row_store.h"

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

struct EngineStats {
  std::vector<uint64_t> tokens;  // [layers], committed
  TokenHistogram batch_tokens;
  DurationHistogram queue, resolve, device;
  uint64_t sequences = 0;  // open now
  uint64_t sequences_opened = 0;
  uint64_t closed_released = 0, closed_expired = 0, closed_stopped = 0;
  uint64_t prestage_used = 0, prestage_partly_used = 0, prestage_dropped = 0, prestage_yielded = 0;
  uint64_t steps_in_flight = 0;
  RowStoreStats rows;
};

}  // namespace pleiad
