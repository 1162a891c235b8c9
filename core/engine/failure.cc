#include "core/engine/failure.h"

#include <utility>

namespace pleiad {

ErrorDetail MakeDetail(Reason reason, std::string field, std::string value, std::string limit,
                       std::optional<uint32_t> segment) {
  ErrorDetail detail;
  detail.reason = reason;
  detail.segment = segment;
  detail.field = std::move(field);
  detail.value = std::move(value);
  detail.limit = std::move(limit);
  return detail;
}

ErrorDetail UnknownSequence(std::optional<uint32_t> segment) {
  return MakeDetail(Reason::kSequenceUnknown, "sequence_id", "", "unknown, released or expired; open again and restore",
                    segment);
}

ErrorDetail EpochBelow(uint64_t epoch, uint64_t current, std::optional<uint32_t> segment) {
  return MakeDetail(Reason::kEpochOld, "epoch", std::to_string(epoch),
                    "the sequence is at epoch " + std::to_string(current), segment);
}

Outcome Failed(absl::StatusCode code, std::string message, ErrorDetail detail) {
  Outcome outcome;
  outcome.code = code;
  outcome.message = std::move(message);
  outcome.details.push_back(std::move(detail));
  return outcome;
}

absl::StatusCode CodeOf(Reason reason) {
  switch (reason) {
    case Reason::kSequenceUnknown:
      return absl::StatusCode::kNotFound;
    case Reason::kPositionUnreachable:
    case Reason::kPredecessorFailed:
    case Reason::kLayersApart:
      return absl::StatusCode::kFailedPrecondition;
    case Reason::kEpochOld:
      return absl::StatusCode::kAborted;
    case Reason::kCarriesFull:
    case Reason::kTooManyInFlight:
      return absl::StatusCode::kResourceExhausted;
    case Reason::kLoading:
    case Reason::kDraining:
      return absl::StatusCode::kUnavailable;
    case Reason::kTableUnreadable:
      return absl::StatusCode::kDataLoss;
    case Reason::kUnspecified:
      return absl::StatusCode::kInternal;
    case Reason::kInvalidField:
    case Reason::kTokenOutOfVocabulary:
    case Reason::kSizeMismatch:
    case Reason::kTooManyTokens:
    case Reason::kLayerUnknown:
    case Reason::kDuplicateSequence:
    case Reason::kAuxMalformed:
    case Reason::kModelMismatch:
    case Reason::kNotSupported:
      return absl::StatusCode::kInvalidArgument;
  }
  return absl::StatusCode::kInternal;
}

std::string Describe(const ErrorDetail& detail) {
  std::string text;
  if (detail.segment) text += "segment " + std::to_string(*detail.segment) + ": ";
  text += detail.field;
  if (!detail.value.empty()) text += " " + detail.value;
  if (!detail.limit.empty()) text += ": " + detail.limit;
  return text;
}

Outcome Refused(std::vector<ErrorDetail> details) {
  Outcome outcome;
  if (details.empty()) return outcome;
  outcome.code = CodeOf(details.front().reason);
  outcome.message = Describe(details.front());
  if (details.size() > 1) outcome.message += " (and " + std::to_string(details.size() - 1) + " more)";
  outcome.details = std::move(details);
  return outcome;
}

}  // namespace pleiad
