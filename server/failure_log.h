// Log lines about requests that failed, with what lets an operator find the caller: the sequence's label and the
// caller's trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/failure.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad {

// The metadata `traceparent` of a call where it is one of W3C Trace Context, else empty.
std::string TraceParent(const grpc::CallbackServerContext& context);
bool IsTraceParent(absl::string_view text);

// The sequence of the segment that an outcome names, of the first where it names none. 0 without segments.
uint64_t FailedSequence(const Outcome& outcome, const v1::ForwardRequest& request);

// Thread-safe. Failures that are the server's (INTERNAL, UNKNOWN, DATA_LOSS, and rows that came too late) are warnings,
// kWarnings a second; all others are said at level debug. Neither values that callers sent nor sequence ids are said.
class FailureLog {
 public:
  static constexpr int kWarnings = 10;

  // Remembers that many labels, those of the sequences that were opened last. `clock` outlives this.
  FailureLog(size_t labels, Clock* clock) : labels_limit_(labels), clock_(clock) {}

  // No label is remembered where it is empty.
  void Named(uint64_t sequence, const std::string& label);
  void Released(uint64_t sequence);

  // `what` as in "Forward"; `sequence` 0: of none.
  void Failed(const char* what, const Outcome& outcome, const grpc::CallbackServerContext& context, uint64_t sequence);

 private:
  // False: too many in this second. Says how many there were when the second is over and another one comes.
  bool MayWarn();

  const size_t labels_limit_;
  Clock* const clock_;

  Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::string> labels_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> oldest_ ABSL_GUARDED_BY(mutex_);  // may name sequences that were released
  absl::Time second_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int warned_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace pleiad
