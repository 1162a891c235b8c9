#include "server/sequence_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/engine/sequence_file.h"
#include "tests/server/test_server.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/fake_clock.h"
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
void Ignored(KeptSequence&) {}

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
    EXPECT_THAT(keeper->TakeBack(none->engine(), Ignored, Never), IsOk());
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
  ASSERT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never), IsOk());
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(engine->Get(ids_[0]).layers.at(0).position, Position(3));
  EXPECT_EQ(engine->Get(ids_[1]).layers.at(0).position, Position(14));
  EXPECT_EQ(keeper->counts().sequences, 2u);
  // As after a kill: nothing was written since, so there is nothing that could be out of date.
  ASSERT_THAT(keeper->TakeBack(next->engine(), Ignored, Never), IsOk());
  EXPECT_EQ(next->engine().stats().sequences, 0u);
  EXPECT_EQ(keeper->counts().sequences, 2u);
  EXPECT_EQ(keeper->counts().files_set_aside, 0u);
}

TEST_F(SequenceKeeperTest, NoCutAndNoFlippedByteLoadsAnything) {
  const std::string whole = Kept();
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  const auto expect_set_aside = [&](const std::string& bytes) {
    WriteFile(path_, bytes);
    ASSERT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never), IsOk());
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
  ASSERT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never), IsOk());
  EXPECT_EQ(engine->engine().stats().sequences, 2u);
}

TEST_F(SequenceKeeperTest, FilesSetAsideDoNotReplaceEachOther) {
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  for (const char* bytes : {"one", "two"}) {
    WriteFile(path_, bytes);
    ASSERT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never), IsOk());
  }
  EXPECT_EQ(ReadFile(path_ + ".bad-1"), "one");
  EXPECT_EQ(ReadFile(path_ + ".bad-2"), "two");
  EXPECT_EQ(keeper->counts().files_set_aside, 2u);
  EXPECT_EQ(keeper->counts().sequences, 0u);
}

TEST_F(SequenceKeeperTest, AFileThatWasNotTakenBackStays) {
  const std::string whole = Kept();
  const std::unique_ptr<LocalEngine> engine = MakeEngine(), stopped = StoppedEngine();
  {
    const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
    EXPECT_THAT(keeper->TakeBack(engine->engine(), Ignored, [] { return true; }),
                FailsWith(absl::StatusCode::kCancelled, "stopping"));
    EXPECT_THAT(keeper->Keep(stopped->engine()), IsOk());
    EXPECT_EQ(ReadFile(path_), whole);
  }
  // What has its name cannot be opened.
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(path_, path_);
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  EXPECT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never),
              FailsWith(absl::StatusCode::kUnavailable, "cannot open"));
  EXPECT_THAT(keeper->Keep(stopped->engine()), IsOk());
  EXPECT_TRUE(std::filesystem::is_symlink(path_));
}

// A folder too makes way for what is kept next.
TEST_F(SequenceKeeperTest, WhatIsNoFileIsSetAside) {
  std::filesystem::create_directory(path_);
  const std::unique_ptr<LocalEngine> engine = MakeEngine(), stopped = StoppedEngine();
  const std::unique_ptr<SequenceKeeper> keeper = MakeKeeper();
  EXPECT_THAT(keeper->TakeBack(engine->engine(), Ignored, Never), IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(path_ + ".bad-1"));
  EXPECT_THAT(keeper->Keep(stopped->engine()), IsOk());
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

TEST_F(SequenceKeeperTest, WhatAKilledRunHadBegunToWriteIsRemoved) {
  const std::string temporary = SequenceFileWriter::TemporaryName(path_);
  WriteFile(temporary, "half");
  const std::unique_ptr<LocalEngine> engine = MakeEngine();
  ASSERT_THAT(MakeKeeper()->TakeBack(engine->engine(), Ignored, Never), IsOk());
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

// Begins to write a sequence into `state_dir`, and never ends.
[[noreturn]] void DrainOnToADiskThatHangs(const std::string& state_dir) {
  FakeClock clock;
  ServerFlags flags = TestFlags();
  flags.state_dir = state_dir;
  const auto loader = std::make_shared<FakeLoader::Control>();
  const auto server =
      *Server::Start(flags, {.clock = &clock,
                             .loader = std::make_unique<FakeLoader>(loader, FakeEngine::Mode::kAnswerAtOnce),
                             .on_ready = nullptr,
                             .hard_exit = nullptr});
  loader->Finish();
  EXPECT_THAT(server->WaitUntilLoaded(), IsOk());
  FakeEngine* engine = nullptr;
  {
    MutexLock lock(&loader->mutex);
    engine = loader->engine;
  }
  engine->BlockGive();
  server->Terminate();
  server->Terminate();
  std::thread wait([&] { server->Wait(); });
  engine->WaitForGive();
  if (!std::filesystem::exists(SequenceFileWriter::TemporaryName(state_dir + "/sequences"))) std::_Exit(99);
  clock.Advance(Server::kKeepLimit);
  wait.join();  // never
  std::_Exit(98);
}

TEST_F(SequenceKeeperTest, AWriteThatTakesLongerThanItMayEndsTheProcessWith5AndLeavesNoPartOfAFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The process that dies runs this test from its beginning: the folder stays the one of the first.
  ::setenv("PLEIAD_TEST_STATE", state_.path().c_str(), /*overwrite=*/0);
  EXPECT_EXIT(DrainOnToADiskThatHangs(std::getenv("PLEIAD_TEST_STATE")), ::testing::ExitedWithCode(kExitStateLost), "");
  ::unsetenv("PLEIAD_TEST_STATE");
  EXPECT_TRUE(std::filesystem::is_empty(state_.path()));
}

}  // namespace
}  // namespace pleiad
