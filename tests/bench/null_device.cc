#include "tests/bench/null_device.h"

#include <algorithm>
#include <cstring>

#include "client/cli/marks.h"
#include "core/base/status_macros.h"

namespace pleiad::bench {
namespace {

void CopyMarks(const TensorPart& part, uint64_t channels) {
  const uint64_t bytes = part.num_tokens * channels * ByteSize(part.output_dtype);
  const TensorPiece whole{part.input, 0, bytes};
  auto pieces = part.input != nullptr ? absl::MakeConstSpan(&whole, 1) : part.input_pieces;
  if (part.input_dtype != part.output_dtype) pieces = {};
  if (pieces.empty()) {
    for (uint64_t at = 0; at < bytes; at += cli::kBlock) {
      std::memset(part.output + at, 0, std::min<uint64_t>(cli::kMark, bytes - at));
    }
  }
  for (const TensorPiece& piece : pieces) {
    const uint64_t end = piece.offset + piece.bytes;
    for (uint64_t block = piece.offset / cli::kBlock * cli::kBlock; block < end; block += cli::kBlock) {
      const uint64_t from = std::max(block, piece.offset), to = std::min(block + cli::kMark, end);
      if (from < to) std::memcpy(part.output + from, piece.data + (from - piece.offset), to - from);
    }
  }
}

}  // namespace

NullDevice::NullDevice(std::unique_ptr<Device> inner, const Geometry& geometry)
    : inner_(std::move(inner)), channels_(geometry.channels()), info_(inner_->info()) {
  info_.name = "null";
  info_.detail = "no stage";
  info_.run_cost = RunCost::kEnqueueing;
}

absl::StatusOr<Ticket> NullDevice::Finish(absl::StatusOr<Ticket> inner) {
  PLEIAD_RETURN_IF_ERROR(inner.status());
  PLEIAD_RETURN_IF_ERROR(inner_->Wait(*inner));
  return Ticket(++last_ticket_);
}

absl::StatusOr<Ticket> NullDevice::Run(const BatchPlan& plan) {
  if (plan.embeddings != nullptr) return Finish(inner_->Run(plan));
  for (const TensorPart& part : plan.parts) CopyMarks(part, channels_);
  return Ticket(++last_ticket_);
}

}  // namespace pleiad::bench
