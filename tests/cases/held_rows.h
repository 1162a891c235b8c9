// A row store whose answers a test holds back, lets go or turns into failures.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/rows/row_store.h"

namespace pleiad::testing {

// Thread-safe. Shared by a test and the store that Wrap made, which may die first.
class HeldRows : public std::enable_shared_from_this<HeldRows> {
 public:
  // Decorates `inner`; for StackOptions::wrap_rows.
  std::unique_ptr<RowStore> Wrap(std::unique_ptr<RowStore> inner);

  // The next plan that is resolved waits for Release, or fails with `failure` at once.
  void HoldNext();
  void FailNext(absl::Status failure, RowFailure row);
  // Answers all that wait.
  void Release();
  // Blocks until `count` plans wait.
  void AwaitHeld(size_t count);
  size_t held() const;

 private:
  class Store;
  class Plan;

  mutable Mutex mutex_;
  CondVar changed_;
  size_t hold_next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<ResolveResult> fail_next_ ABSL_GUARDED_BY(mutex_);
  std::map<Plan*, std::pair<RowStore::DoneFn, ResolveResult>> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::testing
