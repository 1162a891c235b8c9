// The eviction policies again, slow and plain, written from their papers: what the real ones are judged by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "core/rows/eviction_policy.h"
#include "core/rows/ghost_table.h"
#include "core/rows/s3fifo_policy.h"

namespace pleiad::testing {

using Evictable = std::function<bool(uint32_t slot)>;

class PolicyModel {
 public:
  virtual ~PolicyModel() = default;
  virtual void Touch(uint32_t slot) = 0;
  virtual void Inserted(uint32_t slot, uint64_t key) = 0;
  virtual void Removed(uint32_t slot) = 0;
  virtual std::optional<uint32_t> Evict(const Evictable& evictable, uint32_t* steps) = 0;
};

struct ModelRow {
  uint32_t slot = 0;
  uint64_t key = 0;
  int uses = 0;
};

// The ring of slots is turned until the hand's slot lies in front.
class ClockModel : public PolicyModel {
 public:
  explicit ClockModel(uint32_t slots) {
    for (uint32_t slot = 0; slot < slots; ++slot) ring_.push_back({slot, std::nullopt});
  }
  void Touch(uint32_t slot) override {
    std::optional<int>& uses = Find(slot);
    if (uses.has_value()) uses = std::min(*uses + 1, 3);
  }
  void Inserted(uint32_t slot, uint64_t) override { Find(slot) = 0; }
  void Removed(uint32_t slot) override { Find(slot).reset(); }
  std::optional<uint32_t> Evict(const Evictable& evictable, uint32_t* steps) override {
    while (*steps > 0 && !ring_.empty()) {
      --*steps;
      ring_.push_back(ring_.front());
      ring_.pop_front();
      auto& [slot, uses] = ring_.back();
      if (!uses.has_value()) continue;
      if (*uses > 0) {
        uses = *uses - 1;
      } else if (evictable(slot)) {
        uses.reset();
        return slot;
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<int>& Find(uint32_t slot) {
    return std::find_if(ring_.begin(), ring_.end(), [&](const auto& entry) { return entry.first == slot; })->second;
  }
  std::deque<std::pair<uint32_t, std::optional<int>>> ring_;
};

// Newest row in front; the hand goes from the back to the front.
class SieveModel : public PolicyModel {
 public:
  void Touch(uint32_t slot) override {
    for (ModelRow& row : rows_) {
      if (row.slot == slot) row.uses = 1;
    }
  }
  void Inserted(uint32_t slot, uint64_t key) override { rows_.push_front({slot, key, 0}); }
  void Removed(uint32_t slot) override {
    Drop(std::find_if(rows_.begin(), rows_.end(), [&](const ModelRow& row) { return row.slot == slot; }));
  }
  std::optional<uint32_t> Evict(const Evictable& evictable, uint32_t* steps) override {
    while (*steps > 0 && !rows_.empty()) {
      --*steps;
      const auto at = hand_.has_value() ? *hand_ : std::prev(rows_.end());
      if (at->uses == 0 && evictable(at->slot)) {
        const uint32_t slot = at->slot;
        hand_ = at;
        Drop(at);
        return slot;
      }
      at->uses = 0;
      MoveHandPast(at);
    }
    return std::nullopt;
  }

 private:
  void MoveHandPast(std::list<ModelRow>::iterator at) {
    hand_.reset();
    if (at != rows_.begin()) hand_ = std::prev(at);
  }
  void Drop(std::list<ModelRow>::iterator at) {
    if (hand_ == at) MoveHandPast(at);
    rows_.erase(at);
  }
  std::list<ModelRow> rows_;
  std::optional<std::list<ModelRow>::iterator> hand_;  // absent: at the oldest
};

// Keys put in of late, the oldest in front; a bucket of the real table holds kWays of them.
class GhostModel {
 public:
  explicit GhostModel(uint32_t window) : window_(window), table_(window) {}
  void Put(uint64_t key) {
    if (window_ == 0) return;
    keys_.push_back({key, ++puts_});
    std::erase_if(keys_, [&](const auto& entry) { return puts_ - entry.second >= window_; });
    const auto in_bucket = [&](const auto& entry) { return Bucket(entry.first) == Bucket(key); };
    if (std::count_if(keys_.begin(), keys_.end(), in_bucket) > GhostTable::kWays) {
      keys_.erase(std::find_if(keys_.begin(), keys_.end(), in_bucket));
    }
  }
  bool Take(uint64_t key) {
    return std::erase_if(keys_, [&](const auto& entry) { return entry.first == key; }) > 0;
  }

 private:
  uint32_t Bucket(uint64_t key) const { return table_.BucketOf(GhostTable::Hash(key)); }
  const uint64_t window_;
  const GhostTable table_;  // only for its buckets
  std::deque<std::pair<uint64_t, uint64_t>> keys_;
  uint64_t puts_ = 0;
};

class S3FifoModel : public PolicyModel {
 public:
  explicit S3FifoModel(uint32_t slots)
      : small_target_(std::max(slots / 10, 1u)), ghosts_(slots < 2 ? 0 : slots - small_target_) {}
  void Touch(uint32_t slot) override {
    for (std::deque<ModelRow>* queue : {&small_, &main_}) {
      for (ModelRow& row : *queue) {
        if (row.slot == slot) row.uses = std::min(row.uses + 1, 3);
      }
    }
  }
  void Inserted(uint32_t slot, uint64_t key) override {
    (ghosts_.Take(key) ? main_ : small_).push_back({slot, key, 0});
  }
  void Removed(uint32_t slot) override {
    for (std::deque<ModelRow>* queue : {&small_, &main_}) {
      std::erase_if(*queue, [&](const ModelRow& row) { return row.slot == slot; });
    }
  }
  std::optional<uint32_t> Evict(const Evictable& evictable, uint32_t* steps) override {
    size_t stuck_small = 0, stuck_main = 0;  // rows in a row that could not go
    while (*steps > 0 && !(small_.empty() && main_.empty())) {
      const bool small_open = stuck_small < small_.size(), main_open = stuck_main < main_.size();
      if (!small_open && !main_open) stuck_small = stuck_main = 0;
      bool small = small_.size() >= small_target_ || main_.empty();
      if (small_open && !main_open) small = true;
      if (!small_open && main_open) small = false;
      --*steps;
      std::deque<ModelRow>& queue = small ? small_ : main_;
      ModelRow row = queue.front();
      queue.pop_front();
      if (small && row.uses > 0) {
        row.uses = 0;
        main_.push_back(row);
      } else if (row.uses > 0) {
        --row.uses;
        main_.push_back(row);
      } else if (evictable(row.slot)) {
        if (small) ghosts_.Put(row.key);
        return row.slot;
      } else {
        ++(small ? stuck_small : stuck_main);
        queue.push_back(row);
      }
    }
    return std::nullopt;
  }

 private:
  const size_t small_target_;
  std::deque<ModelRow> small_, main_;
  GhostModel ghosts_;
};

inline std::unique_ptr<PolicyModel> CreateModel(PolicyKind kind, uint32_t slots) {
  switch (kind) {
    case PolicyKind::kClock:
      return std::make_unique<ClockModel>(slots);
    case PolicyKind::kSieve:
      return std::make_unique<SieveModel>();
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoModel>(slots);
  }
  return nullptr;
}

}  // namespace pleiad::testing
