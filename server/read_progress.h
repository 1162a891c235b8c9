// How fast a client takes what is sent to it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace pleiad {

// Of one stream, while answers wait for its client: it may be kPatience behind kBytesPerSecond, as on a link that other
// calls share. What it takes faster does not count for later. gRPC tells of whole answers alone. Not thread-safe.
class ReadProgress {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(5);
  static constexpr uint64_t kBytesPerSecond = 2 << 20;

  // Answers wait from now on.
  void Begin(absl::Time now);
  // One of so many bytes is being sent.
  void Sending(uint64_t bytes);
  // It has been taken.
  void Taken(absl::Time now);
  // While one is being sent.
  bool TooSlow(absl::Time now) const { return now >= due_; }

 private:
  absl::Time due_;  // for the answer that is being sent
};

}  // namespace pleiad
