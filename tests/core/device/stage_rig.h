// Runs the stage through the Device interface with plans made by hand, next to the oracle.
//
// The rig has a pool of numbered tokens: each with an embedding, which lies in the arena, and a highway row. A step
// takes consecutive tokens of the pool; carries are kept here as the engine would keep them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "tests/oracle/model.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device_choice.h"

namespace pleiad {

// Shape and hash of a small model; heads 2 per order unless said.
struct SmallModel {
  uint32_t hidden = 24;
  uint32_t hc = 4;
  uint32_t embed = 40;
  uint32_t kernel = 4;
  uint32_t ngram = 3;
  uint32_t heads_per_ngram = 2;
};
oracle::Model MakeModel(const SmallModel& small, uint64_t seed);

Geometry GeometryOf(const oracle::Model& model);
LayerWeights WeightsOf(const oracle::Model& model);

// A carry as its owner sees it: where the ring stands, and the start of the last step.
struct RigCarry {
  CarrySlot slot = kNoCarry;
  RingView ring;
  RingView start;
  bool start_in_undo = false;
};

// Moves the view back by `tokens` rows, which the ring still holds.
RingView Back(RingView ring, uint32_t tokens, uint32_t ring_rows);

enum class StartAt { kHere, kLastStart };

struct RigStep {
  RigCarry* carry = nullptr;  // null: kNoCarry
  uint32_t first = 0;         // token of the pool
  uint32_t count = 0;
  uint32_t back = 0;  // rows of the ring to go back first
  StartAt start = StartAt::kHere;
};

struct RigFormat {
  DType input = DType::kF32;
  DType output = DType::kF32;
  OutputKind kind = OutputKind::kDelta;
  bool zeros = false;     // no input tensor
  bool in_place = false;  // output over input; the same dtype
  uint32_t misalign = 0;  // bytes
  // Apart from its neighbours every so many bytes of the input; 0: in one place. Not in place.
  uint32_t piece_bytes = 0;
};

// A plan and the tensors it points to.
struct RigBatch {
  RigFormat format;
  BatchPlan plan;
  std::vector<std::vector<std::byte>> inputs, outputs;  // [steps]
  std::vector<std::vector<TensorPiece>> pieces;         // [steps]
};

class StageRig {
 public:
  // `embeddings` [tokens, E] BF16 values, `highway` [tokens, C]. Geometry and, where 0, the counts of `options` are
  // filled in; the slots of its arena come behind those of the pool's rows.
  StageRig(const oracle::Model& model, std::vector<double> embeddings, std::vector<double> highway,
           DeviceOptions options = {}, testing::TestDevice which = testing::ChosenTestDevice());

  Device& device() { return *device_; }
  const oracle::Model& model() const { return model_; }
  uint32_t tokens() const { return tokens_; }
  // Rows of the pool, row i in slot i.
  uint32_t rows() const { return tokens_ * static_cast<uint32_t>(model_.heads()); }
  absl::Span<const std::byte> Row(uint32_t row) const;
  uint32_t ring_rows() const { return ring_rows_; }
  uint32_t state_len() const { return static_cast<uint32_t>(model_.state_len()); }
  size_t channels() const { return model_.shape.channels(); }

  RigCarry NewCarry();
  // One batch; outputs [count, C] of each step, as floats.
  std::vector<std::vector<float>> Run(const std::vector<RigStep>& steps, const RigFormat& format = {});
  std::vector<float> RunOne(const RigStep& step, const RigFormat& format = {}) { return Run({step}, format)[0]; }
  // Tokens [first, first + count) of the pool in steps of these lengths; outputs one after the other.
  std::vector<float> RunCut(RigCarry* carry, uint32_t first, const std::vector<uint32_t>& lengths);

  std::vector<float> ReadRows(const RigCarry& carry);
  void WriteRows(RigCarry* carry, const std::vector<float>& rows);
  // Fills ring and undo rows of a carry nobody uses with NaN.
  void Poison(CarrySlot slot);

  // Tokens [first, first + count) as a sequence of their own.
  oracle::Trace Oracle(uint32_t first, uint32_t count, oracle::KvRounding rounding = oracle::KvRounding::kBf16) const;

  // Run in its parts, for tests that change the plan or do not wait. The batch outlives the ticket.
  RigBatch Make(const std::vector<RigStep>& steps, const RigFormat& format = {});
  Ticket Start(const RigBatch& batch);
  std::vector<std::vector<float>> Finish(Ticket ticket, const RigBatch& batch);

 private:
  SegmentPlan Segment(const RigStep& step, uint32_t first_token);

  oracle::Model model_;
  std::vector<double> embeddings_;
  std::vector<double> highway_;
  std::vector<std::byte> row_bytes_;  // [rows, head_dim] BF16
  DeviceOptions options_;
  uint32_t tokens_ = 0;
  uint32_t ring_rows_ = 0;
  uint32_t next_carry_ = 0;
  std::unique_ptr<Device> device_;
};

// `count` tokens of random embeddings (BF16 values) and highway rows for `model`.
StageRig RandomRig(const oracle::Model& model, uint32_t count, uint64_t seed, DeviceOptions options = {},
                   testing::TestDevice which = testing::ChosenTestDevice());

// Slices [first, first + count) of rows of `width`.
std::vector<double> Rows(const std::vector<double>& values, size_t width, size_t first, size_t count);

std::vector<float> Concat(const std::vector<std::vector<float>>& parts);

}  // namespace pleiad
