// What a sequence would have said had nothing disturbed it: an engine in this process with the whole table in memory,
// whose sequences take each accepted token once, in order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/engine/engine.h"
#include "tests/support/local_engine.h"

namespace pleiad::testing {

// A token and which of the Highways it came with.
struct SoakToken {
  uint32_t id = 0;
  uint32_t highway = 0;
  bool operator==(const SoakToken& other) const { return id == other.id && highway == other.highway; }
};
using SoakLine = std::vector<SoakToken>;

// A pool of seeded highway rows.
class Highways {
 public:
  Highways(uint32_t rows, uint32_t channels, uint32_t seed);
  uint32_t rows() const { return rows_; }
  // [tokens, channels]
  std::vector<float> Of(absl::Span<const SoakToken> tokens) const;

 private:
  const uint32_t rows_, channels_;
  std::vector<float> values_;
};

// Where the undisturbed copy of one carry stands.
struct CalmCarry {
  SequenceId sequence;  // 0: none
  SoakLine consumed;
};

// Thread-safe; a CalmCarry is used by one thread at a time. Every call blocks for its steps; aborts when one fails.
class Undisturbed {
 public:
  // `carries`: at most so many CalmCarry at once.
  Undisturbed(const std::string& model, const Highways* highways, uint32_t carries);

  const ModelConfig& config() const { return engine_.config(); }
  // Of `step` behind `before`, as bytes. Afterwards the carry stands behind `step`.
  std::string Output(CalmCarry& carry, LayerIndex layer, const SoakLine& before, absl::Span<const SoakToken> step,
                     OutputKind kind, DType dtype);
  // The blob of a carry that has consumed `line`.
  std::string Blob(CalmCarry& carry, LayerIndex layer, const SoakLine& line);
  // Embeddings of tokens without a context.
  std::string Embeddings(LayerIndex layer, std::vector<uint32_t> tokens);
  void End(CalmCarry& carry);

 private:
  void Bring(CalmCarry& carry, LayerIndex layer, const SoakLine& line);
  std::string Step(CalmCarry& carry, LayerIndex layer, absl::Span<const SoakToken> step, OutputKind kind, DType dtype);

  const Highways* const highways_;
  LocalEngine engine_;
};

}  // namespace pleiad::testing
