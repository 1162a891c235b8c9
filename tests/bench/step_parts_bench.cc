// What the host does for a step whose tensors lie in shared device memory, part by part: the client's message, the
// server's reading of it, the engine's plan and commit, the answer and its reading. No stage, no wire, one thread.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/internal/step_message.h"
#include "client/internal/step_queue.h"
#include "core/base/freed_memory.h"
#include "core/device/plan_check.h"
#include "core/model/hash_constants.h"
#include "core/rows/resident_row_store.h"
#include "server/forward_exchange.h"
#include "tests/bench/report.h"

namespace pleiad::bench {
namespace {

constexpr uint32_t kSequences = 64, kPrefillTokens = 8192, kVocabulary = 248320;

enum Part : size_t { kBuild, kParse, kPlan, kCheck, kCommit, kAnswer, kForget, kRead, kParts };
constexpr const char* kPartNames[] = {"client builds the message",
                                      "server reads it",
                                      "plan",
                                      "the device checks it",
                                      "commit",
                                      "server writes the answer",
                                      "server forgets the step",
                                      "client reads the answer"};

ModelConfig Config() {
  ModelConfig config;  // as released, but for the rows of the table
  config.geometry.hidden_size = config.geometry.embed_dim = 2560;
  config.ple_layers = {LayerIndex(1)};
  config.num_hidden_layers = 48;
  config.vocab_size = kVocabulary;
  config.eos_token_id = 248044;
  config.ngram_vocab_size_base = 20000;
  return config;
}

// Times parts that follow one another. Cold: each finds little of what it needs in caches, as in a server where parts
// run on different cores and whatever else comes between them.
class Stopwatch {
 public:
  enum class Caches : uint8_t { kWarm, kCold };

  void Start(Caches caches) {
    caches_ = caches;
    Begin();
  }
  // The part ends here, and the next one begins.
  void End(Part part) {
    const Clock::time_point now = Clock::now();
    us_[part].push_back(std::chrono::duration<double, std::micro>(now - began_).count());
    Begin();
  }
  // Medians since the last call.
  std::vector<double> Take() {
    std::vector<double> medians;
    for (std::vector<double>& part : us_) medians.push_back(Median(std::exchange(part, {})));
    return medians;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kLine = 64, kEvicted = 48 << 20;

  void Begin() {
    for (size_t at = 0; caches_ == Caches::kCold && at < others_.size(); at += kLine) ++others_[at];
    began_ = Clock::now();
  }

  Caches caches_ = Caches::kWarm;
  std::vector<uint8_t> others_ = std::vector<uint8_t>(kEvicted);
  std::array<std::vector<double>, kParts> us_;
  Clock::time_point began_;
};

class Memory final : public ClientMemory {
 public:
  explicit Memory(uint64_t bytes) : bytes_(bytes) {}
  std::byte* data() const override { return reinterpret_cast<std::byte*>(uintptr_t{1} << 40); }  // nobody reads it
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<bool> IsReady() const override { return true; }
  void* done_event() const override { return nullptr; }

 private:
  const uint64_t bytes_;
};

// Checks its plans and is done with them at once.
class CheckingDevice final : public Device {
 public:
  CheckingDevice(const DeviceOptions& options, Stopwatch* watch) : options_(options), watch_(watch) {
    info_.run_cost = RunCost::kEnqueueing;
    info_.gpu_uuid = "GPU-0";
  }
  const DeviceInfo& info() const override { return info_; }
  DeviceStats stats() const override { return {}; }
  StagingView staging() const override { return {}; }
  absl::Status WriteArena(Slot, absl::Span<const std::byte>) override { return absl::OkStatus(); }
  absl::StatusOr<std::shared_ptr<ClientMemory>> Import(const ClientMemoryHandles& handles) override {
    return std::make_shared<Memory>(handles.bytes);
  }
  absl::StatusOr<Ticket> Run(const BatchPlan& plan) override {
    if (plan.num_tokens > 0) watch_->End(kPlan);
    const absl::Status status = CheckPlan(options_, 1, TensorMemory::kDevice, plan);
    if (plan.num_tokens > 0) watch_->End(kCheck);
    if (!status.ok()) return status;
    return Ticket(++last_ticket_);
  }
  absl::StatusOr<Ticket> ReadCarry(const CarryRead&) override { return absl::UnimplementedError(""); }
  absl::StatusOr<Ticket> WriteCarry(const CarryWrite&) override { return absl::UnimplementedError(""); }
  absl::Status SaveCarry(CarrySlot, absl::Span<float>) override { return absl::OkStatus(); }
  absl::Status LoadCarry(CarrySlot, absl::Span<const float>) override { return absl::OkStatus(); }
  absl::Status Wait(Ticket) override { return absl::OkStatus(); }
  bool IsDone(Ticket) const override { return true; }

