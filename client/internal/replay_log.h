// What this side keeps of one carry so that it can be built again on another server: a blob and the tokens since, with
// their highway. Pure.
//
// A carry is a function of the last state_len tokens with their highway and of the ids before them: conv rows are
// computed token by token and never from each other. So tokens can be dropped from the front, and a blob of the ids
// before the rest, with rows of zeros, takes their place, as long as state_len tokens are left before every position
// that the carry can be moved back to. Nothing above the lowest such position is ever taken for settled.
// Source: 2-numerics of the service's design, "The layer, in order"; reach: rule 3 of the service contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/step.h"
#include "client/types.h"

namespace pleiad::client::internal {

struct LoggedToken {
  uint32_t id = 0;
  DType dtype = DType::kF32;
  std::string row = {};  // its highway; empty: zeros
};

// Of the model, and how much to keep.
struct LogShape {
  explicit LogShape(const ModelInfo& model, uint64_t max_log_bytes);
  LogShape() = default;

  uint32_t context = 0;  // ids that a hash looks back
  uint32_t state_len = 0;
  uint32_t rollback = 0;
  uint32_t channels = 0;
  uint32_t eos = 0;
  uint64_t max_bytes = 0;

  // The tokens of a step too long to be kept whole that are kept: the last ones.
  uint32_t tail() const { return context + state_len + rollback; }
};

// Copies what Apply wants of the `count` tokens of `step` that start with its token `first`.
std::vector<LoggedToken> CaptureTokens(const LogShape& shape, const Step& step, uint64_t first, uint32_t count);

// Not thread-safe.
class ReplayLog {
 public:
  // Of a fresh carry.
  explicit ReplayLog(const LogShape& shape);
  ReplayLog(ReplayLog&&) noexcept = default;
  ReplayLog& operator=(ReplayLog&&) noexcept = default;

  uint64_t base() const { return base_; }
  uint64_t end() const { return base_ + tokens_.size(); }
  uint64_t bytes() const { return bytes_; }
  bool known() const { return known_; }

  // The carry was set from `blob`.
  void Rebase(const LayerAux& blob);

  struct Applied {
    uint64_t start = 0;
    bool fresh = false;
    uint32_t num_tokens = 0;
    uint64_t low = 0;  // as the server tells
  };
  // A step was applied. `tokens`: of CaptureTokens. Where it starts outside of what is kept, the carry is not known
  // until a reset, a blob of where it stands, or a step of `tail` tokens.
  void Apply(const Applied& step, std::vector<LoggedToken> tokens);

  // A snapshot of the server's. It takes the place of older tokens once the carry cannot be moved back behind it.
  void Offer(LayerAux snapshot);
  // A step that starts at `start` may be applied: a snapshot that was offered from behind it is of tokens that go.
  void Expect(uint64_t start);

  // How to build the carry: from `blob`, of a fresh carry at position 0, then the tokens in steps that end at `cuts`.
  struct Plan {
    LayerAux blob = {};  // without a layer
    uint64_t start = 0;
    std::vector<const LoggedToken*> tokens = {};
    std::vector<uint64_t> cuts = {};  // ascending, the last one is the end; empty without tokens
  };
  // `next_start`: where the first step that follows says it starts, if it does. Nothing where the carry is not known.
  // The plan points into the log.
  std::optional<Plan> MakePlan(std::optional<uint64_t> next_start = std::nullopt) const;

 private:
  LayerAux BaseBlob() const;
  // Nothing is known of the carry but its position.
  void StartOver(uint64_t base);
  void Push(LoggedToken token);
  void DropBack();
  void DropFront();
  // The carry cannot be moved back below `floor`.
  void Settle(uint64_t floor);

  LogShape shape_;
  uint64_t base_ = 0;
  std::optional<std::string> aux_;  // of base_; none: the ids of history_ and rows of zeros
  std::vector<uint32_t> history_;   // the ids before base_, oldest first
  std::deque<LoggedToken> tokens_;
  uint64_t bytes_ = 0;
  uint64_t last_start_ = 0;  // of the last step with tokens
  bool known_ = true;
  std::optional<LayerAux> offer_;
  std::unique_ptr<ReplayLog> before_;  // ends at last_start_, of a step whose first tokens are not kept
};

}  // namespace pleiad::client::internal
