// Which of several replicas a client uses, and how often it may try. Pure: the time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace pleiad::client::internal {

// Rendezvous order of `addresses` for `key`, best first, as indices: by descending hash of key and address, ties by
// index. All weights are equal. Taking an address away leaves the order of the others as it was.
// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; the hash is FNV-1a over
// key, a zero byte and address, mixed by splitmix64's finaliser.
std::vector<size_t> RendezvousOrder(const std::vector<std::string>& addresses, const std::string& key);

// Of the client with this key: clients that differ in it alone, as the ranks of an engine do, act at different times.
uint64_t JitterSeed(uint64_t seed, const std::string& key);

struct BackoffRange {
  absl::Duration initial;
  absl::Duration max;
};

// Not thread-safe.
class ReplicaSet {
 public:
  // `order`: of RendezvousOrder. `seed`: of the jitter, JitterSeed's.
  ReplicaSet(std::vector<size_t> order, BackoffRange backoff, uint64_t seed);

  // The best replica that may be tried now, `except` left out.
  std::optional<size_t> Next(absl::Time now, std::optional<size_t> except = std::nullopt) const;
  // Those that may be tried now and come before `replica` in the order, the best one first.
  std::vector<size_t> Before(size_t replica, absl::Time now) const;
  // When one may be tried, `except` left out; InfiniteFuture without another.
  absl::Time NextAt(std::optional<size_t> except = std::nullopt) const;
  // It is left alone for a time that doubles with every failure in a row, from half of it to all of it at random.
  void Failed(size_t replica, absl::Time now);
  void Worked(size_t replica);
  // From half of `most` to all of it, at random.
  absl::Duration Jittered(absl::Duration most);

 private:
  struct State {
    absl::Time not_before = absl::InfinitePast();
    absl::Duration backoff = absl::ZeroDuration();
  };
  const std::vector<size_t> order_;
  const BackoffRange backoff_;
  std::vector<State> states_;
  std::mt19937_64 random_;
};

// A bucket of attempts, full at first. Not thread-safe.
class RetryBudget {
 public:
  RetryBudget(double attempts, double per_second) : size_(attempts), per_second_(per_second), attempts_(attempts) {}

  // Whether there is an attempt to take; takes it.
  bool Take(absl::Time now);
  // When there is one; `now` where there is.
  absl::Time NextAt(absl::Time now);

 private:
  void Fill(absl::Time now);

  const double size_, per_second_;
  double attempts_;
  absl::Time filled_ = absl::InfinitePast();
};

}  // namespace pleiad::client::internal
