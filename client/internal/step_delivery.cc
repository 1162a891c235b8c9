// How an answered step's output gets to its place.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/step_queue.h"

namespace pleiad::client::internal {
namespace {

// Brings the tensor of `result`, in `output` or in `output_pieces`, to its place.
absl::Status Place(const StepQueue::OutputPlace& place, StepResult* result) {
  if (result->output_pieces.pieces.empty() && place.bytes.empty() && !place.pieces) return absl::OkStatus();
  TensorPieces tensor = std::move(result->output_pieces);
  result->output_pieces = {};
  if (tensor.pieces.empty() && !result->output.empty()) {
    auto owner = std::make_shared<const std::string>(std::move(result->output));
    tensor.pieces = {absl::MakeConstSpan(reinterpret_cast<const std::byte*>(owner->data()), owner->size())};
    tensor.owner = std::move(owner);
  }
  result->output.clear();
  size_t size = 0;
  for (const auto& piece : tensor.pieces) size += piece.size();
  if (!place.bytes.empty()) {
    if (size != place.bytes.size()) {
      return absl::InternalError(
          absl::StrCat("an output of ", size, " bytes came, the step says ", place.bytes.size()));
    }
    std::byte* to = place.bytes.data();
    for (const auto& piece : tensor.pieces) to = std::copy(piece.begin(), piece.end(), to);
  } else if (place.pieces) {
    result->output_pieces = std::move(tensor);
  } else {
    result->output.reserve(size);
    for (const auto& piece : tensor.pieces) {
      result->output.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace

void StepQueue::Completion::Deliver() {
  if (result.ok()) {
    const absl::Status placed = Place(place, &*result);
    if (!placed.ok()) result = placed;
  }
  done(std::move(result));
  done = nullptr;
}

}  // namespace pleiad::client::internal
