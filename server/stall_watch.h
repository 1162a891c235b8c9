// Ends calls whose clients do not read, or read a trickle (read_progress.h), once what they hold is wanted by others.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "server/admission.h"

namespace pleiad {

class StallableCall {
 public:
  virtual ~StallableCall() = default;
  // Ends the call if answers wait and its client is too slow for them. With no lock held.
  virtual void CancelIfStalled(absl::Time now) = 0;
};

// For a unary answer of so many bytes, of which nothing is known until all are taken: what a slow network needs.
absl::Duration UnaryReadPatience(uint64_t bytes);

// While requests wait, or are refused, because the bound of all requests is reached, looks at every call once a second.
// As long as there is room for all nobody is ended, however slowly it reads. Thread-safe.
class StallWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Seconds(1);

  // Starts a thread. Both outlive this.
  StallWatch(Admission* admission, Clock* clock);
  ~StallWatch();

  void Add(const std::shared_ptr<StallableCall>& call);
  void Remove(const StallableCall* call);

 private:
  void Run();

  Admission* const admission_;
  Clock* const clock_;

  Mutex mutex_;
  CondVar changed_;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<const StallableCall*, std::weak_ptr<StallableCall>> calls_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace pleiad
