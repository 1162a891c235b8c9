// The host's half of one carry: position, token history, and where its conv rows lie in the device's ring. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/base/plan.h"
#include "core/base/strong_id.h"
#include "core/model/geometry.h"

namespace pleiad {

struct CarryShape {
  uint32_t context_len = 0;
  uint32_t state_len = 0;
  uint32_t rollback_tokens = 0;
  uint32_t eos_token_id = 0;

  uint32_t ring_rows() const { return state_len + rollback_tokens; }
};

// The ids before a position, oldest first; context_len of them.
using TokenHistory = absl::InlinedVector<uint32_t, 4>;

enum class StartKind : uint8_t { kRing, kUndo, kFresh };

// Where a step begins.
struct StepStart {
  StartKind kind = StartKind::kRing;
  Position position;
  RingView ring;
  TokenHistory history;
};

// All of it, for a carry that outlives its process.
struct CarryImage {
  Position position, low, last_step_start;
  Position head;  // what the ring and the history describe
  RingView ring;
  std::vector<uint32_t> history;  // ids before head, newest last: context_len and as many as can be gone back
  bool has_undo = false;
  uint32_t undo_valid = 0;             // undo rows that exist
  std::vector<uint32_t> undo_history;  // [context_len] with undo, else empty
};

// Not thread-safe. Positions that can be had back: low() .. position(), and last_step_start(). A move changes only
// where the carry stands; what lies ahead of it is given up by the next step.
class CarryState {
 public:
  explicit CarryState(const CarryShape& shape);

  // All EOS, no rows, position 0.
  void Reset();
  // After a restore: state_len rows exist in the ring, as Device::WriteCarry leaves them. `history` [context_len].
  void Restore(Position position, absl::Span<const uint32_t> history);

  CarryImage Image() const;
  // `image` is one that a state of the same shape gave, or says the same of one.
  void Adopt(const CarryImage& image);

  Position position() const { return position_; }
  Position low() const { return low_; }
  Position last_step_start() const { return last_step_start_; }

  // nullopt when `position` cannot be had back. Absent: where the carry stands.
  std::optional<StepStart> At(std::optional<Position> position) const;
  // The start of a fresh carry.
  StepStart Fresh() const;

  // The step of `tokens` from `start`, a result of At() or Fresh() on this state, has been done on the device. With
  // no tokens: a move, or a reset.
  void Commit(const StepStart& start, absl::Span<const uint32_t> tokens);

 private:
  // Gives up what lies ahead of `start` and stands there.
  void MoveTo(const StepStart& start);

  CarryShape shape_;
  Position position_;
  Position low_;
  Position last_step_start_;
  // The ring and the history describe head_; position_ <= head_ differs from it after a move back.
  Position head_;
  RingView ring_;
  absl::InlinedVector<uint32_t, 12> history_;  // ids before head_, newest last; at most rollback + context_len
  // Set while the start of the last step lies in the undo rows.
  bool has_undo_ = false;
  uint32_t undo_valid_ = 0;
  TokenHistory undo_history_;
};

}  // namespace pleiad
