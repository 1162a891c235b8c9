#include "client/cli/private_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "client/cli/snapshot_file.h"
#include "client/cli/trace.h"
#include "tests/support/temp_dir.h"

namespace pleiad::cli {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

std::string Read(const std::string& path) {
  std::stringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

void Put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

mode_t ModeOf(const std::string& path) {
  struct stat about {};
  EXPECT_EQ(::lstat(path.c_str(), &about), 0) << path;
  return about.st_mode & 07777;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

class PrivateFileTest : public ::testing::Test {
 protected:
  PrivateFileTest() : umask_(::umask(0)) {}
  ~PrivateFileTest() override { ::umask(umask_); }

  const mode_t umask_;
  const TempDir folder_;
  const std::string path_ = folder_ / "out";
};

TEST_F(PrivateFileTest, CarriesAndTracesAreTheirOwnersAlone) {
  client::SequenceSnapshot snapshot;
  snapshot.model_id = "m";
  snapshot.layers.resize(1);
  ASSERT_TRUE(WriteSnapshot(folder_ / "snapshot", snapshot).ok());
  Trace trace;
  trace.PutI32("x.tokens", {1}, {7});
  ASSERT_TRUE(trace.Write(folder_ / "trace").ok());
  EXPECT_EQ(ModeOf(folder_ / "snapshot"), 0600u);
  EXPECT_EQ(ModeOf(folder_ / "trace"), 0600u);
}

TEST_F(PrivateFileTest, AFileThatOthersCouldReadIsReplacedByOneThatTheyCannot) {
  Put(path_, "old");
  ASSERT_EQ(ModeOf(path_), 0666u);
  std::ifstream open(path_);
  ASSERT_TRUE(WritePrivateFile(path_, {"new ", "bytes"}).ok());
  EXPECT_EQ(Read(path_), "new bytes");
  EXPECT_EQ(ModeOf(path_), 0600u);
  std::string seen;
  std::getline(open, seen);
  EXPECT_EQ(seen, "old") << "whoever had the file open sees nothing of the new one";
  EXPECT_THAT(NamesIn(folder_.path()), ::testing::ElementsAre("out"));
}

TEST_F(PrivateFileTest, ALinkLaidWhereAPartWouldLieIsNotFollowed) {
  for (const char* name : {"out.part", "out.tmp", "out.new", "out.XXXXXX"}) {
    std::filesystem::create_symlink(folder_ / "victim", folder_ / name);
  }
  ASSERT_TRUE(WritePrivateFile(path_, {"bytes"}).ok());
  EXPECT_EQ(Read(path_), "bytes");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "victim"));
}

TEST_F(PrivateFileTest, WhatCannotBeWrittenLeavesTheOldFileAndNoPart) {
  Put(path_, "old");
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 4096, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WritePrivateFile(path_, {std::string(1 << 20, 'x')});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status, absl::UnknownError("cannot write " + path_ + ": File too large"));
  EXPECT_EQ(Read(path_), "old");
  EXPECT_THAT(NamesIn(folder_.path()), ::testing::ElementsAre("out"));

  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(WritePrivateFile(folder_ / "folder", {"x"}).message(), HasSubstr("Is a directory"));
  EXPECT_THAT(WritePrivateFile(folder_ / "none/out", {"x"}).message(), HasSubstr("No such file or directory"));
  EXPECT_THAT(NamesIn(folder_.path()), ::testing::UnorderedElementsAre("out", "folder"));
}

}  // namespace
}  // namespace pleiad::cli
