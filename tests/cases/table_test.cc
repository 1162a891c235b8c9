// How rows lie in files and what their bytes mean, as a client sees it: B04 to B09, B25.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/base/numeric.h"
#include "core/rows/pread_reader.h"
#include "core/rows/read_fully.h"
#include "core/rows/resident_row_store.h"
#include "tests/cases/labels.h"
#include "tests/cases/stack.h"
#include "tests/support/rows/scripted_reader.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

TEST(B04, FewerRowsThanTheHashCanNameRefuseTheStart) {
  CheckpointSpec spec;
  spec.rows = 151;
  EXPECT_THAT(StartRefusal({.spec = spec}), FailsWith(absl::StatusCode::kInvalidArgument, "151"));
  spec.rows = 152;
  EXPECT_EQ(Stack({.spec = spec}).Ids(kToyTokens), kToyIds);
}

TEST(B05, RowsOfEveryDTypeCarryTheirOwnLabel) {
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    Stack stack({.spec = Labelled(dtype)});
    ExpectLabels(stack, [](uint64_t row) { return static_cast<float>(row); });
  }
  Stack stack({.spec = Labelled(DType::kF8E4M3)});
  ExpectLabels(stack, [](uint64_t row) { return F8E4M3ToFloat(static_cast<uint8_t>(row)); });
}

TEST(B05, AStrideOfTwoBytesForOneByteRowsIsToldApart) {
  Stack stack({.spec = Labelled(DType::kF8E4M3)});
  const v1::LookupResponse response = stack.Lookup(ManyTokens());
  size_t differing = 0;
  for (const uint64_t row : response.row_ids()) {
    differing += F8E4M3ToFloat(static_cast<uint8_t>(row)) != F8E4M3ToFloat(static_cast<uint8_t>(2 * row));
  }
  EXPECT_GT(differing, static_cast<size_t>(response.row_ids_size()) / 2);
}

// The policy for NaN codes: they give NaN, which poisons the outputs of the sequences that name the row alone.
TEST(B06, ANanRowPoisonsOnlyTheSequencesThatNameIt) {
  Stack stack({.spec = Labelled(DType::kF8E4M3)});
  const auto names_nan = [&](uint32_t token) {
    const std::vector<uint64_t> ids = stack.Ids({token}).at(0);
    return std::count(ids.begin(), ids.end(), 0x7Fu) > 0;
  };
  uint32_t bad = 0, good = 0;
  while (!names_nan(bad)) ++bad;
  while (names_nan(good)) ++good;
  const Story poisoned = stack.MakeStory({bad}, 1), clean = stack.MakeStory({good, 7, good}, 2);
  const Stack::Whole solo = stack.FreshRun(clean);
  for (const float value : solo.output) ASSERT_FALSE(std::isnan(value));

  const uint64_t a = stack.Open(), b = stack.Open();
  v1::ForwardRequest request = stack.Request(a, poisoned);
  *request.add_segments() = stack.Request(b, clean).segments(0);
  request.mutable_token_ids()->Add(clean.tokens.begin(), clean.tokens.end());
  request.mutable_highway()->mutable_data()->append(stack.Request(b, clean).highway().data());
  const Answer answer = stack.Forward(request);
  ASSERT_TRUE(answer.ok()) << answer.status.error_message();
  const std::vector<float> output = answer.output();
  const auto border = output.begin() + static_cast<ptrdiff_t>(stack.channels());
  EXPECT_TRUE(std::isnan(output.front()));
  EXPECT_TRUE(SameBits({border, output.end()}, solo.output));
  EXPECT_EQ(stack.At(b), solo.end);
}

TEST(B07, TheScaleIsAppliedOnceWhereverItLies) {
  const auto half = [](uint64_t row) { return 0.5f * F8E4M3ToFloat(static_cast<uint8_t>(row)); };
  for (const uint32_t file : {0u, 1u, 2u}) {
    Stack stack({.spec = Labelled(DType::kF8E4M3, 0.5f), .change = [file](TestCheckpoint& c) {
                   TestTensor scale = c.Find("weight_scale");
                   c.Erase("weight_scale");
                   scale.file = file;
                   if (file == 2) scale.shape.clear();  // []
                   c.tensors.insert(file == 1 ? c.tensors.begin() : c.tensors.end(), scale);
                 }});
    ExpectLabels(stack, half);
  }
}

TEST(B07, AStepSeesTheScaledRows) {
  CheckpointSpec spec;
  spec.row_dtype = DType::kF8E4M3;
  Stack stack({.spec = spec});
  const Story story = stack.RandomStory(64, 4);
  const Stack::Whole whole = stack.FreshRun(story);
  stack.ExpectOracle(story, whole);
  oracle::Model unscaled = stack.model();
  unscaled.row = [row = unscaled.row](uint64_t id) {
    std::vector<double> values = row(id);
    for (double& value : values) value *= 2;
    return values;
  };
  const oracle::Trace wrong = oracle::RunTokens(unscaled, story.tokens, {story.highway.begin(), story.highway.end()},
                                                oracle::KvRounding::kBf16);
  EXPECT_GT(oracle::RelativeL2(whole.output, wrong.delta), 3e-2);
}

TEST(B07, WithoutItsScaleOrWithAUselessOneTheStartIsRefused) {
  const auto refusal = [](const std::function<void(TestCheckpoint&)>& change) {
    return StartRefusal({.spec = Labelled(DType::kF8E4M3, 0.5f), .change = change});
  };
  EXPECT_THAT(refusal([](TestCheckpoint& c) { c.Erase("weight_scale"); }),
              FailsWith(absl::StatusCode::kInvalidArgument, "weight_scale"));
  for (const float useless : {0.0f, NAN, INFINITY}) {
    EXPECT_THAT(refusal([useless](TestCheckpoint& c) {
                  std::memcpy(c.Find("weight_scale").bytes.data(), &useless, sizeof(useless));
                }),
                FailsWith(absl::StatusCode::kInvalidArgument, "weight_scale"));
  }
}

