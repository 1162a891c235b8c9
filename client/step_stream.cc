#include "client/step_stream.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "client/connection.h"
#include "client/internal/mutex.h"
#include "client/internal/step_queue.h"

namespace pleiad::client {
namespace {

using internal::CondVar;
using internal::Mutex;
using internal::MutexLock;
using internal::StepQueue;
using Clock = std::chrono::steady_clock;

// Ends of a stream that a new one may cure.
bool Curable(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:  // the server closed it
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:  // RST_STREAM
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

// Two threads: one opens streams and reads replies; one writes what replies have freed. Submit writes on its caller's
// thread; on the reader's, in a callback, only when no other step is out, so that a server which waits for its replies
// to be read is never waited for. At most one thread writes at a time (`writing_`).
class StepStreamImpl final : public StepStream {
 public:
  StepStreamImpl(std::shared_ptr<Connection> connection, std::shared_ptr<const ModelInfo> model,
                 const StreamOptions& options)
      : connection_(std::move(connection)), model_(std::move(model)), options_(options), queue_(*model_) {
    reader_ = std::thread([this] { ReadLoop(); });
    writer_ = std::thread([this] { WriteLoop(); });
  }

  ~StepStreamImpl() override {
    Close();
    reader_.join();
    writer_.join();
  }

  void Submit(Step step, StepCallback done) override {
    {
      MutexLock lock(&mutex_);
      queue_.Add(std::move(step), std::move(done));
      if (ended_) queue_.FailAll(Closed());
      if (stream_ == nullptr) changed_.NotifyAll();
      WriteOrWake();
    }
    RunCallbacks();
  }

  void SubmitLater(Step step, StepCallback done) override {
    {
      MutexLock lock(&mutex_);
      queue_.Add(std::move(step), std::move(done));
      if (ended_) queue_.FailAll(Closed());
      if (stream_ == nullptr) changed_.NotifyAll();
      writable_.NotifyAll();
    }
    RunCallbacks();
  }

  void Close() override {
    MutexLock lock(&mutex_);
    closing_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    changed_.NotifyAll();
    writable_.NotifyAll();
  }

  void Drain() override {
    MutexLock lock(&mutex_);
    while (queue_.unanswered() > 0 || !due_.empty() || calling_) changed_.Wait(&mutex_);
  }

  size_t unanswered() const override {
    MutexLock lock(&mutex_);
    return queue_.unanswered();
  }

 private:
  static absl::Status Closed() { return absl::CancelledError("the stream was closed on this side"); }
  bool OnReader() const { return std::this_thread::get_id() == reader_.get_id(); }

  void WriteOrWake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (OnReader() && queue_.Awaits()) {
      writable_.NotifyAll();
    } else {
      WriteReady();
    }
  }

  void WriteReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_) return;  // that thread goes on with what is ready now
    writing_ = true;
    while (stream_ != nullptr && !broken_) {
      const std::shared_ptr<const StepQueue::Entry> entry = queue_.Next();
      if (entry == nullptr) break;
      StepConnection* stream = stream_.get();
      mutex_.Unlock();
      const bool sent = stream->Write(entry->wire);
      mutex_.Lock();
      if (!sent) {
        broken_ = true;
        stream->Cancel();
      }
      if (OnReader() && queue_.HasReady()) break;
    }
    writing_ = false;
    if (queue_.HasReady()) writable_.NotifyAll();
    if (stream_ == nullptr || broken_) changed_.NotifyAll();
  }

  void WriteLoop() {
    MutexLock lock(&mutex_);
    while (!closing_) {
      if (stream_ != nullptr && !broken_ && !writing_ && queue_.HasReady()) {
        WriteReady();
      } else {
        writable_.Wait(&mutex_);
      }
    }
  }

  void ReadLoop() {
    while (true) {
      {
        MutexLock lock(&mutex_);
        while (!closing_ && queue_.unanswered() == 0) changed_.Wait(&mutex_);
        if (closing_) break;
      }
      ReadStream();
      MutexLock lock(&mutex_);
      if (closing_) break;
    }
    {
      MutexLock lock(&mutex_);
      ended_ = true;
      queue_.FailAll(Closed());
    }
    RunCallbacks();
  }

