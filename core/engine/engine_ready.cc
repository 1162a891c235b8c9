// Steps whose tensors lie in memory of a client: they wait here until it is ready, so that nothing on the device waits
// for a client.
#include <algorithm>
#include <utility>

#include "core/engine/engine_impl.h"

namespace pleiad {
namespace {

// Between two questions, doubling while nobody becomes ready; a client is mostly ready when its step comes.
constexpr absl::Duration kAskSoon = absl::Microseconds(20);
constexpr absl::Duration kAskLate = absl::Milliseconds(1);

}  // namespace

absl::StatusOr<bool> EngineImpl::AskReady(const StepOp& op) {
  for (const std::shared_ptr<ClientMemory>& memory : op.request.client_memory) {
    absl::StatusOr<bool> ready = memory->IsReady();
    if (!ready.ok() || !*ready) return ready;
  }
  return true;
}

void EngineImpl::AwaitReady(const std::shared_ptr<StepOp>& op) {
  op->awaits_client = true;
  if (op->deadline == absl::InfiniteFuture()) {
    op->limited_wait = true;
    op->timer = deadlines_.emplace(clock_->Now() + options_.ready_timeout, op);
    op->timed = true;
    WakeTimerBy(op->timer->first);
  }
  awaiting_.push_back(op);
  asks_at_once_ = true;
  ready_cv_.NotifyOne();
}

void EngineImpl::AnsweredReady(Section& section, const std::shared_ptr<StepOp>& op, const absl::StatusOr<bool>& ready) {
  if (op->state != OpState::kResolving) return;  // ended meanwhile
  if (ready.ok() && !*ready) {
    awaiting_.push_back(op);
    return;
  }
  op->awaits_client = false;
  if (op->limited_wait && op->timed) {
    deadlines_.erase(op->timer);
    op->timed = false;
  }
  if (ready.ok()) {
    op->client_ready = true;
    MakeStepReady(op);
    return;
  }
  Outcome outcome;
  outcome.code = ready.status().code();
  outcome.message = std::string(ready.status().message());
  Finish(section, op, std::move(outcome));
}

void EngineImpl::ReadyLoop() {
  const bool enqueues = device_->info().run_cost == RunCost::kEnqueueing;
  absl::Time next_question = absl::InfinitePast();
  absl::Duration pause = kAskSoon;
  while (true) {
    std::vector<std::shared_ptr<StepOp>> asked;
    {
      MutexLock lock(&mutex_);
      while (!exit_threads_ && awaiting_.empty()) ready_cv_.Wait(&mutex_);
      while (!exit_threads_ && !asks_at_once_ && clock_->Now() < next_question) {
        clock_->WaitUntil(&ready_cv_, &mutex_, next_question);
      }
      if (exit_threads_) return;
      if (std::exchange(asks_at_once_, false)) pause = kAskSoon;
      asked.swap(awaiting_);
    }
    std::vector<absl::StatusOr<bool>> answers;
    for (const std::shared_ptr<StepOp>& op : asked) answers.push_back(AskReady(*op));
    for (const absl::StatusOr<bool>& ready : answers) {
      if (!ready.ok() || *ready) pause = kAskSoon;
    }
    next_question = clock_->Now() + pause;
    pause = std::min(2 * pause, kAskLate);
    {
      Section section(this);
      for (size_t i = 0; i < asked.size(); ++i) AnsweredReady(section, asked[i], answers[i]);
    }
    if (enqueues) EnqueueHere();
  }
}

}  // namespace pleiad
