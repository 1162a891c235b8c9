// Files with known bytes for the tests of core/rows.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/model/checkpoint.h"
#include "core/rows/row_reader.h"

namespace pleiad {

// An unnamed temporary file holding `bytes`, in `dir`.
inline CheckpointFile FileOf(const std::vector<std::byte>& bytes, std::string name,
                             const std::string& dir = testing::TempDir()) {
  std::string path = dir + "/rowsXXXXXX";
  UniqueFd fd(::mkstemp(path.data()));
  EXPECT_TRUE(fd.valid());
  ::unlink(path.c_str());
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  CheckpointFile file;
  file.path = std::move(name);
  file.fd = std::move(fd);
  file.bytes = bytes.size();
  return file;
}

// Byte i of the file is a hash of i and `salt`, so that no shifted range looks right.
inline std::vector<std::byte> PatternBytes(size_t count, uint64_t salt) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>(((i + salt) * 0x9E3779B97F4A7C15ull) >> 56);
  }
  return bytes;
}

// Gathers results; usable from any thread.
class ResultSink {
 public:
  RowReader::ResultFn fn() {
    return [this](absl::Span<const RowReadResult> results) {
      MutexLock lock(&mutex_);
      results_.insert(results_.end(), results.begin(), results.end());
      changed_.NotifyAll();
    };
  }

  std::vector<RowReadResult> Await(size_t count) {
    MutexLock lock(&mutex_);
    while (results_.size() < count) changed_.Wait(&mutex_);
    return results_;
  }

  size_t size() {
    MutexLock lock(&mutex_);
    return results_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<RowReadResult> results_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
