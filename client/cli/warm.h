// Brings the rows of given tokens into a server's row cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/client.h"

namespace pleiad::cli {

// Tokens of one request, or the server's max_tokens if that is less: reads enough for any disk, and few enough that
// the steps of others do not wait long behind them.
inline constexpr uint32_t kWarmTokens = 512;

struct WarmOptions {
  std::optional<uint32_t> layer_index = {};  // zero-based; absent: all PLE layers
};

struct WarmReport {
  size_t layers = 0;
  client::StepStats sum = {};  // rows, hits, misses and joins of all requests
  absl::Duration elapsed = {};
};

// Prestages `tokens`, one text, in a sequence of its own, which is released before this returns. Consecutive requests
// overlap by ngram_size - 1 tokens, since a prestage hashes with the history of its sequence, which stays empty: so
// every row of the text is named, and a few others. Rows stay in the cache as eviction lets them. Blocks;
// `on_progress`, which may be empty, gets the tokens done of all layers and their total after each request. Returns
//   InvalidArgument     layer_index has no PLE
//   FailedPrecondition  max_tokens leaves no room for the overlap
//   the server's status
absl::StatusOr<WarmReport> Warm(client::Client* client, absl::Span<const uint32_t> tokens, const WarmOptions& options,
                                const std::function<void(uint64_t done, uint64_t total)>& on_progress);

}  // namespace pleiad::cli
