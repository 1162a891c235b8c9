// The stage on a GPU beside its floors in one run: the projection alone, the other kernels alone, and the copy
// bandwidth. Tensors lie in device memory; weights, rows and tensors rotate through more than the L2 cache holds. The
// output is checked against the CPU device first. Prints a table; --json writes it to a file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/device/device.h"
#include "tests/bench/cuda_floors.h"
#include "tests/bench/report.h"

namespace pleiad::bench {
namespace {

constexpr uint32_t kLayers = Floors::kWeightCopies;
constexpr uint32_t kArenaTokens = 32768;
constexpr uint32_t kCarries = 64;
constexpr uint64_t kRotateBytes = uint64_t{256} << 20;

struct Settings {
  std::vector<uint32_t> tokens = {1, 7, 64, 512, 2048, 8192};
  uint32_t rounds = 200;
  std::string json;
  bool kernels_only = false;
};

std::vector<Bf16> RandomBf16(size_t count, float deviation, uint32_t seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<float> uniform(-deviation, deviation);
  std::vector<Bf16> values(count);
  for (Bf16& value : values) value = FloatToBf16(uniform(generator));
  return values;
}

Geometry Released() {
  Geometry geometry;
  geometry.hidden_size = 2560;
  geometry.embed_dim = 2560;
  return geometry;
}

LayerWeights RandomWeights(const Geometry& geometry, uint32_t seed) {
  const size_t channels = geometry.channels();
  LayerWeights weights;
  weights.key_value = RandomBf16((channels + geometry.hidden_size) * geometry.embed_dim,
                                 1.7f / std::sqrt(static_cast<float>(geometry.embed_dim)), seed);
  weights.norm_key = RandomBf16(channels, 0.3f, seed + 1);
  weights.norm_query = RandomBf16(channels, 0.3f, seed + 2);
  weights.norm_conv = RandomBf16(channels, 0.3f, seed + 3);
  weights.conv = RandomBf16(channels * geometry.conv_kernel_size, 0.5f, seed + 4);
  return weights;
}

DeviceOptions Options(uint32_t max_tokens) {
  DeviceOptions options;
  options.geometry = Released();
  options.arena_slots = uint64_t{kArenaTokens} * options.geometry.heads();
  options.carries = kCarries;
  options.max_tokens = max_tokens;
  return options;
}

// One segment of all tokens, or as many sequences of one token each.
enum class Cut { kOneSegment, kOneTokenEach };

class Load {
 public:
  Load(const DeviceOptions& options, std::vector<LayerWeights> weights, const std::vector<Bf16>& rows)
      : options_(options), generator_(5) {
    auto device = CreateCudaDevice(options, std::move(weights));
    OrExit(device.status());
    device_ = *std::move(device);
    OrExit(device_->WriteArena(
        Slot(0), absl::MakeConstSpan(reinterpret_cast<const std::byte*>(rows.data()), rows.size() * sizeof(Bf16))));
    const uint64_t largest = uint64_t{options.max_tokens} * options.geometry.channels() * sizeof(float);
    tensor_bytes_ = std::max(2 * largest, kRotateBytes);
    input_ = RandomFloats(tensor_bytes_, 21);
    output_ = RandomFloats(tensor_bytes_, 22);
  }

  Device& device() { return *device_; }

  BatchPlan Plan(uint32_t tokens, Cut cut, DType dtype) {
    const Geometry& geometry = options_.geometry;
    BatchPlan plan;
    plan.layer = LayerOrdinal(round_ % kLayers);
    plan.num_tokens = tokens;
    for (uint32_t i = 0; i < tokens * geometry.heads(); ++i) {
      plan.gather.push_back(GatherIndex::OfSlot(Slot(static_cast<uint32_t>(generator_() % options_.arena_slots))));
    }
    const uint32_t segments = cut == Cut::kOneSegment ? 1 : tokens;
    const uint32_t ring_rows = geometry.state_len() + options_.rollback_tokens;
    for (uint32_t i = 0; i < segments; ++i) {
      SegmentPlan segment;
      segment.carry = CarrySlot(i);
      segment.first_token = i;
      segment.num_tokens = tokens / segments;
      segment.ring = {round_ % ring_rows, ring_rows};
      segment.ring_to_undo = segment.num_tokens > options_.rollback_tokens;
      plan.segments.push_back(segment);
    }
    const uint64_t bytes = uint64_t{tokens} * geometry.channels() * ByteSize(dtype);
    const uint64_t at = (round_ % (tensor_bytes_ / bytes)) * bytes;
    TensorPart part;
    part.num_tokens = tokens;
    part.memory = TensorMemory::kDevice;
    part.input = input_.data() + at;
    part.output = output_.data() + at;
    part.input_dtype = part.output_dtype = dtype;
    plan.parts = {part};
    ++round_;
    return plan;
  }

