#include "client/error_info.h"

#include "absl/strings/cord.h"
#include "client/internal/convert.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad::client {

std::vector<ErrorDetail> ErrorDetails(const absl::Status& status) {
  std::vector<ErrorDetail> details;
  const absl::optional<absl::Cord> payload = status.GetPayload(internal::kStatusTypeUrl);
  v1::Status wire;
  if (!payload.has_value() || !wire.ParseFromString(std::string(*payload))) return details;
  for (const v1::ErrorDetail& from : wire.details()) {
    ErrorDetail& to = details.emplace_back();
    if (from.reason() > 0 && from.reason() <= static_cast<int>(Reason::kNotSupported)) {
      to.reason = static_cast<Reason>(from.reason());
    }
    if (from.has_segment()) to.segment = from.segment();
    to.field = from.field();
    to.value = from.value();
    to.limit = from.limit();
    if (from.has_position()) to.position = from.position();
    if (from.has_low()) to.low = from.low();
  }
  return details;
}

Reason ErrorReason(const absl::Status& status) {
  const std::vector<ErrorDetail> details = ErrorDetails(status);
  return details.empty() ? Reason::kUnspecified : details.front().reason;
}

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  v1::Status wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(std::string(status.message()));
  v1::ErrorDetail* to = wire.add_details();
  to->set_reason(static_cast<v1::Reason>(detail.reason));
  if (detail.segment.has_value()) to->set_segment(*detail.segment);
  to->set_field(detail.field);
  to->set_value(detail.value);
  to->set_limit(detail.limit);
  if (detail.position.has_value()) to->set_position(*detail.position);
  if (detail.low.has_value()) to->set_low(*detail.low);
  status.SetPayload(internal::kStatusTypeUrl, absl::Cord(wire.SerializeAsString()));
  return status;
}

std::string ReasonName(Reason reason) {
  const std::string name = v1::Reason_Name(static_cast<v1::Reason>(reason));
  constexpr std::string_view kPrefix = "REASON_";
  return name.substr(0, kPrefix.size()) == kPrefix ? name.substr(kPrefix.size()) : name;
}

}  // namespace pleiad::client
