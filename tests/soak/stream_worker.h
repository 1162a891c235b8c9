// One client of a soak: sequences that it steps, drafts, rewinds, saves, gives up and forgets, as its seed says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/soak/soak_caller.h"
#include "tests/soak/soak_carry.h"
#include "tests/soak/tally.h"

namespace pleiad::testing {

// Used by one thread.
class StreamWorker {
 public:
  StreamWorker(const SoakSetup* setup, SoakClient kind, uint32_t number);

  // Operations until `more` says no; then everything it had is released or abandoned.
  Tally Run(const std::function<bool()>& more);

 private:
  using SteadyClock = std::chrono::steady_clock;
  struct Life {
    SoakHandle handle;
    std::vector<SoakCarry> carries;   // one a layer
    SteadyClock::time_point touched;  // when the last step that was answered OK was sent, or it was opened
  };
  struct Part {
    Life* life = nullptr;  // null: a throw-away carry
    SoakLine tokens;
    uint64_t start = 0;
  };
  enum class Ending : uint8_t { kAnswer, kDeadline, kCut };
  struct Sent {
    std::vector<Part> parts;
    size_t layer = 0;  // among carries
    client::OutputKind kind = client::OutputKind::kDelta;
    client::DType dtype = client::DType::kF32;
    Ending ending = Ending::kAnswer;
    std::vector<float> highway;
    SteadyClock::time_point at;
    SoakCaller::Answer answer;
  };
  struct Saved {
    size_t layer = 0;
    SoakLine line;
    client::SequenceSnapshot snapshot;
  };

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  SoakLine Tokens(uint32_t count) { return RandomTokens(random_, count, *setup_); }
  Life& AnyLife() { return *lives_[Below(static_cast<uint32_t>(lives_.size()))]; }
  size_t AnyLayer() { return Below(static_cast<uint32_t>(setup_->model.layers.size())); }

  bool Connect();
  // Lives end without their being told.
  void Disconnect();
  void Fill();
  void End(Life& life);
  bool Lives(const Life* life) const;
  void Open(client::OpenOptions options, std::vector<SoakCarry> carries);
  std::vector<SoakCarry> FreshCarries();

  // Parts without a life start at 0; the others where their carries go on.
  Sent Send(size_t layer, std::vector<std::pair<Life*, SoakLine>> parts, Ending ending = Ending::kAnswer);
  // In the order of sending. Explains every answer.
  void Receive(std::vector<Sent> sent);
  void ReceiveError(const Sent& sent, const absl::Status& status, bool after_failure);
  void Step(Life& life, size_t layer, uint32_t count) { ReceiveOne(Send(layer, {{&life, Tokens(count)}})); }
  void ReceiveOne(Sent sent);
  // The carry stands where its line ends.
  bool Settle(Life& life, size_t layer);
  // `status` of a call that named `life`; false when it failed.
  bool Judge(Life& life, const absl::Status& status, const char* what);

  void Operate();
  void Decode(Ending ending);
  void Draft();
  void Batch();
  void Rewind();
  void Save();
  void Restore();
  void Reopen();
  void Fork();
  void Cut();
  void CheckReach(Life& life, size_t layer);
  void Prestage();
  void Lookup();
  void Refusal();
  void StartOver();

  const SoakSetup* const setup_;
  const SoakClient kind_;
  const uint32_t number_;
  std::mt19937 random_;
  Tally tally_;
  SoakJudge judge_;
  std::unique_ptr<SoakCaller> caller_;
  std::vector<std::unique_ptr<Life>> lives_;
  std::vector<Life*> ended_;  // found to be expired, to be taken out
  std::vector<Saved> saved_;
};

}  // namespace pleiad::testing