  struct Times {
    double device_us = 0;  // of a batch, while others are enqueued before and behind it
    double wall_us = 0;
    double alone_us = 0;  // wall time of Run and Wait with nothing else in flight
  };
  // Batches enqueued as the engine does it: as many in flight as the device asks for. Medians of rows, long enough that
  // their begin and end do not count.
  Times Measure(uint32_t tokens, uint32_t rounds, Cut cut = Cut::kOneSegment, DType dtype = DType::kF32) {
    const uint32_t length = tokens <= 512 ? 100 : 20;
    std::vector<double> device;
    std::vector<double> wall;
    for (uint32_t row = 0; row <= std::max(3u, rounds / length); ++row) {
      std::vector<BatchPlan> plans;
      for (uint32_t i = 0; i < length; ++i) plans.push_back(Plan(tokens, cut, dtype));
      const double before = device_->stats().busy_seconds;
      const double us = Microseconds([&] { RunRow(plans); });
      if (row == 0) continue;
      device.push_back(1e6 * (device_->stats().busy_seconds - before) / length);
      wall.push_back(us / length);
    }
    std::vector<double> alone;
    for (uint32_t i = 0; i < length; ++i) {
      const BatchPlan plan = Plan(tokens, cut, dtype);
      alone.push_back(Microseconds([&] { RunRow({plan}); }));
    }
    return {Median(device), Median(wall), Median(alone)};
  }

 private:
  void RunRow(const std::vector<BatchPlan>& plans) {
    std::vector<Ticket> tickets;
    const uint32_t depth = device_->info().pipeline_depth;
    for (const BatchPlan& plan : plans) {
      if (tickets.size() >= depth) OrExit(device_->Wait(tickets[tickets.size() - depth]));
      const auto ticket = device_->Run(plan);
      OrExit(ticket.status());
      tickets.push_back(*ticket);
    }
    OrExit(device_->Wait(tickets.back()));
  }

