// A stack with a row cache over a reader that fails by script, and a clock that tests move.
#pragma once

#include <grpc/health/v1/health.grpc.pb.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "tests/cases/labels.h"
#include "tests/cases/stack.h"
#include "tests/support/fake_clock.h"
#include "tests/support/rows/scripted_reader.h"

namespace pleiad::testing {

// BF16 rows of 8 values.
inline constexpr uint64_t kLabelledRowBytes = 16;

// `slots` of the arena.
inline ServerFlags CachedFlags(uint32_t slots, uint64_t row_bytes = kLabelledRowBytes) {
  ServerFlags flags = CaseFlags();
  flags.table = TableFlag::kCached;
  flags.cache_bytes = slots * row_bytes;
  return flags;
}

struct CachedStack {
  FakeClock clock;
  ScriptedReader* reader = nullptr;  // the stack's
  Stack stack;

  explicit CachedStack(uint32_t slots, ScriptedReader::Script script = nullptr, const std::string& kind = "pread",
                       uint32_t threads = 2)
      : stack(Options(slots, std::move(script), kind, threads)) {}

  // A grpc.health.v1 status of "".
  int Health() {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse response;
    const auto channel = grpc::CreateChannel(stack.address(), grpc::InsecureChannelCredentials());
    const grpc::Status status = grpc::health::v1::Health::NewStub(channel)->Check(&context, {}, &response);
    return status.ok() ? response.status() : -1;
  }
  // Returns once health is this.
  void AwaitHealth(int wanted) {
    while (Health() != wanted) std::this_thread::yield();
  }
  // Returns once the metric is this: a hold ends a little after the answer to its step.
  void AwaitMetric(const std::string& name_and_labels, double wanted) {
    while (stack.Metric(name_and_labels) != wanted) std::this_thread::yield();
  }
  // Returns once nothing is held, arriving or in flight.
  void AwaitQuiet() {
    AwaitMetric("pleiad_arena_slots{state=\"held\"}", 0);
    AwaitMetric("pleiad_arena_slots{state=\"arriving\"}", 0);
    AwaitMetric("pleiad_row_reads_in_flight", 0);
  }
  // Row ids [T][heads]; no row is read.
  std::vector<std::vector<uint64_t>> RowsOf(const std::vector<uint32_t>& tokens) {
    grpc::ClientContext context;
    v1::LookupRequest request;
    v1::LookupResponse response;
    request.add_segments()->set_num_tokens(static_cast<uint32_t>(tokens.size()));
    request.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    request.set_want_row_ids(true);
    EXPECT_TRUE(stack.stub().Lookup(&context, request, &response).ok());
    std::vector<std::vector<uint64_t>> rows;
    for (auto row = response.row_ids().begin(); row != response.row_ids().end(); row += 4) {
      rows.emplace_back(row, row + 4);
    }
    return rows;
  }
  // A token that, alone, names none of `rows`.
  uint32_t TokenApartFrom(const std::vector<std::vector<uint64_t>>& rows) {
    std::set<uint64_t> taken;
    for (const std::vector<uint64_t>& of_token : rows) taken.insert(of_token.begin(), of_token.end());
    for (uint32_t token = 100;; ++token) {
      const std::vector<uint64_t> own = RowsOf({token}).at(0);
      if (std::none_of(own.begin(), own.end(), [&](uint64_t row) { return taken.contains(row); })) return token;
    }
  }

 private:
  StackOptions Options(uint32_t slots, ScriptedReader::Script script, const std::string& kind, uint32_t threads) {
    StackOptions options;
    options.spec = Labelled(DType::kBf16);
    options.flags = CachedFlags(slots);
    options.flags.reader = kind;
    options.flags.threads = threads;
    options.clock = &clock;
    if (script) {
      options.cache.wrap_reader = [this, script](std::unique_ptr<RowReader> inner) {
        auto scripted = std::make_unique<ScriptedReader>(std::move(inner), script);
        reader = scripted.get();
        return scripted;
      };
    }
    return options;
  }
};

// A call on a thread of its own.
template <typename Result>
class Pending {
 public:
  explicit Pending(std::function<Result()> call) : thread_([this, call = std::move(call)] { result_ = call(); }) {}
  Result Get() {
    thread_.join();
    return std::move(result_);
  }

 private:
  Result result_;
  std::thread thread_;
};

}  // namespace pleiad::testing
