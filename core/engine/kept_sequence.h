// A sequence apart from its engine and its device: what one process keeps and the next one takes back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/strong_id.h"
#include "core/engine/carry_state.h"

namespace pleiad {

struct KeptCarry {
  CarryImage state;  // state.ring names all of `ring_rows`
  bool predecessor_failed = false;
  std::vector<float> ring_rows;  // [state.ring.valid, C], oldest first
  std::vector<float> undo_rows;  // [state.undo_valid, C], oldest first
};

// Rows held ahead of a step are no part of it: they are a hint.
struct KeptSequence {
  SequenceId id;
  uint64_t epoch = 0;
  absl::Duration idle;
  std::string client_key;
  std::string label;
  std::string owner;                  // as OpenRequest's
  std::shared_ptr<const void> place;  // as OpenRequest's; for who takes it back to fill in
  std::vector<KeptCarry> carries;     // [layers]
};

// Gets each kept sequence in turn; its error ends the giving.
using SequenceSink = std::function<absl::Status(const KeptSequence&)>;
// The next sequence, or nothing behind the last one.
using SequenceSource = std::function<absl::StatusOr<std::optional<KeptSequence>>()>;

// `device_rows` as Device::SaveCarry gives them, of a carry of `shape` whose state gave `image`.
KeptCarry KeepCarry(CarryImage image, absl::Span<const float> device_rows, const CarryShape& shape, size_t channels);

// The rows for Device::LoadCarry; rows that do not exist are zero. `carry` fits `shape`.
void PlaceRows(const KeptCarry& carry, const CarryShape& shape, size_t channels, absl::Span<float> device_rows);

// Whether `carry` can be one of `shape`: every number within the others, ids below `vocab_size`. DataLoss with the
// rule.
absl::Status CheckKept(const KeptCarry& carry, const CarryShape& shape, size_t channels, uint32_t vocab_size);

// Makes a carry kept with some rollback_tokens, which has passed CheckKept for them, one of `shape`. What lies ahead of
// a carry that was moved further back than `shape` allows is given up. The start of the last step can be had back as
// before where it is not ahead; of the other positions those within the new rollback_tokens.
void FitRollback(KeptCarry& carry, const CarryShape& shape, size_t channels);

}  // namespace pleiad
