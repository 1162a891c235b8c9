// One caller of a soak without the client library: unary calls of its own, some of which it gives up under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "tests/soak/soak_carry.h"
#include "tests/soak/tally.h"

namespace pleiad::testing {

// Used by one thread.
class UnaryWorker {
 public:
  UnaryWorker(const SoakSetup* setup, uint32_t number);

  // As StreamWorker's.
  Tally Run(const std::function<bool()>& more);

 private:
  struct Life {
    uint64_t id = 0, epoch = 1;
    std::vector<SoakCarry> carries;
    std::chrono::steady_clock::time_point touched;
  };
  // How a call is given up.
  enum class GiveUp : uint8_t { kNever, kAtOnce, kLater, kDeadline };

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  void Operate();
  void Open();
  void Forward(Life& life, size_t layer, GiveUp give_up);
  void Snapshot(Life& life, size_t layer, GiveUp give_up);
  // After a call of `life` was given up: raises the epoch, so that nothing of it acts later, and looks where it stands.
  void TakeOver(Life& life, size_t layer);
  void Release(Life& life);
  void Forget(const Life& life);
  // Counts `status`; true when it says that the life has expired, which then is forgotten.
  bool Expired(const Life& life, const grpc::Status& status);

  // Starts `method`, gives it up as told, and waits for what comes of it.
  template <typename Request, typename Response, typename Method>
  grpc::Status Call(Method method, const Request& request, Response* response, GiveUp give_up);

  const SoakSetup* const setup_;
  std::mt19937 random_;
  Tally tally_;
  SoakJudge judge_;
  std::unique_ptr<v1::Ple::Stub> stub_;
  std::vector<std::unique_ptr<Life>> lives_;
};

}  // namespace pleiad::testing
