// What one request and all requests in flight may weigh.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/flags.h"

namespace pleiad {

struct ServiceLimits {
  uint32_t max_tokens = 0;
  uint32_t max_sequences = 0;
  uint32_t rollback_tokens = 0;
  uint32_t channels = 0;
  uint64_t max_message_bytes = 0;  // max_tokens * (4 * channels + 16) + 64 KiB
  uint64_t request_bytes = 0;      // of a step beside its tensor: 48 * (max_tokens + max_sequences) + 64 KiB
  uint64_t max_segments = 0;       // max_tokens + max_sequences
  int receive_bytes = 0;           // gRPC's own limit: twice that, at most 2^31 - 1
  uint64_t inflight_requests = 0;
  uint64_t inflight_bytes = 0;
  uint64_t quota_bytes = 0;  // gRPC's own: what connections and messages that come in may take
};

// `channels` values of one token in the highway. InvalidArgument naming --max-tokens when max_message_bytes reaches
// 2^31.
absl::StatusOr<ServiceLimits> ComputeLimits(const ServerFlags& flags, uint32_t channels);

}  // namespace pleiad
