#include "client/cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "client/cli/commands.h"
#include "client/cli/plan_sizes.h"
#include "client/cli/plan_svg.h"
#include "client/cli/token_file.h"
#include "client/cli/trace.h"

namespace pleiad::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kModel = std::string(PLEIAD_SOURCE_DIR) + "/tests/golden/tiny-n3h8";
const std::string kGolden = kModel + "/golden.safetensors";

std::unique_ptr<Checkpoint> OpenGolden() {
  CheckpointOptions options;
  options.dir = kModel;
  return *Checkpoint::Open(options);
}

PlanOptions Quick(std::vector<uint64_t> arenas) {
  PlanOptions options;
  options.arenas = std::move(arenas);
  options.memory = 8'000'000'000;
  options.measure_time = std::chrono::milliseconds(2);
  options.reader.kind = ReaderKind::kPread;
  return options;
}

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() : folder_(std::filesystem::path(::testing::TempDir()) / ("pleiad_plan_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~PlanTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::string WriteRaw(const std::string& name, const std::vector<uint32_t>& ids, size_t cut = 0) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 4 - cut));
    return Path(name);
  }

  // `pleiad plan` with what every call needs; the texts it wrote are left in out_ and err_.
  int Run(std::vector<std::string> args) {
    args.insert(args.begin(), {"pleiad", "plan", "--model", kModel, "--seconds", "0.002", "--reader", "pread"});
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int exit = Main(static_cast<int>(argv.size()), argv.data());
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return exit;
  }

  // Whether python3's parser takes the file and `check`, a Python expression over its root element, holds.
  bool SvgHolds(const std::string& path, const std::string& check) const {
    std::ofstream(Path("check.py")) << "import sys, xml.etree.ElementTree as e\n"
                                       "root = e.parse(sys.argv[1]).getroot()\n"
                                       "S = '{http://www.w3.org/2000/svg}'\n"
                                       "texts = [t.text for t in root.iter(S + 'text')]\n"
                                       "lines = [p.get('points').split() for p in root.iter(S + 'polyline')]\n"
                                       "sys.exit(0 if root.tag == S + 'svg' and ("
                                    << check << ") else 1)\n";
    const std::string command = "python3 '" + Path("check.py") + "' '" + path + "'";
    return std::system(command.c_str()) == 0;
  }

  const std::filesystem::path folder_;
  std::string out_, err_;
};

TEST_F(PlanTest, PrintsATableAndWritesAPlotForTheGoldenCheckpoint) {
  ASSERT_EQ(Run({"--trace", kGolden, "--prefix", "layer2", "--arena", "1MiB,4KiB", "--memory", "8GB", "--svg",
                 Path("plot.svg")}),
            kExitOk)
      << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("trace: 61 tokens"), HasSubstr("reader: pread, "), HasSubstr("128 in flight"),
                          HasSubstr("clock  s3fifo   sieve    best"), HasSubstr("4.1 kB"), HasSubstr("1.05 MB")));
  EXPECT_TRUE(SvgHolds(Path("plot.svg"),
                       "len(lines) == 3 and all(len(p) == 2 for p in lines) and {'clock', 's3fifo', 'sieve', '0 %', "
                       "'100 %', '4.1 kB', '1.05 MB'} <= set(texts)"));
}

