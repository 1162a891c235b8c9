// What the engine hands to a device: one batch of steps of one layer. Plain data, no ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/base/numeric.h"
#include "core/base/strong_id.h"
#include "core/base/tensor_pieces.h"

namespace pleiad {

class ClientMemory;  // core/device/client_memory.h

// Where the gather finds a row: a slot of the arena or a row of staging.
class GatherIndex {
 public:
  static constexpr uint32_t kStagingBit = 0x80000000u;
  // Slots and staging rows stay below this.
  static constexpr uint32_t kLimit = kStagingBit;

  GatherIndex() = default;
  static GatherIndex OfSlot(Slot slot) { return GatherIndex(slot.value()); }
  static GatherIndex OfStaging(uint32_t row) { return GatherIndex(row | kStagingBit); }

  bool in_staging() const { return (bits_ & kStagingBit) != 0; }
  uint32_t row() const { return bits_ & ~kStagingBit; }
  uint32_t bits() const { return bits_; }

 private:
  explicit GatherIndex(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

// Copies one staging row to its slot, in stream order, ahead of the gather.
struct Fill {
  uint32_t staging_row = 0;
  Slot slot;
};

// A carry's conv ring at one position. Row i steps back (i = 1 is the newest) lies at ring index
// (cursor - i) mod ring_rows and exists when i <= valid. Missing rows read as zero.
struct RingView {
  uint32_t cursor = 0;  // ring index the next token's row goes to, < ring_rows
  uint32_t valid = 0;   // <= ring_rows
};

// A segment without a carry starts fresh and leaves nothing behind.
inline constexpr CarrySlot kNoCarry{0xFFFFFFFFu};

// One step of one sequence. In stream order, before the segment's tokens:
//   undo_to_ring   the undo rows are copied to the ring: undo row j of state_len (oldest first) goes to ring
//                  index (cursor - state_len + j) mod ring_rows. The step start is the start of the last step.
//   ring_to_undo   the ring's last state_len rows are set aside as undo rows; rows that do not exist may hold
//                  anything. Set when num_tokens > rollback_tokens.
// Rows before the step are read from the ring when num_tokens <= rollback_tokens, else from undo. The last
// min(num_tokens, ring_rows) rows of the step are written to the ring: token i's at (cursor + i) mod ring_rows.
struct SegmentPlan {
  CarrySlot carry = kNoCarry;
  uint32_t first_token = 0;  // of the batch
  uint32_t num_tokens = 0;   // 0: only undo_to_ring
  RingView ring;             // at the step's start
  bool undo_to_ring = false;
  bool ring_to_undo = false;
};

enum class OutputKind : uint8_t { kHighway, kDelta };

// Where a part's tensors lie: in the host's memory, at any alignment; in the device's own, or in pages of the host's
// that the device alone touches, both at multiples of 16 bytes.
enum class TensorMemory : uint8_t { kHost, kDevice, kPinned };

// The tensors of one request: consecutive tokens of the batch.
struct TensorPart {
  uint32_t first_token = 0;
  uint32_t num_tokens = 0;
  TensorMemory memory = TensorMemory::kHost;
  const std::byte* input = nullptr;            // [num_tokens, C] of input_dtype; null: in pieces or, without any, zeros
  absl::Span<const TensorPiece> input_pieces;  // the same where it lies in several places of kHost
  DType input_dtype = DType::kF32;             // kF32 or kBf16
  std::byte* output = nullptr;  // [num_tokens, C] of output_dtype; the input's own, of the same dtype, or apart
  DType output_dtype = DType::kF32;
  OutputKind kind = OutputKind::kHighway;
};

// The tokens of one segment, where the device finds their rows itself.
struct HashedTokens {
  absl::Span<const uint32_t> history;  // [N-1], before the first token; see NgramHasher::Hash
  absl::Span<const uint32_t> tokens;
};

// Everything it points to stays valid and unchanged until its ticket is done.
struct BatchPlan {
  LayerOrdinal layer;
  uint32_t num_tokens = 0;  // T
  std::vector<Fill> fills;
  std::vector<GatherIndex> gather;           // [T, heads], or empty beside `hashed`
  std::vector<HashedTokens> hashed;          // of segments with tokens, in order, or empty; needs hashes_rows
  std::vector<SegmentPlan> segments;         // disjoint carries (kNoCarry aside), tokens in order without gaps
  std::vector<TensorPart> parts;             // tokens in order without gaps; a segment lies in one part
  std::vector<ClientMemory*> client_memory;  // that parts lie in; each is told when the batch is done
  // When set, the batch only gathers: BF16 [T, E] is written here, segments and parts are empty.
  Bf16* embeddings = nullptr;
};

}  // namespace pleiad
