// Plans: their answers and the end of what they hold.
#include <algorithm>
#include <utility>

#include "core/rows/cached_row_store_impl.h"

namespace pleiad {
namespace {

class CachedRowPlan : public RowPlan {
 public:
  CachedRowPlan(CachedRowStoreImpl* store, PlanPtr state) : store_(store), state_(std::move(state)) {}
  ~CachedRowPlan() override { store_->Destroy(*state_); }

  // Not written after the answer.
  absl::Span<const GatherIndex> gather() const override { return state_->gather; }
  bool Claim() override { return store_->Claim(*state_); }
  void Unclaim() override { store_->Unclaim(*state_); }
  bool Held() const override { return store_->Held(*state_); }

  PlanState& state() { return *state_; }

 private:
  CachedRowStoreImpl* const store_;
  const PlanPtr state_;
};

PlanState& StateOf(RowPlan& plan) { return static_cast<CachedRowPlan&>(plan).state(); }

}  // namespace

std::unique_ptr<RowPlan> CachedRowStoreImpl::Resolve(LayerOrdinal layer, std::vector<RowId> ids, ResolvePurpose purpose,
                                                     DoneFn done) {
  auto state = std::make_shared<PlanState>();
  state->layer = layer;
  state->ids = std::move(ids);
  state->purpose = purpose;
  state->done = std::move(done);
  Actions actions;
  Found found;
  {
    MutexLock lock(&mutex_);
    found = Attempt(*state, actions);
    if (found == Found::kShort) {
      state->queued = true;
      state->place = queue_.insert(queue_.end(), state.get());
      ServeQueue(actions);
    } else if (found == Found::kAll) {
      state->phase = PlanPhase::kAnswered;
      if (purpose == ResolvePurpose::kPrestage) BecomeIdle(*state);
    }
  }
  if (found == Found::kAll) {
    DoneFn(std::move(state->done))(std::move(state->result));
  } else {
    Perform(std::move(actions));
  }
  return std::make_unique<CachedRowPlan>(this, std::move(state));
}

void CachedRowStoreImpl::Answer(PlanState& plan, Actions& actions) {
  plan.phase = PlanPhase::kAnswering;
  if (!plan.result.status.ok()) {
    EndHolds(plan);
  } else if (plan.purpose == ResolvePurpose::kPrestage) {
    BecomeIdle(plan);
  }
  actions.answers.push_back(plan.shared_from_this());
}

void CachedRowStoreImpl::Perform(Actions actions) {
  if (!actions.reads.empty()) {
    std::sort(actions.reads.begin(), actions.reads.end(), [](const RowRead& a, const RowRead& b) {
      return a.file != b.file ? a.file < b.file : a.offset < b.offset;
    });
    {
      // In the order the reader takes them: each has the time-out for its own turn.
      MutexLock lock(&mutex_);
      const absl::Time now = clock_->Now();
      for (const RowRead& read : actions.reads) staging_.ReadStarts(static_cast<uint32_t>(read.id), now);
    }
    reader_->Submit(actions.reads, on_results_);
  }
  for (const PlanPtr& plan : actions.answers) {
    DoneFn done;
    ResolveResult result;
    {
      MutexLock lock(&mutex_);
      if (plan->destroyed) continue;
      plan->answering = std::this_thread::get_id();
      done = std::move(plan->done);
      result = std::move(plan->result);
    }
    done(std::move(result));
    done = nullptr;
    MutexLock lock(&mutex_);
    plan->phase = PlanPhase::kAnswered;
    answered_cv_.NotifyAll();
  }
  if (actions.health) TellHealth();
}

void CachedRowStoreImpl::EndNamed(const NamedArrival& named) {
  Arrival& arrival = staging_[named.arrival];
  if (--arrival.plans > 0 || arrival.state == ArrivalState::kReading) return;
  Forget(named.arrival);
  staging_.ReturnAfter(named.arrival, arrival.last_use);
}

void CachedRowStoreImpl::EndHolds(PlanState& plan) {
  if (plan.purpose != ResolvePurpose::kPrestage) live_.End(plan.number);
  for (const HeldSlot& held : plan.held) slots_[held.slot].EndHold();
  plan.held.clear();
  for (const NamedArrival& named : plan.named) {
    if (!Current(named)) continue;
    staging_.RemoveWaiter(named.arrival, &plan);
    EndNamed(named);
  }
  plan.named.clear();
}

void CachedRowStoreImpl::BecomeIdle(PlanState& plan) {
  plan.place = idle_.insert(idle_.end(), &plan);
  plan.idle = true;
}

void CachedRowStoreImpl::LeaveIdle(PlanState& plan) {
  if (!plan.idle) return;
  idle_.erase(plan.place);
  plan.idle = false;
}

bool CachedRowStoreImpl::Claim(PlanState& plan) {
  MutexLock lock(&mutex_);
  if (plan.yielded) return false;
  LeaveIdle(plan);
  plan.claimed = true;
  return true;
}

// Called where no answer may be given; the timer thread serves those who wait.
void CachedRowStoreImpl::Unclaim(PlanState& plan) {
  MutexLock lock(&mutex_);
  if (!plan.claimed) return;
  plan.claimed = false;
  BecomeIdle(plan);
  if (!queue_.empty()) timer_cv_.NotifyOne();
}

bool CachedRowStoreImpl::Held(const PlanState& plan) const {
  MutexLock lock(&mutex_);
  return !plan.yielded;
}

void CachedRowStoreImpl::Destroy(PlanState& plan) {
  if (plan.over) return;
  Actions actions;
  {
    MutexLock lock(&mutex_);
    plan.destroyed = true;
    if (plan.queued) queue_.erase(plan.place);
    plan.queued = false;
    LeaveIdle(plan);
    EndHolds(plan);
    ServeQueue(actions);
  }
  Perform(std::move(actions));
  MutexLock lock(&mutex_);
  while (plan.phase == PlanPhase::kAnswering && plan.answering != std::thread::id() &&
         plan.answering != std::this_thread::get_id()) {
    answered_cv_.Wait(&mutex_);
  }
}

void CachedRowStoreImpl::AppendFills(RowPlan& plan, size_t first, size_t count, std::vector<Fill>& fills) {
  PlanState& state = StateOf(plan);
  // What a step's plan names does not change any more.
  if (state.purpose != ResolvePurpose::kPrestage && state.named.empty()) return;
  MutexLock lock(&mutex_);
  for (const NamedArrival& named : state.named) {
    if (named.last_id < first || named.first_id >= first + count || !Current(named)) continue;
    Arrival& arrival = staging_[named.arrival];
    if (arrival.slot == kNone) continue;
    fills.push_back({named.arrival, Slot(arrival.slot)});
    // From here on the row is present: whoever names it next is enqueued behind this fill.
    maps_[LayerOfKey(arrival.key)].Set(RowId(RowOfKey(arrival.key)), RowPlace::InSlot(arrival.slot));
    slots_[arrival.slot].state = static_cast<uint8_t>(SlotState::kPresent);
    policy_->Inserted(arrival.slot, arrival.key);
    ++arrival.generation;
    arrival.state = ArrivalState::kLeaving;
    filling_.push_back(named.arrival);
  }
}

void CachedRowStoreImpl::Enqueued(RowPlan& plan, size_t first, size_t count, Ticket ticket) {
  PlanState& state = StateOf(plan);
  Actions actions;
  {
    MutexLock lock(&mutex_);
    for (const uint32_t row : filling_) staging_.ReturnAfter(row, ticket);
    filling_.clear();
    const size_t end = count == 0 ? state.enqueued : first + count;
    state.enqueued = end;
    if (state.purpose != ResolvePurpose::kPrestage && end == state.ids.size()) {
      live_.End(state.number);
      state.over = true;
    }
    while (!state.held.empty() && state.held.back().last_id < end) {
      slots_[state.held.back().slot].EndHold();
      state.held.pop_back();
    }
    std::erase_if(state.named, [&](const NamedArrival& named) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (!Current(named)) return true;
      if (named.first_id < end) staging_[named.arrival].last_use = ticket;
      if (named.last_id >= end) return false;
      EndNamed(named);
      return true;
    });
    if (state.claimed && count > 0) {
      state.claimed = false;
      if (end < state.ids.size()) BecomeIdle(state);
    }
    ServeQueue(actions);
  }
  Perform(std::move(actions));
}

void CachedRowStoreImpl::Completed(Ticket ticket) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    staging_.Completed(ticket);
    ServeQueue(actions);
  }
  Perform(std::move(actions));
}

}  // namespace pleiad
