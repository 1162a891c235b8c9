// A whole server over a checkpoint on the device of the tests, in the test's process, called through the raw stub, so
// that a test can send what no well-behaved client would; and the oracle beside it. Sums are batch-invariant: equal
// means bit-equal.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/engine/aux_blob.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "server/checkpoint_loader.h"
#include "server/server.h"
#include "tests/oracle/model.h"
#include "tests/oracle/oracle.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

// Any port of the loopback interface, 256 tokens, 64 sequences, 2 threads, batch-invariant.
ServerFlags CaseFlags();

struct StackOptions {
  CheckpointSpec spec = {};
  std::function<void(TestCheckpoint&)> change = {};         // before it is written
  std::function<void(const std::string& dir)> damage = {};  // after it was written
  ServerFlags flags = CaseFlags();                          // `model` is set by the stack
  Clock* clock = nullptr;
  std::function<std::unique_ptr<RowStore>(std::unique_ptr<RowStore>)> wrap_rows = {};
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> wrap_device = {};
  CacheParts cache = {};  // of --table cached
};

// Tokens and their highway, [T, C].
struct Story {
  std::vector<uint32_t> tokens;
  std::vector<float> highway;

  size_t channels() const { return highway.size() / tokens.size(); }
  Story Part(size_t first, size_t count) const;
};

// What a finished call says.
struct Answer {
  grpc::Status status;
  v1::Status detail;  // of the trailing metadata, or of the response
  v1::ForwardResponse response;

  bool ok() const { return status.ok() && response.status().code() == 0; }
  std::vector<float> output() const;
  v1::Reason reason() const { return detail.details_size() == 0 ? v1::REASON_UNSPECIFIED : detail.details(0).reason(); }
};

// Where a sequence stands at one layer.
struct Where {
  uint64_t position = 0;
  std::string aux;

  bool operator==(const Where&) const = default;
};

class Stack {
 public:
  // Fails the test when the server does not serve.
  explicit Stack(StackOptions options = {});
  ~Stack();

  Server& server() { return *server_; }
  // Until the server has ended by itself; its exit code. Once.
  int Wait();
  v1::Ple::Stub& stub() { return *stub_; }
  std::string address() const;
  const std::string& model_dir() const { return flags_.model; }
  const ModelConfig& config() const { return config_; }
  size_t channels() const { return config_.geometry.channels(); }
  // [layers]
  const oracle::Model& model(size_t p = 0) const { return models_.at(p); }

  // With a random highway that depends on `seed` alone.
  Story MakeStory(std::vector<uint32_t> tokens, uint64_t seed) const;
  // `count` random ids, an EOS now and then.
  Story RandomStory(size_t count, uint64_t seed) const;

  uint64_t Open();
  grpc::Status Open(const v1::OpenSequenceRequest& request, uint64_t* sequence);
  // True when the sequence was there.
  bool Release(uint64_t sequence);

  // One segment, F32, as DELTA. The layer is named where there are several.
  v1::ForwardRequest Request(uint64_t sequence, const Story& story, std::optional<uint64_t> position = std::nullopt,
                             size_t p = 0) const;
  Answer Forward(const v1::ForwardRequest& request);
  // All in flight on one stream, request ids 0, 1, ...; answers in the order of the requests, whatever order they came
  // in.
  std::vector<Answer> Stream(const std::vector<v1::ForwardRequest>& requests);
  // The output; fails the test when the step fails.
  std::vector<float> Step(uint64_t sequence, const Story& story, std::optional<uint64_t> position = std::nullopt,
                          size_t p = 0);
  // Output and end of a new sequence fed the whole story in one step.
  struct Whole {
    std::vector<float> output;
    Where end;
  };
  Whole FreshRun(const Story& story, size_t p = 0);

  Where At(uint64_t sequence, size_t p = 0);
  v1::SnapshotResponse Snapshot(uint64_t sequence);
  grpc::Status Restore(uint64_t sequence, const v1::SnapshotResponse& snapshot, v1::Status* detail = nullptr);
  v1::GetSequenceResponse Get(uint64_t sequence);
  AuxBlob Parse(const std::string& aux) const;
  v1::LookupResponse Lookup(const std::vector<uint32_t>& tokens, size_t p = 0);
  // [T][heads]
  std::vector<std::vector<uint64_t>> Ids(const std::vector<uint32_t>& tokens, size_t p = 0);

  // Output, history and conv rows of a fresh run against the oracle; at least 60 tokens.
  void ExpectOracle(const Story& story, const Whole& run, size_t p = 0) const;

  // The metrics page, and one value of it.
  std::string Scrape() const;
  double Metric(const std::string& name_and_labels) const;

 private:
  TempDir dir_;
  ServerFlags flags_;
  ModelConfig config_;
  std::vector<oracle::Model> models_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Ple::Stub> stub_;
  bool waited_ = false;
};

// Writes the checkpoint and starts a server on it; the status it was refused with. Fails the test when it serves.
absl::Status StartRefusal(const StackOptions& options);

// The Status in the trailing metadata; empty when there is none.
v1::Status DetailOf(const grpc::ClientContext& context);

// `a` followed by `b`.
std::vector<float> Join(std::vector<float> a, const std::vector<float>& b);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// The toy sequence of the known answers.
inline const std::vector<uint32_t> kToyTokens = {11, 22, 33, 7, 44, 55, 66};
inline const std::vector<std::vector<uint64_t>> kToyIds = {{6, 41, 72, 124},  {20, 53, 83, 128}, {21, 42, 99, 122},
                                                           {3, 42, 105, 142}, {20, 43, 99, 126}, {29, 62, 75, 129},
                                                           {27, 53, 85, 137}};

}  // namespace pleiad::testing
