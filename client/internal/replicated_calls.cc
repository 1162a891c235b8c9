// Calls about whole sequences, and the thread that takes snapshots.
#include <algorithm>

#include "client/error_info.h"
#include "client/internal/replicated_core.h"

namespace pleiad::client::internal {
namespace {

const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

absl::Status Released() { return absl::FailedPreconditionError("the handle names no sequence: it was released"); }

}  // namespace

absl::StatusOr<ReplicatedCore::SitePtr> ReplicatedCore::AwaitSite() {
  if (site_ == nullptr && !holding_) Lose(nullptr);
  while (holding_ && !stopping_) changed_.Wait(&mutex_);
  if (stopping_) return absl::CancelledError("the client was closed");
  if (site_ == nullptr) return gave_up_;
  return site_;
}

template <typename Call>
auto ReplicatedCore::OnSite(const RecordPtr& record, Call call) -> decltype(call(record->handle)) {
  for (uint32_t losses = 0;; ++losses) {
    SitePtr site;
    std::shared_ptr<Sequence> handle;
    {
      MutexLock lock(&mutex_);
      absl::StatusOr<SitePtr> found = AwaitSite();
      if (!found.ok()) return found.status();
      if (record->handle == nullptr) return Released();
      site = *std::move(found);
      handle = record->handle;
    }
    auto result = call(handle);
    Verdict verdict = result.ok() ? Verdict::kFinal : Judge(StatusOf(result));
    if (absl::IsDeadlineExceeded(StatusOf(result)) && on()) {
      MutexLock lock(&mutex_);
      if (IsGone(site)) verdict = Verdict::kLost;
    }
    if (verdict == Verdict::kFinal || !on() || losses == options_.max_losses_of_a_step) return result;
    MutexLock lock(&mutex_);
    if (record->handle != handle) continue;
    if (verdict == Verdict::kLost) {
      Lose(site.get());
    } else {
      Forget(record.get());
    }
  }
}

bool ReplicatedCore::IsGone(const SitePtr& site) {
  if (site == site_ && !lost_) {
    probe_ = true;
    work_.NotifyAll();
    while (probe_ && site == site_ && !lost_ && !stopping_) changed_.Wait(&mutex_);
  }
  return lost_ || site != site_;
}

absl::Status ReplicatedCore::Adopt(ReplicatedRecord* record, Sequence* sequence,
                                   const std::vector<LayerAux>& layers) const {
  record->fresh = sequence->fresh();
  for (const LayerInfo& layer : model_.layers) {
    ReplicatedCarry& carry = record->carries.emplace(layer.layer_index, shape_).first->second;
    for (const LayerAux& blob : layers) {
      if (sequence->fresh() && blob.layer_index == layer.layer_index) carry.log.Rebase(blob);
    }
    if (!sequence->fresh()) {
      const absl::StatusOr<SequenceSnapshot> snapshot = sequence->Snapshot(layer.layer_index);
      if (!snapshot.ok()) return snapshot.status();
      for (const LayerAux& blob : snapshot->layers) carry.log.Rebase(blob);
    }
    carry.next = carry.snapshot_at = carry.log.end();
  }
  return absl::OkStatus();
}

absl::StatusOr<ReplicatedCore::RecordPtr> ReplicatedCore::Open(const OpenOptions& options) {
  for (uint32_t losses = 0;; ++losses) {
    SitePtr site;
    {
      MutexLock lock(&mutex_);
      absl::StatusOr<SitePtr> found = AwaitSite();
      if (!found.ok()) return found.status();
      site = *std::move(found);
    }
    absl::Status status;
    auto record = std::make_shared<ReplicatedRecord>();
    // A server that was started anew with another model is left.
    OpenOptions checked = options;
    if (checked.model_id.empty()) checked.model_id = model_.model_id;
    absl::StatusOr<Sequence> opened = site->client->OpenSequence(checked);
    if (opened.ok()) {
      record->options = options;
      record->options.layers.clear();
      status = Adopt(record.get(), &*opened, options.layers);
    } else {
      status = opened.status();
    }
    MutexLock lock(&mutex_);
    const bool other_model = ErrorReason(status) == Reason::kModelMismatch && checked.model_id == model_.model_id;
    const bool gone =
        absl::IsUnavailable(status) || other_model || (absl::IsDeadlineExceeded(status) && on() && IsGone(site));
    if (!status.ok() && (!gone || !on() || losses == options_.max_losses_of_a_step)) return status;
    if (status.ok() && site == site_ && !holding_) {
      record->handle = std::make_shared<Sequence>(*std::move(opened));
      record->id = record->handle->id();
      record->site = site->number;
      record->replica = site->replica;
      records_.insert(record);
      return record;
    }
    if (status.ok()) {
      Discard(std::make_shared<Sequence>(*std::move(opened)));
    } else if (ErrorReason(status) == Reason::kDraining && site == site_) {
      draining_ = true;
      leaves_unreadable_ = false;
      drain_at_ = absl::InfinitePast();
      work_.NotifyAll();
      const uint64_t tries = drain_tries_;
      while (tries == drain_tries_ && site == site_ && !stopping_) changed_.Wait(&mutex_);
    } else {
      Lose(site.get());
    }
  }
}

absl::StatusOr<SequenceSnapshot> ReplicatedCore::Snapshot(const RecordPtr& record,
                                                          std::optional<uint32_t> layer_index) {
  return OnSite(record, [&](const std::shared_ptr<Sequence>& handle) { return handle->Snapshot(layer_index); });
}

absl::Status ReplicatedCore::Restore(const RecordPtr& record, const SequenceSnapshot& snapshot) {
  std::shared_ptr<Sequence> restored;
  while (true) {
    const absl::Status status = OnSite(record, [&](const std::shared_ptr<Sequence>& handle) {
      restored = handle;
      return handle->Restore(snapshot);
    });
    if (!status.ok()) return status;
    MutexLock lock(&mutex_);
    while (holding_ && !stopping_) changed_.Wait(&mutex_);
    if (stopping_) return absl::CancelledError("the client was closed");
    // Else a move that overlapped has built the old state.
    if (record->handle != restored && record->handle != nullptr) continue;
    for (const LayerAux& blob : snapshot.layers) {
      const auto it = record->carries.find(blob.layer_index);
      if (it == record->carries.end()) continue;
      ReplicatedCarry& carry = it->second;
      carry.log.Rebase(blob);
      carry.next = carry.snapshot_at = carry.log.end();
      carry.needs_start = false;
      carry.lowest_start = 0;
    }
    return absl::OkStatus();
  }
}

absl::StatusOr<bool> ReplicatedCore::Release(const RecordPtr& record) {
  absl::StatusOr<bool> released =
      OnSite(record, [](const std::shared_ptr<Sequence>& handle) { return handle->Release(); });
  if (released.ok()) ReleaseLater(record);
  return released;
}

void ReplicatedCore::ReleaseLater(const RecordPtr& record) {
  MutexLock lock(&mutex_);
  record->released = true;
  records_.erase(record);
  if (draining_ && site_ != nullptr && record->site == site_->number) site_->released.push_back(record->id);
  if (record->handle != nullptr && !stopping_) Discard(std::move(record->handle));
  record->handle = nullptr;
}

void ReplicatedCore::Discard(std::shared_ptr<void> garbage) {
  garbage_.push_back(std::move(garbage));
  tend_.NotifyAll();
}

void ReplicatedCore::TendLoop() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (!garbage_.empty()) {
      std::vector<std::shared_ptr<void>> garbage = std::exchange(garbage_, {});
      mutex_.Unlock();
      garbage.clear();
      mutex_.Lock();
    } else if (!snapshots_.empty()) {
      const auto [record, layer] = snapshots_.front();
      snapshots_.pop_front();
      TakeSnapshot(record, layer);
    } else {
      tend_.Wait(&mutex_);
    }
  }
}

void ReplicatedCore::TakeSnapshot(const RecordPtr& record, uint32_t layer) {
  ReplicatedCarry& carry = record->carries.at(layer);
  const SitePtr site = site_;
  carry.lowest_start = UINT64_MAX;
  std::shared_ptr<Sequence> handle = record->handle;
  absl::StatusOr<SequenceSnapshot> snapshot = absl::CancelledError();
  if (handle != nullptr && site != nullptr && !holding_ && carry.rewinds_out == 0) {
    mutex_.Unlock();
    snapshot = handle->Snapshot(layer);
    handle = nullptr;
    mutex_.Lock();
  }
  carry.snapshot_wanted = false;
  // While steps are held back the log is being read. What a rewind takes back may be in it or not.
  if (!snapshot.ok() || holding_ || site != site_ || record->gone) return;
  for (LayerAux& blob : snapshot->layers) {
    if (blob.position.value_or(0) > carry.lowest_start) continue;
    ++counters_.snapshots;
    carry.log.Offer(std::move(blob));
  }
}

}  // namespace pleiad::client::internal
