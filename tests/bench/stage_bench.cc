// The stage on the CPU beside its floors, interleaved in one run: the time to read the dense weights once at the
// memory bandwidth measured here, and oneDNN's own matmul of the same shape. Prints medians and ratios; --json writes
// them to a file.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/device/cpu/isa.h"
#include "core/device/cpu/kernels.h"
#include "core/device/device.h"
#include "tests/bench/report.h"

namespace pleiad {
namespace {

struct Settings {
  uint32_t hidden = 2560;
  uint32_t embed = 2560;
  uint32_t threads = 0;
  std::vector<uint32_t> tokens = {1, 64, 512};
  uint32_t rounds = 15;
  uint64_t bandwidth_bytes = uint64_t{1} << 29;
  bool batch_invariant = false;
  bool bf16 = false;
  std::string isa;
  std::string json;
};

using bench::Median;
using bench::Microseconds;

std::vector<Bf16> RandomBf16(size_t count, float deviation, uint32_t seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<float> uniform(-deviation, deviation);
  std::vector<Bf16> values(count);
  for (Bf16& value : values) value = FloatToBf16(uniform(generator));
  return values;
}

// Sums a large buffer of large pages on all threads, each its own part: the most that reading can give.
class Bandwidth {
 public:
  Bandwidth(uint64_t bytes, uint32_t threads) : size_(bytes / 8), threads_(threads) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) std::exit(1);
    ::madvise(data, bytes, MADV_HUGEPAGE);
    words_ = static_cast<uint64_t*>(data);
    std::fill(words_, words_ + size_, 1);
  }
  ~Bandwidth() { ::munmap(words_, size_ * 8); }
  Bandwidth(const Bandwidth&) = delete;
  Bandwidth& operator=(const Bandwidth&) = delete;

  double MicrosecondsPerByte() {
    return Microseconds([&] {
             std::vector<std::thread> workers;
             for (uint32_t i = 0; i < threads_; ++i) workers.emplace_back([this, i] { Sum(i); });
             for (std::thread& worker : workers) worker.join();
           }) /
           static_cast<double>(size_ * 8);
  }

 private:
  // Four streams at a time, as many as the dot loop reads.
  void Sum(uint32_t part) {
    const size_t n = size_ / threads_ / 4;
    const uint64_t* p = words_ + part * 4 * n;
    uint64_t lanes[32] = {};
    for (size_t i = 0; i + 8 <= n; i += 8) {
      for (size_t stream = 0; stream < 4; ++stream) {
        for (size_t j = 0; j < 8; ++j) lanes[stream * 8 + j] += p[stream * n + i + j];
      }
    }
    uint64_t sum = 0;
    for (uint64_t lane : lanes) sum += lane;
    sink_ += sum;
  }

  uint64_t* words_ = nullptr;
  const size_t size_;
  const uint32_t threads_;
  std::atomic<uint64_t> sink_{0};
};

// oneDNN's own product of the shape, on its own threads; BF16 where the processor has it, else FP32.
class OneDnn {
 public:
  OneDnn(uint32_t rows, uint32_t embed) : rows_(rows), embed_(embed) {
    bf16_ = static_cast<bool>(Make(1));
    type_ = bf16_ ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    weights_.resize(size_t{rows} * embed * (bf16_ ? 2 : 4), std::byte{0x3D});
  }
  const char* name() const { return bf16_ ? "oneDNN BF16 matmul" : "oneDNN FP32 matmul"; }

  double Run(uint32_t tokens) {
    dnnl::matmul matmul(Make(tokens));
    std::vector<std::byte> in(size_t{tokens} * embed_ * (bf16_ ? 2 : 4), std::byte{0x3D});
    std::vector<std::byte> out(size_t{tokens} * rows_ * (bf16_ ? 2 : 4));
    const dnnl::memory a(In(tokens), engine_, in.data());
    const dnnl::memory b(Weights(), engine_, weights_.data());
    const dnnl::memory c(Out(tokens), engine_, out.data());
    return Microseconds([&] {
      matmul.execute(stream_, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
      stream_.wait();
    });
  }

 private:
  using Tag = dnnl::memory::format_tag;
  dnnl::memory::desc In(uint32_t tokens) const { return {{tokens, embed_}, type_, Tag::ab}; }
  dnnl::memory::desc Weights() const { return {{embed_, rows_}, type_, Tag::ba}; }
  dnnl::memory::desc Out(uint32_t tokens) const { return {{tokens, rows_}, type_, Tag::ab}; }
  dnnl::matmul::primitive_desc Make(uint32_t tokens) {
    return dnnl::matmul::primitive_desc(dnnl::matmul::desc(In(tokens), Weights(), Out(tokens)), engine_, true);
  }

  const dnnl_dim_t rows_;
  const dnnl_dim_t embed_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::memory::data_type type_ = dnnl::memory::data_type::bf16;
  bool bf16_ = false;
  std::vector<std::byte> weights_;
};

// The stage in process: rows in the arena, one carry, tensors that rotate.
class StageLoad {
 public:
  static constexpr uint32_t kArenaTokens = 2048;

