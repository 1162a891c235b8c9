// Bounds what is in flight: requests and bytes, half of each per stream, and what is asked for per client. Unary calls
// beyond the bound are refused; a stream keeps the request it has read and reads no more until there is room.
//
// Streams that have not shown yet that they read their answers leave an eighth of the requests and a quarter of the
// bytes to the others, so that streams that are never read, however many, do not stop those that are. Unary calls have
// no such share: answers that nobody takes hold their bytes until their calls end (stall_watch.h).
//
// Where nothing is in flight (of the stream, of such streams, or at all) a request larger than the bound is admitted
// alone, so none waits for ever.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "core/base/mutex.h"

namespace pleiad {

struct AdmissionLimits {
  uint64_t requests = 0;
  uint64_t bytes = 0;
};

// Thread-safe.
class Admission {
 public:
  // What one client has in flight, all its calls and streams together. It outlives them. Guarded by the Admission.
  class Client {
   public:
    // Zeros: no limit.
    explicit Client(AdmissionLimits limits) : limits_(limits) {}

   private:
    friend class Admission;
    const AdmissionLimits limits_;
    AdmissionLimits used_;
  };
  // Which bound a unary call met.
  enum class Limit : uint8_t { kTotal, kClientRequests, kClientBytes };

  // What one stream has in flight; the owner is the stream, which outlives its requests. Guarded by the Admission.
  class Stream {
   public:
    // `client` null: without limits of its own.
    explicit Stream(Client* client = nullptr) : client_(client) {}

   private:
    friend class Admission;
    Client* const client_;
    uint64_t requests_ = 0;
    uint64_t bytes_ = 0;
    uint64_t taken_ = 0;  // bytes of its answers that its client has taken
  };
  // A stream whose client has taken so much reads: more than connections and their windows hold unread.
  static constexpr uint64_t kReadsAfterBytes = 1 << 20;

  explicit Admission(AdmissionLimits limits) : limits_(limits) {}

  // A unary call. True: admitted, to be given back by ReleaseRequest and ReleaseBytes. False where it does not fit, or
  // a stream waits for room already, and then `met` says which bound it met. `client` null: without limits of its own.
  bool TryAdmit(uint64_t bytes, Client* client = nullptr, Limit* met = nullptr);

  // True: admitted now, to be given back by Release. False: `on_room` is called once when it is admitted, on a thread
  // that made room, with no lock held, unless CancelWait comes first. One wait per stream at a time, in order of
  // arrival.
  bool AdmitOrWait(Stream* stream, uint64_t bytes, std::function<void()> on_room);

  // True: the stream waited, and `on_room` is not called. False: it did not wait, or was admitted already.
  bool CancelWait(const Stream* stream);

  // `taken`: how long the answer was that the client has taken, 0 where it has not.
  void Release(Stream* stream, uint64_t bytes, uint64_t taken = 0);

  // A unary call is in flight until it is answered, so that a client with one call at a time is never refused; its
  // bytes are held until gRPC has sent them.
  void ReleaseRequest(Client* client = nullptr);
  void ReleaseBytes(uint64_t bytes, Client* client = nullptr);

  // `fn` is called whenever a request finds no room for what others hold, with a lock held: it calls nothing of this
  // object. Null: no more.
  void NotifyWhenFull(std::function<void()> fn);
  // A stream waits for what others hold, and not for its own half.
  bool OthersAreWaitedFor() const;

  // In flight now.
  AdmissionLimits used() const;
  AdmissionLimits used(const Client& client) const;

 private:
  struct Waiter {
    Stream* stream;
    uint64_t bytes;
    std::function<void()> on_room;
  };

  // Which bound of the client it would pass; kTotal: none.
  static Limit ClientLimit(const Client* client, uint64_t bytes);
  // Within the stream's own bounds, its client's among them.
  bool FitsHalf(const Stream& stream, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Its half, and what its client may have.
  bool FitsStream(const Stream& stream, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Reads(const Stream& stream) { return stream.taken_ >= kReadsAfterBytes; }
  bool FitsNewcomers(const Stream& stream, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FitsTotal(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Somebody waits for the total, and for nothing else.
  bool TotalIsAwaited() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(Stream* stream, Client* client, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdmitWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Leaves and enters the mutex around each callback.
  void CallReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AdmissionLimits limits_;
  mutable Mutex mutex_;
  std::function<void()> on_full_ ABSL_GUARDED_BY(mutex_);
  AdmissionLimits used_ ABSL_GUARDED_BY(mutex_);
  AdmissionLimits newcomers_ ABSL_GUARDED_BY(mutex_);  // of used_, of streams that are not known to read
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  // Admitted, on_room still to be called. One thread at a time calls them, so that a release inside a callback does
  // not nest.
  std::deque<std::function<void()>> ready_ ABSL_GUARDED_BY(mutex_);
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pleiad
