#include "tests/support/process/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;

TEST(ChildProcessTest, AParentThatIsKilledLeavesNoChild) {
  // What the parent leaves becomes a child of this process, which so can wait for its end.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  ChildProcess parent({PLEIAD_ORPHANING_PARENT});
  const std::optional<std::string> line = parent.ReadOutputLine();
  pid_t child = 0;
  ASSERT_TRUE(line && absl::SimpleAtoi(*line, &child));
  ASSERT_EQ(::kill(child, 0), 0) << "it lives";
  parent.Signal(SIGKILL);
  EXPECT_EQ(parent.Wait(), -SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST(ChildProcessTest, StreamsAreApartOrTogether) {
  const std::vector<std::string> command = {"/bin/sh", "-c", "echo out; echo err >&2; printf tail; exit 3"};
  ChildProcess apart(command);
  EXPECT_EQ(apart.ReadOutputLine(), "out");
  EXPECT_EQ(apart.ReadErrorUntil("er"), "err");
  EXPECT_EQ(apart.DrainOutput(), "tail");
  EXPECT_EQ(apart.DrainError(), "");
  EXPECT_EQ(apart.Wait(), 3);
  const Finished together = RunToEnd(command);
  EXPECT_EQ(together.output, "out\nerr\ntail");
  EXPECT_EQ(together.code, 3);
}

TEST(ChildProcessTest, AProgramThatIsNotThereSaysSo) {
  const Finished finished = RunToEnd({"/nowhere/program"});
  EXPECT_EQ(finished.code, 127);
  EXPECT_THAT(finished.output, HasSubstr("/nowhere/program"));
}

}  // namespace
}  // namespace pleiad::testing
