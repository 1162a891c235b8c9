// The kernels' arguments and launchers. Plain data, read by nvcc and the host compiler alike. A launcher enqueues on
// its stream and returns the error of the launch alone. Symbols as in core/model/geometry.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace pleiad::cuda {

// Widths the kernels take: a block has one thread for every 8 columns of a stream.
inline constexpr uint32_t kMaxHidden = 8192;
inline constexpr uint32_t kMaxConvTaps = 8;

// ---- the plan as the device reads it -------------------------------------------------------------------------------

struct alignas(16) PlanHeader {
  uint32_t num_items = 0;
  uint32_t num_rows = 0;  // to gather: T * heads
  uint32_t stamp = 0;     // of the batch, for ChainGate
  uint32_t num_moves = 0;
};

// How a row of a highway tensor lies and what is done with it; bits of ChainItem::flags.
enum ItemFlags : uint32_t {
  kInputBf16 = 1,
  kOutputBf16 = 2,
  kAddHighway = 4,  // HIGHWAY: output is input plus delta
  kSpread = 8,      // each stream has H * 4 bytes of its own, input and output in one place: dtypes may differ
  kFromUndo = 16,   // rows before the step are undo rows, not the ring's
  kHasCarry = 32,
};

// Tokens local, local + D, local + 2D, ... of one segment: with dilation D they are all that their convs look at, so
// one block keeps their rows in registers.
struct alignas(16) ChainItem {
  uint64_t input = 0;  // address of the segment's first token; 0: zeros
  uint64_t output = 0;
  uint32_t first_token = 0;  // the segment's first, in the batch
  uint32_t num_tokens = 0;   // of the segment
  uint32_t local = 0;        // of the item's first token in the segment
  uint32_t count = 0;        // of the item
  uint32_t carry = 0;
  uint32_t cursor = 0;  // ring index of the segment's first token
  uint32_t valid = 0;   // rows before the segment that exist, at most state_len
  uint32_t flags = 0;
};

// Gate scalars of one token and stream, for the item that follows in its chain: valid once `stamp` is the batch's.
struct alignas(8) ChainGate {
  float gr = 0;  // g * r: x = v * gr * (1 + norm_conv)
  uint32_t stamp = 0;
};

// A staging row and, where it is a fill, its slot.
struct RowPair {
  uint32_t staging_row = 0;
  uint32_t slot = 0;
};

// Undo rows of one carry, before the batch's tokens: see SegmentPlan.
struct alignas(16) UndoMove {
  uint32_t carry = 0;
  uint32_t cursor = 0;
  uint32_t rows = 0;  // of state_len, those that exist
  uint32_t to_ring = 0;
};

// ---- memory of the device ------------------------------------------------------------------------------------------

struct CarryMemory {
  float* rows = nullptr;  // [carries, ring_rows + state_len, C]
  uint32_t ring_rows = 0;
  uint32_t state_len = 0;
  uint32_t channels = 0;
};

struct LayerPointers {
  const uint16_t* key_value = nullptr;    // BF16 [C + H, E]
  const float* norm_key_query = nullptr;  // [C], (1 + norm_key) * (1 + norm_query)
  const float* norm_conv = nullptr;       // [C], 1 + norm_conv
  const uint16_t* taps = nullptr;         // BF16 [K, C], oldest first
  const uint16_t* f8_decode = nullptr;    // BF16 [256]; null for BF16 rows
};

// ---- launchers -----------------------------------------------------------------------------------------------------

struct GatherArgs {
  const PlanHeader* header = nullptr;
  const uint32_t* rows = nullptr;  // GatherIndex bits [num_rows]
  const std::byte* arena = nullptr;
  const std::byte* staging = nullptr;  // the device twin
  const uint16_t* f8_decode = nullptr;
  uint32_t head_dim = 0;
  uint16_t* out = nullptr;          // BF16 [num_rows, head_dim]
  uint32_t max_rows = 0;            // >= header->num_rows; of less than 2^32 values
  const UndoMove* moves = nullptr;  // [header->num_moves], done by the way; null: none
  CarryMemory carries;
};
// `usual_moves` is what the launch is sized for.
cudaError_t LaunchGather(const GatherArgs& args, uint32_t usual_moves, cudaStream_t stream);

// Gather and projection of few tokens in one.
inline constexpr uint32_t kFewTokens = 2;
inline constexpr uint32_t kFewEmbed = 2560;
struct ProjectFewArgs {
  GatherArgs gather;                  // without out and moves
  const uint16_t* weights = nullptr;  // BF16 [outputs, embed]
  uint32_t outputs = 0;               // C + H
  uint32_t embed = 0;                 // E, of a shape that CanProjectFew
  uint16_t* out = nullptr;            // BF16 [max_tokens, outputs]
};
bool CanProjectFew(uint32_t tokens, uint32_t embed, uint32_t head_dim);
cudaError_t LaunchProjectFew(const ProjectFewArgs& args, uint32_t max_tokens, uint32_t multiprocessors,
                             cudaStream_t stream);

