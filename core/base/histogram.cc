#include "core/base/histogram.h"

namespace pleiad {

void DurationHistogram::Add(double seconds) {
  int bucket = 0;
  while (bucket < kBounds && seconds > BoundSeconds(bucket)) ++bucket;
  ++counts[static_cast<size_t>(bucket)];
  sum_seconds += seconds;
}

void TokenHistogram::Add(uint64_t tokens) {
  int bucket = 0;
  while (bucket<kBounds&& static_cast<double>(tokens)> Bound(bucket)) ++bucket;
  ++counts[static_cast<size_t>(bucket)];
  sum += static_cast<double>(tokens);
}

}  // namespace pleiad
