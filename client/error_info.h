// Why the service refused or failed a request, in terms a program can act on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace pleiad::client {

// The service's reasons, same numbers. An unknown number reads as kUnspecified.
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
  std::optional<uint32_t> segment = {};  // index into the step's segments
  std::string field = {};
  std::string value = {};
  std::string limit = {};
  std::optional<uint64_t> position = {};
  std::optional<uint64_t> low = {};
};

// Details of a status returned by this library: one per bad segment, the first one decides the code. Empty for an OK
// status and for failures that are not the service's own (a broken connection, a deadline of this side).
std::vector<ErrorDetail> ErrorDetails(const absl::Status& status);

// The reason of the first detail; kUnspecified without one.
Reason ErrorReason(const absl::Status& status);

// `status` with one detail attached, as the service would send it.
absl::Status WithDetail(absl::Status status, const ErrorDetail& detail);

// "POSITION_UNREACHABLE" and so on.
std::string ReasonName(Reason reason);

}  // namespace pleiad::client
