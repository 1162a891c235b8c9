#include "core/engine/sequence_table.h"

namespace pleiad {

bool Sequence::queues_empty() const {
  for (const Carry& carry : carries) {
    if (!carry.queue.empty()) return false;
  }
  return true;
}

void SequenceList::PushFront(Sequence* sequence) {
  sequence->used_before = nullptr;
  sequence->used_after = first_;
  (first_ != nullptr ? first_->used_before : last_) = sequence;
  first_ = sequence;
}

void SequenceList::PushBack(Sequence* sequence) {
  sequence->used_before = last_;
  sequence->used_after = nullptr;
  (last_ != nullptr ? last_->used_after : first_) = sequence;
  last_ = sequence;
}

void SequenceList::Remove(Sequence* sequence) {
  (sequence->used_before != nullptr ? sequence->used_before->used_after : first_) = sequence->used_after;
  (sequence->used_after != nullptr ? sequence->used_after->used_before : last_) = sequence->used_before;
  sequence->used_before = sequence->used_after = nullptr;
}

SequenceTable::SequenceTable(uint32_t max_sequences, uint32_t layers, const CarryShape& shape)
    : sequences_(max_sequences) {
  uint32_t slot = 0;
  for (Sequence& sequence : sequences_) {
    sequence.carries.reserve(layers);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      sequence.carries.emplace_back(&sequence, LayerOrdinal(layer), CarrySlot(slot++), shape);
    }
    free_.PushBack(&sequence);
  }
  by_id_.reserve(max_sequences);
  by_key_.reserve(max_sequences);
}

Sequence* SequenceTable::Open(SequenceId id, const std::string& client_key, absl::Time now) {
  if (free_.empty()) return nullptr;
  Sequence* sequence = free_.front();
  free_.Remove(sequence);
  by_use_.PushBack(sequence);
  sequence->id = id;
  sequence->state = SequenceState::kOpen;
  sequence->epoch = 0;
  sequence->client_key.assign(client_key);
  sequence->label.clear();
  sequence->owner.clear();
  sequence->last_used = now;
  for (Carry& carry : sequence->carries) {
    carry.state.Reset();
    carry.predecessor_failed = false;
  }
  by_id_.emplace(id, sequence);
  if (!client_key.empty()) by_key_.emplace(sequence->client_key, sequence);
  ++open_;
  ++in_use_;
  return sequence;
}

Sequence* SequenceTable::Find(SequenceId id) {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

Sequence* SequenceTable::FindByKey(const std::string& client_key) {
  const auto it = by_key_.find(client_key);
  return it == by_key_.end() ? nullptr : it->second;
}

void SequenceTable::Close(Sequence* sequence) {
  if (sequence->state != SequenceState::kOpen) return;
  sequence->state = SequenceState::kClosing;
  sequence->place = nullptr;
  by_id_.erase(sequence->id);
  if (!sequence->client_key.empty()) by_key_.erase(sequence->client_key);
  --open_;
}

void SequenceTable::Kill(Sequence* sequence) {
  Close(sequence);
  sequence->state = SequenceState::kDead;
  FreeIfDead(sequence);
}

void SequenceTable::FreeIfDead(Sequence* sequence) {
  if (sequence->state != SequenceState::kDead || !sequence->queues_empty()) return;
  sequence->state = SequenceState::kFree;
  sequence->id = SequenceId(0);
  by_use_.Remove(sequence);
  free_.PushFront(sequence);
  --in_use_;
}

void SequenceTable::Touch(Sequence* sequence, absl::Time now) {
  sequence->last_used = now;
  if (by_use_.back() == sequence) return;
  by_use_.Remove(sequence);
  by_use_.PushBack(sequence);
}

}  // namespace pleiad