TEST_F(PlanTest, AnArenaForAllRowsMissesEachRowOnce) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden();
  const absl::StatusOr<Trace> golden = Trace::Read(kGolden);
  const std::vector<uint32_t> tokens = *golden->I32("layer2.tokens");
  const std::vector<uint64_t> ids = *golden->I64("layer2.ngram_ids", tokens.size());
  const double rows = static_cast<double>(std::set<uint64_t>(ids.begin(), ids.end()).size());
  const absl::StatusOr<Plan> plan = MakePlan(*checkpoint, tokens, Quick({1 << 24, 1}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(checkpoint->layers().size(), 1u);
  EXPECT_EQ(plan->lookups, ids.size());
  EXPECT_EQ(static_cast<double>(plan->rows), rows);
  ASSERT_EQ(plan->arenas.size(), 2u);
  for (size_t policy = 0; policy < std::size(kPolicyKinds); ++policy) {
    EXPECT_EQ(plan->arenas[0].hit_rate[policy], 0);  // a byte holds no row
    EXPECT_DOUBLE_EQ(plan->arenas[1].hit_rate[policy], 1 - rows / static_cast<double>(ids.size()));
    const double misses_per_token = rows / static_cast<double>(tokens.size());
    EXPECT_NEAR(plan->arenas[1].tokens_per_second[policy] * misses_per_token, plan->disk.back().reads_per_second, 1);
  }
}

TEST_F(PlanTest, SequencesTakeTheMemoryThatIsLeft) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden();
  PlanOptions options = Quick({});
  options.measure_time = {};
  const auto plan = [&](uint64_t arena, uint64_t memory) {
    options.arenas = {arena};
    options.memory = memory;
    return *MakePlan(*checkpoint, {1, 2, 3}, options);
  };
  const auto needed_for_one = [&](uint64_t arena) {
    uint64_t low = 0, high = 1'000'000'000;
    while (high - low > 1) {
      const uint64_t middle = (low + high) / 2;
      (plan(arena, middle).arenas[0].sequences == 0 ? low : high) = middle;
    }
    return high;
  };
  const Geometry& g = checkpoint->config().geometry;
  const Plan small = plan(1, 0);
  EXPECT_EQ(small.sequence_bytes, (2 * g.state_len() + 8) * g.channels() * 4u);
  const uint64_t one = needed_for_one(1);
  EXPECT_EQ(plan(1, one + 10 * small.sequence_bytes).arenas[0].sequences, 11u);
  const Plan large = plan(1 << 30, 0);
  const TableLayout& table = checkpoint->layers()[0].table;
  ASSERT_EQ(large.arenas[0].slots, table.rows);  // no more than there are
  EXPECT_GE(needed_for_one(1 << 30), one + table.rows * table.arena_row_bytes());
}

TEST_F(PlanTest, RawIdsAndATraceOfThemAreTheSame) {
  const std::vector<uint32_t> tokens = *Trace::Read(kGolden)->I32("layer2.tokens");
  const absl::StatusOr<std::vector<uint32_t>> raw = ReadTokens(WriteRaw("ids", tokens), "", 1u << 20);
  ASSERT_TRUE(raw.ok()) << raw.status();
  EXPECT_EQ(*raw, tokens);
  EXPECT_EQ(*ReadTokens(kGolden, "layer2", 1u << 20), tokens);
}

