// Objects known by small indices, reused in place: after warm-up taking one allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pleiad {

// Not thread-safe. References die with the next Take; indices stay.
template <typename T>
class IndexPool {
 public:
  uint32_t Take(T value) {
    if (free_.empty()) {
      items_.push_back(std::move(value));
      return static_cast<uint32_t>(items_.size() - 1);
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    items_[index] = std::move(value);
    return index;
  }

  // What the object owns is given up here.
  void Return(uint32_t index) {
    items_[index] = T{};
    free_.push_back(index);
  }

  T& operator[](uint32_t index) { return items_[index]; }
  const T& operator[](uint32_t index) const { return items_[index]; }

  size_t taken() const { return items_.size() - free_.size(); }

 private:
  std::vector<T> items_;
  std::vector<uint32_t> free_;
};

}  // namespace pleiad
