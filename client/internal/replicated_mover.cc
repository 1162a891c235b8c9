// The mover's thread.
#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/replicated_core.h"

namespace pleiad::client::internal {

// A site with a last step on its way; blocks as it ends, until that is answered or for `timeout`.
class ReplicatedCore::LeftSite {
 public:
  LeftSite(SitePtr site, std::future<void> answer, absl::Duration timeout)
      : site_(std::move(site)), answer_(std::move(answer)), timeout_(timeout) {}
  ~LeftSite() { answer_.wait_for(absl::ToChronoNanoseconds(timeout_)); }

 private:
  const SitePtr site_;
  const std::future<void> answer_;
  const absl::Duration timeout_;
};

absl::Status ReplicatedCore::Start() {
  const absl::Time deadline = Now() + options_.give_up_after;
  absl::Status status;
  MutexLock lock(&mutex_);
  while (true) {
    const absl::Time now = Now();
    if (const std::optional<size_t> next = replicas_.Next(now); next.has_value()) {
      mutex_.Unlock();
      absl::StatusOr<SitePtr> site = Reach(*next);
      mutex_.Lock();
      if (site.ok()) {
        model_ = (*site)->client->model();
        shape_ = LogShape(model_, options_.max_log_bytes);
        UseSite(*std::move(site));
        break;
      }
      status = site.status();
      replicas_.Failed(*next, Now());
    }
    if (Now() >= deadline) return status;
    clock_->WaitUntil(&work_, &mutex_, std::min(deadline, replicas_.NextAt()));
  }
  mover_ = std::thread([this] { MoveLoop(); });
  tender_ = std::thread([this] { TendLoop(); });
  return absl::OkStatus();
}

void ReplicatedCore::Stop() {
  std::vector<std::shared_ptr<Sequence>> handles;
  SitePtr site;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    work_.NotifyAll();
    tend_.NotifyAll();
  }
  if (mover_.joinable()) mover_.join();
  if (tender_.joinable()) tender_.join();
  MutexLock lock(&mutex_);
  site = std::exchange(site_, nullptr);
  if (site != nullptr) Leave(site);
  FailWaiting(absl::CancelledError("the client was closed"));
  for (const RecordPtr& record : records_) {
    if (record->handle != nullptr) handles.push_back(std::move(record->handle));
    record->handle = nullptr;
  }
  records_.clear();
  snapshots_.clear();
  std::vector<std::shared_ptr<void>> garbage = std::move(garbage_);
  mutex_.Unlock();
  garbage.clear();
  handles.clear();
  site = nullptr;
  mutex_.Lock();
}

void ReplicatedCore::MoveLoop() {
  MutexLock lock(&mutex_);
  while (true) {
    AwaitWork();
    if (stopping_) return;
    if (lost_) {
      MoveAfterLoss();
    } else if (forgotten_) {
      Mend();
    } else if (draining_) {
      MoveFromDraining();
    } else {
      MoveBack();
    }
    changed_.NotifyAll();
  }
}

void ReplicatedCore::AwaitWork() {
  while (!stopping_ && !lost_ && !forgotten_) {
    const absl::Time now = Now();
    if (draining_ ? drain_at_ <= now : on() && site_ != nullptr && back_at_ <= now) return;
    if (std::exchange(unreadable_, false) && site_ != nullptr && !draining_) {
      LeaveUnlessReady();
      continue;
    }
    const bool awaits = site_ != nullptr && out_ > 0;
    if (on() && site_ != nullptr && (probe_ || (awaits && now - heard_ >= options_.stall_timeout))) {
      Probe();
      probe_ = false;
      changed_.NotifyAll();
      continue;
    }
    probe_ = false;
    absl::Time until = (awaits ? heard_ : now) + options_.stall_timeout;
    if (draining_) until = std::min(until, drain_at_);
    if (on() && site_ != nullptr && !draining_) until = std::min(until, back_at_);
    clock_->WaitUntil(&work_, &mutex_, until);
  }
}

bool ReplicatedCore::AwaitHome() {
  while (!lost_ && !stopping_ && (out_ > 0 || site_->entered > 0)) {
    if (Now() - heard_ >= options_.stall_timeout) {
      Probe();
    } else {
      clock_->WaitUntil(&changed_, &mutex_, heard_ + options_.stall_timeout);
    }
  }
  return !lost_ && !stopping_;
}

