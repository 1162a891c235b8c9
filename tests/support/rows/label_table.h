// A table whose rows say which row they are, a reader that makes them, and a stream that checks what it gathers.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/base/plan.h"
#include "core/model/table_layout.h"
#include "core/rows/row_reader.h"

namespace pleiad {

// Rows of 8 values BF16: the label twice.
inline constexpr uint32_t kLabelDim = 8;
inline constexpr uint32_t kLabelBytes = 2 * kLabelDim;

inline uint64_t Label(FileIndex file, uint64_t row) { return (uint64_t{file} + 1) << 48 | row; }

// The rows of one layer, alone in file `file`.
inline TableLayout LabelTable(FileIndex file, uint64_t rows) {
  TableLayout table;
  table.rows = rows;
  table.head_dim = kLabelDim;
  TableShard shard;
  shard.file = file;
  shard.rows = rows;
  table.shards.push_back(shard);
  return table;
}

// Answers inside Submit.
class LabelReader : public RowReader {
 public:
  const RowReaderInfo& info() const override { return info_; }
  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    std::vector<RowReadResult> results;
    for (const RowRead& read : reads) {
      const uint64_t label = Label(read.file, read.offset / kLabelBytes);
      std::memcpy(read.destination, &label, sizeof(label));
      std::memcpy(read.destination + sizeof(label), &label, sizeof(label));
      results.push_back({read.id, absl::OkStatus()});
    }
    on_results(results);
  }

 private:
  RowReaderInfo info_{"label", "memory"};
};

// Hands reads on from a thread of its own, in small parts in another order.
class LaterReader : public RowReader {
 public:
  LaterReader(std::unique_ptr<RowReader> inner, uint64_t seed) : inner_(std::move(inner)), random_(seed) {
    thread_ = std::thread([this] { Work(); });
  }
  ~LaterReader() override {
    {
      MutexLock lock(&mutex_);
      stop_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }

  const RowReaderInfo& info() const override { return inner_->info(); }
  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override {
    MutexLock lock(&mutex_);
    const auto fn = std::make_shared<const ResultFn>(std::move(on_results));
    for (const RowRead& read : reads) queue_.push_back({read, fn});
    changed_.NotifyAll();
  }

 private:
  struct Item {
    RowRead read;
    std::shared_ptr<const ResultFn> on_results;
  };

  void Work() {
    for (;;) {
      std::vector<Item> part;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !stop_) changed_.Wait(&mutex_);
        if (queue_.empty()) return;
        for (size_t count = 1 + random_() % 4; count > 0 && !queue_.empty(); --count) {
          std::swap(queue_.front(), queue_[random_() % queue_.size()]);
          part.push_back(std::move(queue_.front()));
          queue_.pop_front();
        }
      }
      for (const Item& item : part) inner_->Submit({&item.read, 1}, *item.on_results);
    }
  }

  const std::unique_ptr<RowReader> inner_;
  Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Arena and staging, and the work a device does on them in order: fills, then gathers. Run by hand.
class LabelStream {
 public:
  LabelStream(uint32_t slots, uint32_t staging_rows)
      : arena_(size_t{slots} * kLabelBytes), staging_(size_t{staging_rows} * kLabelBytes) {}

  std::byte* staging() { return staging_.data(); }

  Ticket Enqueue(std::vector<Fill> fills, std::vector<GatherIndex> gather, std::vector<uint64_t> labels) {
    MutexLock lock(&mutex_);
    work_.push_back({std::move(fills), std::move(gather), std::move(labels)});
    return Ticket(++last_);
  }

  // Runs the oldest work; 0 when there is none. One thread at a time.
  Ticket RunOne() {
    Work work;
    {
      MutexLock lock(&mutex_);
      if (work_.empty()) return Ticket(0);
      work = std::move(work_.front());
      work_.pop_front();
    }
    for (const Fill& fill : work.fills) {
      std::memcpy(arena_.data() + size_t{fill.slot.value()} * kLabelBytes,
                  staging_.data() + size_t{fill.staging_row} * kLabelBytes, kLabelBytes);
    }
    for (size_t i = 0; i < work.gather.size(); ++i) {
      const std::vector<std::byte>& from = work.gather[i].in_staging() ? staging_ : arena_;
      uint64_t row[2];
      std::memcpy(row, from.data() + size_t{work.gather[i].row()} * kLabelBytes, kLabelBytes);
      ++rows_;
      if (row[0] != work.labels[i] || row[1] != work.labels[i]) ++wrong_;
    }
    return Ticket(++done_);
  }

  uint64_t rows() const { return rows_; }
  uint64_t wrong() const { return wrong_; }

 private:
  struct Work {
    std::vector<Fill> fills;
    std::vector<GatherIndex> gather;
    std::vector<uint64_t> labels;
  };

  std::vector<std::byte> arena_;
  std::vector<std::byte> staging_;
  Mutex mutex_;
  std::deque<Work> work_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ = 0;  // of the running thread, as are the counts
  uint64_t rows_ = 0;
  uint64_t wrong_ = 0;
};

}  // namespace pleiad