TEST_F(PlanTest, ErrorsNameFlagValueAndRule) {
  const std::string good = WriteRaw("good", {1, 2});
  EXPECT_EQ(Run({"--trace", good, "--arena", "1GiB,many"}), kExitBadFlags);
  EXPECT_THAT(err_, HasSubstr("--arena is \"many\": must be from 1 byte to 2^62"));
  EXPECT_EQ(Run({"--trace", good, "--memory", "0"}), kExitBadFlags);
  EXPECT_THAT(err_, HasSubstr("--memory is \"0\": must be from 1 byte"));
  EXPECT_EQ(Run({"--trace", good, "--seconds", "0"}), kExitBadFlags);
  EXPECT_THAT(err_, HasSubstr("--seconds"));
  EXPECT_EQ(Run({"--trace", WriteRaw("cut", {1, 2}, 1)}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("cut: 7 bytes, must be 32-bit ids"));
  EXPECT_EQ(Run({"--trace", WriteRaw("none", {})}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("none: no tokens, must hold some"));
  EXPECT_EQ(Run({"--trace", WriteRaw("high", {1, 4000000000})}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("token 1 is 4000000000, must be below vocab_size "));
  EXPECT_EQ(Run({"--trace", kGolden, "--prefix", "layer9"}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("--prefix layer9: "));
  EXPECT_EQ(Run({"--trace", Path("absent")}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("absent: cannot be opened"));
  EXPECT_EQ(Run({"--trace", good, "--svg", Path("no/such/folder")}), kExitFailed);
  EXPECT_THAT(err_, HasSubstr("--svg"));
}

TEST(PlanSizes, AreReadAndShown) {
  const auto parse = [](const char* text) { return ParseBytes("--x", text).value_or(0); };
  EXPECT_EQ(parse("4GiB"), 4ull << 30);
  EXPECT_EQ(parse("512MiB"), 512ull << 20);
  EXPECT_EQ(parse("1.5KB"), 1500u);
  EXPECT_EQ(parse("1e9"), 1000000000u);
  EXPECT_EQ(parse("2TB"), 2000000000000u);
  EXPECT_EQ(parse("17B"), 17u);
  for (const char* text : {"", "GiB", "-1", "nan", "inf", "1e30", "12iB", "3XB", "B"})
    EXPECT_EQ(parse(text), 0u) << text;
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1500), "1.5 kB");
  EXPECT_EQ(FormatBytes(999'999'999), "1 GB");
}

TEST_F(PlanTest, APlotOfOnePointAndAnOddTitleIsValid) {
  std::ofstream(Path("odd.svg")) << PlotHitRates("a <b> & \"c\"", {4096}, {{"one", {0.5}}});
  EXPECT_TRUE(SvgHolds(Path("odd.svg"), "'a <b> & \"c\"' in texts and len(lines) == 1"));
  std::ofstream(Path("bad.svg")) << "<svg xmlns=\"http://www.w3.org/2000/svg\">";
  EXPECT_FALSE(SvgHolds(Path("bad.svg"), "True"));
}

// Answers inside Submit, and fails every read from the `fail_from`th on.
class CountingReader : public RowReader {
 public:
  explicit CountingReader(const Checkpoint& checkpoint, uint64_t fail_from)
      : files_(checkpoint.files()), fail_from_(fail_from) {}
  const RowReaderInfo& info() const override { return info_; }
  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    largest = std::max(largest, reads.size());
    std::vector<RowReadResult> results;
    std::set<std::byte*> destinations;
    for (const RowRead& read : reads) {
      EXPECT_LE(read.offset + read.bytes, files_.at(read.file).bytes);
      destinations.insert(read.destination);
      std::memset(read.destination, 1, read.bytes);
      results.push_back({read.id, ++count < fail_from_ ? absl::OkStatus() : absl::DataLossError("torn")});
    }
    EXPECT_EQ(destinations.size(), reads.size());
    on_results(results);
  }
  uint64_t count = 0;
  size_t largest = 0;

 private:
  const std::vector<CheckpointFile>& files_;
  const uint64_t fail_from_;
  const RowReaderInfo info_;
};

TEST(PlanDisk, CountsTheReadsItKeepsInFlight) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden();
  CountingReader reader(*checkpoint, ~0ull);
  const absl::StatusOr<DiskRate> rate = MeasureReads(*checkpoint, &reader, 16, std::chrono::milliseconds(1));
  ASSERT_TRUE(rate.ok()) << rate.status();
  EXPECT_EQ(reader.largest, 16u);
  EXPECT_EQ(rate->reads, reader.count);
  EXPECT_GT(rate->reads_per_second, 0);
}

TEST(PlanDisk, AFailedReadEndsTheMeasurement) {
  const std::unique_ptr<Checkpoint> checkpoint = OpenGolden();
  CountingReader reader(*checkpoint, 20);
  const absl::Status status = MeasureReads(*checkpoint, &reader, 16, std::chrono::hours(1)).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(reader.count, 32u);
}

}  // namespace
}  // namespace pleiad::cli
