// A queue of steps over a connection that opens sequences, and what was sent of it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/internal/step_queue.h"
#include "tests/client/mock_connection.h"

namespace pleiad::client::internal {

class StepQueueTest : public ::testing::Test {
 protected:
  StepQueueTest() {
    model_.layers = {LayerInfo{1, 100, "BF16", 10}};
    model_.rollback_tokens = 8;
    model_.max_tokens = 64;
    model_.max_message_bytes = 1 << 20;
    ON_CALL(*connection_, GetModel).WillByDefault([this] { return model_; });
    ON_CALL(*connection_, Open).WillByDefault([this](auto&&) { return OpenResult{SequenceId{++opened_}, false}; });
    client_.emplace(*Client::Over(connection_));
    queue_ = std::make_unique<StepQueue>(model_);
  }

  Sequence Open() { return *client_->OpenSequence(); }

  // Submits a step of zeros; its number is the order of submission, from 1.
  void Add(const Sequence& sequence, uint32_t tokens, std::optional<uint64_t> position = std::nullopt,
           bool fresh = false, StepMode mode = StepMode::kForward) {
    AddSegments({{&sequence, tokens, fresh, position}}, mode);
  }
  void AddSegments(std::vector<StepSegment> segments, StepMode mode = StepMode::kForward) {
    Step step;
    step.mode = mode;
    for (const StepSegment& segment : segments) step.token_ids.resize(step.token_ids.size() + segment.num_tokens, 11);
    step.segments = std::move(segments);
    step.highway.zeros = mode == StepMode::kForward;
    const uint64_t number = ++added_;
    queue_->Add(std::move(step), [this, number](absl::StatusOr<StepResult> result) {
      (result.ok() ? succeeded_ : failed_).push_back(number);
      last_ = result.status();
    });
    Deliver();
  }
  // Everything that may go out now.
  std::vector<uint64_t> Send() {
    std::vector<uint64_t> ids;
    while (auto entry = queue_->Next()) {
      ids.push_back(entry->wire.request_id);
      sent_[entry->wire.request_id] = entry->wire;
    }
    return ids;
  }
  void Succeed(uint64_t id) {
    WireReply reply{id, StepResult{}};
    for (const WireSegment& segment : sent_.at(id).segments) {
      reply.result->segments.push_back({segment.sequence, segment.position.value_or(0) + segment.num_tokens, 0});
    }
    queue_->Answer(std::move(reply));
    Deliver();
  }
  void Fail(uint64_t id) {
    queue_->Answer(WireReply{id, absl::DataLossError("table")});
    Deliver();
  }
  void Deliver() {
    for (StepQueue::Completion& completion : queue_->TakeCompletions()) completion.done(std::move(completion.result));
  }
  uint64_t SentPosition(uint64_t id) { return *sent_.at(id).segments[0].position; }

  ModelInfo model_;
  uint64_t opened_ = 100;
  uint64_t added_ = 0;
  std::shared_ptr<::testing::NiceMock<client::testing::MockConnection>> connection_ =
      std::make_shared<::testing::NiceMock<client::testing::MockConnection>>();
  std::optional<Client> client_;
  std::unique_ptr<StepQueue> queue_;
  std::map<uint64_t, WireStep> sent_;
  std::vector<uint64_t> succeeded_, failed_;
  absl::Status last_;
};

}  // namespace pleiad::client::internal
