// Open sequences: a pool allocated at start, found by id and by client key, ordered by last use.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "core/base/strong_id.h"
#include "core/engine/carry_state.h"
#include "core/engine/op.h"

namespace pleiad {

// Rows resolved and held ahead of a step of one carry, keyed by position, fresh and tokens.
struct Prestage {
  Position position;
  StartKind kind = StartKind::kRing;  // kFresh: for a step with fresh
  std::vector<uint32_t> history;      // before the first token not yet used
  std::vector<uint32_t> tokens;
  uint32_t used = 0;  // tokens consumed by steps
  std::unique_ptr<RowPlan> plan;

  uint32_t left() const { return static_cast<uint32_t>(tokens.size()) - used; }
};

struct Carry {
  Carry(Sequence* owner, LayerOrdinal ordinal, CarrySlot place, const CarryShape& shape)
      : sequence(owner), layer(ordinal), slot(place), state(shape) {}

  Sequence* sequence;
  LayerOrdinal layer;
  CarrySlot slot;
  CarryState state;
  std::deque<OpPtr> queue;
  // A step failed; steps without a position are refused until one with a position or fresh comes.
  bool predecessor_failed = false;
  std::optional<Prestage> prestage;
};

// kFree -> kOpen -> kClosing (not to be found any more, earlier work goes on) -> kDead (nothing of it acts) -> kFree
// once its queues are empty.
enum class SequenceState : uint8_t { kFree, kOpen, kClosing, kDead };

struct Sequence {
  SequenceId id;
  SequenceState state = SequenceState::kFree;
  uint64_t epoch = 0;
  std::string client_key;
  std::string label;
  std::string owner;
  std::shared_ptr<const void> place;  // of its opener's, until it is closed
  absl::Time last_used;
  std::vector<Carry> carries;  // [layers]
  std::list<Sequence*>::iterator use_order;

  bool queues_empty() const;
};

// Not thread-safe: the engine's lock guards it. Pointers stay valid; a Sequence is reused after it was freed.
class SequenceTable {
 public:
  SequenceTable(uint32_t max_sequences, uint32_t layers, const CarryShape& shape);

  // O(1); null when none is free.
  Sequence* Open(SequenceId id, const std::string& client_key, absl::Time now);
  // Open sequences only.
  Sequence* Find(SequenceId id);
  Sequence* FindByKey(const std::string& client_key);

  // The sequence is not found any more.
  void Close(Sequence* sequence);
  // Nothing of it acts any more; it is freed as soon as its queues are empty.
  void Kill(Sequence* sequence);
  void FreeIfDead(Sequence* sequence);

  void Touch(Sequence* sequence, absl::Time now);
  // Least recently used first.
  const std::list<Sequence*>& by_use() const { return by_use_; }
  uint32_t open() const { return open_; }
  // Not free: open ones and those whose end has not come yet.
  uint32_t in_use() const { return in_use_; }

 private:
  std::vector<Sequence> sequences_;
  std::list<Sequence*> free_;
  std::list<Sequence*> by_use_;
  absl::flat_hash_map<SequenceId, Sequence*> by_id_;
  absl::flat_hash_map<std::string, Sequence*> by_key_;
  uint32_t open_ = 0;
  uint32_t in_use_ = 0;
};

}  // namespace pleiad