 private:
  const DeviceOptions options_;
  Stopwatch* const watch_;
  DeviceInfo info_;
  uint64_t last_ticket_ = 0;
};

// Rows of nothing.
class NoReader final : public RowReader {
 public:
  const RowReaderInfo& info() const override { return info_; }
  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    for (const RowRead& read : reads) on_results({{read.id, absl::OkStatus()}});
  }

 private:
  const RowReaderInfo info_{};
};

// Opens sequences of the engine, and does nothing else.
class EngineConnection final : public client::Connection {
 public:
  EngineConnection(Engine* engine, client::ModelInfo model) : engine_(engine), model_(std::move(model)) {}
  absl::StatusOr<client::ModelInfo> GetModel() override { return model_; }
  absl::StatusOr<client::OpenResult> Open(const client::OpenOptions&) override {
    client::OpenResult opened;
    engine_->Open(
        {}, [&opened](const OpenResult& result) { opened.sequence = client::SequenceId{result.sequence.value()}; });
    return opened;
  }
  absl::StatusOr<client::SequenceStatus> GetSequence(client::SequenceId, uint64_t) override { return No(); }
  absl::StatusOr<client::SequenceSnapshot> Snapshot(client::SequenceId, uint64_t, std::optional<uint32_t>) override {
    return No();
  }
  absl::Status Restore(client::SequenceId, uint64_t, const client::SequenceSnapshot&) override { return No(); }
  absl::StatusOr<bool> Release(client::SequenceId, uint64_t) override { return No(); }
  void ReleaseLater(client::SequenceId, uint64_t) override {}
  absl::StatusOr<client::LookupResult> Lookup(const client::LookupQuery&) override { return No(); }
  absl::StatusOr<client::StepResult> Forward(const client::WireStep&) override { return No(); }
  absl::StatusOr<client::HealthState> Health(const std::string&) override { return No(); }
  std::unique_ptr<client::StepConnection> OpenStream() override { return nullptr; }
  absl::StatusOr<std::unique_ptr<client::RegionLease>> AttachFile(const std::string&, uint64_t) override {
    return No();
  }
  absl::StatusOr<std::unique_ptr<client::RegionLease>> AttachDeviceMemory(const client::DeviceMemoryHandles&) override {
    return No();
  }

 private:
  static absl::Status No() { return absl::UnimplementedError(""); }

