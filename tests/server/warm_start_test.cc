#include "server/warm_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/server/fake_engine.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::SizeIs;
using testing::TempDir;
using ::testing::UnorderedElementsAreArray;

constexpr uint64_t kRows = 256;
constexpr size_t kAtOnce = 4;  // heads of the engine's model

class WarmStartTest : public ::testing::Test {
 protected:
  std::unique_ptr<WarmStart> Make() {
    return std::make_unique<WarmStart>(&engine_, dir_.path(), std::vector<uint64_t>{kRows});
  }
  // Rows 200, 199, ...
  static std::vector<RowId> Falling(uint64_t count) {
    std::vector<RowId> rows;
    for (uint64_t i = 0; i < count; ++i) rows.push_back(RowId(200 - i));
    return rows;
  }
  static std::vector<RowId> Part(const std::vector<RowId>& rows, size_t begin, size_t end) {
    return {rows.begin() + static_cast<ptrdiff_t>(begin), rows.begin() + static_cast<ptrdiff_t>(end)};
  }
  WarmRows File() const {
    const absl::StatusOr<WarmRows> rows = LoadWarmRows(path_, engine_.model().model_id, {kRows});
    EXPECT_THAT(rows, IsOk());
    return rows.value_or(WarmRows{});
  }

  TempDir dir_;
  const std::string path_ = dir_ / "warm-rows";
  FakeEngine engine_;
};

TEST_F(WarmStartTest, ReadsTheRowsBackFewAtATimeInTheOrderOfTheFile) {
  const std::vector<RowId> rows = Falling(10);
  ASSERT_THAT(SaveWarmRows(path_, engine_.model().model_id, {rows}), IsOk());
  const std::unique_ptr<WarmStart> warm = Make();
  warm->Start();
  const auto asked = engine_.WaitForWarms(3);
  warm->Stop();
  ASSERT_THAT(asked, SizeIs(3));
  EXPECT_THAT(asked[0], UnorderedElementsAreArray(Part(rows, 0, kAtOnce)));
  EXPECT_THAT(asked[1], UnorderedElementsAreArray(Part(rows, kAtOnce, 2 * kAtOnce)));
  EXPECT_THAT(asked[2], UnorderedElementsAreArray(Part(rows, 2 * kAtOnce, 10)));
}

TEST_F(WarmStartTest, AsksForNoMoreThanARequestOfOneTokenNames) { EXPECT_EQ(kAtOnce, FakeConfig().geometry.heads()); }

TEST_F(WarmStartTest, KeepsTheCachedRowsForTheNextStart) {
  engine_.SetCachedRows({{RowId(3), RowId(1), RowId(255)}});
  {
    const std::unique_ptr<WarmStart> warm = Make();
    warm->Start();  // there is no file yet
    warm->Save();
  }
  EXPECT_THAT(engine_.WaitForWarms(0), IsEmpty());
  EXPECT_EQ(File(), (WarmRows{{RowId(3), RowId(1), RowId(255)}}));
  const std::unique_ptr<WarmStart> next = Make();
  next->Start();
  EXPECT_THAT(engine_.WaitForWarms(1).front(), UnorderedElementsAreArray({RowId(3), RowId(1), RowId(255)}));
}

TEST_F(WarmStartTest, RowsThatWereStillToBeReadAreKeptBehindTheCachedOnes) {
  const std::vector<RowId> rows = Falling(40);
  ASSERT_THAT(SaveWarmRows(path_, engine_.model().model_id, {rows}), IsOk());
  engine_.FailWarmsFrom(1);
  std::vector<RowId> expected = Part(rows, 0, kAtOnce);
  expected.push_back(RowId(7));
  expected.push_back(rows[20]);
  engine_.SetCachedRows({expected});
  const std::unique_ptr<WarmStart> warm = Make();
  warm->Start();
  (void)engine_.WaitForWarms(2);
  warm->Save();
  warm->Stop();
  EXPECT_THAT(engine_.WaitForWarms(0), SizeIs(2));  // a failure ends the reading
  for (size_t i = kAtOnce; i < rows.size(); ++i) {
    if (i != 20) expected.push_back(rows[i]);  // named once
  }
  EXPECT_THAT(File().front(), ElementsAreArray(expected));
}

TEST_F(WarmStartTest, ADamagedOrForeignFileIsIgnoredAndReplaced) {
  engine_.SetCachedRows({{RowId(5)}});
  ASSERT_THAT(SaveWarmRows(path_, "another model", {Falling(3)}), IsOk());
  const std::string foreign = testing::ReadFile(path_);
  for (const std::string& bytes : {foreign, std::string("rubbish"), foreign.substr(0, foreign.size() / 2)}) {
    testing::WriteFile(path_, bytes);
    {
      const std::unique_ptr<WarmStart> warm = Make();
      warm->Start();
      warm->Save();
    }
    EXPECT_THAT(engine_.WaitForWarms(0), IsEmpty());
    EXPECT_EQ(File(), (WarmRows{{RowId(5)}}));
  }
}

TEST_F(WarmStartTest, WithoutAStartNothingIsWritten) {
  engine_.SetCachedRows({{RowId(5)}});
  const std::unique_ptr<WarmStart> warm = Make();
  warm->Save();
  warm->Stop();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(WarmStartTest, AFolderThatCannotBeWrittenIsNoReasonToFail) {
  engine_.SetCachedRows({{RowId(5)}});
  WarmStart warm(&engine_, dir_ / "none", {kRows});
  warm.Start();
  warm.Save();
  warm.Stop();
  EXPECT_FALSE(std::filesystem::exists(dir_ / "none"));
}

}  // namespace
}  // namespace pleiad