void ReplicatedCore::Leave(const SitePtr& site) {
  mutex_.Unlock();
  site->stream->Close();
  mutex_.Lock();
  while (out_ > 0 || site->entered > 0) changed_.Wait(&mutex_);
}

void ReplicatedCore::MoveAfterLoss() {
  holding_ = true;
  const absl::Time since = lost_at_, deadline = Now() + options_.give_up_after;
  if (const SitePtr old = std::exchange(site_, nullptr); old != nullptr) {
    Leave(old);
    replicas_.Failed(old->replica, Now());
    Discard(old);
  }
  lost_ = forgotten_ = draining_ = leaves_unreadable_ = false;
  drain_at_ = absl::InfinitePast();
  absl::Status status = absl::UnavailableError("no replica may be tried: the retry budget is spent");
  while (!stopping_) {
    absl::Time now = Now();
    const std::optional<size_t> next = replicas_.Next(now);
    if (next.has_value() && budget_.Take(now)) {
      mutex_.Unlock();
      absl::StatusOr<SitePtr> site = Reach(*next);
      status = site.ok() ? BuildAll(*site) : site.status();
      mutex_.Lock();
      if (status.ok()) {
        UseSite(*std::move(site));
        break;
      }
      now = Now();
      replicas_.Failed(*next, now);
      ++counters_.failed_attempts;
      if (site.ok()) Discard(*std::move(site));
    } else if (now < deadline) {
      clock_->WaitUntil(&work_, &mutex_, std::min(deadline, next ? budget_.NextAt(now) : replicas_.NextAt()));
      continue;
    }
    if (now >= deadline) break;
  }
  if (site_ != nullptr) {
    ++counters_.moves;
    counters_.last_move = Now() - since;
    counters_.longest_move = std::max(counters_.longest_move, counters_.last_move);
    SendWaiting();
  } else if (!stopping_) {
    ++counters_.given_up;
    gave_up_ = absl::UnavailableError(absl::StrCat("no replica in ", absl::FormatDuration(options_.give_up_after),
                                                   "; the last one: ", status.ToString()));
    counters_.failures += pending_.size();
    FailWaiting(gave_up_);
    // Those that callbacks have submitted meanwhile ask again.
    holding_ = false;
    if (!pending_.empty()) Lose(nullptr);
  }
}

void ReplicatedCore::MoveFromDraining() {
  const SitePtr old = site_;
  ++drain_tries_;
  if (leaves_unreadable_) {
    // A drain is for good; a table may be readable again.
    const Readiness readiness = ReadinessOf(old);
    if (old != site_ || lost_ || stopping_) return;
    if (leaves_unreadable_ && readiness == Readiness::kReady) {
      draining_ = leaves_unreadable_ = false;
      return;
    }
  }
  const absl::Time now = Now();
  std::optional<size_t> next = replicas_.Next(now, old->replica);
  // Where the address is a balancer's, a new connection ends at another server.
  if (!next.has_value()) next = replicas_.Next(now);
  if (!next.has_value() || !budget_.Take(now)) {
    drain_at_ = std::clamp(replicas_.NextAt(), now + options_.initial_backoff, now + options_.max_backoff);
    return;
  }
  MoveTo(*next, &ReplicatedCounters::drain_moves);
}

void ReplicatedCore::MoveBack() {
  const SitePtr site = site_;
  back_at_ = NextLookBack();
  // Each is tried: names that are not there may come before one that is back.
  for (const size_t replica : replicas_.Before(site->replica, Now())) {
    if (site != site_ || lost_ || forgotten_ || draining_ || stopping_ || !budget_.Take(Now())) return;
    MoveTo(replica, &ReplicatedCounters::moves_back);
  }
}

