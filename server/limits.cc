#include "server/limits.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace pleiad {

absl::StatusOr<ServiceLimits> ComputeLimits(const ServerFlags& flags, uint32_t channels) {
  constexpr uint64_t kEnvelope = 64 * 1024;
  // Read buffers and state of a few hundred connections.
  constexpr uint64_t kConnections = 32 << 20;
  constexpr uint64_t kLargest = std::numeric_limits<int>::max();
  const uint64_t token_bytes = 4 * uint64_t{channels} + 16;
  ServiceLimits limits{.max_tokens = flags.max_tokens,
                       .max_sequences = flags.max_sequences,
                       .rollback_tokens = flags.rollback_tokens,
                       .channels = channels};
  limits.max_message_bytes = flags.max_tokens * token_bytes + kEnvelope;
  if (limits.max_message_bytes > kLargest) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-tokens ", flags.max_tokens, ": a message of so many tokens has ", limits.max_message_bytes,
                     " bytes and must stay below 2^31; at most ", (kLargest - kEnvelope) / token_bytes, " at ",
                     channels, " channels"));
  }
  // An id, and a segment with it: of throw-away sequences there may be one for each token.
  constexpr uint64_t kSegmentBytes = 48;
  limits.max_segments = uint64_t{flags.max_tokens} + flags.max_sequences;
  limits.request_bytes = limits.max_segments * kSegmentBytes + kEnvelope;
  limits.receive_bytes = static_cast<int>(std::min(2 * limits.max_message_bytes, kLargest));
  limits.inflight_requests = flags.max_inflight_requests;
  limits.inflight_bytes = flags.max_inflight_bytes.value_or(4 * limits.max_message_bytes);
  limits.quota_bytes = std::max({limits.inflight_bytes, static_cast<uint64_t>(limits.receive_bytes), kConnections});
  return limits;
}

}  // namespace pleiad
