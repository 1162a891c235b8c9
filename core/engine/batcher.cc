#include "core/engine/batcher.h"

#include <utility>

namespace pleiad {

void Batcher::Add(ReadyStep step) {
  Queue& queue = layers_[step.layer];
  const uint64_t arrival = step.arrival;
  queue.emplace(arrival, std::move(step));
  ++steps_;
}

bool Batcher::Remove(LayerOrdinal layer, uint64_t arrival) {
  const auto it = layers_.find(layer);
  if (it == layers_.end() || it->second.erase(arrival) == 0) return false;
  --steps_;
  return true;
}

std::vector<ReadyStep> Batcher::Next() {
  Queue* oldest = nullptr;
  for (auto& [layer, queue] : layers_) {
    if (queue.empty()) continue;
    if (oldest == nullptr || queue.begin()->first < oldest->begin()->first) oldest = &queue;
  }
  std::vector<ReadyStep> batch;
  if (oldest == nullptr) return batch;
  uint64_t tokens = 0;
  while (!oldest->empty()) {
    ReadyStep& step = oldest->begin()->second;
    const bool fits = tokens + step.num_tokens <= max_tokens_ && step.sharing == Sharing::kShared &&
                      (batch.empty() || batch.front().sharing == Sharing::kShared);
    if (!batch.empty() && !fits) break;
    tokens += step.num_tokens;
    batch.push_back(std::move(step));
    oldest->erase(oldest->begin());
    --steps_;
  }
  return batch;
}

}  // namespace pleiad
