#include "server/admission.h"

#include <algorithm>
#include <utility>

namespace pleiad {

Admission::Limit Admission::ClientLimit(const Client* client, uint64_t bytes) {
  if (client == nullptr) return Limit::kTotal;
  const AdmissionLimits& limits = client->limits_;
  const AdmissionLimits& used = client->used_;
  if (limits.requests > 0 && used.requests + 1 > limits.requests) return Limit::kClientRequests;
  const bool alone = used.requests == 0 && used.bytes == 0;
  if (limits.bytes > 0 && !alone && used.bytes + bytes > limits.bytes) return Limit::kClientBytes;
  return Limit::kTotal;
}

bool Admission::FitsHalf(const Stream& stream, uint64_t bytes) const {
  if (stream.requests_ == 0) return true;
  return stream.requests_ + 1 <= limits_.requests / 2 && stream.bytes_ + bytes <= limits_.bytes / 2;
}

bool Admission::FitsStream(const Stream& stream, uint64_t bytes) const {
  return ClientLimit(stream.client_, bytes) == Limit::kTotal && FitsHalf(stream, bytes);
}

bool Admission::FitsNewcomers(const Stream& stream, uint64_t bytes) const {
  if (Reads(stream) || newcomers_.requests == 0) return true;
  return newcomers_.requests + 1 <= limits_.requests - limits_.requests / 8 &&
         newcomers_.bytes + bytes <= limits_.bytes - limits_.bytes / 4;
}

bool Admission::FitsTotal(uint64_t bytes) const {
  if (used_.requests == 0 && used_.bytes == 0) return true;
  return used_.requests + 1 <= limits_.requests && used_.bytes + bytes <= limits_.bytes;
}

bool Admission::TotalIsAwaited() const {
  return std::any_of(waiters_.begin(), waiters_.end(), [this](const Waiter& waiter) {
    mutex_.AssertHeld();
    return FitsStream(*waiter.stream, waiter.bytes) && FitsNewcomers(*waiter.stream, waiter.bytes);
  });
}

void Admission::Take(Stream* stream, Client* client, uint64_t bytes) {
  ++used_.requests;
  used_.bytes += bytes;
  if (client != nullptr) {
    ++client->used_.requests;
    client->used_.bytes += bytes;
  }
  if (stream == nullptr) return;
  ++stream->requests_;
  stream->bytes_ += bytes;
  if (Reads(*stream)) return;
  ++newcomers_.requests;
  newcomers_.bytes += bytes;
}

bool Admission::TryAdmit(uint64_t bytes, Client* client, Limit* met) {
  MutexLock lock(&mutex_);
  const Limit of_client = ClientLimit(client, bytes);
  if (met != nullptr) *met = of_client;
  if (of_client == Limit::kTotal && FitsTotal(bytes) && !TotalIsAwaited()) {
    Take(nullptr, client, bytes);
    return true;
  }
  if (on_full_) on_full_();
  return false;
}

bool Admission::AdmitOrWait(Stream* stream, uint64_t bytes, std::function<void()> on_room) {
  MutexLock lock(&mutex_);
  const bool own_half = FitsHalf(*stream, bytes);
  if (FitsStream(*stream, bytes) && FitsNewcomers(*stream, bytes) && FitsTotal(bytes) && !TotalIsAwaited()) {
    Take(stream, stream->client_, bytes);
    return true;
  }
  if (own_half && on_full_) on_full_();
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
    if (!FitsStream(*it->stream, it->bytes) || !FitsNewcomers(*it->stream, it->bytes)) {
      ++it;
      continue;
    }
    if (!FitsTotal(it->bytes)) return;
    Take(it->stream, it->stream->client_, it->bytes);
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

void Admission::Release(Stream* stream, uint64_t bytes, uint64_t taken) {
  MutexLock lock(&mutex_);
  if (!Reads(*stream)) {
    stream->taken_ += taken;
    const bool reads = Reads(*stream);
    newcomers_.requests -= reads ? stream->requests_ : 1;
    newcomers_.bytes -= reads ? stream->bytes_ : bytes;
  }
  --used_.requests;
  used_.bytes -= bytes;
  --stream->requests_;
  stream->bytes_ -= bytes;
  if (stream->client_ != nullptr) {
    --stream->client_->used_.requests;
    stream->client_->used_.bytes -= bytes;
  }
  AdmitWaiters();
  CallReady();
}

void Admission::ReleaseRequest(Client* client) {
  MutexLock lock(&mutex_);
  --used_.requests;
  if (client != nullptr) --client->used_.requests;
  AdmitWaiters();
  CallReady();
}

void Admission::ReleaseBytes(uint64_t bytes, Client* client) {
  MutexLock lock(&mutex_);
  used_.bytes -= bytes;
  if (client != nullptr) client->used_.bytes -= bytes;
  AdmitWaiters();
  CallReady();
}

void Admission::NotifyWhenFull(std::function<void()> fn) {
  MutexLock lock(&mutex_);
  on_full_ = std::move(fn);
}

bool Admission::OthersAreWaitedFor() const {
  MutexLock lock(&mutex_);
  return std::any_of(waiters_.begin(), waiters_.end(), [this](const Waiter& waiter) {
    mutex_.AssertHeld();
    return FitsHalf(*waiter.stream, waiter.bytes);
  });
}

AdmissionLimits Admission::used() const {
  MutexLock lock(&mutex_);
  return used_;
}

AdmissionLimits Admission::used(const Client& client) const {
  MutexLock lock(&mutex_);
  return client.used_;
}

}  // namespace pleiad
