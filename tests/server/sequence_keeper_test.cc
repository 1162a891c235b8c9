#include "server/sequence_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/engine/sequence_file.h"
#include "tests/server/test_server.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using testing::FailsWith;
using testing::IsOk;
using testing::LocalEngine;
using testing::ReadFile;
using testing::TempDir;
using testing::WriteFile;

bool Never() { return false; }

class SequenceKeeperTest : public ::testing::Test {
 protected:
  SequenceKeeperTest() { testing::WriteCheckpoint({}, model_.path()); }

  std::unique_ptr<LocalEngine> MakeEngine() {
    testing::LocalEngineOptions options;
    options.max_sequences = 4;
    options.threads = 1;
    return std::make_unique<LocalEngine>(model_.path(), options);
  }
  std::unique_ptr<SequenceKeeper> MakeKeeper() { return *SequenceKeeper::Open(state_.path()); }
  // Two sequences that have taken steps; stopped.
  std::unique_ptr<LocalEngine> StoppedEngine() {
    std::unique_ptr<LocalEngine> engine = MakeEngine();
    const size_t channels = engine->config().geometry.channels();
    for (const uint32_t tokens : {3u, 14u}) {
      ids_.push_back(engine->Open());
      engine->Step(ids_.back(), LayerIndex(1), std::vector<uint32_t>(tokens, 11),
                   std::vector<float>(tokens * channels, 0.5f));
    }
    engine->engine().Stop();
    return engine;
  }
  // The file that they leave.
  std::string Kept() {
    const std::unique_ptr<LocalEngine> none = MakeEngine(), engine = StoppedEngine();
    const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
    EXPECT_THAT(keeper->TakeBack(none->engine(), Never), IsOk());
    EXPECT_THAT(keeper->Keep(engine->engine()), IsOk());
    return ReadFile(path_);
  }

  TempDir model_, state_;
  const std::string path_ = state_ / "sequences";
  std::vector<SequenceId> ids_;
};

TEST_F(SequenceKeeperTest, WhatIsKeptIsTakenBackOnce) {
  Kept();
  struct stat about;
  ASSERT_EQ(::stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  const std::unique_ptr<LocalEngine> engine = MakeEngine(), next = MakeEngine();
  ASSERT_THAT(keeper->TakeBack(engine->engine(), Never), IsOk());
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(engine->Get(ids_[0]).layers.at(0).position, Position(3));
  EXPECT_EQ(engine->Get(ids_[1]).layers.at(0).position, Position(14));
  // As after a kill: nothing was written since, so there is nothing that could be out of date.
  ASSERT_THAT(keeper->TakeBack(next->engine(), Never), IsOk());
  EXPECT_EQ(next->engine().stats().sequences, 0u);
}

TEST_F(SequenceKeeperTest, NoCutAndNoFlippedByteLoadsAnything) {
  const std::string whole = Kept();
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  const auto expect_set_aside = [&](const std::string& bytes) {
    WriteFile(path_, bytes);
    ASSERT_THAT(keeper->TakeBack(engine->engine(), Never), IsOk());
    EXPECT_EQ(engine->engine().stats().sequences, 0u);
    EXPECT_FALSE(std::filesystem::exists(path_));
    EXPECT_EQ(ReadFile(path_ + ".bad-1"), bytes);
    std::filesystem::remove(path_ + ".bad-1");
  };
  for (size_t i = 0; i < whole.size(); i += whole.size() / 40) {
    SCOPED_TRACE(i);
    expect_set_aside(whole.substr(0, i));
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    expect_set_aside(flipped);
  }
  WriteFile(path_, whole);
  ASSERT_THAT(keeper->TakeBack(engine->engine(), Never), IsOk());
  EXPECT_EQ(engine->engine().stats().sequences, 2u);
}

TEST_F(SequenceKeeperTest, FilesSetAsideDoNotReplaceEachOther) {
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  for (const char* bytes : {"one", "two"}) {
    WriteFile(path_, bytes);
    ASSERT_THAT(keeper->TakeBack(engine->engine(), Never), IsOk());
  }
  EXPECT_EQ(ReadFile(path_ + ".bad-1"), "one");
  EXPECT_EQ(ReadFile(path_ + ".bad-2"), "two");
}

TEST_F(SequenceKeeperTest, AFileThatWasNotTakenBackStays) {
  const std::string whole = Kept();
  const std::unique_ptr<LocalEngine> engine = MakeEngine(), stopped = StoppedEngine();
  {
    const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
    EXPECT_THAT(keeper->TakeBack(engine->engine(), [] { return true; }),
                FailsWith(absl::StatusCode::kCancelled, "stopping"));
    EXPECT_THAT(keeper->Keep(stopped->engine()), IsOk());
    EXPECT_EQ(ReadFile(path_), whole);
  }
  // No file at all, but what has its name cannot be read as one.
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  EXPECT_THAT(keeper->TakeBack(engine->engine(), Never), FailsWith(absl::StatusCode::kUnavailable, "cannot read"));
  EXPECT_THAT(keeper->Keep(stopped->engine()), IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(path_));
}

TEST_F(SequenceKeeperTest, WhatAKilledRunHadBegunToWriteIsRemoved) {
  const std::string temporary = SequenceFileWriter::TemporaryName(path_);
  WriteFile(temporary, "half");
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  ASSERT_THAT(MakeKeeper()->TakeBack(engine->engine(), Never), IsOk());
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST_F(SequenceKeeperTest, AFolderBelongsToOneAtATime) {
  {
    const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
    EXPECT_THAT(SequenceKeeper::Open(state_.path()),
                FailsWith(absl::StatusCode::kFailedPrecondition, "--state-dir " + state_.path()));
  }
  EXPECT_THAT(SequenceKeeper::Open(state_.path()), IsOk());
  EXPECT_THAT(SequenceKeeper::Open(state_ / "none"), FailsWith(absl::StatusCode::kInvalidArgument, "must be a folder"));
}

// A server that never served has nothing to say about the sequences of the one before it.
TEST_F(SequenceKeeperTest, AServerThatEndsWhileLoadingLeavesTheFile) {
  WriteFile(path_, "not even looked at");
  ServerFlags flags = TestFlags();
  flags.state_dir = state_.path();
  {
    TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading, flags);
    server.server().Terminate();
    EXPECT_EQ(server.Wait(), kExitDrained);
  }
  {
    TestServer server(FakeEngine::Mode::kAnswerAtOnce, StartAs::kLoading, flags);
    server.loader().Finish(absl::DataLossError("short file"));
    EXPECT_EQ(server.Wait(), kExitRefused);
  }
  EXPECT_EQ(ReadFile(path_), "not even looked at");
}

}  // namespace
}  // namespace pleiad
