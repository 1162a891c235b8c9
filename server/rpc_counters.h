// Counts of finished RPCs and Forward items, by code, and of what else comes and is refused.
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
// By which bound a new sequence was refused: --max-sequences, what the server admits in flight, one of the client's
// own.
enum class SequenceRefusal : uint8_t { kSequences, kInFlight, kClient };
inline constexpr std::array<const char*, 3> kSequenceRefusalNames{"sequences", "in_flight", "client"};
inline constexpr std::array<const char*, 2> kReceiverNames{"grpc", "spinning"};
// Why a call was refused for want of a token: none or several were shown, or one that is not known.
enum class TokenRefusal : uint8_t { kMissing, kUnknown };
inline constexpr std::array<const char*, 2> kTokenRefusalNames{"missing", "unknown"};

// Thread-safe.
class RpcCounters {
 public:
  void CountRpc(Rpc rpc, absl::StatusCode code) { Add(rpcs_[static_cast<size_t>(rpc)], code); }
  // `mode` indexes kModeNames.
  void CountItem(size_t mode, absl::StatusCode code) { Add(items_[mode], code); }

  // A request of a stream, which the thread that spins receives or one of gRPC's.
  void CountReceived(bool by_spinner) { received_[by_spinner ? 1 : 0].fetch_add(1, std::memory_order_relaxed); }

  void CountSequenceRefusal(SequenceRefusal why) { ++sequence_refusals_[static_cast<size_t>(why)]; }
  void CountTokenRefusal(TokenRefusal why) { ++token_refusals_[static_cast<size_t>(why)]; }

  uint64_t rpcs(size_t rpc, size_t code) const { return rpcs_[rpc][code].load(std::memory_order_relaxed); }
  uint64_t items(size_t mode, size_t code) const { return items_[mode][code].load(std::memory_order_relaxed); }
  uint64_t received(size_t by) const { return received_[by].load(std::memory_order_relaxed); }
  uint64_t sequence_refusals(size_t why) const { return sequence_refusals_[why].load(); }
  uint64_t token_refusals(size_t why) const { return token_refusals_[why].load(); }

 private:
  using ByCode = std::array<std::atomic<uint64_t>, kCodes>;
  static void Add(ByCode& counts, absl::StatusCode code) {
    const size_t index = static_cast<size_t>(code);
    counts[index < kCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown)].fetch_add(
        1, std::memory_order_relaxed);
  }

  std::array<ByCode, kRpcNames.size()> rpcs_{};
  std::array<ByCode, kModeNames.size()> items_{};
  std::array<std::atomic<uint64_t>, kReceiverNames.size()> received_{};
  std::array<std::atomic<uint64_t>, kSequenceRefusalNames.size()> sequence_refusals_{};
  std::array<std::atomic<uint64_t>, kTokenRefusalNames.size()> token_refusals_{};
};

}  // namespace pleiad
