// One step: the new tokens of one or many sequences at one layer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/types.h"

namespace pleiad::client {

class Sequence;

struct StepSegment {
  const Sequence* sequence = nullptr;  // read during Submit only; null: a fresh throw-away carry
  uint32_t num_tokens = 0;             // 0 with a position: a pure move; with fresh: a reset; alone: nothing
  bool fresh = false;                  // start over at position 0
  // Moves the carry there first: how a verifier drops rejected tokens. Absent: the end of the step before.
  std::optional<uint64_t> position = {};
};

struct Step {
  StepMode mode = StepMode::kForward;
  std::optional<uint32_t> layer_index = {};  // zero-based; absent: the model's only PLE layer
  std::vector<StepSegment> segments = {};
  std::vector<uint32_t> token_ids = {};  // of all segments, concatenated
  // Instead of token_ids: where they lie in a SharedRegion, as int32. They stay as they are until the callback.
  std::optional<RegionSpan> token_region = {};
  Highway highway = {};
  OutputKind output_kind = OutputKind::kHighway;
  std::optional<DType> output_dtype = {};  // absent: as the highway
  // Where the output goes, of its size; valid until the callback runs, written just before that and only if the step
  // succeeds. It may be the highway's memory. Empty: StepResult.output.
  absl::Span<std::byte> output = {};
  bool output_pieces = false;  // the output comes uncopied, as StepResult.output_pieces; without `output`
  // Where the server writes the output, apart from the highway: a step that is sent again needs that as it was. Then
  // StepResult has none.
  std::optional<RegionSpan> output_region = {};
  absl::Duration timeout = absl::InfiniteDuration();  // on the server, from arrival; whole milliseconds
  // Of a kForward: sequences that the server releases once the step has succeeded; unknown ones are no error.
  std::vector<SequenceId> release_after = {};
};

using StepCallback = std::function<void(absl::StatusOr<StepResult>)>;

}  // namespace pleiad::client
