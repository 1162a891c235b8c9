// Every row is its own, through a server with 64 streams on a table far larger than its arena.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/numeric.h"
#include "tests/e2e/in_process_server.h"
#include "tests/e2e/metrics_page.h"
#include "tests/e2e/sessions.h"
#include "tests/support/rows/holds_nothing.h"
#include "tests/support/rows/label_table.h"

namespace pleiad::testing {
namespace {

constexpr size_t kStreams = 64;
constexpr uint32_t kTokens = 48;  // of each stream's passage
constexpr uint32_t kHeadDim = 8;
constexpr uint64_t kRowBytes = kHeadDim * sizeof(Bf16);

// What row `row` of the layer holds: small numbers, exact in BF16, other ones for every row of either layer.
std::string LabelOf(uint32_t layer_index, uint64_t row) {
  std::string label;
  for (const uint64_t value : {row & 0x7F, row >> 7 & 0x7F, row >> 14, uint64_t{layer_index} + 1}) {
    const uint16_t bits = FloatToBf16(static_cast<float>(value) / 64);
    label.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }
  return label + label;
}

// Two layers of about 8,000 rows, each labelled.
void WriteLabelledCheckpoint(const std::string& dir) {
  CheckpointSpec spec = TwoLayerSpec();
  spec.ngram_vocab_size_base = 2003;
  TestCheckpoint checkpoint = MakeCheckpoint(spec);
  const std::regex name(".*layers\\.(\\d+)\\..*shard_(\\d+)\\.weight");
  size_t shards = 0;
  for (TestTensor& tensor : checkpoint.tensors) {
    std::smatch match;
    if (!std::regex_match(tensor.name, match, name)) continue;
    const auto layer = static_cast<uint32_t>(std::stoul(match[1]));
    const uint64_t per_shard =
        checkpoint.Find(absl::StrCat("layers.", layer, ".ple.ple_embedding.ngram_embedding.", "shard_0.weight"))
            .shape[0];
    const uint64_t first = per_shard * std::stoul(match[2]);
    tensor.bytes.clear();
    for (uint64_t i = 0; i < tensor.shape[0]; ++i) tensor.bytes += LabelOf(layer, first + i);
    ++shards;
  }
  ASSERT_EQ(shards, 8u);
  checkpoint.Write(dir);
}

struct Seen {
  std::atomic<uint64_t> embeddings{0}, wrong{0};
  std::atomic<uint64_t> outputs{0}, wrong_outputs{0};
  std::atomic<uint64_t> cancelled{0}, prestages{0};
};

// What the resident table gives for the passages.
struct Expected {
  std::vector<Passage> passages;
  std::vector<std::string> outputs;
};

class Load {
 public:
  Load(InProcessServer& server, const Expected& expected, uint64_t seed, Seen& seen)
      : server_(server), client_(server.Connect()), expected_(expected), seed_(seed), seen_(seen) {}

  void Run() {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kStreams; ++i) threads.emplace_back([this, i] { Stream(i); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  uint32_t LayerOf(size_t i) const { return client_.model().layers[i % 2].layer_index; }

  void Stream(size_t i) {
    std::mt19937_64 random(seed_ * kStreams + i);
    const Passage& passage = expected_.passages[i];
    const auto stream = *client_.OpenStream();
    client::Sequence sequence = *client_.OpenSequence();
    std::vector<std::future<absl::StatusOr<client::StepResult>>> answers;
    for (uint32_t at = 0; at < passage.size();) {
      const uint32_t left = passage.size() - at;
      const uint32_t count = std::min(left, 1 + static_cast<uint32_t>(random() % 6));
      switch (random() % 6) {
        case 0: {
          client::Step prestage = StepOf(sequence, passage, at, std::min(left, count + 2), std::nullopt, LayerOf(i));
          prestage.mode = client::StepMode::kPrestage;
          prestage.highway = {};
          answers.push_back(stream->Submit(std::move(prestage)));
          ++seen_.prestages;
          break;
        }
        case 1:
          Look(random, LayerOf(random() % 2), Cancel::kNo);
          break;
        case 2:
          Look(random, LayerOf(random() % 2), Cancel::kYes);
          break;
        default:
          answers.push_back(stream->Submit(StepOf(sequence, passage, at, count, std::nullopt, LayerOf(i))));
          at += count;
      }
    }
    std::string output;
    for (auto& answer : answers) {
      const absl::StatusOr<client::StepResult> result = answer.get();
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) output += result->output;
    }
    ++seen_.outputs;
    if (output != expected_.outputs[i]) ++seen_.wrong_outputs;
  }

  enum class Cancel : uint8_t { kNo, kYes };

  void Look(std::mt19937_64& random, uint32_t layer, Cancel cancel) {
    v1::LookupRequest request;
    const uint32_t count = 1 + static_cast<uint32_t>(random() % 8);
    request.set_layer_index(layer);
    request.add_segments()->set_num_tokens(count);
    for (uint32_t k = 0; k < count; ++k) {
      request.add_token_ids(static_cast<uint32_t>(random() % (random() % 2 == 0 ? 5 : 1000)));
    }
    request.set_want_row_ids(true);
    request.set_want_embeddings(true);
    v1::LookupResponse response;
    grpc::ClientContext context;
    std::promise<grpc::Status> done;
    server_.stub().async()->Lookup(&context, &request, &response,
                                   [&done](grpc::Status status) { done.set_value(std::move(status)); });
    if (cancel == Cancel::kYes) context.TryCancel();
    const grpc::Status status = done.get_future().get();
    if (cancel == Cancel::kYes && status.error_code() == grpc::StatusCode::CANCELLED) {
      ++seen_.cancelled;
      return;
    }
    EXPECT_TRUE(status.ok()) << status.error_message();
    const std::string& data = response.embeddings().data();
    EXPECT_EQ(data.size(), static_cast<size_t>(response.row_ids_size()) * kRowBytes);
    for (int k = 0; k < response.row_ids_size(); ++k) {
      ++seen_.embeddings;
      const auto at = static_cast<size_t>(k) * kRowBytes;
      if (data.compare(at, kRowBytes, LabelOf(layer, response.row_ids(k))) != 0) ++seen_.wrong;
    }
  }

  InProcessServer& server_;
  client::Client client_;
  const Expected& expected_;
  const uint64_t seed_;
  Seen& seen_;
};

class CachedRows : public ::testing::Test {
 protected:
  CachedRows() {
    WriteLabelledCheckpoint(dir_.path());
    InProcessServer resident(dir_.path(), [](ServerFlags& flags) { flags.batch_invariant = true; });
    client::Client client = resident.Connect();
    const auto stream = *client.OpenStream();
    std::mt19937 random(4);
    for (size_t i = 0; i < kStreams; ++i) {
      client::Sequence sequence = *client.OpenSequence();
      expected_.passages.push_back(RandomPassage(random, kTokens, client.model()));
      expected_.outputs.push_back(
          RunPassage(*stream, sequence, expected_.passages[i], {}, client.model().layers[i % 2].layer_index));
    }
  }

