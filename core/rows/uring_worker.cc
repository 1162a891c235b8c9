#include "core/rows/uring_worker.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace pleiad {
namespace {

// user_data of the worker's own entries; the queue knows neither.
constexpr uint64_t kWake = ReadQueue::kOwnUserData;
constexpr uint64_t kCancel = ReadQueue::kOwnUserData - 1;

// Refusals in a row to take submissions, with nothing completed, before the ring counts as broken.
constexpr int kMaxFruitless = 1000;

}  // namespace

UringWorker::UringWorker(std::unique_ptr<UringRing> ring, WindowMemory memory, std::vector<QueueFile> files,
                         const ReadQueueOptions& options, UniqueFd wake_fd)
    : wake_fd_(std::move(wake_fd)),
      memory_(std::move(memory)),
      ring_(std::move(ring)),
      queue_(std::move(files), options, memory_.get()),
      ops_(options.depth),
      thread_([this] { Run(); }) {}

UringWorker::~UringWorker() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void UringWorker::Submit(absl::Span<const RowRead> reads,
                         const std::shared_ptr<const RowReader::ResultFn>& on_results) {
  if (reads.empty()) return;
  bool wake = false;
  bool refused = false;
  {
    MutexLock lock(&mutex_);
    refused = stopping_;
    if (!refused) {
      reads_in_flight_.fetch_add(reads.size(), std::memory_order_relaxed);
      inbox_.reads.insert(inbox_.reads.end(), reads.begin(), reads.end());
      inbox_.calls.push_back({.on_results = on_results, .left = reads.size()});
      wake = !std::exchange(woken_, true);
    }
  }
  if (refused) {
    std::vector<RowReadResult> results;
    for (const RowRead& read : reads) {
      results.push_back({.id = read.id, .status = absl::CancelledError("the row reader is stopping")});
    }
    (*on_results)(results);
  } else if (wake) {
    const uint64_t one = 1;
    while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }
}

RowReaderStats UringWorker::stats() const {
  return {.bytes_read = bytes_read_.load(std::memory_order_relaxed),
          .bytes_used = bytes_used_.load(std::memory_order_relaxed),
          .reads_in_flight = reads_in_flight_.load(std::memory_order_relaxed)};
}

void UringWorker::Run() {
  ring_->Start();
  for (;;) {
    if (TakeInbox() == Mode::kStopping && !stop_begun_) BeginStop();
    HandOver();
    Deliver();
    if (stop_begun_ && queue_.in_flight() == 0 && !wake_armed_ && !cancel_awaited_) return;
    AwaitCompletions();
  }
}

UringWorker::Mode UringWorker::TakeInbox() {
  Mode mode = Mode::kRunning;
  {
    MutexLock lock(&mutex_);
    std::swap(inbox_, taken_);
    woken_ = false;
    if (stopping_) mode = Mode::kStopping;
  }
  absl::Span<const RowRead> reads = taken_.reads;
  for (Call& call : taken_.calls) {
    const size_t count = call.left;
    queue_.Add(reads.first(count), calls_.Take(std::move(call)), finished_);
    reads.remove_prefix(count);
  }
  taken_.reads.clear();
  taken_.calls.clear();
  return mode;
}

void UringWorker::BeginStop() {
  stop_begun_ = true;
  queue_.Stop(finished_);
  if (broken_ != 0) return;
  // Covers the wake-up too. Reads that the device has begun are awaited.
  ring_->QueueCancelAll(kCancel);
  cancel_awaited_ = true;
}

void UringWorker::HandOver() {
  if (!wake_armed_ && !stop_begun_ && broken_ == 0) {
    ring_->QueueFdRead(wake_fd_.get(), &wake_value_, kWake);
    wake_armed_ = true;
  }
  size_t count = queue_.Next(absl::MakeSpan(ops_));
  for (; broken_ != 0 && count > 0; count = queue_.Next(absl::MakeSpan(ops_))) {
    for (const ReadOp& op : absl::MakeConstSpan(ops_).first(count)) queue_.Complete(op.user_data, -broken_, finished_);
  }
  for (const ReadOp& op : absl::MakeConstSpan(ops_).first(count)) ring_->QueueRead(op);
}

void UringWorker::AwaitCompletions() {
  if (broken_ == 0) {
    const int error = -ring_->SubmitAndWait();
    if (error != 0 && error != EINTR) {
      const bool may_pass = error == EAGAIN || error == EBUSY || error == ENOMEM;
      if (!may_pass || ++fruitless_ >= kMaxFruitless) {
        Break(error);
      } else {
        ::sched_yield();
      }
    }
  } else if (queue_.in_flight() > 0 || wake_armed_ || cancel_awaited_) {
    ring_->Wait();
  } else {
    while (::read(wake_fd_.get(), &wake_value_, sizeof wake_value_) < 0 && errno == EINTR) {
    }
  }
  if (ring_->Reap([this](uint64_t user_data, int32_t result) { Take(user_data, result); }) > 0) fruitless_ = 0;
}

// The reads that the kernel never took fail with `error`, as all later ones.
void UringWorker::Break(int error) {
  broken_ = error;
  ring_->TakeBack([this, error](uint64_t user_data) { Take(user_data, -error); });
}

void UringWorker::Take(uint64_t user_data, int32_t result) {
  if (user_data == kWake) {
    wake_armed_ = false;
  } else if (user_data == kCancel) {
    cancel_awaited_ = false;
  } else {
    queue_.Complete(user_data, result, finished_);
  }
}

// One callback for all results of a call that are there.
void UringWorker::Deliver() {
  if (finished_.empty()) return;
  bytes_read_.store(queue_.bytes_read(), std::memory_order_relaxed);
  bytes_used_.store(queue_.bytes_used(), std::memory_order_relaxed);
  reads_in_flight_.fetch_sub(finished_.size(), std::memory_order_relaxed);
  const auto by_call = [](const FinishedRead& a, const FinishedRead& b) { return a.call < b.call; };
  if (!std::is_sorted(finished_.begin(), finished_.end(), by_call)) {
    std::sort(finished_.begin(), finished_.end(), by_call);
  }
  for (size_t first = 0; first < finished_.size();) {
    const uint32_t call = finished_[first].call;
    size_t end = first;
    for (; end < finished_.size() && finished_[end].call == call; ++end) {
      results_.push_back(std::move(finished_[end].result));
    }
    (*calls_[call].on_results)(results_);
    calls_[call].left -= end - first;
    if (calls_[call].left == 0) calls_.Return(call);
    results_.clear();
    first = end;
  }
  finished_.clear();
}

}  // namespace pleiad
