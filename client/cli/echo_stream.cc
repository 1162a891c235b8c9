#include "client/cli/echo_stream.h"

#include <climits>
#include <utility>

#include "absl/strings/string_view.h"

namespace pleiad::cli {

using client::internal::MutexLock;

EchoStream::EchoStream(const std::string& address)
    : stream_(client::internal::MakeChannel(address, INT_MAX), "/pleiad.bench.Echo/Echo") {
  reader_ = std::thread([this] { ReadLoop(); });
  writer_ = std::thread([this] { WriteLoop(); });
}

EchoStream::~EchoStream() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    writable_.NotifyAll();
  }
  stream_.Cancel();
  writer_.join();
  reader_.join();
}

void EchoStream::Send(grpc::ByteBuffer message, Callback done) {
  absl::Status ended;
  {
    MutexLock lock(&mutex_);
    ended = ended_;
    if (ended.ok()) {
      unsent_.push_back(std::move(message));
      unanswered_.push_back(std::move(done));
      // The reader writes what will be alone on the stream: the server then has nothing that waits to be read.
      if (std::this_thread::get_id() == reader_.get_id() && unanswered_.size() > 1) {
        writable_.NotifyAll();
      } else {
        Write();
      }
      return;
    }
  }
  done(ended);
}

void EchoStream::Write() {
  if (writing_) return;  // that thread goes on with what is there now
  writing_ = true;
  while (!unsent_.empty()) {
    const grpc::ByteBuffer message = std::move(unsent_.front());
    unsent_.pop_front();
    mutex_.Unlock();
    const bool sent = stream_.Write(message);
    mutex_.Lock();
    if (!sent || (std::this_thread::get_id() == reader_.get_id() && !unsent_.empty())) break;
  }
  writing_ = false;
  if (!unsent_.empty()) writable_.NotifyAll();
}

void EchoStream::WriteLoop() {
  MutexLock lock(&mutex_);
  while (!closing_ && ended_.ok()) {
    if (!writing_ && !unsent_.empty()) {
      Write();
    } else {
      writable_.Wait(&mutex_);
    }
  }
}

void EchoStream::ReadLoop() {
  grpc::ByteBuffer message;
  while (stream_.Read(&message)) {
    Callback done;
    {
      MutexLock lock(&mutex_);
      if (unanswered_.empty()) {
        stream_.Cancel();
        continue;
      }
      done = std::move(unanswered_.front());
      unanswered_.pop_front();
    }
    done(std::move(message));
    message.Clear();
  }
  const grpc::Status status = stream_.Finish();
  std::deque<Callback> failed;
  absl::Status ended(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (ended.ok()) ended = absl::UnavailableError("the server ended the stream");
  {
    MutexLock lock(&mutex_);
    ended_ = ended;
    failed.swap(unanswered_);
    writable_.NotifyAll();
  }
  for (const Callback& done : failed) done(ended);
}

}  // namespace pleiad::cli
