#include "core/rows/ghost_table.h"

namespace pleiad {
namespace {

constexpr uint32_t kMaxWindowUnits = 1u << 14;
// Entries of the window for each bucket of 8: few buckets overflow, little is left empty.
constexpr uint32_t kEntriesPerBucket = 5;

uint16_t FingerprintOf(uint32_t hash) {
  const auto bits = static_cast<uint16_t>(hash);
  return bits == 0 ? 1 : bits;
}

}  // namespace

GhostTable::GhostTable(uint32_t window) : buckets_(window == 0 ? 0 : window / kEntriesPerBucket + 1) {
  while ((window >> shift_) > kMaxWindowUnits) ++shift_;
  window_units_ = window >> shift_;
}

uint32_t GhostTable::Hash(uint64_t key) {
  // The finaliser of splitmix64.
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>((key ^ (key >> 31)) >> 33);
}

void GhostTable::Put(uint32_t hash) {
  if (buckets_.empty()) return;
  ++puts_;
  for (Entry& entry : buckets_[sweep_]) {
    if (!Lives(entry)) entry = {};
  }
  sweep_ = sweep_ + 1 == buckets_.size() ? 0 : sweep_ + 1;

  Bucket& bucket = buckets_[BucketOf(hash)];
  Entry* place = &bucket[0];
  for (Entry& entry : bucket) {
    if (!Lives(entry)) {
      place = &entry;
      break;
    }
    if (Age(entry) > Age(*place)) place = &entry;
  }
  *place = {FingerprintOf(hash), Now()};
}

bool GhostTable::Take(uint32_t hash) {
  if (buckets_.empty()) return false;
  const uint16_t fingerprint = FingerprintOf(hash);
  for (Entry& entry : buckets_[BucketOf(hash)]) {
    if (entry.fingerprint == fingerprint && Lives(entry)) {
      entry = {};
      return true;
    }
  }
  return false;
}

}  // namespace pleiad
