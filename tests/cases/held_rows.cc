#include "tests/cases/held_rows.h"

#include <utility>

namespace pleiad::testing {

class HeldRows::Plan : public RowPlan {
 public:
  explicit Plan(std::shared_ptr<HeldRows> owner) : owner_(std::move(owner)) {}
  ~Plan() override {
    MutexLock lock(&owner_->mutex_);
    owner_->held_.erase(this);
  }
  void Set(std::unique_ptr<RowPlan> inner) { inner_ = std::move(inner); }
  RowPlan& inner() { return *inner_; }

  absl::Span<const GatherIndex> gather() const override { return inner_->gather(); }
  bool Claim() override { return inner_->Claim(); }
  void Unclaim() override { inner_->Unclaim(); }
  bool Held() const override { return inner_->Held(); }

 private:
  const std::shared_ptr<HeldRows> owner_;
  std::unique_ptr<RowPlan> inner_;
};

class HeldRows::Store : public RowStore {
 public:
  Store(std::shared_ptr<HeldRows> owner, std::unique_ptr<RowStore> inner)
      : owner_(std::move(owner)), inner_(std::move(inner)) {}

  const char* mode() const override { return inner_->mode(); }

  // The inner store is resident: it answers before its Resolve returns.
  std::unique_ptr<RowPlan> Resolve(LayerOrdinal layer, std::vector<RowId> ids, ResolvePurpose purpose,
                                   DoneFn done) override {
    auto plan = std::make_unique<Plan>(owner_);
    ResolveResult result;
    plan->Set(inner_->Resolve(layer, std::move(ids), purpose,
                              [&result](ResolveResult resolved) { result = std::move(resolved); }));
    {
      MutexLock lock(&owner_->mutex_);
      if (!owner_->fail_next_.empty()) {
        result = std::move(owner_->fail_next_.back());
        owner_->fail_next_.pop_back();
      } else if (owner_->hold_next_ > 0) {
        --owner_->hold_next_;
        owner_->held_.emplace(plan.get(), std::make_pair(std::move(done), std::move(result)));
        owner_->changed_.NotifyAll();
        return plan;
      }
    }
    done(std::move(result));
    return plan;
  }
  void AppendFills(RowPlan& plan, size_t first, size_t count, std::vector<Fill>& fills) override {
    inner_->AppendFills(static_cast<Plan&>(plan).inner(), first, count, fills);
  }
  void Enqueued(RowPlan& plan, size_t first, size_t count, Ticket ticket) override {
    inner_->Enqueued(static_cast<Plan&>(plan).inner(), first, count, ticket);
  }
  void Completed(Ticket ticket) override { inner_->Completed(ticket); }
  RowStoreStats stats() const override { return inner_->stats(); }

 private:
  const std::shared_ptr<HeldRows> owner_;
  const std::unique_ptr<RowStore> inner_;
};

std::unique_ptr<RowStore> HeldRows::Wrap(std::unique_ptr<RowStore> inner) {
  return std::make_unique<Store>(shared_from_this(), std::move(inner));
}

void HeldRows::HoldNext() {
  MutexLock lock(&mutex_);
  ++hold_next_;
}

void HeldRows::FailNext(absl::Status failure, RowFailure row) {
  MutexLock lock(&mutex_);
  ResolveResult result;
  result.status = std::move(failure);
  result.failures.push_back(std::move(row));
  fail_next_.push_back(std::move(result));
}

void HeldRows::Release() {
  decltype(held_) held;
  {
    MutexLock lock(&mutex_);
    held.swap(held_);
  }
  for (auto& [plan, waiter] : held) waiter.first(std::move(waiter.second));
}

void HeldRows::AwaitHeld(size_t count) {
  MutexLock lock(&mutex_);
  while (held_.size() < count) changed_.Wait(&mutex_);
}

size_t HeldRows::held() const {
  MutexLock lock(&mutex_);
  return held_.size();
}

}  // namespace pleiad::testing
