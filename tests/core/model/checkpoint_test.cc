#include "core/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using testing::CheckpointSpec;
using testing::MakeCheckpoint;
using testing::TempDir;
using testing::TestCheckpoint;

TEST(CheckpointTest, OpensTheDefaultTestCheckpoint) {
  TempDir dir;
  testing::WriteCheckpoint(CheckpointSpec{}, dir.path());
  auto opened = Checkpoint::Open({dir.path(), {}});
  ASSERT_TRUE(opened.ok()) << opened.status();
}

}  // namespace
}  // namespace pleiad
