#include "server/read_progress.h"

#include <algorithm>

namespace pleiad {

void ReadProgress::Begin(absl::Time now) { due_ = now + kPatience; }

void ReadProgress::Sending(uint64_t bytes) { due_ += absl::Seconds(static_cast<double>(bytes) / kBytesPerSecond); }

void ReadProgress::Taken(absl::Time now) { due_ = std::clamp(due_, now, now + kPatience); }

}  // namespace pleiad
