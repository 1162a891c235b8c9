// Plain values of the client library: the service's model, steps, snapshots and lookups. No ownership beyond what a
// member says. Every member has an initialiser, so designated initialisers may name a few without a warning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace pleiad::client {

// 64 random bits; knowing one is the right to use the sequence. 0 names a throw-away carry.
enum class SequenceId : uint64_t {};
inline constexpr SequenceId kThrowAway{0};

enum class DType : uint8_t { kF32, kBf16 };
constexpr size_t ByteSize(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

enum class OutputKind : uint8_t {
  kHighway,  // the updated highway
  kDelta,    // what the stage added to it
};

enum class StepMode : uint8_t {
  kForward,
  kPrestage,  // a hint: resolves rows early, takes no highway, moves nothing
};

struct LayerInfo {
  uint32_t layer_index = 0;  // zero-based decoder layer
  uint64_t rows = 0;
  std::string row_dtype = {};
  uint64_t aux_bytes = 0;  // length of this layer's aux blob
};

struct ModelInfo {
  std::string model_id = {};
  std::string server_version = {};
  std::vector<std::string> capabilities = {};
  uint32_t hidden_size = 0;
  uint32_t hc_count = 0;
  uint32_t ple_embed_dim = 0;
  uint32_t ple_conv_kernel_size = 0;
  uint32_t ngram_size = 0;
  uint32_t heads_per_ngram = 0;
  uint32_t head_dim = 0;
  uint32_t channels = 0;   // values of one token in the highway
  uint32_t state_len = 0;  // conv rows of a carry
  float rms_norm_eps = 0;
  uint32_t vocab_size = 0;
  uint32_t eos_token_id = 0;
  std::optional<uint32_t> image_token_id = {};
  std::optional<uint32_t> video_token_id = {};
  std::vector<LayerInfo> layers = {};
  uint32_t max_tokens = 0;  // of one request
  uint32_t max_sequences = 0;
  uint32_t rollback_tokens = 0;  // how far back a carry can always be moved
  uint64_t max_message_bytes = 0;
  std::string device = {};
  std::string table_mode = {};  // "resident" or "cached"

  // Hash heads of one token.
  uint32_t heads() const { return ngram_size < 2 ? 0 : (ngram_size - 1) * heads_per_ngram; }
};

// Part of an allocation on a GPU, as CUDA's calls for sharing between processes name it; all handles have 64 bytes.
// This library passes them on.
struct DeviceMemoryHandles {
  std::string memory = {};       // cudaIpcMemHandle_t of the allocation
  std::string gpu_uuid = {};     // as nvidia-smi -L shows it: "GPU-", then 32 hexadecimal digits in five groups
  std::string ready_event = {};  // cudaIpcEventHandle_t that the client records
  std::string done_event = {};   // cudaIpcEventHandle_t that the server records
  uint64_t offset = 0;           // bytes [offset, offset + bytes) of the allocation
  uint64_t bytes = 0;
};

// Part of a SharedRegion, or of a SharedDeviceMemory.
struct RegionSpan {
  uint64_t region_id = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// [sum of num_tokens, channels], row-major, little-endian.
struct Highway {
  DType dtype = DType::kF32;
  // Empty where `zeros` is set or there are no tokens. Valid until the step is answered, and unchanged.
  absl::Span<const std::byte> data = {};
  bool zeros = false;                     // a highway of zeros, of which nothing is sent
  std::optional<RegionSpan> region = {};  // instead of `data`: where it lies in memory shared with the server
  // When set, `data` is sent from where it lies, and the last reference that the library has to the owner goes once
  // gRPC needs the memory no more: after a break that may be later than the answer, though what the memory then holds
  // is of no matter. Without an owner the bytes are copied once.
  std::shared_ptr<const void> owner = {};
};

struct StepStats {
  uint64_t rows = 0;  // hits + misses + joins = heads * tokens, counted where they were resolved
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t joins = 0;
  uint32_t batch_tokens = 0;  // of the batch the step ran in
  absl::Duration queue = {}, resolve = {}, device = {};
};

struct SegmentResult {
  SequenceId sequence = kThrowAway;
  uint64_t position = 0;  // tokens consumed, after the step
  uint64_t low = 0;       // the lowest position that can be had back
};

// A tensor where it lies in the message that brought it: pieces in order, which end anywhere.
struct TensorPieces {
  std::shared_ptr<const void> owner = {};  // keeps the pieces
  std::vector<absl::Span<const std::byte>> pieces = {};
};

struct StepResult {
  std::vector<SegmentResult> segments = {};  // as in the step
  DType output_dtype = DType::kF32;
  // [sum of num_tokens, channels], row-major, little-endian; empty where the step said where it goes.
  std::string output = {};
  TensorPieces output_pieces = {};  // the same, of a step that asked for pieces
  StepStats stats = {};
  bool draining = false;  // the server is going away: snapshot and move
};

// One carry as bytes: u32 hist_len | hist_len x u32 token ids | [state_len, channels] f32, oldest first, little-endian.
struct LayerAux {
  uint32_t layer_index = 0;
  std::optional<uint64_t> position = {};  // absent: 0
  std::optional<uint32_t> crc32 = {};     // zlib's, of `aux`; checked by the server when present
  std::string aux = {};
};

struct SequenceSnapshot {
  std::string model_id = {};
  std::vector<LayerAux> layers = {};
};

struct SequenceLayer {
  uint32_t layer_index = 0;
  uint64_t position = 0;
  uint64_t low = 0;
  uint64_t last_step_start = 0;
  uint32_t prestaged_tokens = 0;
};

struct SequenceStatus {
  std::vector<SequenceLayer> layers = {};
  absl::Duration idle = {};
  uint64_t epoch = 0;
};

struct OpenOptions {
  std::string label = {};             // at most 64 bytes; for the server's log
  std::string client_key = {};        // at most 64 bytes, as secret as an id; a live key returns its sequence
  std::string model_id = {};          // checked when set
  std::vector<LayerAux> layers = {};  // carries to start from; unnamed layers are fresh
};

struct LookupSegment {
  uint32_t num_tokens = 0;
  // Tokens before the segment, oldest first; missing ones are EOS. Of more than ngram_size - 1 the last ones count, and
  // are sent.
  std::vector<uint32_t> context_ids = {};
};

struct LookupQuery {
  std::optional<uint32_t> layer_index = {};  // absent: the model's only PLE layer
  std::vector<LookupSegment> segments = {};
  std::vector<uint32_t> token_ids = {};  // of all segments, concatenated
  bool want_row_ids = true;
  bool want_embeddings = false;
};

struct LookupResult {
  std::vector<uint64_t> row_ids = {};  // [tokens, heads]
  std::string embeddings = {};         // BF16 [tokens, ple_embed_dim]
};

enum class HealthState : uint8_t { kServing, kNotServing, kUnknown };

}  // namespace pleiad::client
