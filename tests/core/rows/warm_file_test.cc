#include "core/rows/warm_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;
using testing::ReadFile;
using testing::TempDir;
using ::testing::UnorderedElementsAre;
using testing::WriteFile;

constexpr char kModel[] = "model-a";
const std::vector<uint64_t> kTables = {1000, 50};

WarmRows Example() { return {{RowId(999), RowId(0), RowId(7)}, {RowId(49)}}; }

// `bytes` but the checksum at their end, and the checksum they need.
std::string Sealed(std::string bytes) {
  bytes.resize(bytes.size() - 4);
  const auto sum =
      static_cast<uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
  return bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

class WarmFileTest : public ::testing::Test {
 protected:
  WarmFileTest() { EXPECT_THAT(SaveWarmRows(path_, kModel, Example()), IsOk()); }
  absl::StatusOr<WarmRows> Load() const { return LoadWarmRows(path_, kModel, kTables); }
  absl::StatusOr<WarmRows> Load(const std::string& bytes) const {
    WriteFile(path_, bytes);
    return Load();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) names.push_back(entry.path().filename());
    return names;
  }

  TempDir dir_;
  const std::string path_ = dir_ / "warm-rows";
};

TEST_F(WarmFileTest, RowsComeBackInTheirOrder) {
  EXPECT_EQ(*Load(), Example());
  EXPECT_THAT(Names(), ElementsAre("warm-rows"));
  struct stat about {};
  ASSERT_EQ(::stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
}

TEST_F(WarmFileTest, ANewFileReplacesTheOldOneAndEmptyLayersAreFine) {
  for (const WarmRows& rows : {WarmRows{{}, {}}, WarmRows{{}, {RowId(1)}}, WarmRows{{RowId(3)}, {}}}) {
    ASSERT_THAT(SaveWarmRows(path_, kModel, rows), IsOk());
    EXPECT_EQ(*Load(), rows);
  }
  ASSERT_THAT(SaveWarmRows(path_, "", {}), IsOk());
  EXPECT_EQ(*LoadWarmRows(path_, "", {}), WarmRows());
}

TEST_F(WarmFileTest, ATornFileIsRefusedAtEveryLength) {
  const std::string whole = ReadFile(path_);
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_TRUE(absl::IsDataLoss(Load(whole.substr(0, length)).status())) << length;
  }
  EXPECT_TRUE(absl::IsDataLoss(Load(whole + '\0').status()));
  EXPECT_THAT(Load(whole), IsOk());
}

TEST_F(WarmFileTest, AnyFlippedBitIsSeen) {
  const std::string whole = ReadFile(path_);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    ASSERT_TRUE(absl::IsDataLoss(Load(bytes).status())) << bit;
  }
}

TEST_F(WarmFileTest, WhatIsSoundAndForeignSaysOfWhat) {
  EXPECT_THAT(LoadWarmRows(path_, "model-b", kTables),
              FailsWith(absl::StatusCode::kFailedPrecondition, ": of model model-a; this is model-b"));
  EXPECT_THAT(LoadWarmRows(dir_ / "none", kModel, kTables),
              FailsWith(absl::StatusCode::kNotFound, "none: cannot open"));
  std::string bytes = ReadFile(path_);
  bytes[8] = 2;
  EXPECT_THAT(Load(Sealed(bytes)), FailsWith(absl::StatusCode::kFailedPrecondition, "version 2; this server reads 1"));
}

TEST_F(WarmFileTest, RowsPastTheTableAreRefused) {
  EXPECT_THAT(LoadWarmRows(path_, kModel, std::vector<uint64_t>{999, 50}),
              FailsWith(absl::StatusCode::kDataLoss, "names row 999 of 999"));
  EXPECT_THAT(LoadWarmRows(path_, kModel, std::vector<uint64_t>{1000, 49}),
              FailsWith(absl::StatusCode::kDataLoss, "names row 49 of 49"));
  EXPECT_THAT(LoadWarmRows(path_, kModel, std::vector<uint64_t>{1000}),
              FailsWith(absl::StatusCode::kDataLoss, "another number of layers"));
}

TEST_F(WarmFileTest, CountsThatTheFileCannotHoldAreRefusedBeforeTheyAreBelieved) {
  const std::string whole = ReadFile(path_);
  // Length of the model id at 12; behind it the number of layers and the first count.
  const size_t count_at = 12 + 4 + std::strlen(kModel) + 4;
  for (const uint64_t count : {uint64_t{5}, uint64_t{1} << 61, ~uint64_t{0}}) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + count_at, &count, sizeof(count));
    EXPECT_TRUE(absl::IsDataLoss(Load(Sealed(bytes)).status())) << count;
  }
  std::string bytes = whole;
  bytes[15] = '\x7F';
  EXPECT_THAT(Load(Sealed(bytes)), FailsWith(absl::StatusCode::kDataLoss, "ends within the model id"));
  EXPECT_THAT(Load(Sealed(whole + "tail")), FailsWith(absl::StatusCode::kDataLoss, "bytes behind its rows"));
}

TEST_F(WarmFileTest, WhatAnInterruptedSaveLeftIsNeitherReadNorInTheWay) {
  WriteFile(path_ + ".new", "half of it");
  EXPECT_EQ(*Load(), Example());
  ASSERT_THAT(SaveWarmRows(path_, kModel, {{}, {RowId(2)}}), IsOk());
  EXPECT_EQ(*Load(), (WarmRows{{}, {RowId(2)}}));
  EXPECT_THAT(Names(), ElementsAre("warm-rows"));
}

TEST_F(WarmFileTest, AFailedSaveLeavesTheGoodFileAlone) {
  // As on a full disk: the file may grow to 20 bytes.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = SaveWarmRows(path_, kModel, {{RowId(1)}, {}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, "warm-rows.new: cannot write: File too large"));
  EXPECT_EQ(*Load(), Example());
  EXPECT_THAT(Names(), ElementsAre("warm-rows"));

  std::filesystem::create_directory(path_ + ".new");
  EXPECT_THAT(SaveWarmRows(path_, kModel, {{}, {}}), FailsWith(absl::StatusCode::kUnavailable, "cannot open"));
  EXPECT_EQ(*Load(), Example());
  EXPECT_THAT(SaveWarmRows(dir_ / "no/such", kModel, {{}, {}}),
              FailsWith(absl::StatusCode::kUnavailable, "no/such.new: cannot open: No such file"));
  EXPECT_THAT(Names(), UnorderedElementsAre("warm-rows", "warm-rows.new"));
}

}  // namespace
}  // namespace pleiad