// The same for more tokens, on tensor cores; BF16 rows alone.
inline constexpr uint32_t kMaxProjectRowsTokens = 64;
struct ProjectRowsArgs {
  GatherArgs gather;                  // without out; moves are done by the way
  const uint16_t* weights = nullptr;  // BF16 [outputs, embed]
  uint32_t outputs = 0;               // C + H
  uint32_t embed = 0;                 // E
  uint32_t tokens = 0;                // T, or more: then those behind the batch's are zeros
  uint16_t* out = nullptr;            // BF16 [tokens, outputs]
};
cudaError_t LaunchProjectRows(const ProjectRowsArgs& args, uint32_t multiprocessors, cudaStream_t stream);
// Before the first launch: the most tokens that this GPU takes for a shape, 0 where it takes none.
cudaError_t PrepareProjectRows(uint32_t outputs, uint32_t embed, uint32_t head_dim, uint32_t* max_tokens);

// One hash head of a layer whose rows stay where they are.
struct HashHead {
  uint64_t size = 0;
  uint64_t reciprocal = 0;  // floor((2^64 - 1) / size)
  uint64_t first_slot = 0;
};
struct HashArgs {
  const HashHead* heads = nullptr;        // [heads]
  const uint64_t* multipliers = nullptr;  // [N]
  uint32_t context_len = 0;               // N-1
  uint32_t heads_per_ngram = 0;
  uint32_t eos_token_id = 0;
  // In pinned memory of the host, as is the image.
  const uint32_t* places = nullptr;  // [T] of the tokens among the ids, N-1 of which stand before each
  const uint32_t* ids = nullptr;
  uint32_t num_tokens = 0;   // T, at least one
  uint32_t* rows = nullptr;  // GatherIndex bits [T, heads]
  // What other kernels read of the image, in pieces of 16 bytes: from its start on, and from moves_at on.
  const uint4* image = nullptr;
  uint4* device_image = nullptr;
  uint32_t pieces = 0;
  uint32_t moves_at = 0;
  uint32_t moves = 0;
};
// Finds the rows, and brings the image along: one launch, where a copy ahead of it would be a second call.
cudaError_t LaunchHashRows(const HashArgs& args, cudaStream_t stream);

struct CopyRowsArgs {
  const RowPair* pairs = nullptr;
  uint32_t count = 0;
  uint32_t row_bytes = 0;
  const std::byte* from = nullptr;  // rows by staging_row
  std::byte* to = nullptr;
};
// Host staging to its device twin, row by row in place.
cudaError_t LaunchUploadRows(const CopyRowsArgs& args, cudaStream_t stream);
// Device staging to arena slots.
cudaError_t LaunchFillRows(const CopyRowsArgs& args, cudaStream_t stream);

cudaError_t LaunchUndoMoves(const UndoMove* moves, uint32_t count, const CarryMemory& carries, cudaStream_t stream);

// out [state_len, C], oldest first; rows beyond `valid` are zero.
cudaError_t LaunchReadCarry(const CarryMemory& carries, uint32_t carry, uint32_t cursor, uint32_t valid, float* out,
                            cudaStream_t stream);
// in [state_len, C] to ring rows 0 to state_len - 1.
cudaError_t LaunchWriteCarry(const CarryMemory& carries, uint32_t carry, const float* in, cudaStream_t stream);

struct GateConvArgs {
  const PlanHeader* header = nullptr;
  const ChainItem* items = nullptr;
  const uint16_t* key_value = nullptr;  // BF16 [T, C + H], key before value
  LayerPointers layer;
  CarryMemory carries;
  ChainGate* gates = nullptr;  // [max_tokens, hc]
  uint32_t hidden = 0;         // H
  uint32_t streams = 0;        // hc
  uint32_t dilation = 0;       // D
  uint32_t taps = 0;           // K
  float eps = 0;
  float inverse_hidden = 0;       // 1 / H
  float inverse_root_hidden = 0;  // 1 / sqrt(H)
  uint32_t fast = 0;              // the kernel for the released shape, which this GPU has room for
  uint32_t early_start = 0;       // that kernel may begin while the one before ends: it was built for sm_90 on
  uint32_t once = 0;              // every item has one token
};
// `max_items` >= header->num_items. Items of one chain come in the order of their tokens.
cudaError_t LaunchGateConv(const GateConvArgs& args, uint32_t max_items, cudaStream_t stream);

// What this GPU takes for a shape.
struct GateConvSetup {
  uint32_t concurrent_items = 1;  // run at once: a batch is cut into about as many
  uint32_t fast = 0;              // of GateConvArgs
  uint32_t early_start = 0;
};
// Before the first launch.
cudaError_t PrepareGateConv(uint32_t hidden, uint32_t streams, uint32_t taps, uint32_t multiprocessors,
                            GateConvSetup* setup);

}  // namespace pleiad::cuda
