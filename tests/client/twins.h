// A sequence that moves between servers and one that does not.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "client/replicated_client.h"
#include "tests/client/test_steps.h"

namespace pleiad::client::testing {

// A sequence and its undisturbed twin: the same steps go to both.
class Twins {
 public:
  Twins(ReplicatedClient* client, Client* calm, uint32_t seed)
      : client_(client),
        sequence_(*client->OpenSequence({.label = "twin"})),
        calm_(*calm->OpenSequence()),
        calm_stream_(*calm->OpenStream()),
        random_(seed) {}

  // Some steps at once, rewinds and resets among them; whether all outputs are equal.
  void Burst() {
    std::vector<TestStep> steps(1 + random_() % 4);
    std::vector<std::future<absl::StatusOr<StepResult>>> answers, wanted;
    for (TestStep& step : steps) {
      const uint32_t kind = random_() % 12;
      step = RandomStep(&random_, 1 + random_() % (kind == 0 ? 40 : 3));
      if (kind == 1) step.fresh = true;
      if (kind < 4 && kind > 1) step.position = next_ - std::min<uint64_t>(next_ - low_, random_() % 6);
      const uint64_t start = step.position.value_or(step.fresh ? 0 : next_);
      next_ = start + step.tokens.size();
      low_ = step.fresh ? 0 : low_;
      low_ = std::max(low_, next_ - std::min<uint64_t>(next_, 8));
      Step sent;
      sent.segments.push_back({nullptr, static_cast<uint32_t>(step.tokens.size()), step.fresh, step.position});
      sent.token_ids = step.tokens;
      sent.highway.data =
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(step.highway.data()), step.highway.size() * 4);
      answers.push_back(client_->Submit(std::move(sent), {&sequence_}));
      wanted.push_back(calm_stream_->Submit(step.For(calm_)));
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const absl::StatusOr<StepResult> answer = answers[i].get(), right = wanted[i].get();
      ASSERT_TRUE(right.ok()) << right.status();
      ASSERT_TRUE(answer.ok()) << answer.status();
      ASSERT_EQ(answer->output, right->output);
      ASSERT_EQ(answer->segments[0].position, right->segments[0].position);
    }
    EXPECT_EQ(sequence_.position(/*layer_index=*/1), next_);
  }

  void ExpectEqualBlobs() {
    const absl::StatusOr<SequenceSnapshot> snapshot = sequence_.Snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->layers[0].aux, calm_.Snapshot()->layers[0].aux);
    EXPECT_EQ(snapshot->layers[0].position, next_);
  }

  ReplicatedSequence& sequence() { return sequence_; }

 private:
  ReplicatedClient* const client_;
  ReplicatedSequence sequence_;
  Sequence calm_;
  std::unique_ptr<StepStream> calm_stream_;
  std::mt19937 random_;
  uint64_t next_ = 0, low_ = 0;
};

}  // namespace pleiad::client::testing
