// Counts of finished RPCs and Forward items, by code.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace pleiad {

enum class Rpc : uint8_t {
  kGetModel,
  kOpenSequence,
  kForward,
  kForwardStream,
  kLookup,
  kGetSequence,
  kSnapshot,
  kRestore,
  kRelease,
  kAttachRegions,
};
inline constexpr std::array<const char*, 10> kRpcNames{"GetModel", "OpenSequence", "Forward",  "ForwardStream",
                                                       "Lookup",   "GetSequence",  "Snapshot", "Restore",
                                                       "Release",  "AttachRegions"};
inline constexpr std::array<const char*, 2> kModeNames{"forward", "prestage"};
inline constexpr size_t kCodes = 17;

// Thread-safe.
class RpcCounters {
 public:
  void CountRpc(Rpc rpc, absl::StatusCode code) { Add(rpcs_[static_cast<size_t>(rpc)], code); }
  // `mode` indexes kModeNames.
  void CountItem(size_t mode, absl::StatusCode code) { Add(items_[mode], code); }

  uint64_t rpcs(size_t rpc, size_t code) const { return rpcs_[rpc][code].load(std::memory_order_relaxed); }
  uint64_t items(size_t mode, size_t code) const { return items_[mode][code].load(std::memory_order_relaxed); }

 private:
  using ByCode = std::array<std::atomic<uint64_t>, kCodes>;
  static void Add(ByCode& counts, absl::StatusCode code) {
    const size_t index = static_cast<size_t>(code);
    counts[index < kCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown)].fetch_add(
        1, std::memory_order_relaxed);
  }

  std::array<ByCode, kRpcNames.size()> rpcs_{};
  std::array<ByCode, kModeNames.size()> items_{};
};

}  // namespace pleiad
