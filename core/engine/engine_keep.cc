// Sequences that outlive the process: given away when it has stopped, taken back before it serves.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/engine/engine_impl.h"

namespace pleiad {

absl::Status EngineImpl::GiveSequences(const SequenceSink& sink) {
  MutexLock lock(&mutex_);
  if (!exit_completion_) return absl::FailedPreconditionError("the engine has not stopped");
  if (!device_status_.ok()) return device_status_;
  const CarryShape shape = ShapeOf(model_, options_);
  const size_t channels = model_.config.geometry.channels();
  std::vector<float> rows((size_t{shape.ring_rows()} + shape.state_len) * channels);
  const absl::Time now = clock_->Now();
  for (const Sequence* sequence : sequences_.by_use()) {
    if (sequence->state != SequenceState::kOpen) continue;  // its release has come
    KeptSequence kept;
    kept.id = sequence->id;
    kept.epoch = sequence->epoch;
    kept.idle = std::max(absl::ZeroDuration(), now - sequence->last_used);
    kept.client_key = sequence->client_key;
    kept.label = sequence->label;
    kept.owner = sequence->owner;
    for (const Carry& carry : sequence->carries) {
      PLEIAD_RETURN_IF_ERROR(device_->SaveCarry(carry.slot, absl::MakeSpan(rows)));
      kept.carries.push_back(KeepCarry(carry.state.Image(), rows, shape, channels));
      kept.carries.back().predecessor_failed = carry.predecessor_failed;
    }
    PLEIAD_RETURN_IF_ERROR(sink(kept));
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::TakeBack(KeptSequence kept, absl::Span<float> rows) {
  const CarryShape shape = ShapeOf(model_, options_);
  const size_t channels = model_.config.geometry.channels();
  if (kept.id == SequenceId(0) || sequences_.Find(kept.id) != nullptr) {
    return absl::DataLossError("a sequence without an id of its own");
  }
  if (!kept.client_key.empty() && sequences_.FindByKey(kept.client_key) != nullptr) {
    return absl::DataLossError("two sequences with one client_key");
  }
  if (kept.carries.size() != model_.config.ple_layers.size()) {
    return absl::DataLossError("a sequence with another number of layers");
  }
  Sequence* sequence = sequences_.Open(kept.id, kept.client_key, clock_->Now() - kept.idle);
  if (sequence == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("more than ", options_.max_sequences, " sequences"));
  }
  sequence->epoch = kept.epoch;
  sequence->label = std::move(kept.label);
  sequence->owner = std::move(kept.owner);
  sequence->place = std::move(kept.place);
  for (size_t i = 0; i < kept.carries.size(); ++i) {
    KeptCarry& from = kept.carries[i];
    Carry& to = sequence->carries[i];
    FitRollback(from, shape, channels);
    PLEIAD_RETURN_IF_ERROR(CheckKept(from, shape, channels, model_.config.vocab_size));
    PlaceRows(from, shape, channels, rows);
    PLEIAD_RETURN_IF_ERROR(device_->LoadCarry(to.slot, rows));
    to.state.Adopt(from.state);
    to.predecessor_failed = from.predecessor_failed;
  }
  WakeTimerBy(sequence->last_used + options_.sequence_ttl);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> EngineImpl::TakeSequences(const SequenceSource& source) {
  const CarryShape shape = ShapeOf(model_, options_);
  std::vector<float> rows((size_t{shape.ring_rows()} + shape.state_len) * model_.config.geometry.channels());
  uint64_t taken = 0;
  absl::Status status;
  while (true) {
    absl::StatusOr<std::optional<KeptSequence>> next = source();
    status = next.status();
    if (!status.ok() || !next->has_value()) break;
    Section section(this);
    status = TakeBack(**std::move(next), absl::MakeSpan(rows));
    if (!status.ok()) break;
    ++taken;
  }
  Section section(this);
  if (status.ok()) {
    stats_.sequences_opened += taken;
    return taken;
  }
  uint64_t not_counted = 0;
  while (sequences_.in_use() > 0) EndSequence(section, sequences_.by_use().front(), not_counted);
  return status;
}

}  // namespace pleiad
