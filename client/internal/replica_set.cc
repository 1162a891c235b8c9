#include "client/internal/replica_set.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pleiad::client::internal {
namespace {

uint64_t Score(const std::string& key, const std::string& what) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3; };
  for (const char c : key) add(static_cast<unsigned char>(c));
  add(0);
  for (const char c : what) add(static_cast<unsigned char>(c));
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

}  // namespace

std::vector<size_t> RendezvousOrder(const std::vector<std::string>& addresses, const std::string& key) {
  std::vector<uint64_t> scores;
  for (const std::string& address : addresses) scores.push_back(Score(key, address));
  std::vector<size_t> order(addresses.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

uint64_t JitterSeed(uint64_t seed, const std::string& key) { return Score(key, std::to_string(seed)); }

ReplicaSet::ReplicaSet(std::vector<size_t> order, BackoffRange backoff, uint64_t seed)
    : order_(std::move(order)), backoff_(backoff), states_(order_.size()), random_(seed) {}

std::optional<size_t> ReplicaSet::Next(absl::Time now, std::optional<size_t> except) const {
  for (const size_t replica : order_) {
    if (replica != except && states_[replica].not_before <= now) return replica;
  }
  return std::nullopt;
}

std::vector<size_t> ReplicaSet::Before(size_t replica, absl::Time now) const {
  std::vector<size_t> before;
  for (const size_t at : order_) {
    if (at == replica) break;
    if (states_[at].not_before <= now) before.push_back(at);
  }
  return before;
}

absl::Time ReplicaSet::NextAt(std::optional<size_t> except) const {
  absl::Time at = absl::InfiniteFuture();
  for (const size_t replica : order_) {
    if (replica != except) at = std::min(at, states_[replica].not_before);
  }
  return at;
}

void ReplicaSet::Failed(size_t replica, absl::Time now) {
  State& state = states_[replica];
  state.backoff = state.backoff == absl::ZeroDuration() ? backoff_.initial : std::min(2 * state.backoff, backoff_.max);
  state.not_before = now + Jittered(state.backoff);
}

absl::Duration ReplicaSet::Jittered(absl::Duration most) {
  return most * std::uniform_real_distribution<double>(0.5, 1)(random_);
}

void ReplicaSet::Worked(size_t replica) { states_[replica] = {}; }

void RetryBudget::Fill(absl::Time now) {
  if (now <= filled_) return;
  if (filled_ != absl::InfinitePast()) {
    attempts_ = std::min(size_, attempts_ + per_second_ * absl::ToDoubleSeconds(now - filled_));
  }
  filled_ = now;
}

bool RetryBudget::Take(absl::Time now) {
  Fill(now);
  if (attempts_ < 1) return false;
  attempts_ -= 1;
  return true;
}

absl::Time RetryBudget::NextAt(absl::Time now) {
  Fill(now);
  // A nanosecond more, so that rounding leaves no attempt just short of whole.
  return attempts_ >= 1 ? now : now + absl::Seconds((1 - attempts_) / per_second_) + absl::Nanoseconds(1);
}

}  // namespace pleiad::client::internal
