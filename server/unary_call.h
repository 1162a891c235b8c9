// A unary RPC that is answered from an engine callback.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/mutex.h"
#include "core/engine/engine.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc_counters.h"
#include "server/service_state.h"
#include "server/stall_watch.h"

namespace pleiad {

// Request and response messages live until gRPC is done with the call, which is after Complete. Whoever may touch
// the call after Complete holds the shared_ptr.
class UnaryCall : public grpc::ServerUnaryReactor, public StallableCall {
 public:
  static std::shared_ptr<UnaryCall> Create(ServiceState* state, grpc::CallbackServerContext* context, Rpc rpc);

  // In flight until Complete, its bytes until gRPC is done with the call. False: there is no room; then `refusal` says
  // why.
  bool Admit(uint64_t bytes);
  const Outcome& refusal() const { return refusal_; }
  // By whose bound.
  Admission::Limit refused_by() const { return refused_by_; }
  // Null where clients have no limits of their own.
  const std::shared_ptr<Client>& client() const { return client_; }
  // Its name, limited or not; before Complete.
  std::string client_name() const { return state_->clients.NameOf(*context_); }

  // The step that a cancelled call cancels; cancels it at once when the call is cancelled already.
  void SetStep(StepId step);

  // Once the call is answered.
  void CancelIfStalled(absl::Time now) override;

  // Whose failure a log line would be about.
  void About(uint64_t sequence) { sequence_ = sequence; }

  // Called by Complete where the outcome is OK; kept until gRPC is done with the call, with what it holds.
  void AnswerWith(std::function<void()> write_response) { write_response_ = std::move(write_response); }

  // Answers, once. The serialised Status of a failure goes to the trailing metadata.
  void Complete(const Outcome& outcome);

  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryCall(ServiceState* state, grpc::CallbackServerContext* context, Rpc rpc)
      : state_(state), context_(context), rpc_(rpc), client_(state->clients.Find(*context)) {}
  Admission::Client* client_in_flight() const { return client_ == nullptr ? nullptr : client_->in_flight(); }

  ServiceState* const state_;
  grpc::CallbackServerContext* const context_;
  const Rpc rpc_;
  const std::shared_ptr<Client> client_;
  Outcome refusal_;
  Admission::Limit refused_by_ = Admission::Limit::kTotal;
  std::optional<uint64_t> admitted_;  // written before the engine knows the call
  std::shared_ptr<UnaryCall> self_;   // until OnDone
  uint64_t sequence_ = 0;             // 0: of none
  std::function<void()> write_response_;

  // While the watch uses the context, which gRPC frees after OnDone; it calls OnDone on threads of its own.
  Mutex context_mutex_;
  bool done_ ABSL_GUARDED_BY(context_mutex_) = false;

  Mutex mutex_;
  std::optional<absl::Time> answered_ ABSL_GUARDED_BY(mutex_);
  std::optional<StepId> step_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pleiad