  explicit StageLoad(const Settings& settings) : settings_(settings) {
    options_.geometry.hidden_size = settings.hidden;
    options_.geometry.embed_dim = settings.embed;
    options_.arena_slots = kArenaTokens * options_.geometry.heads();
    options_.carries = 4;
    options_.max_tokens = *std::max_element(settings.tokens.begin(), settings.tokens.end());
    options_.threads = settings.threads;
    options_.batch_invariant = settings.batch_invariant;
    options_.cpu_isa = settings.isa;
    const size_t channels = options_.geometry.channels();
    LayerWeights weights;
    const float deviation = 1.7f / std::sqrt(static_cast<float>(settings.embed));
    weights.key_value = RandomBf16((channels + settings.hidden) * settings.embed, deviation, 1);
    weights.norm_key = RandomBf16(channels, 0.3f, 2);
    weights.norm_query = RandomBf16(channels, 0.3f, 3);
    weights.norm_conv = RandomBf16(channels, 0.3f, 4);
    weights.conv = RandomBf16(channels * 4, 0.5f, 5);
    auto device = CreateCpuDevice(options_, {std::move(weights)});
    if (!device.ok()) {
      std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
      std::exit(1);
    }
    device_ = *std::move(device);
    const std::vector<Bf16> rows = RandomBf16(size_t{kArenaTokens} * settings.embed, 1.7f, 6);
    const auto* bytes = reinterpret_cast<const std::byte*>(rows.data());
    if (!device_->WriteArena(Slot(0), absl::MakeConstSpan(bytes, rows.size() * sizeof(Bf16))).ok()) std::exit(1);
    const DType dtype = settings.bf16 ? DType::kBf16 : DType::kF32;
    tensor_.resize(size_t{options_.max_tokens} * channels * ByteSize(dtype) * 2, std::byte{0x3D});
  }

  const DeviceInfo& info() const { return device_->info(); }

  double Run(uint32_t tokens) {
    const Geometry& geometry = options_.geometry;
    const DType dtype = settings_.bf16 ? DType::kBf16 : DType::kF32;
    BatchPlan plan;
    plan.num_tokens = tokens;
    for (uint32_t i = 0; i < tokens * geometry.heads(); ++i) {
      plan.gather.push_back(GatherIndex::OfSlot(Slot(next_row_ = (next_row_ * 5 + 1) % (kArenaTokens * 16))));
    }
    SegmentPlan segment;
    segment.carry = CarrySlot(0);
    segment.num_tokens = tokens;
    segment.ring = ring_;
    segment.ring_to_undo = tokens > options_.rollback_tokens;
    plan.segments = {segment};
    TensorPart part;
    part.num_tokens = tokens;
    part.input = tensor_.data();
    part.output = tensor_.data() + tensor_.size() / 2;
    part.input_dtype = part.output_dtype = dtype;
    plan.parts = {part};
    const uint32_t ring_rows = geometry.state_len() + options_.rollback_tokens;
    ring_ = {(ring_.cursor + tokens) % ring_rows, std::min(ring_.valid + tokens, ring_rows)};
    return Microseconds([&] {
      const auto ticket = device_->Run(plan);
      if (!ticket.ok() || !device_->Wait(*ticket).ok()) std::exit(1);
    });
  }