  const DeviceOptions options_;
  std::minstd_rand generator_;
  std::unique_ptr<Device> device_;
  cuda::DeviceMemoryBlock input_;
  cuda::DeviceMemoryBlock output_;
  uint64_t tensor_bytes_ = 0;
  uint32_t round_ = 0;
};

std::vector<float> HostDelta(Device& device, const std::vector<float>& highway, uint32_t tokens) {
  BatchPlan plan;
  plan.num_tokens = tokens;
  for (uint32_t i = 0; i < tokens * 16; ++i) plan.gather.push_back(GatherIndex::OfSlot(Slot(i * 3)));
  SegmentPlan segment;
  segment.num_tokens = tokens;
  segment.ring_to_undo = true;
  plan.segments = {segment};
  std::vector<float> out(highway.size());
  TensorPart part;
  part.num_tokens = tokens;
  part.input = reinterpret_cast<const std::byte*>(highway.data());
  part.output = reinterpret_cast<std::byte*>(out.data());
  part.kind = OutputKind::kDelta;
  plan.parts = {part};
  const auto ticket = device.Run(plan);
  OrExit(ticket.status());
  OrExit(device.Wait(*ticket));
  return out;
}

// Relative L2 between GPU and CPU over one segment.
double CompareWithCpu(Load& load, const LayerWeights& weights, const std::vector<Bf16>& rows) {
  constexpr uint32_t kTokens = 96;
  DeviceOptions options = Options(kTokens);
  options.arena_slots = kTokens * 16 * 3;
  auto cpu = CreateCpuDevice(options, {weights});
  OrExit(cpu.status());
  OrExit((*cpu)->WriteArena(Slot(0), absl::MakeConstSpan(reinterpret_cast<const std::byte*>(rows.data()),
                                                         options.arena_slots * 160 * sizeof(Bf16))));
  std::minstd_rand generator(31);
  std::normal_distribution<float> normal;
  std::vector<float> highway(kTokens * options.geometry.channels());
  for (float& value : highway) value = normal(generator);
  const std::vector<float> a = HostDelta(load.device(), highway, kTokens);
  const std::vector<float> b = HostDelta(**cpu, highway, kTokens);
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

// Our kernels at small shapes and at the released one, without cuBLAS, also for tools that watch every access.
void RunKernels(const Settings& settings) {
  Geometry odd = Released();
  odd.hidden_size = 29;
  odd.embed_dim = 256;
  Geometry small = odd;
  small.hidden_size = 256;
  const uint32_t max_tokens = *std::max_element(settings.tokens.begin(), settings.tokens.end());
  for (const Geometry& geometry : {odd, small, Released()}) {
    Floors floors(geometry, {RandomWeights(geometry, 1)}, max_tokens, cuda::SumOrder::kInvariant);
    for (uint32_t tokens : settings.tokens) {
      std::printf("H %u, T %u: row hash %.1f us, gather, gate and conv %.1f us", geometry.hidden_size, tokens,
                  floors.RowHash(tokens, settings.rounds), floors.OtherKernels(tokens, settings.rounds));
      if (cuda::CanProjectFew(tokens, geometry.embed_dim, geometry.head_dim())) {
        std::printf(", project_few %.1f us",
                    floors.OneKernelProjection(tokens, settings.rounds, ProjectionKernel::kFew));
      }
      if (tokens <= cuda::kMaxProjectRowsTokens && geometry.hidden_size % 8 == 0) {
        std::printf(", project_rows %.1f us",
                    floors.OneKernelProjection(tokens, settings.rounds, ProjectionKernel::kRows));
      }
      std::printf("\n");
    }
  }
}

int Main(const Settings& settings) {
  const uint32_t max_tokens = std::max(128u, *std::max_element(settings.tokens.begin(), settings.tokens.end()));
  const auto gpu = FindCudaGpu(0);
  if (!gpu.ok()) {
    std::fprintf(stderr, "skipped: %s\n", gpu.status().ToString().c_str());
    return 77;
  }
  if (settings.kernels_only) {
    RunKernels(settings);
    return 0;
  }
  nlohmann::json report = StartReport(gpu->name + ", " + Machine(), {{"rounds", settings.rounds}, {"dtype", "F32"}});
  std::vector<LayerWeights> weights;
  for (uint32_t i = 0; i < kLayers; ++i) weights.push_back(RandomWeights(Released(), 10 * i + 1));
  const std::vector<Bf16> rows = RandomBf16(size_t{kArenaTokens} * Released().embed_dim, 1.7f, 6);
  DeviceOptions options = Options(max_tokens);
  Load untimed(options, weights, rows);
  options.time_kernels = true;
  Load load(options, weights, rows);
  std::printf("%s\n", load.device().info().detail.c_str());
  const double error = CompareWithCpu(load, weights[0], rows);
  std::printf("against the CPU device: relative L2 %.2e\n", error);
  if (!(error <= 3e-4)) return 1;

  Floors floors(Released(), weights, max_tokens, cuda::SumOrder::kFastest);
  options.batch_invariant = true;
  Load invariant(options, weights, rows);
  const double bandwidth = CopyBandwidth();
  std::printf("copy bandwidth %.0f GB/s, read and written\n\n", bandwidth / 1e9);
  report["copy_bytes_per_second"] = bandwidth;
  report["cpu_relative_l2"] = error;
  std::printf("%6s %9s %9s %9s %9s %8s %10s %9s %6s %9s %9s %9s %9s\n", "T", "stage us", "GEMM us", "untuned",
              "rest us", "of copy", "each 1 us", "wall us", "idle", "alone us", "invar. us", "BF16 us", "hash us");
  std::vector<double> first_choice;
  for (uint32_t tokens : settings.tokens) first_choice.push_back(floors.Gemm(tokens, settings.rounds / 2));
  floors.TuneGemm();
  for (size_t i = 0; i < settings.tokens.size(); ++i) {
    const uint32_t tokens = settings.tokens[i];
    const uint32_t rounds = tokens > 1024 ? std::max(60u, settings.rounds / 4) : settings.rounds;
    const Load::Times stage = load.Measure(tokens, rounds);
    // The time between batches, beside those that nothing is recorded in the middle of.
    const Load::Times plain = untimed.Measure(tokens, rounds);
    const double idle = 1 - stage.device_us / plain.wall_us;
    const double gemm = floors.Gemm(tokens, rounds);
    const double rest = floors.OtherKernels(tokens, rounds);
    // 118 KB a token at the copy bandwidth, over the time of all kernels but the GEMM.
    const double share = tokens * 118e3 / bandwidth * 1e6 / rest;
    const double each = tokens <= kCarries ? load.Measure(tokens, rounds, Cut::kOneTokenEach).device_us : 0;
    const double one_order = invariant.Measure(tokens, rounds).device_us;
    const double bf16 = load.Measure(tokens, rounds, Cut::kOneSegment, DType::kBf16).device_us;
    const double hash = floors.RowHash(tokens, rounds);
    std::printf("%6u %9.1f %9.1f %9.1f %9.1f %8.2f %10.1f %9.1f %6.3f %9.1f %9.1f %9.1f %9.1f\n", tokens,
                stage.device_us, gemm, first_choice[i], rest, share, each, plain.wall_us, idle, plain.alone_us,
                one_order, bf16, hash);
    report["stage"].push_back({{"tokens", tokens},
                               {"us", stage.device_us},
                               {"gemm_us", gemm},
                               {"gemm_first_choice_us", first_choice[i]},
                               {"rest_us", rest},
                               {"rest_share_of_copy", share},
                               {"one_token_each_us", each},
                               {"wall_us", plain.wall_us},
                               {"idle", idle},
                               {"alone_us", plain.alone_us},
                               {"batch_invariant_us", one_order},
                               {"bf16_us", bf16},
                               {"row_hash_us", hash}});
  }
  return WriteReport(report, settings.json) ? 0 : 1;
}

}  // namespace
}  // namespace pleiad::bench

int main(int argc, char** argv) {
  pleiad::bench::Settings settings;
  CLI::App app("The PLE stage on a GPU beside its floors");
  app.add_option("--tokens", settings.tokens, "batch sizes")->delimiter(',')->capture_default_str();
  app.add_option("--rounds", settings.rounds, "measured rounds")->capture_default_str()->check(CLI::Range(1, 10000));
  app.add_option("--json", settings.json, "file for the result");
  app.add_flag("--kernels-only", settings.kernels_only, "time our kernels one by one, without cuBLAS, and end");
  CLI11_PARSE(app, argc, argv);
  return pleiad::bench::Main(settings);
}
