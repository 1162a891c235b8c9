#include "client/replicated_client.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/connection.h"
#include "client/error_info.h"
#include "client/internal/replicated_core.h"

namespace pleiad::client {
namespace {

absl::Status Bad(const char* name, const std::string& value, const char* rule) {
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, ": ", rule));
}

absl::Status Bad(const char* name, absl::Duration value, const char* rule) {
  return Bad(name, absl::FormatDuration(value), rule);
}

absl::StatusOr<SequenceSnapshot> NoClient() { return absl::CancelledError("the client was closed"); }

}  // namespace

ClientOptions ReplicatedOptions::Of(const std::string& address) const {
  ClientOptions options;
  options.address = address;
  options.connect_timeout = connect_timeout;
  options.rpc_timeout = rpc_timeout;
  options.affinity_key = affinity_key;
  options.tls = tls;
  options.token_file = token_file;
  return options;
}

absl::Status ReplicatedOptions::Validate() const {
  if (addresses.empty()) return absl::InvalidArgumentError("addresses: must name a replica");
  std::set<std::string> seen;
  for (const std::string& address : addresses) {
    if (absl::Status s = Of(address).Validate(); !s.ok()) return s;
    if (!seen.insert(address).second) return Bad("addresses", address, "must be named once");
  }
  const std::pair<const char*, absl::Duration> positive[] = {
      {"connect_timeout", connect_timeout}, {"rpc_timeout", rpc_timeout},         {"stall_timeout", stall_timeout},
      {"give_up_after", give_up_after},     {"initial_backoff", initial_backoff},
  };
  for (const auto& [name, value] : positive) {
    if (value <= absl::ZeroDuration()) return Bad(name, value, "must be positive");
  }
  if (reconnect_timeout < absl::ZeroDuration())
    return Bad("reconnect_timeout", reconnect_timeout, "must not be negative");
  if (move_back_interval != absl::ZeroDuration() && move_back_interval < absl::Milliseconds(1)) {
    return Bad("move_back_interval", move_back_interval, "must be 0 or at least 1 ms");
  }
  if (max_backoff < initial_backoff) return Bad("max_backoff", max_backoff, "must not be below initial_backoff");
  if (!(retry_budget >= 1)) return Bad("retry_budget", absl::StrCat(retry_budget), "must be 1 or more");
  if (!(retries_per_second > 0)) {
    return Bad("retries_per_second", absl::StrCat(retries_per_second), "must be positive");
  }
  return absl::OkStatus();
}

ReplicatedSequence::ReplicatedSequence(ReplicatedSequence&&) noexcept = default;

ReplicatedSequence& ReplicatedSequence::operator=(ReplicatedSequence&& other) noexcept {
  if (this == &other) return *this;
  const ReplicatedSequence ended(std::move(*this));
  core_ = std::move(other.core_);
  record_ = std::move(other.record_);
  return *this;
}

ReplicatedSequence::~ReplicatedSequence() {
  if (record_ != nullptr) core_->ReleaseLater(record_);
}

bool ReplicatedSequence::fresh() const { return record_ != nullptr && record_->fresh; }

uint64_t ReplicatedSequence::position(uint32_t layer_index) const {
  return record_ == nullptr ? 0 : core_->position(*record_, layer_index);
}

absl::StatusOr<SequenceSnapshot> ReplicatedSequence::Snapshot(std::optional<uint32_t> layer_index) {
  return record_ == nullptr ? NoClient() : core_->Snapshot(record_, layer_index);
}

absl::Status ReplicatedSequence::Restore(const SequenceSnapshot& snapshot) {
  return record_ == nullptr ? NoClient().status() : core_->Restore(record_, snapshot);
}

absl::StatusOr<bool> ReplicatedSequence::Release() {
  return record_ == nullptr ? absl::StatusOr<bool>(NoClient().status()) : core_->Release(record_);
}

absl::StatusOr<Client> ReplicatedClient::ConnectIfReady(const ClientOptions& options) {
  ClientOptions probe = options;
  probe.rpc_timeout = options.connect_timeout;
  const absl::StatusOr<HealthState> health = CheckHealth(probe, "pleiad.v1.Ple");
  if (absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status())) return health.status();
  if (health.ok() && *health == HealthState::kNotServing) {
    return absl::UnavailableError(absl::StrCat(options.address, " is not ready to serve"));
  }
  return Client::Connect(options);
}

absl::StatusOr<std::unique_ptr<ReplicatedClient>> ReplicatedClient::Connect(const ReplicatedOptions& options,
                                                                            Connector connector,
                                                                            internal::Clock* clock) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  auto core = std::make_shared<internal::ReplicatedCore>(options, std::move(connector),
                                                         clock != nullptr ? clock : internal::Clock::Real());
  if (absl::Status s = core->Start(); !s.ok()) return s;
  return std::unique_ptr<ReplicatedClient>(new ReplicatedClient(std::move(core)));
}

ReplicatedClient::~ReplicatedClient() { core_->Stop(); }

const ModelInfo& ReplicatedClient::model() const { return core_->model(); }
size_t ReplicatedClient::replica() const { return core_->replica(); }
ReplicatedCounters ReplicatedClient::counters() const { return core_->counters(); }

absl::StatusOr<ReplicatedSequence> ReplicatedClient::OpenSequence(const OpenOptions& options) {
  absl::StatusOr<std::shared_ptr<internal::ReplicatedRecord>> record = core_->Open(options);
  if (!record.ok()) return record.status();
  return ReplicatedSequence(core_, *std::move(record));
}

void ReplicatedClient::Submit(Step step, const std::vector<const ReplicatedSequence*>& sequences, StepCallback done) {
  std::vector<std::shared_ptr<internal::ReplicatedRecord>> records;
  absl::Status refused;
  for (const ReplicatedSequence* sequence : sequences) {
    records.push_back(sequence == nullptr ? nullptr : sequence->record_);
    if (sequence != nullptr && sequence->record_ == nullptr) {
      refused = absl::FailedPreconditionError("sequences: one was moved from");
    }
  }
  if (sequences.size() != step.segments.size()) {
    refused = absl::InvalidArgumentError(
        absl::StrCat("sequences: ", sequences.size(), " for ", step.segments.size(), " segments, must be as many"));
  }
  for (const StepSegment& segment : step.segments) {
    if (segment.sequence != nullptr) {
      refused = absl::InvalidArgumentError("segments.sequence: must be null, `sequences` names them");
    }
  }
  if (step.highway.region.has_value() || step.output_region.has_value() || step.token_region.has_value()) {
    refused = WithDetail(
        absl::InvalidArgumentError("highway.region, output_region, token_region: another server cannot read them"),
        {.reason = Reason::kNotSupported, .field = step.token_region.has_value() ? "token_region" : "highway.region"});
  }
  if (!refused.ok()) return done(refused);
  core_->Submit(std::move(step), std::move(records), std::move(done));
}

std::future<absl::StatusOr<StepResult>> ReplicatedClient::Submit(
    Step step, const std::vector<const ReplicatedSequence*>& sequences) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<StepResult>>>();
  std::future<absl::StatusOr<StepResult>> future = promise->get_future();
  Submit(std::move(step), sequences,
         [promise](absl::StatusOr<StepResult> result) { promise->set_value(std::move(result)); });
  return future;
}

absl::StatusOr<StepResult> ReplicatedClient::Run(Step step, const std::vector<const ReplicatedSequence*>& sequences) {
  return Submit(std::move(step), sequences).get();
}

void ReplicatedClient::Drain() { core_->Drain(); }

}  // namespace pleiad::client
