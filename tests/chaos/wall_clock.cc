// Takes the place of the C library's wall clock in a program that is linked with this, or started with it in
// LD_PRELOAD: the time of day is the system's and an offset, which may change at any moment, as when an operator or NTP
// sets the clock. Monotonic time stays as it is. Waits of futexes until a time of day, which are those of gRPC's
// condition variables, end when the shifted clock says so, as in the kernel.
//
// The offset lies in the file that WALL_CLOCK_FILE names, as nanoseconds in 8 bytes; without one it is this process's.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

using Offset = std::atomic<int64_t>;
constexpr int64_t kSecond = 1'000'000'000, kSlice = 5'000'000;

Offset own_offset{0};

Offset* Find() {
  const char* path = std::getenv("WALL_CLOCK_FILE");
  if (path == nullptr) return &own_offset;
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  void* memory = fd < 0 ? MAP_FAILED : ::mmap(nullptr, sizeof(Offset), PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) std::abort();
  ::close(fd);
  return static_cast<Offset*>(memory);
}

int64_t Shift() {
  static Offset* const offset = Find();
  return offset->load();
}

int RealGet(clockid_t clock, timespec* time) {
  static const auto real = reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  return real(clock, time);
}

int64_t Nanos(const timespec& time) { return int64_t{time.tv_sec} * kSecond + time.tv_nsec; }

timespec Time(int64_t nanos) { return {nanos / kSecond, nanos % kSecond}; }

int64_t RealNow() {
  timespec now{};
  RealGet(CLOCK_REALTIME, &now);
  return Nanos(now);
}

}  // namespace

// Exported for the program that this is linked into.
extern "C" void pleiad_test_shift_wall_clock(int64_t nanos) { own_offset.fetch_add(nanos); }

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int rc = RealGet(clock, time);
  if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *time = Time(Nanos(*time) + Shift());
  return rc;
}

extern "C" int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  const int64_t now = RealNow() + Shift();
  *time = {now / kSecond, now % kSecond / 1000};
  return 0;
}

extern "C" time_t time(time_t* out) noexcept {
  const time_t now = (RealNow() + Shift()) / kSecond;
  if (out != nullptr) *out = now;
  return now;
}

extern "C" long syscall(long number, ...) noexcept {
  static const auto real = reinterpret_cast<long (*)(long, ...)>(::dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_clock_gettime) {
    return clock_gettime(static_cast<clockid_t>(a[0]), reinterpret_cast<timespec*>(a[1]));
  }
  constexpr long kUntilTimeOfDay = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number != SYS_futex || (a[1] & ~long{FUTEX_PRIVATE_FLAG}) != kUntilTimeOfDay || a[3] == 0) {
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const int64_t until = Nanos(*reinterpret_cast<const timespec*>(a[3]));
  while (true) {
    const int64_t now = RealNow(), left = until - (now + Shift());
    const timespec slice = Time(now + std::clamp<int64_t>(left, 0, kSlice));
    const long rc = real(number, a[0], a[1], a[2], &slice, a[4], a[5]);
    if (rc == 0 || errno != ETIMEDOUT || left <= 0) return rc;
  }
}