 private:
  const Settings settings_;
  DeviceOptions options_;
  std::unique_ptr<Device> device_;
  std::vector<std::byte> tensor_;
  RingView ring_;
  uint32_t next_row_ = 1;
};

// BF16 tensors cost a conversion of each value on the way in and one on the way out: the loops that the stage has them
// in, beside the same a value at a time.
nlohmann::json MeasureConversions(const CpuKernels& kernels, uint32_t rounds) {
  constexpr size_t kValues = 64 * 10240;
  std::vector<float> wide(kValues);
  std::vector<Bf16> narrow = RandomBf16(kValues, 4.0f, 8);
  const auto widen = [&](size_t i) {
    uint32_t bits = narrow[i];
    asm volatile("" : "+r"(bits));  // not several at a time
    wide[i] = Bf16ToFloat(static_cast<Bf16>(bits));
  };
  const auto round = [&](size_t i) {
    uint32_t bits = FloatToBf16(wide[i]);
    asm volatile("" : "+r"(bits));
    narrow[i] = static_cast<Bf16>(bits);
  };
  std::vector<double> us[4];
  for (uint32_t i = 0; i < rounds; ++i) {
    us[0].push_back(bench::Microseconds([&] { kernels.widen(narrow.data(), kValues, wide.data()); }));
    us[1].push_back(bench::Microseconds([&] {
      for (size_t k = 0; k < kValues; ++k) widen(k);
    }));
    us[2].push_back(bench::Microseconds([&] { kernels.round(wide.data(), kValues, narrow.data()); }));
    us[3].push_back(bench::Microseconds([&] {
      for (size_t k = 0; k < kValues; ++k) round(k);
    }));
  }
  nlohmann::json report;
  for (size_t i = 0; i < 4; i += 2) {
    const double vectors = Median(us[i]), scalar = Median(us[i + 1]);
    const char* name = i == 0 ? "BF16 to F32" : "F32 to BF16";
    std::printf("%s, %zu values: %.0f us, one at a time %.0f us, %.1f times as long\n", name, kValues, vectors, scalar,
                scalar / vectors);
    report.push_back({{"what", name}, {"values", kValues}, {"us", vectors}, {"scalar_us", scalar}});
  }
  return report;
}

int Main(const Settings& settings) {
  const uint32_t threads = settings.threads != 0 ? settings.threads : std::thread::hardware_concurrency();
  const uint32_t rows = 5 * settings.hidden;
  const double weight_bytes = 2.0 * rows * settings.embed;
  Bandwidth bandwidth(settings.bandwidth_bytes, threads);
  OneDnn onednn(rows, settings.embed);
  StageLoad stage(settings);

  std::vector<double> per_byte;
  std::vector<std::vector<double>> ours(settings.tokens.size());
  std::vector<std::vector<double>> floor(settings.tokens.size());
  for (uint32_t round = 0; round <= settings.rounds; ++round) {
    const double read = bandwidth.MicrosecondsPerByte();
    if (round > 0) per_byte.push_back(read);
    for (size_t i = 0; i < settings.tokens.size(); ++i) {
      // A pass over another large buffer has just emptied the caches of the weights.
      const double a = stage.Run(settings.tokens[i]);
      const double b = onednn.Run(settings.tokens[i]);
      if (round == 0) continue;  // warm-up
      ours[i].push_back(a);
      floor[i].push_back(b);
    }
  }

  const double bytes_per_second = 1e6 / Median(per_byte);
  const double read_us = weight_bytes * Median(per_byte);
  nlohmann::json report = bench::StartReport(bench::Machine(), {{"hidden", settings.hidden},
                                                                {"hc", 4},
                                                                {"embed", settings.embed},
                                                                {"threads", threads},
                                                                {"rounds", settings.rounds},
                                                                {"bf16", settings.bf16},
                                                                {"batch_invariant", settings.batch_invariant}});
  report["device"] = stage.info().detail;
  std::printf("%s; medians\n", stage.info().detail.c_str());
  std::printf("memory read %.1f GB/s on %u threads: the weights (%.1f MB) once in %.0f us\n\n", bytes_per_second / 1e9,
              threads, weight_bytes / 1e6, read_us);
  std::printf("%8s %12s %22s %14s %14s\n", "T", "stage us", onednn.name(), "stage/oneDNN", "stage/read");
  report["read_bytes_per_second"] = bytes_per_second;
  report["weights_read_us"] = read_us;
  report["peer"] = onednn.name();
  for (size_t i = 0; i < settings.tokens.size(); ++i) {
    const double a = Median(ours[i]);
    const double b = Median(floor[i]);
    std::printf("%8u %12.0f %22.0f %14.2f %14.2f\n", settings.tokens[i], a, b, a / b, a / read_us);
    report["stage"].push_back({{"tokens", settings.tokens[i]}, {"stage_us", a}, {"peer_us", b}});
  }
  std::printf("\n");
  report["conversions"] = MeasureConversions(KernelsFor(DetectIsa()), settings.rounds);
  return bench::WriteReport(report, settings.json) ? 0 : 1;
}

}  // namespace
}  // namespace pleiad

int main(int argc, char** argv) {
  pleiad::Settings settings;
  CLI::App app("The PLE stage on the CPU beside its floors");
  app.add_option("--hidden", settings.hidden, "hidden size")->capture_default_str();
  app.add_option("--embed", settings.embed, "embedding width")->capture_default_str();
  app.add_option("--threads", settings.threads, "threads; 0: all cores")->capture_default_str();
  app.add_option("--tokens", settings.tokens, "batch sizes")->delimiter(',')->capture_default_str();
  app.add_option("--rounds", settings.rounds, "measured rounds")->capture_default_str()->check(CLI::Range(1, 10000));
  app.add_option("--bandwidth-bytes", settings.bandwidth_bytes, "buffer of the bandwidth test")->capture_default_str();
  app.add_option("--isa", settings.isa, "highest instruction set")->capture_default_str();
  app.add_option("--json", settings.json, "file for the result");
  app.add_flag("--batch-invariant", settings.batch_invariant, "one order of summation");
  app.add_flag("--bf16", settings.bf16, "BF16 tensors");
  CLI11_PARSE(app, argc, argv);
  return pleiad::Main(settings);
}
