// Zero-filled pages from the system, committed when touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pleiad {

enum class HugePages { kNo, kAdvise };

// Move-only owner of a mapping; empty by default.
class HostMemory {
 public:
  // ResourceExhausted naming `purpose` and the bytes. 0 bytes give an empty owner.
  static absl::StatusOr<HostMemory> Allocate(absl::string_view purpose, uint64_t bytes, HugePages huge_pages);

  HostMemory() = default;
  HostMemory(HostMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~HostMemory();

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

  // The pages are aligned for any T.
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace pleiad
