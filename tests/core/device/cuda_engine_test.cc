// The engine on the CUDA device: row caches of any size give every row its own value, and nothing of a sequence stays
// in device memory.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <iostream>
#include <random>

#include "tests/core/device/cuda_fixture.h"
#include "tests/core/device/rig_pair.h"
#include "tests/oracle/model.h"
#include "tests/oracle/numbers.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using testing::LocalEngine;
using testing::LocalEngineOptions;
using testing::StepAnswer;
using testing::TempDir;

// Tables of some 10,000 rows, each random.
testing::CheckpointSpec SomeRows() {
  testing::CheckpointSpec spec;
  spec.geometry = {.hidden_size = 24, .hc_count = 2, .embed_dim = 40, .ngram_size = 3, .heads_per_ngram = 2};
  spec.ngram_vocab_size_base = 2503;
  return spec;
}

LocalEngineOptions EngineOn(testing::TestDevice device) {
  LocalEngineOptions options;
  options.device = device;
  options.max_tokens = 128;
  options.batch_invariant = true;
  return options;
}

// Values of a table's rows as the checkpoint has them, as BF16 bits.
class KnownRows {
 public:
  explicit KnownRows(const oracle::Model& model) : model_(model) {}
  std::string EmbeddingsOf(const std::vector<uint32_t>& tokens) {
    std::string bytes;
    for (const uint64_t id : oracle::HashTokens(model_.hash, model_.numbers, tokens)) {
      for (const double value : model_.row(id)) {
        const uint16_t bits = oracle::Bf16Bits(value);
        bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
    }
    return bytes;
  }

 private:
  const oracle::Model& model_;
};

class CudaCacheTest : public OnGpu<::testing::TestWithParam<uint32_t>> {};

// Lookups and steps of sequences, some prestaged, many in flight. A step is right when its bits are those of an engine
// whose whole table is in memory.
TEST_P(CudaCacheTest, TenThousandRandomBatchesGetEveryRowItsOwn) {
  constexpr uint32_t kBatches = 10'000, kInFlight = 24, kStories = 8, kLength = 240;
  const TempDir dir;
  WriteCheckpoint(SomeRows(), dir.path());
  const oracle::Model model = oracle::LoadModel(dir.path(), 2);
  KnownRows rows(model);
  LocalEngineOptions options = EngineOn(DeviceUnderTest());
  LocalEngine resident(dir.path(), options);
  options.cache_slots = GetParam();
  LocalEngine cached(dir.path(), options);
  const LayerIndex layer = cached.config().ple_layers[0];
  const size_t channels = cached.config().geometry.channels();

  std::mt19937 random(191);
  struct Story {
    std::vector<uint32_t> tokens;
    std::vector<float> highway, whole;
    SequenceId sequence;
    size_t at = 0;
  };
  std::vector<Story> stories(kStories);
  for (Story& story : stories) {
    // A third of the tokens are frequent ones.
    for (uint32_t t = 0; t < kLength; ++t) story.tokens.push_back(random() % (random() % 3 == 0 ? 9 : 1000));
    const std::vector<double> highway = oracle::RandomValues(kLength * channels, 1.0, random());
    story.highway.assign(highway.begin(), highway.end());
    const SequenceId sequence = resident.Open();
    for (size_t at = 0; at < kLength; at += 120) {
      const StepAnswer answer = resident.Step(
          sequence, layer,
          {story.tokens.begin() + static_cast<ptrdiff_t>(at), story.tokens.begin() + static_cast<ptrdiff_t>(at + 120)},
          {story.highway.begin() + static_cast<ptrdiff_t>(at * channels),
           story.highway.begin() + static_cast<ptrdiff_t>((at + 120) * channels)});
      ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
      story.whole.insert(story.whole.end(), answer.output.begin(), answer.output.end());
    }
    story.sequence = cached.Open();
  }

  struct Sent {
    std::future<StepAnswer> step;
    const Story* story = nullptr;
    size_t first = 0, count = 0;
    std::future<LookupResult> lookup;
    std::vector<uint32_t> tokens;
  };
  std::deque<Sent> sent;
  uint32_t judged = 0;
  const auto judge = [&] {
    Sent call = std::move(sent.front());
    sent.pop_front();
    ++judged;
    if (call.story == nullptr) {
      const LookupResult result = call.lookup.get();
      ASSERT_TRUE(result.outcome.ok()) << result.outcome.message;
      ASSERT_EQ(result.embeddings, rows.EmbeddingsOf(call.tokens)) << judged;
      return;
    }
    const StepAnswer answer = call.step.get();
    ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
    ASSERT_EQ(answer.output.size(), call.count * channels);
    ASSERT_EQ(std::memcmp(answer.output.data(), &call.story->whole[call.first * channels],
                          answer.output.size() * sizeof(float)),
              0)
        << judged;
  };
  for (uint32_t b = 0; b < kBatches && !HasFatalFailure(); ++b) {
    Sent& call = sent.emplace_back();
    if (random() % 3 == 0) {
      const uint32_t count = 1 + random() % (random() % 8 == 0 ? 100 : 8);
      for (uint32_t t = 0; t < count; ++t) call.tokens.push_back(random() % 1000);
      LookupRequest request;
      request.layer = layer;
      request.segments = {{.num_tokens = count, .context_ids = {}}};
      request.token_ids = call.tokens;
      request.want_embeddings = true;
      auto done = std::make_shared<std::promise<LookupResult>>();
      call.lookup = done->get_future();
      cached.engine().Lookup(std::move(request), [done](LookupResult result) { done->set_value(std::move(result)); });
    } else {
      Story& story = stories[random() % kStories];
      if (story.at == kLength) story.at = 0;
      call.story = &story;
      call.first = story.at;
      call.count = std::min<size_t>(kLength - story.at, 1 + random() % (random() % 8 == 0 ? 100 : 6));
      story.at += call.count;
      const auto from = static_cast<ptrdiff_t>(call.first), to = static_cast<ptrdiff_t>(story.at);
      const auto c = static_cast<ptrdiff_t>(channels);
      StepRequest request =
          testing::OneSegment(story.sequence, layer, {story.tokens.begin() + from, story.tokens.begin() + to});
      request.segments[0].fresh = call.first == 0;
      if (random() % 3 == 0) {
        StepRequest prestage = request;
        prestage.mode = StepMode::kPrestage;
        cached.Submit(std::move(prestage), {});
      }
      call.step = cached.Submit(std::move(request), {story.highway.begin() + from * c, story.highway.begin() + to * c});
    }
    while (sent.size() > random() % kInFlight && !HasFatalFailure()) judge();
  }
  while (!sent.empty() && !HasFatalFailure()) judge();
  EXPECT_EQ(judged, kBatches);
  const RowStoreStats stats = cached.engine().stats().rows;
  std::cout << GetParam() << " slots: " << stats.evictions << " evictions, " << stats.bypasses << " bypassed rows\n";
  EXPECT_GT(GetParam() == 4096 ? stats.evictions : stats.bypasses, 0u);
}

INSTANTIATE_TEST_SUITE_P(Slots, CudaCacheTest, ::testing::Values(0, 16, 4096), ::testing::PrintToStringParamName());

using CudaSnapshotTest = OnGpu<::testing::Test>;

// From each device to the other, in the middle of a story, and on there.
TEST_F(CudaSnapshotTest, ASequenceMovesBetweenCpuAndGpu) {
  constexpr size_t kLength = 120;
  const TempDir dir;
  WriteCheckpoint(SomeRows(), dir.path());
  LocalEngine gpu(dir.path(), EngineOn(DeviceUnderTest())), cpu(dir.path(), EngineOn(testing::TestDevice::kCpu));
  const LayerIndex layer = cpu.config().ple_layers[0];
  const size_t channels = cpu.config().geometry.channels();
  std::mt19937 random(201);
  std::vector<uint32_t> tokens;
  for (size_t t = 0; t < kLength; ++t) tokens.push_back(random() % 1000);
  const std::vector<double> values = oracle::RandomValues(kLength * channels, 1.0, 202);
  const std::vector<float> highway(values.begin(), values.end());
  const auto step = [&](LocalEngine& engine, SequenceId sequence, size_t first, size_t count) {
    const auto from = static_cast<ptrdiff_t>(first), to = static_cast<ptrdiff_t>(first + count);
    const auto c = static_cast<ptrdiff_t>(channels);
    const StepAnswer answer = engine.Step(sequence, layer, {tokens.begin() + from, tokens.begin() + to},
                                          {highway.begin() + from * c, highway.begin() + to * c});
    EXPECT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
    return answer.output;
  };
  PooledError moved;
  const std::vector<float> whole = step(cpu, cpu.Open(), 0, kLength);
  for (const auto& [from, to] : {std::pair<LocalEngine*, LocalEngine*>(&cpu, &gpu), {&gpu, &cpu}}) {
    for (const size_t cut : {1, 2, 5, 8, 9, 30, 61}) {
      const SequenceId first = from->Open(), second = to->Open();
      std::vector<float> out = step(*from, first, 0, cut);
      const SnapshotResult snapshot = from->Snapshot(first);
      ASSERT_TRUE(snapshot.outcome.ok()) << snapshot.outcome.message;
      ASSERT_TRUE(to->Restore(second, snapshot.layers).ok());
      EXPECT_EQ(to->Snapshot(second).layers.at(0).aux, snapshot.layers.at(0).aux);
      const std::vector<float> rest = step(*to, second, cut, kLength - cut);
      out.insert(out.end(), rest.begin(), rest.end());
      moved.Add(out, whole);
      from->Release(first);
      to->Release(second);
    }
  }
  EXPECT_LE(moved.relative_l2(), 3e-4);
}

using CudaMemoryTest = OnGpu<::testing::Test>;

uint64_t FreeBytes() {
  const absl::StatusOr<CudaGpu> gpu = FindCudaGpu(0);
  EXPECT_TRUE(gpu.ok() || CpuStandsIn()) << gpu.status();
  return gpu.ok() ? gpu->free_bytes : 0;
}

TEST_F(CudaMemoryTest, DeviceMemoryIsFlatOverAHundredThousandOpenStepRelease) {
  constexpr uint32_t kCycles = 100'000, kWarm = 20'000, kGroup = 50;
  const TempDir dir;
  WriteCheckpoint(SomeRows(), dir.path());
  LocalEngineOptions options = EngineOn(DeviceUnderTest());
  options.batch_invariant = false;
  options.cache_slots = 200;
  LocalEngine local(dir.path(), options);
  const LayerIndex layer = local.config().ple_layers[0];
  const size_t channels = local.config().geometry.channels();
  uint64_t warm = 0;
  for (uint32_t done = 0; done < kCycles; done += kGroup) {
    if (done == kWarm) warm = FreeBytes();
    std::vector<SequenceId> sequences;
    StepRequest request;
    request.layer = layer;
    request.output.kind = OutputKind::kDelta;
    for (uint32_t i = 0; i < kGroup; ++i) {
      sequences.push_back(local.Open());
      const uint32_t count = 1 + (done + i) % 2;
      request.segments.push_back({sequences.back(), count, false, std::nullopt});
      for (uint32_t t = 0; t < count; ++t) request.token_ids.push_back((done * 7 + i * 13 + t) % 1000);
    }
    request.release_after = sequences;
    const size_t values = request.token_ids.size() * channels;
    const StepAnswer answer = local.Submit(std::move(request), std::vector<float>(values, 0.5f)).get();
    ASSERT_TRUE(answer.result.outcome.ok()) << answer.result.outcome.message;
  }
  EXPECT_EQ(local.engine().stats().sequences_opened, kCycles);
  EXPECT_GE(FreeBytes(), warm);
  if (CpuStandsIn()) return;
  // That measure sees what a device takes.
  const LocalEngine another(dir.path(), options);
  EXPECT_LT(FreeBytes(), warm);
}

TEST_F(CudaMemoryTest, ADeviceGivesBackAllItTook) {
  const TempDir dir;
  WriteCheckpoint(SomeRows(), dir.path());
  LocalEngineOptions options = EngineOn(DeviceUnderTest());
  options.max_sequences = 4096;  // some 20 MB of carries
  uint64_t after_first = 0;
  for (int i = 0; i < 4; ++i) {
    {
      LocalEngine local(dir.path(), options);
      const DeviceInfo& info = local.engine().device_info();
      EXPECT_EQ(info.name, CpuStandsIn() ? "cpu" : "cuda:0");
      for (const uint64_t bytes : {info.memory.arena, info.memory.carries, info.memory.weights, info.memory.scratch}) {
        EXPECT_GT(bytes, 0u);
      }
    }
    if (i == 0) after_first = FreeBytes();  // what the driver keeps for good is taken by the first
  }
  EXPECT_LE(after_first, FreeBytes() + (uint64_t{8} << 20));
}

}  // namespace
}  // namespace pleiad