void ReplicatedCore::MoveTo(size_t replica, uint64_t ReplicatedCounters::*moves) {
  const SitePtr old = site_;
  mutex_.Unlock();
  absl::StatusOr<SitePtr> site = Reach(replica);
  absl::Status status = site.status();
  mutex_.Lock();
  if (status.ok()) {
    holding_ = true;
    if (AwaitHome() && !forgotten_) {
      std::vector<SequenceId> had = SequencesAt(*old);
      mutex_.Unlock();
      status = BuildAll(*site);
      mutex_.Lock();
      if (status.ok()) {
        ++(counters_.*moves);
        if (draining_) replicas_.Failed(old->replica, Now());
        lost_ = draining_ = leaves_unreadable_ = false;
        UseSite(*std::move(site));
        ReleaseOnStream(old, std::move(had));
        SendWaiting();
        return;
      }
    }
    Discard(*std::move(site));
  }
  if (!status.ok()) {
    replicas_.Failed(replica, Now());
    ++counters_.failed_attempts;
  }
  if (!lost_ && !forgotten_) SendWaiting();
}

std::vector<SequenceId> ReplicatedCore::SequencesAt(const Site& site) {
  std::vector<SequenceId> ids;
  for (const RecordPtr& record : records_) {
    if (record->site == site.number && record->handle != nullptr) ids.push_back(record->id);
  }
  return ids;
}

void ReplicatedCore::ReleaseOnStream(const SitePtr& left, std::vector<SequenceId> had) {
  had.insert(had.end(), left->released.begin(), left->released.end());
  // A live client key gave the same sequence back.
  for (const SequenceId kept : SequencesAt(*site_)) had.erase(std::remove(had.begin(), had.end(), kept), had.end());
  if (had.empty()) return Discard(left);
  Step step;
  if (!model_.layers.empty()) step.layer_index = model_.layers[0].layer_index;
  step.highway.zeros = true;
  step.release_after = std::move(had);
  auto answer = std::make_shared<std::promise<void>>();
  mutex_.Unlock();
  left->stream->SubmitLater(std::move(step), [answer](const absl::StatusOr<StepResult>&) { answer->set_value(); });
  mutex_.Lock();
  Discard(std::make_shared<LeftSite>(left, answer->get_future(), options_.rpc_timeout));
}

void ReplicatedCore::UseSite(SitePtr site) {
  replicas_.Worked(site->replica);
  last_replica_ = site->replica;
  site_ = std::move(site);
  back_at_ = NextLookBack();
}

absl::Time ReplicatedCore::NextLookBack() {
  const absl::Duration interval = options_.move_back_interval;
  // The clients of a replica lost it at one time, and would come back to it at one time.
  return interval == absl::ZeroDuration() ? absl::InfiniteFuture() : Now() + replicas_.Jittered(interval);
}

void ReplicatedCore::Mend() {
  holding_ = true;
  if (!AwaitHome()) return;
  const SitePtr site = site_;
  forgotten_ = false;
  mutex_.Unlock();
  const absl::Status status = BuildAll(site);
  mutex_.Lock();
  if (absl::IsResourceExhausted(status)) {
    // The site is well, and the others' sequences are there: one that expired finds no room now.
    FailForgotten(status);
  } else if (!status.ok()) {
    Lose(site.get());
  }
  if (!lost_) SendWaiting();
}

void ReplicatedCore::SendWaiting() {
  heard_ = Now();
  while (!stopping_ && !lost_ && !forgotten_) {
    const auto next =
        std::find_if(pending_.begin(), pending_.end(), [](const Pending& pending) { return !pending.out; });
    if (next == pending_.end()) {
      holding_ = false;
      return;
    }
    counters_.resent_steps += next->losses > 0 ? 1 : 0;
    Dispatch(next);
  }
}

void ReplicatedCore::FailWaiting(const absl::Status& status) {
  PendingList failed;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    if (!it->out) failed.splice(failed.end(), pending_, it);
    it = next;
  }
  Fail(std::move(failed), status);
}

void ReplicatedCore::FailForgotten(const absl::Status& status) {
  PendingList failed;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto next = std::next(it);
    const bool gone = std::any_of(it->records.begin(), it->records.end(),
                                  [](const RecordPtr& record) { return record != nullptr && record->gone; });
    if (!it->out && gone) failed.splice(failed.end(), pending_, it);
    it = next;
  }
  counters_.failures += failed.size();
  Fail(std::move(failed), status);
}

void ReplicatedCore::Fail(PendingList failed, const absl::Status& status) {
  ++out_;
  for (Pending& pending : failed) {
    Settle(&pending, status);
    mutex_.Unlock();
    pending.done(status);
    mutex_.Lock();
  }
  --out_;
  changed_.NotifyAll();
}

}  // namespace pleiad::client::internal