  Engine* const engine_;
  const client::ModelInfo model_;
};

// Medians, in us.
using Figures = std::vector<double>;

class StepParts {
 public:
  StepParts() {
    const ModelConfig config = Config();
    EngineModel model;
    model.config = config;
    const HashConstants hash = DeriveHashConstants(config, LayerOrdinal(0));
    model.hashers.emplace_back(hash, config.geometry.ngram_size, config.geometry.heads_per_ngram, config.eos_token_id);
    TableLayout table;
    table.rows = hash.padded_rows;
    table.head_dim = config.geometry.head_dim();
    table.shards = {{.rows = table.rows}};
    NoReader reader;
    const TableLayout* tables[] = {&table};
    ResidentLoadOptions load;
    load.write_arena = [](Slot, absl::Span<const std::byte>) { return absl::OkStatus(); };
    auto rows = LoadResidentRowStore(tables, reader, load);
    DeviceOptions options;
    options.geometry = config.geometry;
    options.arena_slots = table.rows;
    options.carries = 1024;
    auto device = std::make_unique<CheckingDevice>(options, &watch_);
    auto engine = Engine::Create({}, std::move(model), *std::move(rows), std::move(device));
    engine_ = *std::move(engine);

    model_.layers = {{1, table.rows, "BF16", config.geometry.aux_bytes()}};
    model_.channels = config.geometry.channels();
    model_.max_tokens = limits_.max_tokens = kPrefillTokens;
    model_.rollback_tokens = limits_.rollback_tokens = 8;
    limits_.max_sequences = 1024;
    limits_.channels = model_.channels;
    limits_.max_message_bytes = model_.max_message_bytes = kPrefillTokens * (4ull * model_.channels + 16) + (64 << 10);
    limits_.max_segments = kPrefillTokens + 1024;
    limits_.request_bytes = 48 * limits_.max_segments + (64 << 10);
    queue_.emplace(model_);
    client_.emplace(*client::Client::Over(std::make_shared<EngineConnection>(engine_.get(), model_)));
    for (uint32_t i = 0; i < kSequences; ++i) sequences_.push_back(*client_->OpenSequence());

    regions_ = *RegionTable::Open("/");
    v1::AttachRegionsRequest request;
    request.set_kind(v1::REGION_KIND_CUDA_IPC);
    request.set_bytes(2 * Bytes(kPrefillTokens));
    region_ = regions_->Attach(request, this, engine_.get()).id;
  }

  // Medians of `steps` of `tokens`: one of each sequence, or all of one that starts anew.
  std::vector<double> Measure(uint32_t tokens, bool prestaged, Stopwatch::Caches caches, int steps) {
    for (int i = 0; i < steps; ++i) {
      client::Step step = NewStep(tokens);
      if (prestaged) {
        client::Step hint = step;
        hint.mode = client::StepMode::kPrestage;
        Run(std::move(hint), Stopwatch::Caches::kWarm);
      }
      step.highway.region = client::RegionSpan{region_, 0, Bytes(tokens)};
      step.output_region = client::RegionSpan{region_, Bytes(kPrefillTokens), Bytes(tokens)};
      Run(std::move(step), caches);
    }
    return watch_.Take();
  }

 private:
  uint64_t Bytes(uint32_t tokens) const { return uint64_t{tokens} * model_.channels * sizeof(float); }

  client::Step NewStep(uint32_t tokens) {
    client::Step step;
    if (tokens == kSequences) {
      for (const client::Sequence& sequence : sequences_) step.segments.push_back({&sequence, 1});
    } else {
      step.segments.push_back({&sequences_[0], tokens, true});
    }
    for (uint32_t i = 0; i < tokens; ++i) step.token_ids.push_back(random_() % kVocabulary);
    return step;
  }

  void Run(client::Step step, Stopwatch::Caches caches) {
    const bool timed = step.mode == client::StepMode::kForward;
    const auto end = [this, timed](Part part) {
      if (timed) watch_.End(part);
    };
    bool ok = false;
    watch_.Start(caches);
    queue_->Add(std::move(step), [&ok](const absl::StatusOr<client::StepResult>& result) { ok = result.ok(); });
    const auto entry = queue_->Next();
    grpc::ByteBuffer message = client::internal::SerializeStep(entry->wire);
    end(kBuild);
    auto exchange = std::make_shared_for_overwrite<ForwardExchange>();
    const RegionAccess access{regions_.get(), ""};
    if (!exchange->Receive(&message, limits_)) std::abort();
    bytes_ += exchange->bytes(limits_, access);
    StepRequest request = exchange->MakeStep(limits_, access, &outputs_);
    end(kParse);
    std::promise<void> answered;
    engine_->Submit(std::move(request), [&](const StepResult& result) {
      end(kCommit);
      message = exchange->Answer(result, false);
      end(kAnswer);
      exchange->Forget();
      end(kForget);
      answered.set_value();
    });
    // Mostly it is: another thread of the engine may be answering.
    answered.get_future().wait();
    std::optional<client::WireReply> reply = client::internal::ReadPlainReply(message);
    if (!reply) std::abort();
    queue_->Answer(*std::move(reply));
    for (client::internal::StepQueue::Completion& completion : queue_->TakeCompletions()) completion.Deliver();
    end(kRead);
    if (!ok) std::abort();
  }

