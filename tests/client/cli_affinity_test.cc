// --affinity of every subcommand that talks to a server: a balancer takes no call about a sequence without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/trace.h"
#include "tests/client/fake_ple_server.h"
#include "tests/client/test_steps.h"
#include "tests/support/temp_dir.h"

namespace pleiad::cli {
namespace {

using client::testing::FakePleServer;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

class AffinityTest : public ::testing::Test {
 protected:
  int Run(std::vector<std::string> args) {
    args.insert(args.begin(), "pleiad");
    std::vector<const char*> argv;
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    return Main(static_cast<int>(argv.size()), argv.data());
  }
  // With the key of `name`, of which the server must have seen `methods`, and no other key.
  void ExpectSeen(const std::string& name, std::vector<std::string> args, const std::vector<std::string>& methods) {
    SCOPED_TRACE(name);
    const std::string key = "key of " + name;
    args.insert(args.begin(), name);
    args.insert(args.end(), {"--server", server_.address(), "--affinity", key});
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(Run(args), kExitOk);
    out_ = ::testing::internal::GetCapturedStdout();
    std::map<std::string, std::string> seen;
    for (const auto& [method, affinity] : server_.affinities()) {
      if (affinity == key) seen[method] = affinity;
    }
    std::vector<std::string> names;
    for (const auto& [method, unused] : seen) names.push_back(method);
    EXPECT_THAT(names, IsSupersetOf(methods));
  }

  const testing::TempDir folder_;
  FakePleServer server_;
  std::string out_;
};

TEST_F(AffinityTest, EveryCallOfEverySubcommandHasTheKey) {
  std::mt19937 rng(7);
  const client::testing::TestStep step = client::testing::RandomStep(&rng, 20);
  Trace trace;
  trace.PutI32("x.tokens", {20}, std::vector<int32_t>(step.tokens.begin(), step.tokens.end()));
  trace.PutF32("x.highway_in", {20, 4}, step.highway);
  trace.PutF32("x.ple_out", {20, 4}, std::vector<float>(80));
  ASSERT_TRUE(trace.Write(folder_ / "trace").ok());

  ExpectSeen("info", {}, {"GetModel"});
  ExpectSeen("run", {"--trace", folder_ / "trace", "--prefix", "x", "--bound", "10", "--steps", "7", "--disturb"},
             {"GetModel", "OpenSequence", "ForwardStream", "Snapshot", "Release"});
  ExpectSeen("bench", {"--sequences", "2", "--steps", "3", "--warmup", "0"},
             {"GetModel", "OpenSequence", "ForwardStream", "Release"});
  ExpectSeen("warm", {"--trace", folder_ / "trace", "--prefix", "x"},
             {"GetModel", "OpenSequence", "ForwardStream", "Release"});
  client::Client client = *client::Client::Connect({.address = server_.address()});
  const client::Sequence sequence = *client.OpenSequence();
  const std::string id = std::to_string(static_cast<uint64_t>(sequence.id()));
  ExpectSeen("snapshot", {"--sequence", id, "--out", folder_ / "carry"}, {"GetModel", "GetSequence", "Snapshot"});
  ExpectSeen("restore", {"--sequence", id, "--in", folder_ / "carry"}, {"GetModel", "GetSequence", "Restore"});
  ExpectSeen("restore", {"--in", folder_ / "carry"}, {"GetModel", "OpenSequence"});
  ExpectSeen("health", {}, {});
}

TEST_F(AffinityTest, TheEnvironmentMayNameIt) {
  setenv("PLEIAD_AFFINITY", "rank-3", 1);
  EXPECT_EQ(Run({"info", "--server", server_.address()}), kExitOk);
  unsetenv("PLEIAD_AFFINITY");
  EXPECT_EQ(server_.affinities()["GetModel"], "rank-3");
  EXPECT_EQ(Run({"info", "--server", server_.address()}), kExitOk);
  EXPECT_EQ(server_.affinities()["GetModel"], "");
}

TEST_F(AffinityTest, AKeyThatCannotTravelIsABadFlag) {
  for (const auto& [key, shown] : std::map<std::string, std::string>{
           {"a\nb", "a\\nb"}, {"ü", "\\xc3\\xbc"}, {std::string(129, 'k'), std::string(129, 'k')}}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Run({"bench", "--server", server_.address(), "--affinity=" + key}), kExitBadFlags);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("--affinity: '" + shown + "': must be 1 to 128 characters of printable ASCII"));
  }
  EXPECT_EQ(Run({"info", "--server", server_.address(), "--affinity="}), kExitBadFlags);
  EXPECT_EQ(Run({"info", "--server", server_.address(), "--affinity=" + std::string(128, 'k')}), kExitOk);
}

// Each stream is a client of its own.
TEST_F(AffinityTest, OverSeveralServersTheKeyHasTheStreamBehindIt) {
  FakePleServer other;
  EXPECT_EQ(Run({"bench", "--server", server_.address(), "--server", other.address(), "--streams", "2", "--sequences",
                 "2", "--steps", "3", "--affinity", "k"}),
            kExitOk);
  std::vector<std::string> opened;
  for (FakePleServer* one : {&server_, &other}) {
    if (one->affinities().count("OpenSequence") > 0) opened.push_back(one->affinities()["OpenSequence"]);
  }
  EXPECT_THAT(opened, ::testing::Not(::testing::IsEmpty()));
  EXPECT_THAT(opened, Each(::testing::AnyOf("k/0", "k/1")));
}

}  // namespace
}  // namespace pleiad::cli
