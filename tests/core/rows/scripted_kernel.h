// Files and completions as a kernel would have them, given out by script.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/rows/read_queue.h"
#include "tests/core/rows/row_files.h"

namespace pleiad {

// Drives a ReadQueue over files of pattern bytes.
class ScriptedKernel {
 public:
  ScriptedKernel(std::vector<size_t> file_bytes, uint32_t alignment, const ReadQueueOptions& options)
      : alignment_(alignment),
        options_(options),
        buffers_(static_cast<std::byte*>(std::aligned_alloc(4096, size_t{options.depth} * options.buffer_bytes)),
                 &std::free) {
    std::vector<QueueFile> about;
    for (size_t i = 0; i < file_bytes.size(); ++i) {
      files_.push_back(PatternBytes(file_bytes[i], i * 1000));
      about.push_back({.path = "file" + std::to_string(i), .alignment = alignment});
    }
    queue_ = std::make_unique<ReadQueue>(about, options, buffers_.get());
  }

  ReadQueue& queue() { return *queue_; }
  const std::vector<std::byte>& bytes(FileIndex file) const { return files_[file]; }
  std::vector<FinishedRead>& finished() { return finished_; }
  const std::vector<ReadOp>& with_kernel() const { return with_kernel_; }

  // Takes all operations that the queue hands out; each is aligned, in a buffer of its own, under a number of its own.
  size_t Take() {
    std::vector<ReadOp> ops(options_.depth + 1);
    ops.resize(queue_->Next(absl::MakeSpan(ops)));
    for (const ReadOp& op : ops) {
      EXPECT_EQ(op.offset % alignment_, 0u);
      EXPECT_EQ(op.bytes % alignment_, 0u);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(op.buffer) % alignment_, 0u);
      EXPECT_GT(op.bytes, 0u);
      EXPECT_GE(op.buffer, buffers_.get());
      EXPECT_LE(op.buffer + op.bytes, buffers_.get() + size_t{options_.depth} * options_.buffer_bytes);
      EXPECT_NE(op.user_data, 0u);
      for (const ReadOp& other : with_kernel_) {
        EXPECT_NE(op.user_data, other.user_data);
        EXPECT_TRUE(op.buffer + op.bytes <= other.buffer || other.buffer + other.bytes <= op.buffer);
      }
      with_kernel_.push_back(op);
    }
    EXPECT_LE(with_kernel_.size(), options_.depth);
    EXPECT_EQ(with_kernel_.size(), queue_->in_flight());
    return ops.size();
  }

  // What a kernel without faults returns for `op`.
  int32_t Whole(const ReadOp& op) const {
    const uint64_t size = files_[op.file].size();
    return op.offset >= size ? 0 : static_cast<int32_t>(std::min<uint64_t>(op.bytes, size - op.offset));
  }

  // Completes operation `index` of with_kernel() with `result`. The buffer gets the file's bytes as far as the result
  // goes and garbage after them, and where the read failed nothing but garbage.
  ReadOp Complete(size_t index, int32_t result) {
    const ReadOp op = with_kernel_[index];
    with_kernel_.erase(with_kernel_.begin() + static_cast<ptrdiff_t>(index));
    std::memset(op.buffer, 0xEE, result < 0 ? op.bytes : static_cast<size_t>(result));
    if (result > 0) std::memcpy(op.buffer, files_[op.file].data() + op.offset, static_cast<size_t>(result));
    EXPECT_EQ(queue_->Complete(op.user_data, result, finished_), ReadQueue::Match::kTaken);
    return op;
  }

  // Completes all that the queue wants read, first come first served.
  void RunWhole() {
    while (Take() > 0 || !with_kernel_.empty()) Complete(0, Whole(with_kernel_.front()));
  }

 private:
  const uint32_t alignment_;
  const ReadQueueOptions options_;
  std::vector<std::vector<std::byte>> files_;
  const std::unique_ptr<std::byte, decltype(&std::free)> buffers_;
  std::unique_ptr<ReadQueue> queue_;
  std::vector<ReadOp> with_kernel_;
  std::vector<FinishedRead> finished_;
};

// Reads with destinations of their own; ids count from 0.
class Rows {
 public:
  void Add(FileIndex file, uint64_t offset, uint32_t bytes) {
    rows_.push_back(std::make_unique<std::vector<std::byte>>(bytes, std::byte{0xAA}));
    reads_.push_back(
        {.id = reads_.size(), .file = file, .offset = offset, .bytes = bytes, .destination = rows_.back()->data()});
  }
  absl::Span<const RowRead> reads() const { return reads_; }
  bool Holds(size_t id, const ScriptedKernel& kernel) const {
    const std::vector<std::byte>& file = kernel.bytes(reads_[id].file);
    return std::equal(rows_[id]->begin(), rows_[id]->end(), file.begin() + static_cast<ptrdiff_t>(reads_[id].offset));
  }
  bool Untouched(size_t id) const {
    return std::all_of(rows_[id]->begin(), rows_[id]->end(), [](std::byte b) { return b == std::byte{0xAA}; });
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> rows_;
  std::vector<RowRead> reads_;
};

}  // namespace pleiad