  Stopwatch watch_;
  std::unique_ptr<Engine> engine_;
  OutputPool outputs_;
  ServiceLimits limits_;
  std::unique_ptr<RegionTable> regions_;
  uint64_t region_ = 0;
  uint64_t bytes_ = 0;
  client::ModelInfo model_;
  std::optional<client::Client> client_;
  std::optional<client::internal::StepQueue> queue_;
  std::vector<client::Sequence> sequences_;
  std::mt19937 random_{43};
};

struct Case {
  const char* name;
  uint32_t tokens;
  bool prestaged;
  Stopwatch::Caches caches;
  int steps;  // of a round
};
constexpr auto kWarm = Stopwatch::Caches::kWarm, kCold = Stopwatch::Caches::kCold;
constexpr Case kCases[] = {{"64 sequences, warm", kSequences, false, kWarm, 400},
                           {"64 sequences, prestaged, warm", kSequences, true, kWarm, 400},
                           {"64 sequences, cold", kSequences, false, kCold, 20},
                           {"64 sequences, prestaged, cold", kSequences, true, kCold, 20},
                           {"a prefill of 8192, warm", kPrefillTokens, false, kWarm, 20},
                           {"a prefill of 8192, cold", kPrefillTokens, false, kCold, 10}};

int Main(int rounds, const std::string& beside, const std::string& json) {
  nlohmann::json report = StartReport(Machine(), {{"rounds", rounds}, {"beside", beside}});
  StepParts bench;
  std::vector<std::vector<Figures>> ours(std::size(kCases), std::vector<Figures>(kParts)), theirs = ours;
  for (int round = 0; round <= rounds; ++round) {  // the first does not count
    for (size_t i = 0; i < std::size(kCases); ++i) {
      const std::vector<double> us =
          bench.Measure(kCases[i].tokens, kCases[i].prestaged, kCases[i].caches, kCases[i].steps);
      for (size_t part = 0; part < kParts && round > 0; ++part) ours[i][part].push_back(us[part]);
    }
    if (beside.empty() || round == 0) continue;
    const std::string file = json + ".beside";
    if (std::system(absl::StrCat("'", beside, "' --rounds 1 --json '", file, "' > /dev/null").c_str()) != 0) return 1;
    const nlohmann::json other = nlohmann::json::parse(std::ifstream(file));
    for (size_t i = 0; i < std::size(kCases); ++i) {
      for (size_t part = 0; part < kParts; ++part) {
        theirs[i][part].push_back(other["cases"][i]["us"][kPartNames[part]]);
      }
    }
  }
  for (size_t i = 0; i < std::size(kCases); ++i) {
    std::printf("\n%-32s %10s %10s %8s\n", kCases[i].name, "us", "beside us", "ratio");
    nlohmann::json& of_case = report["cases"].emplace_back();
    of_case["name"] = kCases[i].name;
    const auto row = [&](const char* name, double us, double other) {
      std::printf("  %-30s %10.2f %10.2f %8.3f\n", name, us, other, other > 0 ? us / other : 0);
      of_case["us"][name] = us;
      if (other > 0) of_case["beside_us"][name] = other;
    };
    double sum = 0, other_sum = 0;
    for (size_t part = 0; part < kParts; ++part) {
      const double us = Median(ours[i][part]), other = beside.empty() ? 0 : Median(theirs[i][part]);
      sum += us;
      other_sum += other;
      row(kPartNames[part], us, other);
    }
    row("all", sum, other_sum);
  }
  return WriteReport(report, json) ? 0 : 1;
}

}  // namespace
}  // namespace pleiad::bench

int main(int argc, char** argv) {
  int rounds = 11;
  std::string beside, json;
  CLI::App app("What the host does for a step of tensors in shared device memory, part by part.", "step_parts_bench");
  app.add_option("--rounds", rounds, "Rounds; the medians of each are taken")->capture_default_str();
  CLI::Option* file = app.add_option("--json", json, "Writes the figures there");
  app.add_option("--beside", beside, "Path of another build of this benchmark; they take turns")->needs(file);
  CLI11_PARSE(app, argc, argv);
  pleiad::KeepFreedMemory();
  return pleiad::bench::Main(rounds, beside, json);
}