  // The life of one connection, and the pause after it.
  void ReadStream() {
    std::unique_ptr<StepConnection> opened = connection_->OpenStream();
    StepConnection* stream = opened.get();
    {
      MutexLock lock(&mutex_);
      stream_ = std::move(opened);
      broken_ = false;
      if (closing_) stream->Cancel();
      writable_.NotifyAll();
    }
    while (std::optional<WireReply> reply = stream->Read()) {
      {
        MutexLock lock(&mutex_);
        give_up_at_.reset();
        backoff_ = absl::ZeroDuration();
        queue_.Answer(*std::move(reply));
        if (queue_.HasReady()) writable_.NotifyAll();
      }
      RunCallbacks();
    }
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      while (writing_) changed_.Wait(&mutex_);
      opened = std::move(stream_);
    }
    absl::Status status = opened->Finish();
    opened.reset();
    {
      MutexLock lock(&mutex_);
      if (closing_) return;
      queue_.Break();
      AfterBreak(std::move(status));
    }
    RunCallbacks();
  }

  void AfterBreak(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.unanswered() == 0) return;
    const Clock::time_point now = Clock::now();
    if (!give_up_at_.has_value()) {
      give_up_at_ = options_.reconnect_timeout == absl::InfiniteDuration()
                        ? Clock::time_point::max()
                        : now + absl::ToChronoNanoseconds(options_.reconnect_timeout);
      backoff_ = options_.initial_backoff;
    } else {
      backoff_ = std::min(2 * backoff_, options_.max_backoff);
    }
    if (!Curable(status) || now >= *give_up_at_) {
      if (status.ok()) status = absl::UnavailableError("the server ended the stream");
      queue_.FailAll(status);
      give_up_at_.reset();
      return;
    }
    const Clock::time_point until = now + absl::ToChronoNanoseconds(backoff_);
    while (!closing_ && Clock::now() < until) changed_.WaitUntil(&mutex_, until);
  }

  // Callbacks run one at a time: a thread that finds another one at it leaves them to it.
  void RunCallbacks() {
    MutexLock lock(&mutex_);
    for (StepQueue::Completion& completion : queue_.TakeCompletions()) due_.push_back(std::move(completion));
    if (calling_) return;
    calling_ = true;
    while (!due_.empty()) {
      std::vector<StepQueue::Completion> now = std::exchange(due_, {});
      mutex_.Unlock();
      for (StepQueue::Completion& completion : now) completion.Deliver();
      mutex_.Lock();
    }
    calling_ = false;
    changed_.NotifyAll();
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<const ModelInfo> model_;
  const StreamOptions options_;

  mutable Mutex mutex_;
  CondVar changed_;   // a step came, writing stopped, callbacks ran, closing
  CondVar writable_;  // the writer thread has work, closing
  StepQueue queue_ ABSL_GUARDED_BY(mutex_);
  // Replaced by the reader while nobody writes; used without the lock by the reader and by the writing thread.
  std::unique_ptr<StepConnection> stream_ ABSL_GUARDED_BY(mutex_);
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // stream_ takes no more
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in WriteReady
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in RunCallbacks
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // closing, and the reader has failed what there was
  std::vector<StepQueue::Completion> due_ ABSL_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> give_up_at_ ABSL_GUARDED_BY(mutex_);  // set while no stream works
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_);

  std::thread reader_, writer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepStream>> StepStream::Create(std::shared_ptr<Connection> connection,
                                                               std::shared_ptr<const ModelInfo> model,
                                                               const StreamOptions& options) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  return std::make_unique<StepStreamImpl>(std::move(connection), std::move(model), options);
}

std::future<absl::StatusOr<StepResult>> StepStream::Submit(Step step) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<StepResult>>>();
  std::future<absl::StatusOr<StepResult>> future = promise->get_future();
  Submit(std::move(step), [promise](absl::StatusOr<StepResult> result) { promise->set_value(std::move(result)); });
  return future;
}

absl::StatusOr<StepResult> StepStream::Run(Step step) { return Submit(std::move(step)).get(); }

}  // namespace pleiad::client
