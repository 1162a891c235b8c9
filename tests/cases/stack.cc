#include "tests/cases/stack.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/unique_fd.h"
#include "tests/support/local_engine.h"
#include "tests/support/test_device_flag.h"

namespace pleiad::testing {
namespace {

// A CheckpointLoader whose row store or device is wrapped.
class WrappingLoader final : public ModelLoader {
 public:
  WrappingLoader(const ServerFlags& flags, const StackOptions& options)
      : flags_(flags),
        clock_(options.clock),
        wrap_rows_(options.wrap_rows),
        wrap_device_(options.wrap_device),
        headers_(flags, options.clock) {}

  absl::StatusOr<ModelSummary> Open() override { return headers_.Open(); }
  absl::StatusOr<LoadedModel> Load(const LoadHooks&) override {
    LocalEngineOptions options;
    options.max_tokens = flags_.max_tokens;
    options.max_sequences = flags_.max_sequences;
    options.rollback_tokens = flags_.rollback_tokens;
    options.batch_invariant = flags_.batch_invariant;
    options.clock = clock_;
    options.wrap_rows = wrap_rows_;
    options.wrap_device = wrap_device_;
    LocalEngine local(flags_.model, options);
    return LoadedModel{.engine = local.TakeEngine(), .reader = {.name = "pread", .detail = "wrapped"}};
  }

 private:
  const ServerFlags flags_;
  Clock* const clock_;
  const decltype(StackOptions::wrap_rows) wrap_rows_;
  const decltype(StackOptions::wrap_device) wrap_device_;
  CheckpointLoader headers_;
};

std::unique_ptr<ModelLoader> MakeLoader(const ServerFlags& flags, const StackOptions& options) {
  if (options.wrap_rows || options.wrap_device) return std::make_unique<WrappingLoader>(flags, options);
  return std::make_unique<CheckpointLoader>(flags, options.clock, options.cache);
}

ServerFlags WriteModel(const StackOptions& options, const std::string& dir) {
  TestCheckpoint checkpoint = MakeCheckpoint(options.spec);
  if (options.change) options.change(checkpoint);
  checkpoint.Write(dir);
  if (options.damage) options.damage(dir);
  ServerFlags flags = options.flags;
  flags.model = dir;
  return flags;
}

absl::StatusOr<std::unique_ptr<Server>> StartServer(const ServerFlags& flags, const StackOptions& options) {
  return Server::Start(
      flags, {.clock = options.clock, .loader = MakeLoader(flags, options), .on_ready = nullptr, .hard_exit = [] {
                ADD_FAILURE() << "the stop limit has passed";
              }});
}

}  // namespace

ServerFlags CaseFlags() {
  ServerFlags flags;
  flags.listen = {"127.0.0.1:0"};
  flags.metrics_listen = "127.0.0.1:0";
  flags.max_tokens = 256;
  flags.max_sequences = 64;
  flags.threads = 2;
  flags.batch_invariant = true;
  flags.device = TestDeviceFlag();
  return flags;
}

Story Story::Part(size_t first, size_t count) const {
  const auto c = static_cast<ptrdiff_t>(channels());
  const auto from = static_cast<ptrdiff_t>(first);
  const auto to = static_cast<ptrdiff_t>(first + count);
  return {{tokens.begin() + from, tokens.begin() + to}, {highway.begin() + from * c, highway.begin() + to * c}};
}

std::vector<float> Answer::output() const {
  std::vector<float> values(response.output().data().size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), response.output().data().data(), values.size() * sizeof(float));
  return values;
}

Stack::Stack(StackOptions options) {
  flags_ = WriteModel(options, dir_.path());
  auto server = StartServer(flags_, options);
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  const absl::Status loaded = server_->WaitUntilLoaded();
  EXPECT_TRUE(loaded.ok()) << loaded;
  auto checkpoint = Checkpoint::Open({flags_.model, std::nullopt});
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  config_ = (*checkpoint)->config();
  for (const LayerIndex layer : config_.ple_layers) {
    models_.push_back(oracle::LoadModel(flags_.model, layer.value() + 1));
  }
  stub_ = v1::Ple::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
}

int Stack::Wait() {
  waited_ = true;
  return server_->Wait();
}

Stack::~Stack() {
  if (waited_) return;
  server_->Terminate();
  server_->Terminate();
  server_->Wait();
}

std::string Stack::address() const { return server_->addresses().addresses.front().ToString(); }

