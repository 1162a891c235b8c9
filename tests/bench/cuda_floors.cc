#include "tests/bench/cuda_floors.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "core/base/numeric.h"
#include "core/device/cuda/gate_conv_args.h"
#include "core/device/cuda/row_hashes.h"
#include "core/model/hash_constants.h"
#include "tests/bench/report.h"

namespace pleiad::bench {
namespace {

constexpr uint32_t kTableTokens = 16384;
constexpr uint64_t kRotateBytes = uint64_t{256} << 20;  // several times the L2 cache
constexpr uint32_t kRollback = 8;

template <typename T>
T Made(absl::StatusOr<T> value) {
  OrExit(value.status());
  return *std::move(value);
}

void Check(cudaError_t error, const char* what) { OrExit(cuda::ToStatus(error, what)); }

// BF16 values of about the size of keys and values.
cuda::DeviceMemoryBlock RandomBf16(uint64_t count, uint32_t seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<float> uniform(-1.7f, 1.7f);
  std::vector<Bf16> pattern(std::min<uint64_t>(count, uint64_t{8} << 20));
  for (Bf16& value : pattern) value = FloatToBf16(uniform(generator));
  auto block = Made(cuda::AllocateDevice("random values", count * sizeof(Bf16)));
  for (uint64_t at = 0; at < count; at += pattern.size()) {
    const uint64_t n = std::min<uint64_t>(pattern.size(), count - at);
    Check(cudaMemcpy(block.As<Bf16>() + at, pattern.data(), n * sizeof(Bf16), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  return block;
}

}  // namespace

void OrExit(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

cuda::DeviceMemoryBlock RandomFloats(uint64_t bytes, uint32_t seed) {
  std::minstd_rand generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> pattern(std::min<uint64_t>(bytes / sizeof(float), uint64_t{4} << 20));
  for (float& value : pattern) value = uniform(generator);
  auto block = Made(cuda::AllocateDevice("random values", bytes));
  for (uint64_t at = 0; at < bytes; at += pattern.size() * sizeof(float)) {
    const uint64_t n = std::min<uint64_t>(pattern.size() * sizeof(float), bytes - at);
    Check(cudaMemcpy(block.data() + at, pattern.data(), n, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  return block;
}

double DeviceMicroseconds(uint32_t rounds, const std::function<void(uint32_t, cudaStream_t)>& enqueue) {
  // Calls in a row, so that the GPU never waits for the host between them.
  constexpr uint32_t kMostCalls = 20;
  const uint32_t calls = std::min(kMostCalls, rounds);
  const uint32_t rows = rounds < kMostCalls ? 1 : std::max(3u, rounds / kMostCalls);
  const cuda::Stream stream = Made(cuda::MakeStream(cuda::StreamPriority::kNormal));
  const cuda::Event begun = Made(cuda::MakeEvent(cuda::EventTiming::kOn));
  const cuda::Event done = Made(cuda::MakeEvent(cuda::EventTiming::kOn));
  std::vector<double> times;
  uint32_t call = 0;
  for (uint32_t round = 0; round <= rows; ++round) {
    Check(cudaEventRecord(begun.get(), stream.get()), "cudaEventRecord");
    for (uint32_t i = 0; i < calls; ++i) enqueue(call++, stream.get());
    Check(cudaEventRecord(done.get(), stream.get()), "cudaEventRecord");
    Check(cudaEventSynchronize(done.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begun.get(), done.get()), "cudaEventElapsedTime");
    if (round > 0) times.push_back(1000.0 * milliseconds / calls);
  }
  return Median(times);
}

double CopyBandwidth() {
  constexpr uint64_t kBytes = uint64_t{2} << 30;
  const auto from = RandomFloats(kBytes, 7);
  const auto to = Made(cuda::AllocateDevice("copy", kBytes));
  const double us = DeviceMicroseconds(60, [&](uint32_t, cudaStream_t stream) {
    Check(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2.0 * kBytes / us * 1e6;
}

Floors::Floors(const Geometry& geometry, const std::vector<LayerWeights>& weights, uint32_t max_tokens,
               cuda::SumOrder order)
    : geometry_(geometry) {
  const uint64_t width = geometry.channels() + geometry.hidden_size;
  for (uint32_t i = 0; i < kWeightCopies; ++i) {
    layers_.push_back(Made(cuda::LayerMemory::Create(geometry, weights[i % weights.size()], std::nullopt)));
  }
  gemm_ = Made(cuda::KeyValueGemm::Create(static_cast<uint32_t>(width), geometry.embed_dim, max_tokens, order));
  int multiprocessors = 1;
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  Check(cuda::PrepareGateConv(geometry.hidden_size, geometry.hc_count, geometry.conv_kernel_size, multiprocessors_,
                              &setup_),
        "gate_conv");
  rows_ = RandomBf16(uint64_t{kTableTokens} * geometry.embed_dim, 11);
  e_ = RandomBf16(uint64_t{max_tokens} * geometry.embed_dim, 12);
  key_value_ = RandomBf16(max_tokens * width, 13);
  y_ = Made(cuda::AllocateDevice("output", max_tokens * width * sizeof(Bf16)));
  gates_ = Made(cuda::AllocateDevice("gates", uint64_t{max_tokens} * geometry.hc_count * sizeof(cuda::ChainGate)));
  Check(cudaMemset(gates_.data(), 0, gates_.size()), "cudaMemset");
  carry_ = RandomFloats((2 * geometry.state_len() + kRollback) * geometry.channels() * sizeof(float), 14);
}

double Floors::Gemm(uint32_t tokens, uint32_t rounds) {
  return DeviceMicroseconds(rounds, [&](uint32_t round, cudaStream_t stream) {
    OrExit(gemm_->Enqueue(layers_[round % kWeightCopies].pointers().key_value, e_.As<uint16_t>(), tokens,
                          y_.As<uint16_t>(), stream));
  });
}

void Floors::TuneGemm() {
  OrExit(gemm_->Tune(layers_[0].pointers().key_value, e_.As<uint16_t>(), y_.As<uint16_t>(), nullptr));
}

cuda::PlanShape Floors::Shape() const {
  cuda::PlanShape shape;
  shape.geometry = geometry_;
  shape.rollback_tokens = kRollback;
  shape.carries = 1;
  shape.concurrent_items = setup_.concurrent_items;
  return shape;
}

BatchPlan Floors::OneSegment(uint32_t tokens) const {
  BatchPlan plan;
  plan.num_tokens = tokens;
  SegmentPlan segment;
  segment.carry = CarrySlot(0);
  segment.num_tokens = tokens;
  segment.ring = {0, geometry_.state_len()};
  plan.segments = {segment};
  TensorPart part;
  part.num_tokens = tokens;
  plan.parts = {part};
  return plan;
}

double Floors::OtherKernels(uint32_t tokens, uint32_t rounds) {
  const uint64_t tensor = uint64_t{tokens} * geometry_.channels() * sizeof(float);
  const uint32_t copies = static_cast<uint32_t>(std::max<uint64_t>(2, std::min<uint64_t>(256, kRotateBytes / tensor)));
  const auto highway = RandomFloats(copies * tensor, 15);
  const auto output = Made(cuda::AllocateDevice("output", copies * tensor));

  const cuda::PlanShape shape = Shape();
  const cuda::PlanImageLayout layout(shape, tokens);
  BatchPlan plan = OneSegment(tokens);
  std::minstd_rand generator(16);
  for (uint32_t i = 0; i < tokens * geometry_.heads(); ++i) {
    plan.gather.push_back(GatherIndex::OfSlot(Slot(generator() % (kTableTokens * geometry_.heads()))));
  }

  // One image for each copy, so that nothing is rewritten while it is read.
  const auto images = Made(cuda::AllocateDevice("plans", copies * layout.bytes));
  std::vector<std::byte> image(layout.bytes);
  uint32_t items = 0;
  for (uint32_t i = 0; i < copies; ++i) {
    const cuda::PartAddress address{reinterpret_cast<uint64_t>(highway.data()) + i * tensor,
                                    reinterpret_cast<uint64_t>(output.data()) + i * tensor, false};
    items = WritePlanImage(shape, layout, plan, {&address, 1}, 1000 + i, image.data()).items;
    Check(cudaMemcpy(images.data() + i * layout.bytes, image.data(), layout.bytes, cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  return DeviceMicroseconds(rounds, [&](uint32_t round, cudaStream_t stream) {
    const std::byte* at = images.data() + (round % copies) * layout.bytes;
    cuda::GatherArgs gather;
    gather.header = reinterpret_cast<const cuda::PlanHeader*>(at);
    gather.rows = reinterpret_cast<const uint32_t*>(at + layout.gather);
    gather.arena = rows_.data();
    gather.head_dim = geometry_.head_dim();
    gather.out = e_.As<uint16_t>();
    gather.max_rows = tokens * geometry_.heads();
    Check(cuda::LaunchGather(gather, 0, stream), "gather");
    cuda::GateConvArgs args = cuda::GateConvArgsOf(geometry_, setup_);
    args.header = gather.header;
    args.items = reinterpret_cast<const cuda::ChainItem*>(at + layout.items);
    args.key_value = key_value_.As<uint16_t>();
    args.layer = layers_[round % kWeightCopies].pointers();
    args.carries.rows = carry_.As<float>();
    args.carries.state_len = geometry_.state_len();
    args.carries.ring_rows = geometry_.state_len() + kRollback;
    args.carries.channels = geometry_.channels();
    args.gates = gates_.As<cuda::ChainGate>();
    args.once = HasItemsOfOne(shape, tokens) ? 1 : 0;
    Check(cuda::LaunchGateConv(args, items, stream), "gate_conv");
  });
}

double Floors::RowHash(uint32_t tokens, uint32_t rounds) {
  ModelConfig config;
  config.geometry = geometry_;
  config.ple_layers = {LayerIndex(1)};
  config.num_hidden_layers = 48;
  config.vocab_size = 248320;
  config.ngram_vocab_size_base = 20000;
  const NgramHasher hasher(DeriveHashConstants(config, LayerOrdinal(0)), geometry_.ngram_size,
                           geometry_.heads_per_ngram, config.eos_token_id);
  const ::pleiad::RowHash layer{hasher, Slot(0)};
  const cuda::RowHashes hashes = Made(cuda::RowHashes::Create({&layer, 1}));

  const cuda::PlanShape shape = Shape();
  const cuda::PlanImageLayout layout(shape, tokens, cuda::PlanRows::kTokens);
  std::vector<uint32_t> ids(tokens);
  std::minstd_rand generator(18);
  for (uint32_t& id : ids) id = static_cast<uint32_t>(generator() % config.vocab_size);
  const std::vector<uint32_t> history(geometry_.context_len(), config.eos_token_id);
  BatchPlan plan = OneSegment(tokens);
  plan.hashed = {{history, ids}};

  const auto image = Made(cuda::AllocatePinned("plan", layout.bytes));
  const auto device_image = Made(cuda::AllocateDevice("plan", layout.bytes));
  const auto rows =
      Made(cuda::AllocateDevice("rows that are found", uint64_t{tokens} * geometry_.heads() * sizeof(uint32_t)));
  const cuda::PartAddress address{0, reinterpret_cast<uint64_t>(y_.data()), false};
  const cuda::PlanImageCounts counts = WritePlanImage(shape, layout, plan, {&address, 1}, 1, image.data());
  const cuda::HashArgs args =
      cuda::HashArgsOf(hashes.of(LayerOrdinal(0)), layout, counts, tokens, image, device_image, rows);
  return DeviceMicroseconds(
      rounds, [&](uint32_t, cudaStream_t stream) { Check(cuda::LaunchHashRows(args, stream), "row hash"); });
}

double Floors::OneKernelProjection(uint32_t tokens, uint32_t rounds, ProjectionKernel kernel) {
  const cuda::PlanHeader header{0, tokens * geometry_.heads(), 0, 0};
  std::vector<uint32_t> rows;
  std::minstd_rand generator(17);
  for (uint32_t i = 0; i < header.num_rows; ++i) {
    rows.push_back(static_cast<uint32_t>(generator() % (kTableTokens * geometry_.heads())));
  }
  const auto plan = Made(cuda::AllocateDevice("plan", sizeof(header) + rows.size() * sizeof(uint32_t)));
  Check(cudaMemcpy(plan.data(), &header, sizeof(header), cudaMemcpyHostToDevice), "cudaMemcpy");
  Check(cudaMemcpy(plan.data() + sizeof(header), rows.data(), rows.size() * sizeof(uint32_t), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  cuda::GatherArgs gather;
  gather.header = plan.As<const cuda::PlanHeader>();
  gather.rows = reinterpret_cast<const uint32_t*>(plan.data() + sizeof(header));
  gather.max_rows = header.num_rows;
  gather.arena = rows_.data();
  gather.head_dim = geometry_.head_dim();
  cuda::ProjectRowsArgs args;
  args.gather = gather;
  args.outputs = geometry_.channels() + geometry_.hidden_size;
  args.embed = geometry_.embed_dim;
  args.tokens = tokens;
  args.out = y_.As<uint16_t>();
  uint32_t most = 0;
  Check(cuda::PrepareProjectRows(args.outputs, args.embed, geometry_.head_dim(), &most), "preparing");
  return DeviceMicroseconds(rounds, [&](uint32_t round, cudaStream_t stream) {
    args.weights = layers_[round % kWeightCopies].pointers().key_value;
    if (kernel == ProjectionKernel::kRows) {
      Check(cuda::LaunchProjectRows(args, multiprocessors_, stream), "project_rows");
      return;
    }
    const cuda::ProjectFewArgs few{gather, args.weights, args.outputs, args.embed, args.out};
    Check(cuda::LaunchProjectFew(few, tokens, multiprocessors_, stream), "project_few");
  });
}

}  // namespace pleiad::bench
