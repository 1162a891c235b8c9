#include "server/failure_log.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/log.h"

namespace pleiad {
namespace {

bool IsServers(const Outcome& outcome) {
  switch (outcome.code) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return !outcome.details.empty() && outcome.details.front().reason == Reason::kTableUnreadable;
  }
}

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == absl::string_view::npos; }

std::string Reasons(const Outcome& outcome) {
  if (outcome.details.empty()) return "";
  const ErrorDetail& detail = outcome.details.front();
  absl::string_view name = v1::Reason_Name(static_cast<v1::Reason>(detail.reason));
  name.remove_prefix(std::min(name.size(), sizeof("REASON_") - 1));
  std::string text = absl::StrCat(", ", name);
  if (!detail.field.empty()) absl::StrAppend(&text, " ", detail.field);
  // File and offset; other values are the caller's.
  if (detail.reason == Reason::kTableUnreadable) absl::StrAppend(&text, " ", detail.value);
  return text;
}

}  // namespace

bool IsTraceParent(absl::string_view text) {
  constexpr size_t kLength = 55;  // VV-TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT-SSSSSSSSSSSSSSSS-FF
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  const absl::string_view version = text.substr(0, 2), trace = text.substr(3, 32), span = text.substr(36, 16);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(span) || !IsHex(text.substr(53, 2))) return false;
  if (version == "ff" || IsZero(trace) || IsZero(span)) return false;
  // Later versions may have more.
  return text.size() == kLength || (version != "00" && text[kLength] == '-');
}

std::string TraceParent(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("traceparent");
  if (found == metadata.end()) return "";
  const absl::string_view text(found->second.data(), found->second.size());
  // What a later version has more is not known, and not said.
  return IsTraceParent(text) ? std::string(text.substr(0, 55)) : "";
}

uint64_t FailedSequence(const Outcome& outcome, const v1::ForwardRequest& request) {
  uint32_t segment = 0;
  if (!outcome.details.empty()) segment = outcome.details.front().segment.value_or(0);
  if (segment >= static_cast<uint32_t>(request.segments_size())) return 0;
  return request.segments(static_cast<int>(segment)).sequence_id();
}

void FailureLog::Named(uint64_t sequence, const std::string& label) {
  if (label.empty()) return;
  MutexLock lock(&mutex_);
  if (!labels_.insert_or_assign(sequence, label).second) return;
  oldest_.push_back(sequence);
  while (oldest_.size() > labels_limit_) {
    labels_.erase(oldest_.front());
    oldest_.pop_front();
  }
}

void FailureLog::Released(uint64_t sequence) {
  MutexLock lock(&mutex_);
  labels_.erase(sequence);
}

bool FailureLog::MayWarn() {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mutex_);
  if (now - second_ >= absl::Seconds(1)) {
    if (warned_ > kWarnings) spdlog::warn("{} more requests failed and are not named here", warned_ - kWarnings);
    second_ = now;
    warned_ = 0;
  }
  return ++warned_ <= kWarnings;
}

void FailureLog::Failed(const char* what, const Outcome& outcome, const grpc::CallbackServerContext& context,
                        uint64_t sequence) {
  const bool servers = IsServers(outcome);
  const auto level = servers ? spdlog::level::warn : spdlog::level::debug;
  if (!spdlog::should_log(level) || (servers && !MayWarn())) return;
  std::string label;
  {
    MutexLock lock(&mutex_);
    const auto found = labels_.find(sequence);
    if (found != labels_.end()) label = absl::StrCat(", label \"", absl::Utf8SafeCEscape(found->second), "\"");
  }
  std::string trace = TraceParent(context);
  if (!trace.empty()) trace.insert(0, ", traceparent ");
  spdlog::log(level, "{} failed: {}{}{}{}", what, absl::StatusCodeToString(outcome.code), Reasons(outcome), label,
              trace);
}

}  // namespace pleiad
