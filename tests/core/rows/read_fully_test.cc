#include "core/rows/read_fully.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <vector>

#include "tests/core/rows/row_files.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Answers pread from memory: each entry is a byte limit for one call, or -errno. Without entries calls are whole.
struct ScriptedPread {
  std::vector<std::byte> file;
  std::deque<int> script;
  int calls = 0;

  ssize_t operator()(int /*fd*/, void* buffer, size_t count, off_t offset) {
    ++calls;
    if (!script.empty()) {
      const int entry = script.front();
      script.pop_front();
      if (entry < 0) {
        errno = -entry;
        return -1;
      }
      count = std::min(count, static_cast<size_t>(entry));
    }
    if (static_cast<size_t>(offset) >= file.size()) return 0;
    count = std::min(count, file.size() - static_cast<size_t>(offset));
    std::memcpy(buffer, file.data() + offset, count);
    return static_cast<ssize_t>(count);
  }
};

class ReadFullyTest : public testing::Test {
 protected:
  absl::Status Read(uint64_t offset, size_t bytes) {
    destination_.assign(bytes, std::byte{0});
    const auto pread = [this](int fd, void* buffer, size_t count, off_t at) { return kernel_(fd, buffer, count, at); };
    return ReadFully(pread, 3, "rows.safetensors", offset, absl::MakeSpan(destination_));
  }

  std::vector<std::byte> Expected(uint64_t offset, size_t bytes) const {
    const auto first = kernel_.file.begin() + static_cast<ptrdiff_t>(offset);
    return {first, first + static_cast<ptrdiff_t>(bytes)};
  }

  ScriptedPread kernel_{.file = PatternBytes(1000, 1), .script = {}};
  std::vector<std::byte> destination_;
};

TEST_F(ReadFullyTest, ShortReadsAreContinuedWhereTheyStopped) {
  kernel_.script = {1, 7, 100, 3};
  ASSERT_TRUE(Read(13, 500).ok());
  EXPECT_EQ(destination_, Expected(13, 500));
  EXPECT_EQ(kernel_.calls, 5);
}

TEST_F(ReadFullyTest, InterruptedReadsAreRetriedWithoutLimit) {
  for (int i = 0; i < 100; ++i) kernel_.script.push_back(-EINTR);
  ASSERT_TRUE(Read(0, 10).ok());
  EXPECT_EQ(destination_, Expected(0, 10));
}

TEST_F(ReadFullyTest, AFewFailedReadsAreRetriedAndProgressRenewsTheBudget) {
  for (const int error : {EAGAIN, EIO}) {
    kernel_.script.clear();
    for (int i = 1; i < kMaxFailedReads; ++i) kernel_.script.push_back(-error);
    kernel_.script.push_back(5);
    for (int i = 1; i < kMaxFailedReads; ++i) kernel_.script.push_back(-error);
    ASSERT_TRUE(Read(20, 10).ok()) << error;
    EXPECT_EQ(destination_, Expected(20, 10));
  }
}

TEST_F(ReadFullyTest, AnErrorThatStaysIsDataLossNamingFileOffsetAndCause) {
  for (const int error : {EAGAIN, EIO}) {
    kernel_.calls = 0;
    kernel_.script = {4};
    for (int i = 0; i < kMaxFailedReads; ++i) kernel_.script.push_back(-error);
    const absl::Status status = Read(20, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rows.safetensors"), HasSubstr("offset 24"), HasSubstr(std::strerror(error))));
    EXPECT_EQ(kernel_.calls, 1 + kMaxFailedReads);
  }
}

TEST_F(ReadFullyTest, OtherErrorsAreNotRetried) {
  kernel_.script = {-EBADF};
  EXPECT_EQ(Read(0, 10).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(kernel_.calls, 1);
}

TEST_F(ReadFullyTest, EndOfFileIsDataLossNamingFileAndOffset) {
  const absl::Status status = Read(990, 11);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rows.safetensors"), HasSubstr("offset 1000"), HasSubstr("1 bytes short")));
  EXPECT_TRUE(Read(990, 10).ok());
}

}  // namespace
}  // namespace pleiad
