// Steps in flight: submit them one behind the other, get each result by callback or by waiting; a broken connection
// is mended and every step applies once.
#pragma once

#include <cstddef>
#include <future>
#include <memory>

#include "absl/status/statusor.h"
#include "client/client_options.h"
#include "client/step.h"
#include "client/types.h"

namespace pleiad::client {

class Connection;

// Each step goes out with the position it starts at. Per carry (sequence and layer) the stream keeps unanswered on the
// wire one step of any length or several of at most the server's rollback_tokens together, and holds back the rest, in
// order. When the stream breaks it is opened again, with a higher epoch and the same positions, and the unanswered
// steps are sent again: one that had been applied moves its carry back and applies to the same effect, and a late copy
// from the old connection is refused by its epoch. When no stream works for StreamOptions.reconnect_timeout, or the
// server refuses the stream for good, all unanswered steps fail with that status; a later step tries again.
//
// A step fails alone; steps behind it on the same carry that do not name their start (by position or fresh) fail with
// FailedPrecondition (kPredecessorFailed), until one does. Sequence::position tells where to go on from.
// Statuses of a step: the server's, with details (error_info.h); InvalidArgument and FailedPrecondition of this side
// for a step that cannot be sent (no layer named of several, one sequence twice, a released handle, too large);
// Unavailable; Cancelled when the stream is destroyed.
//
// Thread-safe. A sequence is stepped by one stream at a time; to move it to another, wait for its answers first.
class StepStream {
 public:
  virtual ~StepStream() = default;  // fails unanswered steps with Cancelled; not inside a callback

  static absl::StatusOr<std::unique_ptr<StepStream>> Create(std::shared_ptr<Connection> connection,
                                                            std::shared_ptr<const ModelInfo> model,
                                                            const StreamOptions& options);

  // `done` is called once, on the stream's thread or inside a Submit, one at a time and in order per carry. It may
  // submit, and must not block. Submit blocks only while the connection takes no more bytes.
  virtual void Submit(Step step, StepCallback done) = 0;
  // As Submit, and never blocks: a thread of the stream's sends the step.
  virtual void SubmitLater(Step step, StepCallback done) = 0;
  // The same with a future.
  std::future<absl::StatusOr<StepResult>> Submit(Step step);
  // Submits and waits; not inside a callback.
  absl::StatusOr<StepResult> Run(Step step);

  // Waits until every step submitted before has been answered and its callback has returned.
  virtual void Drain() = 0;
  // Ends the stream without waiting: unanswered steps fail with Cancelled, and so do later ones. A Submit that blocks
  // returns soon.
  virtual void Close() = 0;
  virtual size_t unanswered() const = 0;
};

}  // namespace pleiad::client
