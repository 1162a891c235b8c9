// Open sequences: a pool allocated at start, found by id and by client key, ordered by last use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "core/base/strong_id.h"
#include "core/engine/carry_state.h"
#include "core/engine/op.h"

namespace pleiad {

// Rows resolved and held ahead of a step of one carry, keyed by position, fresh and tokens.
struct Prestage {
  Position position;
  StartKind kind = StartKind::kRing;  // kFresh: for a step with fresh
  TokenHistory history;               // before the first token not yet used
  absl::InlinedVector<uint32_t, 4> tokens;
  uint32_t used = 0;              // tokens consumed by steps
  std::shared_ptr<RowPlan> plan;  // other carries' too where plans hold nothing
  size_t first_row = 0;           // of the first token, into the ids of the plan

  uint32_t left() const { return static_cast<uint32_t>(tokens.size()) - used; }
};

// Steps of many sequences touch each of their carries and sequences once, cold: what they touch lies together, and is
// asked for ahead of its use.
inline constexpr size_t kCacheLine = 64;

struct alignas(kCacheLine) Carry {
  Carry(Sequence* owner, LayerOrdinal ordinal, CarrySlot place, const CarryShape& shape)
      : sequence(owner), layer(ordinal), slot(place), state(shape) {}

  Sequence* sequence;
  LayerOrdinal layer;
  CarrySlot slot;
  // A step failed; steps without a position are refused until one with a position or fresh comes.
  bool predecessor_failed = false;
  absl::InlinedVector<OpPtr, 2> queue;
  CarryState state;
  std::optional<Prestage> prestage;
};

// kFree -> kOpen -> kClosing (not to be found any more, earlier work goes on) -> kDead (nothing of it acts) -> kFree
// once its queues are empty.
enum class SequenceState : uint8_t { kFree, kOpen, kClosing, kDead };

struct alignas(kCacheLine) Sequence {
  std::vector<Carry> carries;       // [layers]
  Sequence* used_before = nullptr;  // its neighbours in the order of use
  Sequence* used_after = nullptr;
  uint64_t epoch = 0;
  absl::Time last_used;
  SequenceState state = SequenceState::kFree;
  SequenceId id;
  std::string client_key;
  std::string label;
  std::string owner;
  std::shared_ptr<const void> place;  // of its opener's, until it is closed

  bool queues_empty() const;
};

// Asks for what a step reads and writes of them.
inline void Prefetch(const Sequence* sequence) { __builtin_prefetch(sequence, 1); }
inline void Prefetch(const Carry* carry) {
  for (size_t at = 0; at < sizeof(Carry); at += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(carry) + at, 1);
  }
}

// Sequences by their own links; each is in one list at most.
class SequenceList {
 public:
  class Iterator {
   public:
    explicit Iterator(Sequence* at) : at_(at) {}
    Sequence* operator*() const { return at_; }
    Iterator& operator++() {
      at_ = at_->used_after;
      return *this;
    }
    friend bool operator==(Iterator, Iterator) = default;

   private:
    Sequence* at_;
  };

  Iterator begin() const { return Iterator(first_); }
  static Iterator end() { return Iterator(nullptr); }
  bool empty() const { return first_ == nullptr; }
  Sequence* front() const { return first_; }
  Sequence* back() const { return last_; }
  void PushFront(Sequence* sequence);
  void PushBack(Sequence* sequence);
  void Remove(Sequence* sequence);

 private:
  Sequence* first_ = nullptr;
  Sequence* last_ = nullptr;
};

// Not thread-safe: the engine's lock guards it. Pointers stay valid; a Sequence is reused after it was freed.
class SequenceTable {
 public:
  SequenceTable(uint32_t max_sequences, uint32_t layers, const CarryShape& shape);

  // O(1); null when none is free.
  Sequence* Open(SequenceId id, const std::string& client_key, absl::Time now);
  // Open sequences only.
  Sequence* Find(SequenceId id);
  // Asks for what Find reads.
  void PrefetchFind(SequenceId id) const { by_id_.prefetch(id); }
  Sequence* FindByKey(const std::string& client_key);

  // The sequence is not found any more.
  void Close(Sequence* sequence);
  // Nothing of it acts any more; it is freed as soon as its queues are empty.
  void Kill(Sequence* sequence);
  void FreeIfDead(Sequence* sequence);

  void Touch(Sequence* sequence, absl::Time now);
  // Least recently used first.
  const SequenceList& by_use() const { return by_use_; }
  uint32_t open() const { return open_; }
  // Not free: open ones and those whose end has not come yet.
  uint32_t in_use() const { return in_use_; }

 private:
  std::vector<Sequence> sequences_;
  SequenceList free_;
  SequenceList by_use_;
  absl::flat_hash_map<SequenceId, Sequence*> by_id_;
  absl::flat_hash_map<std::string, Sequence*> by_key_;
  uint32_t open_ = 0;
  uint32_t in_use_ = 0;
};

}  // namespace pleiad
