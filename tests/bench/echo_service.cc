#include "tests/bench/echo_service.h"

#include <deque>
#include <utility>

#include "core/base/mutex.h"

namespace pleiad::bench {
namespace {

// Reads on while it writes, a few messages ahead.
class EchoStream final : public grpc::ServerGenericBidiReactor {
 public:
  EchoStream() {
    MutexLock lock(&mutex_);
    Read();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(&mutex_);
    reading_ = false;
    if (ok) {
      unwritten_.push_back(std::move(read_));
      if (!writing_) Write();
      Read();
    } else {
      ended_ = true;
    }
    FinishIfOver();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    unwritten_.pop_front();
    if (!ok) {
      ended_ = true;
      unwritten_.clear();
    } else if (!unwritten_.empty()) {
      Write();
    }
    Read();
    FinishIfOver();
  }

  void OnDone() override { delete this; }

 private:
  static constexpr size_t kAhead = 4;

  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (reading_ || ended_ || unwritten_.size() >= kAhead) return;
    reading_ = true;
    read_.Clear();
    StartRead(&read_);
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    StartWrite(&unwritten_.front());
  }

  void FinishIfOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!ended_ || reading_ || writing_ || finished_) return;
    finished_ = true;
    Finish(grpc::Status::OK);
  }

  Mutex mutex_;
  grpc::ByteBuffer read_ ABSL_GUARDED_BY(mutex_);
  std::deque<grpc::ByteBuffer> unwritten_ ABSL_GUARDED_BY(mutex_);  // the front is being written while writing_
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the client sends no more, or takes no more
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class Unimplemented final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Unimplemented(const std::string& method) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no method " + method));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerGenericBidiReactor* EchoService::CreateReactor(grpc::GenericCallbackServerContext* context) {
  if (context->method() == "/pleiad.bench.Echo/Echo") return new EchoStream;
  return new Unimplemented(context->method());
}

}  // namespace pleiad::bench
