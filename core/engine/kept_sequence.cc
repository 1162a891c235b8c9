#include "core/engine/kept_sequence.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

// Forgets all but the newest `keep` rows.
void KeepNewest(std::vector<float>& rows, uint64_t keep, size_t channels) {
  const size_t values = keep * channels;
  if (rows.size() > values) rows.erase(rows.begin(), rows.end() - static_cast<ptrdiff_t>(values));
}

// Forgets the newest `count` tokens.
void CutHead(KeptCarry& carry, uint64_t count, size_t channels) {
  CarryImage& state = carry.state;
  state.head = Position(state.head.value() - count);
  state.history.resize(state.history.size() - count);
  state.ring.valid -= static_cast<uint32_t>(std::min<uint64_t>(count, state.ring.valid));
  carry.ring_rows.resize(state.ring.valid * channels);
  state.last_step_start = std::min(state.last_step_start, state.head);
}

// Sets aside what the ring holds of the start of the last step, as a long step does.
void SetAside(KeptCarry& carry, const CarryShape& shape, size_t channels) {
  CarryImage& state = carry.state;
  const uint64_t back = state.head.value() - state.last_step_start.value();
  const uint64_t end = state.ring.valid - std::min<uint64_t>(back, state.ring.valid);
  state.has_undo = true;
  state.undo_valid = static_cast<uint32_t>(std::min<uint64_t>(end, shape.state_len));
  const auto rows_end = carry.ring_rows.begin() + static_cast<ptrdiff_t>(end * channels);
  carry.undo_rows.assign(rows_end - static_cast<ptrdiff_t>(state.undo_valid * channels), rows_end);
  const auto ids_end = state.history.end() - static_cast<ptrdiff_t>(back);
  state.undo_history.assign(ids_end - shape.context_len, ids_end);
}

}  // namespace

KeptCarry KeepCarry(CarryImage image, absl::Span<const float> device_rows, const CarryShape& shape, size_t channels) {
  KeptCarry carry;
  carry.state = std::move(image);
  CarryImage& state = carry.state;
  // Without a conv state the device keeps no rows.
  if (shape.state_len == 0) state.ring.valid = state.undo_valid = 0;
  const uint32_t ring_rows = shape.ring_rows(), valid = state.ring.valid;
  carry.ring_rows.reserve(valid * channels);
  for (uint32_t i = 0; i < valid; ++i) {
    const size_t row = (state.ring.cursor + ring_rows - valid + i) % ring_rows;
    const auto values = device_rows.subspan(row * channels, channels);
    carry.ring_rows.insert(carry.ring_rows.end(), values.begin(), values.end());
  }
  const auto undo = device_rows.last(state.undo_valid * channels);
  carry.undo_rows.assign(undo.begin(), undo.end());
  state.ring.cursor = ring_rows == 0 ? 0 : valid % ring_rows;
  return carry;
}

void PlaceRows(const KeptCarry& carry, const CarryShape& shape, size_t channels, absl::Span<float> device_rows) {
  std::fill(device_rows.begin(), device_rows.end(), 0.0f);
  std::copy(carry.ring_rows.begin(), carry.ring_rows.end(), device_rows.begin());
  const size_t undo = (size_t{shape.ring_rows()} + shape.state_len) * channels - carry.undo_rows.size();
  std::copy(carry.undo_rows.begin(), carry.undo_rows.end(), device_rows.begin() + static_cast<ptrdiff_t>(undo));
}

absl::Status CheckKept(const KeptCarry& carry, const CarryShape& shape, size_t channels, uint32_t vocab_size) {
  const CarryImage& state = carry.state;
  const uint64_t head = state.head.value(), low = state.low.value(), ids = state.history.size();
  const auto bad = [](const char* field, uint64_t value, const std::string& rule) {
    return absl::DataLossError(absl::StrCat(field, " ", value, ": ", rule));
  };
  if (state.head > kMaxPosition) return bad("head", head, "must be at most 2^62");
  if (state.position > state.head) return bad("position", state.position.value(), "must be at most the head");
  if (state.low > state.position) return bad("low", low, "must be at most the position");
  if (head - low > shape.rollback_tokens) return bad("low", low, "must be within rollback_tokens of the head");
  if (state.last_step_start > state.head) {
    return bad("last_step_start", state.last_step_start.value(), "must be at most the head");
  }
  if (!state.has_undo && state.last_step_start < state.low) {
    return bad("last_step_start", state.last_step_start.value(), "must be at least low where there are no undo rows");
  }
  if (ids < shape.context_len + (head - low) || ids > uint64_t{shape.context_len} + shape.rollback_tokens) {
    return bad("ids", ids, "must reach from before low to the head");
  }
  if (state.undo_history.size() != (state.has_undo ? shape.context_len : 0)) {
    return bad("undo ids", state.undo_history.size(), "must be as many as the hash looks back");
  }
  if (state.ring.valid > shape.ring_rows()) return bad("ring rows", state.ring.valid, "must fit the ring");
  if (state.undo_valid > shape.state_len) return bad("undo rows", state.undo_valid, "must be at most those of a state");
  if (carry.ring_rows.size() != state.ring.valid * channels || carry.undo_rows.size() != state.undo_valid * channels) {
    return bad("values", carry.ring_rows.size(), "must be whole rows");
  }
  for (const std::vector<uint32_t>* list : {&state.history, &state.undo_history}) {
    for (const uint32_t id : *list) {
      if (id >= vocab_size) return bad("token id", id, absl::StrCat("must be below vocab_size ", vocab_size));
    }
  }
  return absl::OkStatus();
}

void FitRollback(KeptCarry& carry, const CarryShape& shape, size_t channels) {
  CarryImage& state = carry.state;
  const uint64_t reach = shape.rollback_tokens;
  if (const uint64_t ahead = state.head.value() - state.position.value(); ahead > reach) {
    CutHead(carry, ahead, channels);
  }
  if (!state.has_undo && state.head.value() - state.last_step_start.value() > reach) SetAside(carry, shape, channels);
  if (state.head.value() > reach) state.low = std::max(state.low, Position(state.head.value() - reach));
  const uint64_t ids = std::min<uint64_t>(state.history.size(), shape.context_len + reach);
  state.history.erase(state.history.begin(), state.history.end() - static_cast<ptrdiff_t>(ids));
  state.ring.valid = std::min(state.ring.valid, shape.ring_rows());
  KeepNewest(carry.ring_rows, state.ring.valid, channels);
  state.ring.cursor = shape.ring_rows() == 0 ? 0 : state.ring.valid % shape.ring_rows();
}

}  // namespace pleiad
