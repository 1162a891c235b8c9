// Sequences that decode, each with one step in flight, through whatever takes steps. What a sequence sends follows from
// the seed and the number of the step, so that a run can be repeated undisturbed and compared.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/client.h"
#include "core/base/mutex.h"
#include "tests/e2e/sessions.h"

namespace pleiad::testing {

class DecodingLoad {
 public:
  // Sends a step whose segment names no sequence, for sequence number `sequence`.
  using Send = std::function<void(size_t sequence, client::Step step, client::StepCallback done)>;
  struct Outcome {
    uint64_t steps = 0;
    uint64_t hash = 0;  // of all outputs in order
    bool operator==(const Outcome& other) const { return steps == other.steps && hash == other.hash; }
  };

  DecodingLoad(size_t sequences, uint32_t seed, const client::ModelInfo& model, Send send);

  // Steps that fail with what `again` accepts are sent again, `limit` times at most each. Before Start.
  void Resend(std::function<bool(const absl::Status&)> again, uint32_t limit) {
    again_ = std::move(again);
    resend_limit_ = limit;
  }
  uint64_t resent();
  // Every sequence goes on until Stop.
  void Start();
  // Blocks until so many steps more were answered, or one has failed.
  void AwaitSteps(uint64_t more);
  // Blocks until each sequence has had two answers from now on, the second of which was sent after now, or a step has
  // failed; how long each took.
  std::vector<double> AwaitEverySequence(std::chrono::steady_clock::time_point now);
  // No new steps; blocks until those in flight are answered.
  std::vector<Outcome> Stop();
  // Each sequence takes as many steps as `outcomes` says; blocks.
  std::vector<Outcome> Repeat(const std::vector<Outcome>& outcomes);

  uint64_t answered();
  // The first failure of a step; a sequence ends with it.
  absl::Status failure();

 private:
  struct Lane {
    Passage passage;
    Outcome outcome;
    uint64_t next = 0;    // where its next step starts
    uint64_t before = 0;  // the same, before the last one was sent
    uint32_t resent = 0;  // the last one, so many times
    uint64_t limit = UINT64_MAX;
    bool busy = false;
    uint32_t since_mark = 0;
    std::chrono::steady_clock::time_point second;  // answer since the mark
  };

  void SendNext(size_t sequence);
  void OnAnswer(size_t sequence, const absl::StatusOr<client::StepResult>& result);

  const size_t sequences_;
  const Send send_;
  std::function<bool(const absl::Status&)> again_;
  uint32_t resend_limit_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  uint64_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t resent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::testing
