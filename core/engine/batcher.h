// Which ready steps run together. Pure: no clock, no lock, no device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/strong_id.h"

namespace pleiad {

struct Op;

enum class Sharing : uint8_t { kShared, kAlone };

struct ReadyStep {
  uint64_t arrival = 0;  // unique, ascending in order of arrival
  LayerOrdinal layer;
  uint32_t num_tokens = 0;
  Sharing sharing = Sharing::kShared;
  std::shared_ptr<Op> op;
};

// Oldest ready first; a batch is of one layer and stops at the first step that does not fit; the layer with the
// oldest ready step goes next. A step that does not share runs alone.
class Batcher {
 public:
  explicit Batcher(uint32_t max_tokens) : max_tokens_(max_tokens) {}

  void Add(ReadyStep step);
  // The step leaves; false when it is not here.
  bool Remove(LayerOrdinal layer, uint64_t arrival);
  bool empty() const { return steps_ == 0; }
  // The next batch; empty when nothing is ready. A step alone above max_tokens runs by itself.
  std::vector<ReadyStep> Next();

 private:
  using Queue = std::map<uint64_t, ReadyStep>;  // by arrival

  uint32_t max_tokens_;
  size_t steps_ = 0;
  std::map<LayerOrdinal, Queue> layers_;
};

}  // namespace pleiad
