// The floor under a stream of steps: messages to a server that sends each back as it came.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/internal/mutex.h"
#include "client/internal/raw_stream.h"

namespace pleiad::cli {

// Reads and writes as StepStream does. Thread-safe.
class EchoStream {
 public:
  using Callback = std::function<void(absl::StatusOr<grpc::ByteBuffer>)>;

  explicit EchoStream(const std::string& address);
  // Messages without an answer fail; not inside a callback.
  ~EchoStream();

  // `done` is called once, on the stream's thread, in order. It may send, and must not block.
  void Send(grpc::ByteBuffer message, Callback done);

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteLoop();
  void ReadLoop();

  client::internal::RawStream stream_;

  client::internal::Mutex mutex_;
  client::internal::CondVar writable_;
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
  std::deque<Callback> unanswered_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in Write
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);

  std::thread reader_, writer_;
};

}  // namespace pleiad::cli