TEST(B08, AwkwardShardsServeEveryRow) {
  Stack stack({.spec = Labelled(DType::kBf16)});
  ExpectLabels(stack, [](uint64_t row) { return static_cast<float>(row); });
}

TEST(B08, AMissingShardRefusesTheStartByNumber) {
  EXPECT_THAT(
      StartRefusal({.spec = Labelled(DType::kBf16), .change = [](TestCheckpoint& c) { c.Erase("shard_5.weight"); }}),
      FailsWith(absl::StatusCode::kInvalidArgument, "shard_5"));
}

TEST(B09, AFileOneByteShortRefusesTheStartWithBothSizes) {
  uint64_t size = 0;
  const absl::Status status = StartRefusal({.spec = Labelled(DType::kBf16), .damage = [&](const std::string& dir) {
                                              const std::string path = dir + "/model-00003-of-00003.safetensors";
                                              size = std::filesystem::file_size(path);
                                              std::filesystem::resize_file(path, size - 1);
                                            }});
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, std::to_string(size)));
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, std::to_string(size - 1)));
}

TEST(B09, WithoutAnIndexFileTheHeadersAreScanned) {
  Stack stack({.spec = Labelled(DType::kBf16), .damage = [](const std::string& dir) {
                 ASSERT_TRUE(std::filesystem::remove(dir + "/model.safetensors.index.json"));
               }});
  ExpectLabels(stack, [](uint64_t row) { return static_cast<float>(row); });
}

TEST(B09, AFileThatIsGoneRefusesTheStart) {
  EXPECT_FALSE(StartRefusal({.spec = Labelled(DType::kBf16),
                             .damage =
                                 [](const std::string& dir) {
                                   std::filesystem::remove(dir + "/model-00002-of-00003.safetensors");
                                 }})
                   .ok());
}

// Loads the awkward shard set through `reader`; slot s of the arena must then hold the label s.
absl::Status LoadLabels(const Checkpoint& checkpoint, RowReader& reader, std::vector<float>* labels) {
  std::vector<float> arena(256 * 8, -1.0f);
  ResidentLoadOptions options;
  options.write_arena = [&arena](Slot first, absl::Span<const std::byte> rows) {
    for (size_t i = 0; i < rows.size() / sizeof(Bf16); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, rows.data() + i * sizeof(bits), sizeof(bits));
      arena[first.value() * 8 + i] = Bf16ToFloat(bits);
    }
    return absl::OkStatus();
  };
  const absl::Status status = LoadResidentRowStore(checkpoint, reader, options).status();
  if (status.ok()) *labels = arena;
  return status;
}

TEST(B25, AFailedOrShortReadEndsTheLoadAndTheNextLoadHasEveryLabel) {
  TempDir dir;
  WriteCheckpoint(Labelled(DType::kBf16), dir.path());
  auto checkpoint = Checkpoint::Open({dir.path(), std::nullopt});
  ASSERT_THAT(checkpoint, IsOk());
  const auto files = [&] { return CreatePreadReader((*checkpoint)->files(), 2); };
  std::vector<float> labels;
  {
    ScriptedReader failing(files(),
                           [](const RowRead&, size_t n) { return n == 1 ? ReadFault::kError : ReadFault::kNone; });
    EXPECT_THAT(LoadLabels(**checkpoint, failing, &labels), FailsWith(absl::StatusCode::kDataLoss, "offset"));
    EXPECT_TRUE(labels.empty());
  }
  {
    ScriptedReader ending(files(),
                          [](const RowRead&, size_t n) { return n == 2 ? ReadFault::kShort : ReadFault::kNone; });
    EXPECT_THAT(LoadLabels(**checkpoint, ending, &labels), FailsWith(absl::StatusCode::kDataLoss, "ends after"));
  }
  const std::unique_ptr<RowReader> good = files();
  ASSERT_THAT(LoadLabels(**checkpoint, *good, &labels), IsOk());
  for (size_t i = 0; i < labels.size(); ++i) ASSERT_EQ(labels[i], static_cast<float>(i / 8)) << "slot " << i / 8;
}

TEST(B25, ShortInterruptedAndEmptyReadsOfOneRow) {
  std::vector<std::byte> row(160), got(160);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i + 1);
  // Each entry: bytes given, or -errno.
  const auto read = [&](std::vector<int> script) {
    size_t call = 0;
    return ReadFully(
        [&](int, void* buffer, size_t count, off_t offset) -> ssize_t {
          if (call == script.size()) return 0;
          const int next = script[call++];
          if (next < 0) {
            errno = -next;
            return -1;
          }
          const size_t n = std::min(count, static_cast<size_t>(next));
          std::memcpy(buffer, row.data() + offset, n);
          return static_cast<ssize_t>(n);
        },
        3, "table", 0, absl::MakeSpan(got));
  };
  ASSERT_THAT(read({100, 60}), IsOk());
  EXPECT_EQ(got, row);
  got.assign(160, std::byte{0});
  ASSERT_THAT(read({-EINTR, 1, -EINTR, -EAGAIN, 99, -EINTR, 60}), IsOk());
  EXPECT_EQ(got, row);
  EXPECT_THAT(read({100, 0}), FailsWith(absl::StatusCode::kDataLoss, "100"));
  EXPECT_THAT(read(std::vector<int>(64, -EAGAIN)), FailsWith(absl::StatusCode::kDataLoss, "table"));
}

}  // namespace
}  // namespace pleiad::testing
