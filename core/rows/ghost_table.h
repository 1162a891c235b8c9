// Remembers which keys were put in of late, by fingerprint: the ghost queue of S3-FIFO. 4 bytes an entry, all taken at
// construction. A key is forgotten `window` Puts after its own, or sooner where its bucket overflows (the oldest goes);
// now and then (about one in 400 for a window of 8 million, less for smaller ones) a key is taken for another.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace pleiad {

class GhostTable {
 public:
  static constexpr uint32_t kWays = 8;

  explicit GhostTable(uint32_t window);

  // The 31 bits by which a key is known here.
  static uint32_t Hash(uint64_t key);

  void Put(uint32_t hash);
  // Whether the key is remembered; forgets it.
  bool Take(uint32_t hash);

  uint32_t buckets() const { return static_cast<uint32_t>(buckets_.size()); }
  uint32_t BucketOf(uint32_t hash) const { return static_cast<uint32_t>((uint64_t{hash} * buckets_.size()) >> 31); }

 private:
  struct Entry {
    uint16_t fingerprint = 0;  // 0: empty
    uint16_t stamp = 0;        // Now() of its Put
  };
  using Bucket = std::array<Entry, kWays>;

  // Puts so far in units that keep a window within 14 bits, so that what was forgotten is swept before stamps wrap.
  uint16_t Now() const { return static_cast<uint16_t>(puts_ >> shift_); }
  uint16_t Age(const Entry& entry) const { return static_cast<uint16_t>(Now() - entry.stamp); }
  bool Lives(const Entry& entry) const { return entry.fingerprint != 0 && Age(entry) < window_units_; }

  std::vector<Bucket> buckets_;
  uint64_t puts_ = 0;
  uint32_t shift_ = 0;
  uint32_t window_units_ = 0;
  uint32_t sweep_ = 0;  // the next bucket to sweep
};

}  // namespace pleiad
