#include "tests/chaos/decoding_load.h"

#include <algorithm>
#include <random>
#include <utility>

namespace pleiad::testing {
namespace {

constexpr uint32_t kPassage = 64;

uint64_t Hash(uint64_t hash, const std::string& bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

}  // namespace

DecodingLoad::DecodingLoad(size_t sequences, uint32_t seed, const client::ModelInfo& model, Send send)
    : sequences_(sequences), send_(std::move(send)) {
  std::mt19937 random(seed);
  lanes_.resize(sequences);
  for (Lane& lane : lanes_) lane.passage = RandomPassage(random, kPassage, model);
}

void DecodingLoad::Start() {
  for (size_t i = 0; i < sequences_; ++i) SendNext(i);
}

void DecodingLoad::SendNext(size_t sequence) {
  client::Step step;
  {
    MutexLock lock(&mutex_);
    Lane& lane = lanes_[sequence];
    lane.busy = failure_.ok() && lane.outcome.steps < lane.limit;
    if (!lane.busy) {
      changed_.NotifyAll();
      return;
    }
    // A prompt, then tokens one by one; every seventh step is a draft of three, of which the next takes two back.
    const uint64_t k = lane.outcome.steps;
    lane.before = lane.next;
    const uint32_t count = k == 0 ? 20 : k % 7 == 3 ? 3 : 1;
    if (k % 7 == 4) lane.next -= 2;
    const auto first = static_cast<uint32_t>(5 * k % (kPassage - 20));
    const float* highway = lane.passage.highway.data() + size_t{first} * lane.passage.channels;
    step.segments.push_back({nullptr, count, /*fresh=*/false, lane.next});
    step.token_ids.assign(lane.passage.tokens.begin() + first, lane.passage.tokens.begin() + first + count);
    step.highway.data = {reinterpret_cast<const std::byte*>(highway),
                         size_t{count} * lane.passage.channels * sizeof(float)};
    step.output_kind = client::OutputKind::kDelta;
    lane.next += count;
  }
  send_(sequence, std::move(step),
        [this, sequence](const absl::StatusOr<client::StepResult>& result) { OnAnswer(sequence, result); });
}

void DecodingLoad::OnAnswer(size_t sequence, const absl::StatusOr<client::StepResult>& result) {
  {
    MutexLock lock(&mutex_);
    Lane& lane = lanes_[sequence];
    if (!result.ok()) {
      if (again_ && again_(result.status()) && lane.resent++ < resend_limit_) {
        lane.next = lane.before;
        ++resent_;
      } else if (failure_.ok()) {
        failure_ = result.status();
      }
    } else {
      lane.resent = 0;
      lane.outcome.hash = Hash(lane.outcome.hash, result->output);
      ++lane.outcome.steps;
      ++answered_;
      if (++lane.since_mark == 2) lane.second = std::chrono::steady_clock::now();
    }
    if (answered_ % 16 == 0 || lane.since_mark == 2 || !result.ok()) changed_.NotifyAll();
  }
  SendNext(sequence);
}

void DecodingLoad::AwaitSteps(uint64_t more) {
  MutexLock lock(&mutex_);
  const uint64_t until = answered_ + more;
  while (failure_.ok() && answered_ < until) changed_.Wait(&mutex_);
}

std::vector<double> DecodingLoad::AwaitEverySequence(std::chrono::steady_clock::time_point now) {
  MutexLock lock(&mutex_);
  for (Lane& lane : lanes_) lane.since_mark = 0;
  std::vector<double> seconds;
  for (Lane& lane : lanes_) {
    while (failure_.ok() && lane.since_mark < 2) changed_.Wait(&mutex_);
    seconds.push_back(std::chrono::duration<double>(lane.second - now).count());
  }
  return seconds;
}

std::vector<DecodingLoad::Outcome> DecodingLoad::Stop() {
  MutexLock lock(&mutex_);
  for (Lane& lane : lanes_) lane.limit = 0;
  std::vector<Outcome> outcomes;
  for (Lane& lane : lanes_) {
    while (lane.busy) changed_.Wait(&mutex_);
    outcomes.push_back(lane.outcome);
  }
  return outcomes;
}

std::vector<DecodingLoad::Outcome> DecodingLoad::Repeat(const std::vector<Outcome>& outcomes) {
  {
    MutexLock lock(&mutex_);
    for (size_t i = 0; i < lanes_.size(); ++i) lanes_[i].limit = outcomes[i].steps;
  }
  Start();
  MutexLock lock(&mutex_);
  std::vector<Outcome> repeated;
  for (Lane& lane : lanes_) {
    while (lane.busy) changed_.Wait(&mutex_);
    repeated.push_back(lane.outcome);
  }
  return repeated;
}

uint64_t DecodingLoad::answered() {
  MutexLock lock(&mutex_);
  return answered_;
}

uint64_t DecodingLoad::resent() {
  MutexLock lock(&mutex_);
  return resent_;
}

absl::Status DecodingLoad::failure() {
  MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace pleiad::testing
