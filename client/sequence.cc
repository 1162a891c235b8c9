#include "client/sequence.h"

#include <utility>

#include "client/internal/sequence_state.h"

namespace pleiad::client {
namespace {

absl::Status NoSequence() {
  return absl::FailedPreconditionError("the handle names no sequence: it was moved from, released or detached");
}

bool Aborted(const absl::Status& status) { return absl::IsAborted(status); }
template <typename T>
bool Aborted(const absl::StatusOr<T>& result) {
  return absl::IsAborted(result.status());
}

// A stream of ours that reconnects in the meantime raises the epoch: ask again with the new one.
template <typename Call>
auto WithEpoch(internal::SequenceState* state, Call call) {
  while (true) {
    const uint64_t epoch = state->epoch();
    auto result = call(epoch);
    if (!Aborted(result) || state->epoch() == epoch) return result;
  }
}

}  // namespace

Sequence::Sequence(std::shared_ptr<internal::SequenceState> state, Origin origin)
    : state_(std::move(state)), origin_(origin) {}
Sequence::Sequence(Sequence&&) noexcept = default;

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  Sequence ended(std::move(*this));
  state_ = std::move(other.state_);
  origin_ = other.origin_;
  return *this;
}

Sequence::~Sequence() {
  if (state_ != nullptr) state_->connection().ReleaseLater(state_->id(), state_->epoch());
}

SequenceId Sequence::id() const { return state_ == nullptr ? kThrowAway : state_->id(); }

absl::StatusOr<SequenceStatus> Sequence::Get() {
  if (state_ == nullptr) return NoSequence();
  return WithEpoch(state_.get(), [&](uint64_t epoch) { return state_->connection().GetSequence(state_->id(), epoch); });
}

absl::StatusOr<SequenceSnapshot> Sequence::Snapshot(std::optional<uint32_t> layer_index) {
  if (state_ == nullptr) return NoSequence();
  return WithEpoch(state_.get(),
                   [&](uint64_t epoch) { return state_->connection().Snapshot(state_->id(), epoch, layer_index); });
}

absl::Status Sequence::Restore(const SequenceSnapshot& snapshot) {
  if (state_ == nullptr) return NoSequence();
  absl::Status restored = WithEpoch(
      state_.get(), [&](uint64_t epoch) { return state_->connection().Restore(state_->id(), epoch, snapshot); });
  if (!restored.ok()) return restored;
  for (const LayerAux& layer : snapshot.layers) state_->set_carry(layer.layer_index, {layer.position.value_or(0)});
  return restored;
}

absl::StatusOr<bool> Sequence::Release() {
  if (state_ == nullptr) return NoSequence();
  absl::StatusOr<bool> released =
      WithEpoch(state_.get(), [&](uint64_t epoch) { return state_->connection().Release(state_->id(), epoch); });
  if (released.ok()) state_.reset();
  return released;
}

uint64_t Sequence::position(uint32_t layer_index) const {
  return state_ == nullptr ? 0 : state_->carry(layer_index).position;
}

SequenceId Sequence::Detach() && {
  const SequenceId id = this->id();
  state_.reset();
  return id;
}

}  // namespace pleiad::client
