// Whether the site still answers and is ready; on the mover's thread.
#include <memory>
#include <optional>
#include <utility>

#include "client/internal/replicated_core.h"

namespace pleiad::client::internal {

void ReplicatedCore::Probe() {
  const SitePtr site = site_;
  const absl::Time heard = heard_;
  mutex_.Unlock();
  const absl::Status health = site->client->Health("pleiad.live").status();
  mutex_.Lock();
  if (heard_ != heard) return;
  if (absl::IsUnavailable(health) || absl::IsDeadlineExceeded(health) || !AnswersOnStream(site)) {
    Lose(site.get());
  } else {
    heard_ = Now();
  }
}

bool ReplicatedCore::AnswersOnStream(const SitePtr& site) {
  const absl::Time heard = heard_;
  Step nothing;
  nothing.mode = StepMode::kPrestage;
  if (!model_.layers.empty()) nothing.layer_index = model_.layers[0].layer_index;
  auto answer = std::make_shared<std::optional<absl::Status>>();  // guarded by the mutex
  ++out_;
  mutex_.Unlock();
  site->stream->SubmitLater(std::move(nothing), [this, answer](const absl::StatusOr<StepResult>& result) {
    MutexLock lock(&mutex_);
    *answer = result.status();
    --out_;
    changed_.NotifyAll();
  });
  mutex_.Lock();
  const absl::Time until = Now() + options_.rpc_timeout;
  while (!answer->has_value() && heard_ == heard && !lost_ && !stopping_ && Now() < until) {
    clock_->WaitUntil(&changed_, &mutex_, until);
  }
  return answer->has_value() ? !EndsStream(**answer) : heard_ != heard || stopping_;
}

ReplicatedCore::Readiness ReplicatedCore::ReadinessOf(const SitePtr& site) {
  std::shared_ptr<Sequence> there;
  for (const RecordPtr& record : records_) {
    if (record->site == site->number && !record->gone) there = record->handle;
  }
  mutex_.Unlock();
  const absl::StatusOr<HealthState> health = site->client->Health("pleiad.v1.Ple");
  // A balancer takes a server that is not ready out, and who is ready is another one then, which has no such sequence.
  const bool elsewhere = health.ok() && *health == HealthState::kServing && there != nullptr &&
                         Judge(there->Get().status()) == Verdict::kForgotten;
  there = nullptr;
  mutex_.Lock();
  if (!health.ok() || *health == HealthState::kUnknown) return Readiness::kUnknown;
  return *health == HealthState::kServing && !elsewhere ? Readiness::kReady : Readiness::kNotReady;
}

void ReplicatedCore::LeaveUnlessReady() {
  const SitePtr site = site_;
  const Readiness readiness = ReadinessOf(site);
  if (site != site_ || draining_ || readiness != Readiness::kNotReady) return;
  draining_ = leaves_unreadable_ = true;
}

}  // namespace pleiad::client::internal
