#include "tests/soak/tally.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace pleiad::testing {
namespace {

constexpr size_t kExamples = 10;

// gRPC's name in the metrics -> code.
const std::map<std::string, absl::StatusCode>& CallersOwn() {
  static const auto* codes = new std::map<std::string, absl::StatusCode>{
      {"CANCELLED", absl::StatusCode::kCancelled},
      {"DEADLINE_EXCEEDED", absl::StatusCode::kDeadlineExceeded},
      {"INVALID_ARGUMENT", absl::StatusCode::kInvalidArgument},
      {"NOT_FOUND", absl::StatusCode::kNotFound},
      {"FAILED_PRECONDITION", absl::StatusCode::kFailedPrecondition},
      {"ABORTED", absl::StatusCode::kAborted},
      {"RESOURCE_EXHAUSTED", absl::StatusCode::kResourceExhausted},
  };
  return *codes;
}

}  // namespace

void Tally::Wrong(const std::string& what) {
  ++wrong;
  if (examples.size() < kExamples) examples.push_back(what);
}

Tally& Tally::operator+=(const Tally& other) {
  for (uint64_t Tally::*count :
       {&Tally::steps, &Tally::tokens, &Tally::batches, &Tally::cancels, &Tally::deadlines, &Tally::rewinds,
        &Tally::snapshots, &Tally::restores, &Tally::prestages, &Tally::lookups, &Tally::connections, &Tally::opened,
        &Tally::abandoned, &Tally::expired, &Tally::compared_outputs, &Tally::compared_bytes, &Tally::compared_blobs,
        &Tally::streams_closed, &Tally::wrong}) {
    this->*count += other.*count;
  }
  for (const auto& [code, count] : other.refused) refused[code] += count;
  for (const std::string& example : other.examples) {
    if (examples.size() < kExamples) examples.push_back(example);
  }
  return *this;
}

std::ostream& operator<<(std::ostream& out, const Tally& t) {
  out << absl::StrFormat(
      "steps %d, tokens %d, batches %d, cancels %d, deadlines %d, rewinds %d, snapshots %d, restores %d, prestages %d, "
      "lookups %d\nconnections %d, streams closed %d, sequences opened %d, abandoned %d, expired in use %d\n"
      "compared: %d outputs (%d bytes), %d blobs; wrong: %d",
      t.steps, t.tokens, t.batches, t.cancels, t.deadlines, t.rewinds, t.snapshots, t.restores, t.prestages, t.lookups,
      t.connections, t.streams_closed, t.opened, t.abandoned, t.expired, t.compared_outputs, t.compared_bytes,
      t.compared_blobs, t.wrong);
  for (const auto& [code, count] : t.refused) out << "\nrefused " << absl::StatusCodeToString(code) << ": " << count;
  for (const std::string& example : t.examples) out << "\nwrong: " << example;
  return out;
}

std::vector<std::string> UnexplainedFailures(const std::string& page, const Tally& tally) {
  std::vector<std::string> unexplained;
  for (const char* metric : {"pleiad_forward_items_total{", "pleiad_rpc_requests_total{"}) {
    std::map<std::string, uint64_t> failures;
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      if (!absl::StartsWith(line, metric)) continue;
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits("code=\"", 1));
      if (parts.size() != 2) continue;
      const std::string code = parts[1].substr(0, parts[1].find('"'));
      const double count = std::strtod(parts[1].c_str() + parts[1].rfind(' ') + 1, nullptr);
      if (code != "OK") failures[code] += static_cast<uint64_t>(count);
    }
    for (const auto& [code, count] : failures) {
      const auto own = CallersOwn().find(code);
      uint64_t seen = 0;
      if (own != CallersOwn().end()) {
        const auto refused = tally.refused.find(own->second);
        seen = tally.cancels + tally.streams_closed + (refused == tally.refused.end() ? 0 : refused->second);
      }
      if (count > seen)
        unexplained.push_back(absl::StrCat(metric, "code=\"", code, "\"}: ", count, ", explained ", seen));
    }
  }
  return unexplained;
}

}  // namespace pleiad::testing
