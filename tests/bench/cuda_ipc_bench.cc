// Steps whose tensors lie in memory of the GPU that client and server share, against an echo of 64 bytes on the same
// server: what is left of the wire. The outputs are first compared, bit by bit, with those of the same steps inline.
// Needs a GPU; exits 77 without one.
#include <cuda_runtime_api.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/bench_load.h"
#include "client/cli/scrape.h"
#include "client/cli/synth.h"
#include "client/client.h"
#include "core/base/freed_memory.h"
#include "core/base/numeric.h"
#include "core/base/status_macros.h"
#include "core/device/cuda/cuda_ipc.h"
#include "tests/bench/report.h"
#include "tests/support/process/child_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kDecodes = 64;

struct Settings {
  std::string server;
  uint32_t rounds = 7;
  uint32_t decode_steps = 200;  // of a round
  uint32_t prefill_steps = 10;
  uint32_t prefill_tokens = 8192;
  std::string json;
};

absl::Status Check(cudaError_t error, const char* call) { return cuda::ToStatus(error, call); }

template <typename Handle>
std::string Bytes(const Handle& handle) {
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

// An allocation shared with the server, input in its first half and output in its second.
class SharedTensors {
 public:
  absl::Status Open(client::Client* client, uint64_t half) {
    half_ = half;
    PLEIAD_RETURN_IF_ERROR(Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (cudaEvent_t* event : {&ready_, &done_}) {
      PLEIAD_RETURN_IF_ERROR(
          Check(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventInterprocess), "cudaEventCreate"));
    }
    PLEIAD_RETURN_IF_ERROR(Check(cudaMalloc(&data_, 2 * half), "cudaMalloc"));
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t ready, done;
    PLEIAD_RETURN_IF_ERROR(Check(cudaIpcGetMemHandle(&memory, data_), "cudaIpcGetMemHandle"));
    PLEIAD_RETURN_IF_ERROR(Check(cudaIpcGetEventHandle(&ready, ready_), "cudaIpcGetEventHandle"));
    PLEIAD_RETURN_IF_ERROR(Check(cudaIpcGetEventHandle(&done, done_), "cudaIpcGetEventHandle"));
    PLEIAD_ASSIGN_OR_RETURN(const std::string uuid, cuda::GpuUuid(0));
    const client::DeviceMemoryHandles handles{Bytes(memory), uuid, Bytes(ready), Bytes(done), 0, 2 * half};
    PLEIAD_ASSIGN_OR_RETURN(shared_, client->ShareDeviceMemory(handles));
    client::DeviceMemoryHandles wrong = handles;
    wrong.gpu_uuid = "GPU-0";
    if (client->ShareDeviceMemory(wrong).ok()) return absl::InternalError("memory of another GPU was taken");
    wrong = handles;
    wrong.bytes += 1 << 21;  // allocations are made of pieces of this size
    if (client->ShareDeviceMemory(wrong).ok()) return absl::InternalError("more than the allocation was taken");
    wrong = handles;
    wrong.memory.assign(wrong.memory.size(), 'x');
    if (client->ShareDeviceMemory(wrong).ok()) return absl::InternalError("a handle of nothing was taken");
    wrong = handles;
    wrong.done_event.assign(wrong.done_event.size(), 'x');
    if (client->ShareDeviceMemory(wrong).ok()) return absl::InternalError("an event of nothing was taken");
    return absl::OkStatus();
  }
  // Goes before the allocation.
  void Detach() { shared_ = nullptr; }
  ~SharedTensors() {
    Detach();
    cudaFree(data_);
    for (cudaEvent_t event : {ready_, done_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // In the stream, with the ready event behind it.
  absl::Status Put(const std::string& bytes) {
    PLEIAD_RETURN_IF_ERROR(
        Check(cudaMemcpyAsync(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync"));
    return RecordReady();
  }
  absl::Status RecordReady() { return Check(cudaEventRecord(ready_, stream_), "cudaEventRecord"); }
  // Behind the done event, without waiting for the answer's word.
  absl::StatusOr<std::string> Get(uint64_t offset, uint64_t bytes) {
    std::string out(bytes, '\0');
    PLEIAD_RETURN_IF_ERROR(Check(cudaStreamWaitEvent(stream_, done_, 0), "cudaStreamWaitEvent"));
    PLEIAD_RETURN_IF_ERROR(Check(
        cudaMemcpyAsync(out.data(), static_cast<std::byte*>(data_) + offset, bytes, cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync"));
    PLEIAD_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
    return out;
  }
  uint64_t half() const { return half_; }
  client::RegionSpan Span(uint64_t offset, uint64_t bytes) const { return shared_->Span(offset, bytes); }

 private:
  uint64_t half_ = 0;
  void* data_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr, done_ = nullptr;
  std::unique_ptr<client::SharedDeviceMemory> shared_;
};

enum class Prestaged { kNo, kYes };
enum class Ids { kSent, kInFile };  // of the tokens

struct Case {
  uint32_t tokens;
  Prestaged prestaged;
  Ids ids;

  std::string name() const {
    return absl::StrCat(tokens == kDecodes ? "64 sequences decode" : "a prefill",
                        prestaged == Prestaged::kYes ? ", prestaged" : "",
                        ids == Ids::kInFile ? ", ids in a file" : "");
  }
};

struct Figures {
  std::vector<double> echo_us, step_us, queue_us, resolve_us, device_us, busy_us;
};

class IpcBench {
 public:
  explicit IpcBench(const Settings& settings) : settings_(settings) {}

  absl::Status Run() {
    SynthOptions synth;
    synth.dir = dir_ / "model";
    synth.config = ReleasedConfig();
    synth.config.ngram_vocab_size_base = 20000;
    PLEIAD_RETURN_IF_ERROR(RunSynth(synth, nullptr));
    address_ = "unix:" + (dir_ / "socket");
    testing::ChildProcess server({settings_.server,
                                  "--model",
                                  synth.dir,
                                  "--listen",
                                  address_,
                                  "--metrics-listen",
                                  "127.0.0.1:0",
                                  "--allow-client-regions",
                                  "--shm-dir",
                                  "/dev/shm",
                                  "--device",
                                  "cuda",
                                  "--table",
                                  "resident",
                                  "--max-tokens",
                                  absl::StrCat(settings_.prefill_tokens),
                                  "--max-sequences",
                                  "160",
                                  "--max-inflight-bytes",
                                  "4GiB",
                                  "--log-level",
                                  "warning"});
    const std::optional<std::string> ready = server.ReadOutputLine();
    if (!ready.has_value()) return absl::UnavailableError(server.DrainError());
    metrics_ = ready->substr(ready->rfind(' ') + 1);
    absl::Status status = Measure();
    server.Signal(SIGTERM);
    if (server.Wait() != 0) status.Update(absl::InternalError("the server did not end well"));
    return status;
  }

 private:
  absl::Status Measure() {
    PLEIAD_ASSIGN_OR_RETURN(client::Client client, client::Client::Connect({.address = address_}));
    client_ = &client;
    PLEIAD_ASSIGN_OR_RETURN(stream_, client.OpenStream());
    std::vector<client::Sequence> sequences;
    for (uint32_t i = 0; i < 2 * kDecodes; ++i) {
      PLEIAD_ASSIGN_OR_RETURN(client::Sequence sequence, client.OpenSequence());
      sequences.push_back(std::move(sequence));
    }
    shared_sequences_ = absl::MakeSpan(sequences).subspan(0, kDecodes);
    inline_sequences_ = absl::MakeSpan(sequences).subspan(kDecodes);
    SharedTensors tensors;
    PLEIAD_RETURN_IF_ERROR(tensors.Open(&client, Bytes(settings_.prefill_tokens, client::DType::kF32)));
    tensors_ = &tensors;
    PLEIAD_ASSIGN_OR_RETURN(ids_, client.ShareMemory("/dev/shm", uint64_t{settings_.prefill_tokens} * 4));
    nlohmann::json report =
        StartReport(Machine(), {{"rounds", settings_.rounds}, {"prefill_tokens", settings_.prefill_tokens}});
    PLEIAD_RETURN_IF_ERROR(CompareWithInline());
    std::printf("outputs equal those of inline steps, bit by bit\n\n%-30s %9s %9s %9s %8s %8s %8s %9s\n", "p50, us",
                "echo 64", "cuda-ipc", "us more", "queue", "resolve", "device", "GPU busy");
    for (const Case& c : {Case{kDecodes, Prestaged::kYes, Ids::kSent}, Case{kDecodes, Prestaged::kNo, Ids::kSent},
                          Case{settings_.prefill_tokens, Prestaged::kYes, Ids::kSent},
                          Case{settings_.prefill_tokens, Prestaged::kNo, Ids::kSent},
                          Case{settings_.prefill_tokens, Prestaged::kNo, Ids::kInFile}}) {
      PLEIAD_RETURN_IF_ERROR(MeasureOne(c, report));
    }
    stream_ = nullptr;
    ids_ = nullptr;
    tensors.Detach();
    return WriteReport(report, settings_.json) ? absl::OkStatus() : absl::InternalError("--json");
  }

  uint64_t Bytes(uint32_t tokens, client::DType dtype) const {
    return uint64_t{tokens} * client_->model().channels * client::ByteSize(dtype);
  }

  // 64 tokens of as many sequences, or all of one that starts anew.
  client::Step NewStep(uint32_t tokens, absl::Span<const client::Sequence> sequences) {
    client::Step step;
    if (tokens == kDecodes) {
      for (const client::Sequence& sequence : sequences) step.segments.push_back({&sequence, 1});
    } else {
      step.segments.push_back({&sequences[0], tokens, true});
    }
    for (uint32_t i = 0; i < tokens; ++i) step.token_ids.push_back(random_() % client_->model().vocab_size);
    return step;
  }
  std::string RandomHighway(uint32_t tokens, client::DType dtype) {
    std::string bytes(Bytes(tokens, dtype), '\0');
    std::uniform_real_distribution<float> value(-2, 2);
    for (uint64_t at = 0; at < bytes.size(); at += client::ByteSize(dtype)) {
      const float f = value(random_);
      const Bf16 half = FloatToBf16(f);
      std::memcpy(bytes.data() + at, dtype == client::DType::kF32 ? static_cast<const void*>(&f) : &half,
                  client::ByteSize(dtype));
    }
    return bytes;
  }

  absl::Status CompareWithInline() {
    for (int i = 0; i < 8; ++i) {
      const uint32_t tokens = i == 7 ? settings_.prefill_tokens : kDecodes;
      const auto dtype = i % 4 == 1 ? client::DType::kBf16 : client::DType::kF32;
      const uint64_t bytes = Bytes(tokens, dtype);
      const std::string highway = RandomHighway(tokens, dtype);
      client::Step step = NewStep(tokens, inline_sequences_);
      step.highway.dtype = dtype;
      step.output_kind = i % 3 == 2 ? client::OutputKind::kDelta : client::OutputKind::kHighway;
      client::Step shared = step;
      for (size_t s = 0; s < shared.segments.size(); ++s) shared.segments[s].sequence = &shared_sequences_[s];
      step.highway.data = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(highway.data()), bytes);
      PLEIAD_ASSIGN_OR_RETURN(const client::StepResult wanted, stream_->Run(step));
      shared.highway.region = tensors_->Span(0, bytes);
      shared.output_region = tensors_->Span(tensors_->half(), bytes);
      if (i % 4 >= 2) PutIds(&shared);
      // The step comes while its highway is still being written: the server waits for the ready event.
      PLEIAD_RETURN_IF_ERROR(tensors_->Put(highway));
      PLEIAD_RETURN_IF_ERROR(stream_->Run(shared).status());
      PLEIAD_ASSIGN_OR_RETURN(const std::string got, tensors_->Get(tensors_->half(), bytes));
      if (got != wanted.output) {
        return absl::DataLossError(
            absl::StrCat("step ", i, " of ", tokens, " tokens: the output is not the inline one"));
      }
    }
    return absl::OkStatus();
  }

  // From the record of the ready event to the callback.
  absl::StatusOr<double> Time(client::Step step, Figures& figures) {
    std::promise<std::pair<absl::StatusOr<client::StepResult>, Clock::time_point>> answer;
    const Clock::time_point begun = Clock::now();
    PLEIAD_RETURN_IF_ERROR(tensors_->RecordReady());
    stream_->Submit(std::move(step), [&answer](absl::StatusOr<client::StepResult> result) {
      const Clock::time_point now = Clock::now();
      answer.set_value({std::move(result), now});
    });
    const auto [result, at] = answer.get_future().get();
    PLEIAD_RETURN_IF_ERROR(result.status());
    figures.queue_us.push_back(absl::ToDoubleMicroseconds(result->stats.queue));
    figures.resolve_us.push_back(absl::ToDoubleMicroseconds(result->stats.resolve));
    figures.device_us.push_back(absl::ToDoubleMicroseconds(result->stats.device));
    return std::chrono::duration<double, std::micro>(at - begun).count();
  }

  void PutIds(client::Step* step) {
    const uint64_t bytes = 4 * step->token_ids.size();
    std::memcpy(ids_->data().data(), step->token_ids.data(), bytes);
    step->token_region = ids_->Span(0, bytes);
    step->token_ids.clear();
  }

  absl::Status MeasureOne(const Case& c, nlohmann::json& report) {
    Figures figures;
    const uint64_t bytes = Bytes(c.tokens, client::DType::kF32);
    const uint32_t steps = c.tokens == kDecodes ? settings_.decode_steps : settings_.prefill_steps;
    for (uint32_t round = 0; round <= settings_.rounds; ++round) {  // the first does not count
      Figures of_round;
      PLEIAD_ASSIGN_OR_RETURN(const double busy, BusySeconds());
      for (uint32_t i = 0; i < steps; ++i) {
        client::Step step = NewStep(c.tokens, shared_sequences_);
        if (c.prestaged == Prestaged::kYes) {
          client::Step hint = step;
          hint.mode = client::StepMode::kPrestage;
          PLEIAD_RETURN_IF_ERROR(stream_->Run(std::move(hint)).status());
        }
        step.highway.region = tensors_->Span(0, bytes);
        step.output_region = tensors_->Span(tensors_->half(), bytes);
        if (c.ids == Ids::kInFile) PutIds(&step);
        PLEIAD_ASSIGN_OR_RETURN(const double us, Time(std::move(step), of_round));
        of_round.step_us.push_back(us);
      }
      PLEIAD_ASSIGN_OR_RETURN(const double busy_now, BusySeconds());
      PLEIAD_ASSIGN_OR_RETURN(const double echo, EchoUs());
      if (round == 0) continue;
      figures.echo_us.push_back(echo);
      figures.busy_us.push_back(1e6 * (busy_now - busy) / steps);
      figures.step_us.push_back(Median(of_round.step_us));
      figures.queue_us.push_back(Median(of_round.queue_us));
      figures.resolve_us.push_back(Median(of_round.resolve_us));
      figures.device_us.push_back(Median(of_round.device_us));
    }
    const double echo = Median(figures.echo_us), step = Median(figures.step_us), busy = Median(figures.busy_us);
    const std::string name = c.name();
    std::printf("%-30s %9.1f %9.1f %9.1f %8.1f %8.1f %8.1f %9.1f\n", name.c_str(), echo, step, step - echo,
                Median(figures.queue_us), Median(figures.resolve_us), Median(figures.device_us), busy);
    std::fflush(stdout);
    report["cases"].push_back({{"name", name},
                               {"tokens", c.tokens},
                               {"prestaged", c.prestaged == Prestaged::kYes},
                               {"ids_in_file", c.ids == Ids::kInFile},
                               {"echo_64_p50_us", echo},
                               {"p50_us", step},
                               {"us_more", step - echo},
                               {"queue_us", Median(figures.queue_us)},
                               {"resolve_us", Median(figures.resolve_us)},
                               {"device_us", Median(figures.device_us)},
                               {"busy_us", busy},
                               {"ratio_to_busy", step / busy}});
    return absl::OkStatus();
  }

  absl::StatusOr<double> BusySeconds() const { return cli::ScrapeMetric(metrics_, "pleiad_device_busy_seconds_total"); }

  absl::StatusOr<double> EchoUs() {
    cli::BenchOptions options;
    options.load.sequences = 1;
    options.steps = settings_.decode_steps;
    options.warmup = settings_.decode_steps / 4;
    options.transport = cli::Transport::kEcho64;
    options.address = address_;
    PLEIAD_ASSIGN_OR_RETURN(const cli::BenchReport report, cli::RunBench(client_, options));
    return report.loads[0].p50_us;
  }

  const Settings settings_;
  testing::TempDir dir_;
  std::string address_, metrics_;
  client::Client* client_ = nullptr;
  std::unique_ptr<client::StepStream> stream_;
  SharedTensors* tensors_ = nullptr;
  std::unique_ptr<client::SharedRegion> ids_;
  absl::Span<client::Sequence> shared_sequences_, inline_sequences_;
  std::mt19937 random_{41};
};

}  // namespace
}  // namespace pleiad::bench

int main(int argc, char** argv) {
  pleiad::bench::Settings settings;
  CLI::App app("Steps in shared memory of a GPU, beside an echo of 64 bytes.", "cuda_ipc_bench");
  app.add_option("--server", settings.server, "Path of pleiad-bench-server")->required();
  app.add_option("--rounds", settings.rounds, "Rounds of steps and echoes in turn")->capture_default_str();
  app.add_option("--prefill-tokens", settings.prefill_tokens, "Of the longer step")->capture_default_str();
  app.add_option("--json", settings.json, "Writes the figures there");
  CLI11_PARSE(app, argc, argv);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "cuda_ipc_bench: no GPU\n");
    return 77;
  }
  pleiad::KeepFreedMemory();
  const absl::Status status = pleiad::bench::IpcBench(settings).Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_ipc_bench: %s\n", status.ToString().c_str());
  return 1;
}
