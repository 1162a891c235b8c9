// A Ple service in the test's process with a toy stage: positions, reach, undo, epochs and refusals as the contract
// says, a formula that depends on token history, conv rows and highway, every request done at once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace pleiad::client::testing {

struct FakeOptions {
  std::vector<uint32_t> layers = {1};
  uint32_t channels = 4;
  uint32_t rollback_tokens = 8;
  uint32_t max_tokens = 64;
  bool forget_rows_on_restore = false;  // a fault
};

// The toy stage.
inline constexpr uint32_t kStateLen = 9;
inline constexpr uint32_t kHeads = 2;
inline constexpr uint32_t kEmbedDim = 4;
inline constexpr uint32_t kVocab = 1000;
inline constexpr uint32_t kEos = 7;

struct FakeCarry {
  explicit FakeCarry(uint32_t channels);
  // Counted from `base`; history and rows hold what lies before it too.
  std::vector<uint32_t> history;  // 2 + tokens since base
  std::vector<float> rows;        // [kStateLen + tokens since base, channels]
  uint64_t base = 0;
  uint64_t position = 0;
  uint64_t low = 0;
  uint64_t last_step_start = 0;

  void MoveTo(uint64_t target, uint32_t channels);
  // Appends one token; returns what the stage adds.
  std::vector<float> Push(uint32_t token, const float* highway, uint32_t channels);
  std::string Aux(uint32_t channels) const;
};

// Row ids of a token with its two predecessors, newest first.
std::vector<uint64_t> FakeRowIds(uint32_t token, uint32_t back1, uint32_t back2);
// BF16 bits.
std::vector<uint16_t> FakeEmbedding(const std::vector<uint64_t>& row_ids);

class FakePleServer final : public v1::Ple::Service {
 public:
  explicit FakePleServer(FakeOptions options = {});
  ~FakePleServer() override;

  // "127.0.0.1:PORT".
  const std::string& address() const { return address_; }
  size_t open_sequences();
  // Blocks until no sequence is open.
  void WaitUntilEmpty();
  // The next steps with tokens fail with DATA_LOSS.
  void FailNextSteps(int count);
  void SetDraining();
  void SetHealthy(const std::string& service, bool healthy);
  // Drops every connection; new ones are taken at once.
  void Restart();
  // Drops every connection and takes none until Restart.
  void Stop();
  // As a server that was started anew: no sequences, not draining.
  void Forget();
  // The sequence that was opened before all others expires.
  void ExpireOldest();
  // Opening fails for want of room once so many sequences are open.
  void SetRoom(size_t sequences);
  // Forgets its sequences, as a server that was started anew with another model.
  void SetModelId(const std::string& model_id);
  // Calls, but for health, need it.
  void SetToken(const std::string& token);
  // `x-pleiad-affinity` of the last call of each method; "" without one.
  std::map<std::string, std::string> affinities();

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*, v1::GetModelResponse*) override;
  grpc::Status OpenSequence(grpc::ServerContext*, const v1::OpenSequenceRequest*, v1::OpenSequenceResponse*) override;
  grpc::Status Forward(grpc::ServerContext*, const v1::ForwardRequest*, v1::ForwardResponse*) override;
  grpc::Status ForwardStream(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::ForwardResponse, v1::ForwardRequest>*) override;
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest*, v1::LookupResponse*) override;
  grpc::Status GetSequence(grpc::ServerContext*, const v1::GetSequenceRequest*, v1::GetSequenceResponse*) override;
  grpc::Status Snapshot(grpc::ServerContext*, const v1::SnapshotRequest*, v1::SnapshotResponse*) override;
  grpc::Status Restore(grpc::ServerContext*, const v1::RestoreRequest*, v1::RestoreResponse*) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;

 private:
  struct Sequence {
    uint64_t epoch = 0;
    std::string client_key;
    std::map<uint32_t, FakeCarry> carries;
  };

  // Not OK where the call has not the token.
  grpc::Status Note(const std::string& method, const grpc::ServerContext& context);
  v1::Status Check(const v1::ForwardRequest& request, uint32_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run(const v1::ForwardRequest& request, v1::ForwardResponse* response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null and a status in `refused` when unknown or the epoch is old; raises the epoch.
  Sequence* Find(uint64_t id, uint64_t epoch, v1::Status* refused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Load(const v1::LayerAux& layer, Sequence* sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FakeOptions options_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;

  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, Sequence> sequences_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_);  // no other server has it
  int fail_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  size_t room_ ABSL_GUARDED_BY(mutex_) = SIZE_MAX;
  std::string model_id_ ABSL_GUARDED_BY(mutex_) = "toy";
  std::string token_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> affinities_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::client::testing
