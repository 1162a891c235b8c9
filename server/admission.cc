#include "server/admission.h"

#include <algorithm>
#include <utility>

namespace pleiad {

bool Admission::FitsStream(const Stream& stream, uint64_t bytes) const {
  if (stream.requests_ == 0) return true;
  return stream.requests_ + 1 <= limits_.requests / 2 && stream.bytes_ + bytes <= limits_.bytes / 2;
}

bool Admission::FitsTotal(uint64_t bytes) const {
  if (used_.requests == 0 && used_.bytes == 0) return true;
  return used_.requests + 1 <= limits_.requests && used_.bytes + bytes <= limits_.bytes;
}

bool Admission::TotalIsAwaited() const {
  return std::any_of(waiters_.begin(), waiters_.end(), [this](const Waiter& waiter) {
    mutex_.AssertHeld();
    return FitsStream(*waiter.stream, waiter.bytes);
  });
}

void Admission::Take(Stream* stream, uint64_t bytes) {
  ++used_.requests;
  used_.bytes += bytes;
  if (stream == nullptr) return;
  ++stream->requests_;
  stream->bytes_ += bytes;
}

bool Admission::TryAdmit(uint64_t bytes) {
  MutexLock lock(&mutex_);
  if (!FitsTotal(bytes) || TotalIsAwaited()) return false;
  Take(nullptr, bytes);
  return true;
}

bool Admission::AdmitOrWait(Stream* stream, uint64_t bytes, std::function<void()> on_room) {
  MutexLock lock(&mutex_);
  if (FitsStream(*stream, bytes) && FitsTotal(bytes) && !TotalIsAwaited()) {
    Take(stream, bytes);
    return true;
  }
  waiters_.push_back({stream, bytes, std::move(on_room)});
  return false;
}

bool Admission::CancelWait(const Stream* stream) {
  MutexLock lock(&mutex_);
  const auto found = std::find_if(waiters_.begin(), waiters_.end(),
                                  [stream](const Waiter& waiter) { return waiter.stream == stream; });
  if (found == waiters_.end()) return false;
  waiters_.erase(found);
  AdmitWaiters();
  CallReady();
  return true;
}

void Admission::AdmitWaiters() {
  for (auto it = waiters_.begin(); it != waiters_.end();) {
    if (!FitsStream(*it->stream, it->bytes)) {
      ++it;
      continue;
    }
    if (!FitsTotal(it->bytes)) return;
    Take(it->stream, it->bytes);
    ready_.push_back(std::move(it->on_room));
    it = waiters_.erase(it);
  }
}

void Admission::CallReady() {
  if (calling_) return;
  calling_ = true;
  while (!ready_.empty()) {
    const std::function<void()> on_room = std::move(ready_.front());
    ready_.pop_front();
    mutex_.Unlock();
    on_room();
    mutex_.Lock();
  }
  calling_ = false;
}

void Admission::Release(Stream* stream, uint64_t bytes) {
  MutexLock lock(&mutex_);
  --used_.requests;
  used_.bytes -= bytes;
  --stream->requests_;
  stream->bytes_ -= bytes;
  AdmitWaiters();
  CallReady();
}

void Admission::ReleaseRequest() {
  MutexLock lock(&mutex_);
  --used_.requests;
  AdmitWaiters();
  CallReady();
}

void Admission::ReleaseBytes(uint64_t bytes) {
  MutexLock lock(&mutex_);
  used_.bytes -= bytes;
  AdmitWaiters();
  CallReady();
}

AdmissionLimits Admission::used() const {
  MutexLock lock(&mutex_);
  return used_;
}

}  // namespace pleiad
