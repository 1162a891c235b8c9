// One ForwardStream RPC: reads are pipelined, many steps are in flight, responses are written one at a time in the
// order the engine answers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/engine/engine.h"
#include "grpcpp/grpcpp.h"
#include "server/forward_exchange.h"
#include "server/read_progress.h"
#include "server/service_state.h"
#include "server/stall_watch.h"

namespace pleiad {

// Ends when the client half-closes and everything is answered, when it cancels (queued steps are cancelled, nothing
// more is written), at bytes that are no ForwardRequest (INVALID_ARGUMENT once all before them is answered), or by
// End(). Lives until gRPC and the engine are done with it.
class ForwardStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public EndableStream,
                            public StallableCall {
 public:
  // Starts reading. The result belongs to itself.
  static ForwardStream* Start(ServiceState* state, grpc::CallbackServerContext* context);

  // Reads no more, drops what waits for room; UNAVAILABLE once admitted steps are answered.
  void End() override;

  void CancelIfStalled(absl::Time now) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Step {
    grpc::ByteBuffer message;  // as read, then as written
    ForwardExchange exchange;
    uint64_t bytes = 0;
    bool admitted = false;  // `bytes` are reserved
    absl::Time arrival;
    std::optional<StepId> id;  // guarded by the stream's mutex
  };
  using StepPtr = std::shared_ptr<Step>;

  ForwardStream(ServiceState* state, grpc::CallbackServerContext* context)
      : state_(state),
        context_(context),
        regions_(state->RegionsFor(context->peer())),
        client_(state->clients.Find(*context)),
        admission_(client_ == nullptr ? nullptr : client_->in_flight()) {}

  void ReadNext() ABSL_LOCKS_EXCLUDED(mutex_);
  StepPtr TakeRead() ABSL_LOCKS_EXCLUDED(mutex_);
  // What was read, on a thread of gRPC's or the one that spins. The next read begins once its step is submitted, so
  // steps come to the engine in the order of the stream on either.
  void Receive(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the thread that spins receives what was read.
  bool HandToSpinner() ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves the request that waits for room to the running ones.
  StepPtr TakeWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  void Admitted() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the waiting request back from admission.
  void Abandon() ABSL_LOCKS_EXCLUDED(mutex_);
  // A request that the engine will not see; it gets no response.
  void Drop(const StepPtr& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancelled or ending.
  bool IsOver() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(const StepPtr& step) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer(Step* running, StepResult result) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of a running step.
  StepPtr Find(Step* running) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whose answer is to be written now, by Write; null: none, or another one is being written.
  StepPtr NextToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Without the lock: gRPC often sends the answer in this call, and whoever it wakes would wait for the lock.
  void Write(const StepPtr& next) ABSL_LOCKS_EXCLUDED(mutex_);
  // Steps that are answered and not being written; they are dropped.
  std::vector<StepPtr> TakeUnwritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `taken`: bytes of its answer that the client has taken.
  void Release(const StepPtr& step, uint64_t taken = 0);
  void FinishIfOver() ABSL_LOCKS_EXCLUDED(mutex_);

  ServiceState* const state_;
  grpc::CallbackServerContext* const context_;
  const RegionAccess regions_;
  const std::shared_ptr<Client> client_;  // null: without limits of its own
  Admission::Stream admission_;
  std::shared_ptr<ForwardStream> self_;  // until OnDone

  Mutex mutex_;
  StepPtr reading_ ABSL_GUARDED_BY(mutex_);
  StepPtr waiting_ ABSL_GUARDED_BY(mutex_);  // read, not admitted
  absl::flat_hash_set<StepPtr> running_ ABSL_GUARDED_BY(mutex_);
  std::deque<StepPtr> answered_ ABSL_GUARDED_BY(mutex_);  // the front is being written while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t handed_ ABSL_GUARDED_BY(mutex_) = 0;    // to the thread that spins, and not yet received
  ReadProgress progress_ ABSL_GUARDED_BY(mutex_);  // while there are answers to write
  uint64_t write_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // the context is in use
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool malformed_ ABSL_GUARDED_BY(mutex_) = false;  // then half_closed_ too
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool dropped_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pleiad
