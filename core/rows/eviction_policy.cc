#include "core/rows/eviction_policy.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/rows/clock_policy.h"
#include "core/rows/s3fifo_policy.h"
#include "core/rows/sieve_policy.h"

namespace pleiad {

std::unique_ptr<EvictionPolicy> CreatePolicy(PolicyKind kind, uint32_t slots) {
  switch (kind) {
    case PolicyKind::kClock:
      return std::make_unique<ClockPolicy>(slots);
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoPolicy>(slots);
    case PolicyKind::kSieve:
      return std::make_unique<SievePolicy>(slots);
  }
  return nullptr;
}

const char* Name(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kClock:
      return "clock";
    case PolicyKind::kS3Fifo:
      return "s3fifo";
    case PolicyKind::kSieve:
      return "sieve";
  }
  return "?";
}

absl::StatusOr<PolicyKind> ParsePolicy(absl::string_view name) {
  for (PolicyKind kind : kPolicyKinds) {
    if (name == Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("eviction policy is \"", name, "\": must be clock, s3fifo or sieve"));
}

}  // namespace pleiad