  // Reads end later, in small parts, out of order.
  std::unique_ptr<InProcessServer> Start(uint32_t slots, CacheParts parts = {}) {
    parts.wrap_reader = [](std::unique_ptr<RowReader> inner) {
      return std::make_unique<LaterReader>(std::move(inner), 9);
    };
    return std::make_unique<InProcessServer>(
        dir_.path(),
        [slots](ServerFlags& flags) {
          flags.table = TableFlag::kCached;
          flags.cache_bytes = slots * kRowBytes;
          flags.batch_invariant = true;
          flags.max_tokens = 64;
          flags.max_inflight_bytes = uint64_t{64} << 20;  // nobody is refused
        },
        nullptr, std::move(parts));
  }

  TempDir dir_;
  Expected expected_;
};

class EveryRowIsItsOwn : public CachedRows, public ::testing::WithParamInterface<uint32_t> {};

TEST_P(EveryRowIsItsOwn, WithStreamsLookupsPrestagesAndCancels) {
  const auto server = Start(GetParam());
  Seen seen;
  Load(*server, expected_, GetParam(), seen).Run();
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_EQ(seen.wrong_outputs, 0u);
  EXPECT_EQ(seen.outputs, kStreams);
  EXPECT_GT(seen.embeddings, 4000u);
  EXPECT_GT(seen.prestages, 50u);
  const std::string used = ScrapeMetrics(server->metrics_port());
  EXPECT_GT(MetricValue(used, "pleiad_prestage_total{result=\"used\"}") +
                MetricValue(used, "pleiad_prestage_total{result=\"partly_used\"}"),
            0);
  EXPECT_TRUE(AwaitMetrics(server->metrics_port(), [](const std::string& page) {
    return MetricValue(page, "pleiad_arena_slots{state=\"held\"}") == 0 &&
           MetricValue(page, "pleiad_arena_slots{state=\"arriving\"}") == 0 &&
           MetricValue(page, "pleiad_staging_free_rows") == 2 * 64 * 4;
  }));
}

INSTANTIATE_TEST_SUITE_P(Arenas, EveryRowIsItsOwn, ::testing::Values(0u, 8u, 64u, 4096u));

// A label that says another row would be seen: without holds, plans gather what others have evicted.
TEST_F(CachedRows, AreNoticedToBeWrongWhenPlansHoldNothing) {
  const auto server =
      Start(64, {.wrap_reader = nullptr, .make_policy = [](uint32_t slots) -> std::unique_ptr<EvictionPolicy> {
                   return std::make_unique<HoldsNothing>(slots);
                 }});
  Seen seen;
  for (uint64_t round = 0; round < 20 && (seen.wrong == 0 || seen.wrong_outputs == 0); ++round) {
    Load(*server, expected_, round, seen).Run();
  }
  EXPECT_GT(seen.wrong, 0u);
  EXPECT_GT(seen.wrong_outputs, 0u);
}

}  // namespace
}  // namespace pleiad::testing
