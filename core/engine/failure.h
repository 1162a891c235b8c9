// Why a request was refused or failed, in terms a caller can act on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/strong_id.h"

namespace pleiad {

// The wire's Reason, same numbers.
enum class Reason : uint8_t {
  kUnspecified = 0,
  kInvalidField = 1,
  kSequenceUnknown = 2,
  kPositionUnreachable = 3,
  kEpochOld = 4,
  kPredecessorFailed = 5,
  kTokenOutOfVocabulary = 6,
  kSizeMismatch = 7,
  kTooManyTokens = 8,
  kLayerUnknown = 9,
  kDuplicateSequence = 10,
  kCarriesFull = 11,
  kTooManyInFlight = 12,
  kLoading = 13,
  kDraining = 14,
  kTableUnreadable = 15,
  kAuxMalformed = 16,
  kModelMismatch = 17,
  kLayersApart = 18,
  kNotSupported = 19,
};

struct ErrorDetail {
  Reason reason = Reason::kUnspecified;
  std::optional<uint32_t> segment;
  std::string field;
  std::string value;
  std::string limit;
  std::optional<Position> position;
  std::optional<Position> low;
};

// OK, or a code with one detail per bad segment (the code is the first one's).
struct Outcome {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  std::vector<ErrorDetail> details;

  bool ok() const { return code == absl::StatusCode::kOk; }
};

// A detail with its texts; `field value: limit` reads as one sentence.
ErrorDetail MakeDetail(Reason reason, std::string field = "", std::string value = "", std::string limit = "",
                       std::optional<uint32_t> segment = std::nullopt);

// The sequence was never opened, or was released, or expired.
ErrorDetail UnknownSequence(std::optional<uint32_t> segment = std::nullopt);
// A request of an old connection.
ErrorDetail EpochBelow(uint64_t epoch, uint64_t current, std::optional<uint32_t> segment = std::nullopt);

// An Outcome with one detail.
Outcome Failed(absl::StatusCode code, std::string message, ErrorDetail detail);

// The code that tells a caller what to do next about `reason`.
absl::StatusCode CodeOf(Reason reason);

// "segment 3: field value: rule".
std::string Describe(const ErrorDetail& detail);

// A refusal with the code of the first detail; OK when there is none.
Outcome Refused(std::vector<ErrorDetail> details);

}  // namespace pleiad