Story Stack::MakeStory(std::vector<uint32_t> tokens, uint64_t seed) const {
  const std::vector<double> values = oracle::RandomValues(tokens.size() * channels(), 1.0, seed);
  return {std::move(tokens), {values.begin(), values.end()}};
}

Story Stack::RandomStory(size_t count, uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back(random() % 7 == 0 ? config_.eos_token_id : static_cast<uint32_t>(random() % config_.vocab_size));
  }
  return MakeStory(std::move(tokens), seed + 1);
}

uint64_t Stack::Open() {
  uint64_t sequence = 0;
  const grpc::Status status = Open({}, &sequence);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return sequence;
}

grpc::Status Stack::Open(const v1::OpenSequenceRequest& request, uint64_t* sequence) {
  grpc::ClientContext context;
  v1::OpenSequenceResponse response;
  grpc::Status status = stub_->OpenSequence(&context, request, &response);
  *sequence = response.sequence_id();
  return status;
}

bool Stack::Release(uint64_t sequence) {
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  v1::ReleaseResponse response;
  request.set_sequence_id(sequence);
  const grpc::Status status = stub_->Release(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.released();
}

v1::ForwardRequest Stack::Request(uint64_t sequence, const Story& story, std::optional<uint64_t> position,
                                  size_t p) const {
  v1::ForwardRequest request;
  if (config_.ple_layers.size() > 1) request.set_layer_index(config_.ple_layers[p].value());
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(sequence);
  segment->set_num_tokens(static_cast<uint32_t>(story.tokens.size()));
  if (position) segment->set_position(*position);
  request.mutable_token_ids()->Add(story.tokens.begin(), story.tokens.end());
  request.mutable_output()->set_kind(v1::OUTPUT_KIND_DELTA);
  request.mutable_highway()->set_dtype(v1::DTYPE_F32);
  request.mutable_highway()->set_data(story.highway.data(), story.highway.size() * sizeof(float));
  return request;
}

Answer Stack::Forward(const v1::ForwardRequest& request) {
  Answer answer;
  grpc::ClientContext context;
  answer.status = stub_->Forward(&context, request, &answer.response);
  answer.detail = DetailOf(context);
  return answer;
}

std::vector<Answer> Stack::Stream(const std::vector<v1::ForwardRequest>& requests) {
  grpc::ClientContext context;
  auto stream = stub_->ForwardStream(&context);
  std::thread writer([&] {
    for (size_t i = 0; i < requests.size(); ++i) {
      v1::ForwardRequest request = requests[i];
      request.set_request_id(i);
      EXPECT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::vector<Answer> answers(requests.size());
  size_t answered = 0;
  for (Answer answer; stream->Read(&answer.response); answer = {}) {
    answer.detail = answer.response.status();
    const uint64_t i = answer.response.request_id();
    if (i < answers.size()) answers[i] = std::move(answer);
    ++answered;
  }
  EXPECT_EQ(answered, requests.size());
  writer.join();
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return answers;
}

std::vector<float> Stack::Step(uint64_t sequence, const Story& story, std::optional<uint64_t> position, size_t p) {
  const Answer answer = Forward(Request(sequence, story, position, p));
  EXPECT_TRUE(answer.ok()) << answer.status.error_message();
  return answer.output();
}

Stack::Whole Stack::FreshRun(const Story& story, size_t p) {
  const uint64_t sequence = Open();
  Whole run;
  run.output = Step(sequence, story, std::nullopt, p);
  run.end = At(sequence, p);
  EXPECT_TRUE(Release(sequence));
  return run;
}

Where Stack::At(uint64_t sequence, size_t p) {
  grpc::ClientContext context;
  v1::SnapshotRequest request;
  v1::SnapshotResponse response;
  request.set_sequence_id(sequence);
  request.set_layer_index(config_.ple_layers[p].value());
  const grpc::Status status = stub_->Snapshot(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  if (response.layers_size() != 1) return {};
  return {response.layers(0).position(), response.layers(0).aux()};
}

v1::SnapshotResponse Stack::Snapshot(uint64_t sequence) {
  grpc::ClientContext context;
  v1::SnapshotRequest request;
  v1::SnapshotResponse response;
  request.set_sequence_id(sequence);
  const grpc::Status status = stub_->Snapshot(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

grpc::Status Stack::Restore(uint64_t sequence, const v1::SnapshotResponse& snapshot, v1::Status* detail) {
  grpc::ClientContext context;
  v1::RestoreRequest request;
  v1::RestoreResponse response;
  request.set_sequence_id(sequence);
  request.set_model_id(snapshot.model_id());
  *request.mutable_layers() = snapshot.layers();
  grpc::Status status = stub_->Restore(&context, request, &response);
  if (detail != nullptr) *detail = DetailOf(context);
  return status;
}

v1::GetSequenceResponse Stack::Get(uint64_t sequence) {
  grpc::ClientContext context;
  v1::GetSequenceRequest request;
  v1::GetSequenceResponse response;
  request.set_sequence_id(sequence);
  const grpc::Status status = stub_->GetSequence(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

AuxBlob Stack::Parse(const std::string& aux) const {
  auto blob = ParseAuxBlob(aux, config_.geometry, config_.vocab_size);
  EXPECT_TRUE(blob.ok()) << blob.status();
  return blob.ok() ? *std::move(blob) : AuxBlob{};
}

v1::LookupResponse Stack::Lookup(const std::vector<uint32_t>& tokens, size_t p) {
  grpc::ClientContext context;
  v1::LookupRequest request;
  v1::LookupResponse response;
  request.set_layer_index(config_.ple_layers[p].value());
  request.add_segments()->set_num_tokens(static_cast<uint32_t>(tokens.size()));
  request.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  request.set_want_row_ids(true);
  request.set_want_embeddings(true);
  const grpc::Status status = stub_->Lookup(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response;
}

std::vector<std::vector<uint64_t>> Stack::Ids(const std::vector<uint32_t>& tokens, size_t p) {
  const v1::LookupResponse response = Lookup(tokens, p);
  const auto heads = static_cast<ptrdiff_t>(config_.geometry.heads());
  std::vector<std::vector<uint64_t>> ids;
  for (auto row = response.row_ids().begin(); row != response.row_ids().end(); row += heads) {
    ids.emplace_back(row, row + heads);
  }
  return ids;
}

void Stack::ExpectOracle(const Story& story, const Whole& run, size_t p) const {
  ASSERT_GE(story.tokens.size(), 60u) << "fewer tokens have no bound";
  const oracle::Trace want = oracle::RunTokens(model(p), story.tokens, {story.highway.begin(), story.highway.end()},
                                               oracle::KvRounding::kBf16);
  EXPECT_LE(oracle::RelativeL2(run.output, want.delta), 3e-4);
  const AuxBlob end = Parse(run.end.aux);
  EXPECT_EQ(end.history, oracle::HistoryAt(model(p).hash, story.tokens, story.tokens.size()));
  EXPECT_LE(oracle::RelativeL2(end.conv_rows, oracle::ConvRowsAt(model(p), want, story.tokens.size())), 3e-3);
}

std::string Stack::Scrape() const {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->addresses().metrics.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(::write(fd.get(), request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string page;
  std::vector<char> buffer(1 << 16);
  for (ssize_t n; (n = ::read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    page.append(buffer.data(), static_cast<size_t>(n));
  }
  return page;
}

double Stack::Metric(const std::string& name_and_labels) const {
  for (const absl::string_view line : absl::StrSplit(Scrape(), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    double value = 0;
    if (parts.first == name_and_labels && absl::SimpleAtod(parts.second, &value)) return value;
  }
  ADD_FAILURE() << "no metric " << name_and_labels;
  return -1;
}

absl::Status StartRefusal(const StackOptions& options) {
  TempDir dir;
  const ServerFlags flags = WriteModel(options, dir.path());
  auto server = StartServer(flags, options);
  if (!server.ok()) return server.status();
  const absl::Status loaded = (*server)->WaitUntilLoaded();
  if (loaded.ok()) (*server)->Terminate();
  const int code = (*server)->Wait();
  if (!loaded.ok()) {
    EXPECT_EQ(code, kExitRefused);
    return loaded;
  }
  ADD_FAILURE() << "the server serves";
  return absl::OkStatus();
}

v1::Status DetailOf(const grpc::ClientContext& context) {
  v1::Status status;
  const auto& metadata = context.GetServerTrailingMetadata();
  if (const auto found = metadata.find("pleiad-status-bin"); found != metadata.end()) {
    EXPECT_TRUE(status.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())));
  }
  return status;
}

std::vector<float> Join(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace pleiad::testing
