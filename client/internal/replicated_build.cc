// Sequences built on a replica from what this side keeps of them.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/internal/replicated_core.h"

namespace pleiad::client::internal {
namespace {

constexpr uint64_t kReplayBytesAtOnce = 32 << 20;

// [tokens, channels] F32, whatever the tokens came as.
std::shared_ptr<std::string> Tensor(absl::Span<const LoggedToken* const> tokens, uint32_t channels) {
  auto tensor = std::make_shared<std::string>(tokens.size() * channels * 4, '\0');
  for (size_t t = 0; t < tokens.size(); ++t) {
    char* to = tensor->data() + t * channels * 4;
    const std::string& row = tokens[t]->row;
    if (tokens[t]->dtype == DType::kF32) {
      std::memcpy(to, row.data(), row.size());
      continue;
    }
    // BF16 is the upper half of F32.
    for (size_t i = 0; 2 * i < row.size(); ++i) std::memcpy(to + 4 * i + 2, row.data() + 2 * i, 2);
  }
  return tensor;
}

}  // namespace

absl::StatusOr<ReplicatedCore::SitePtr> ReplicatedCore::Reach(size_t replica) {
  auto site = std::make_shared<Site>();
  site->replica = replica;
  {
    MutexLock lock(&mutex_);
    site->number = next_site_++;
  }
  // Anew each time, also where it was used before: another model may be served there now.
  const ClientOptions options = options_.Of(options_.addresses[replica]);
  absl::StatusOr<Client> client = connector_(options);
  if (!client.ok()) return client.status();
  if (!model_.model_id.empty() && client->model().model_id != model_.model_id) {
    return absl::FailedPreconditionError(absl::StrCat(options.address, " serves model ", client->model().model_id,
                                                      ": the sequences are of ", model_.model_id));
  }
  site->client = std::make_shared<Client>(*std::move(client));
  const absl::StatusOr<HealthState> health = site->client->Health("pleiad.v1.Ple");
  if (absl::IsUnavailable(health.status()) || absl::IsDeadlineExceeded(health.status())) return health.status();
  if (health.ok() && *health == HealthState::kNotServing) {
    return absl::UnavailableError(absl::StrCat(options.address, " is not ready to serve"));
  }
  StreamOptions stream;
  stream.reconnect_timeout = on() ? options_.reconnect_timeout : StreamOptions().reconnect_timeout;
  absl::StatusOr<std::unique_ptr<StepStream>> opened = site->client->OpenStream(stream);
  if (!opened.ok()) return opened.status();
  site->stream = *std::move(opened);
  return site;
}

// Sequences on their way to a site; whatever is not committed is released.
class ReplicatedCore::Rebuild {
 public:
  Rebuild(const ReplicatedOptions& options, const ModelInfo& model, Site* site)
      : options_(options), model_(model), site_(site) {}

  struct Start {
    uint32_t layer = 0;
    std::optional<uint64_t> position = {};  // that the first step to come names
    bool needs_start = false;
  };

  absl::Status Add(const RecordPtr& record, std::vector<Start> starts) {
    OpenOptions open = record->options;
    open.model_id = model_.model_id;
    std::vector<ReplayLog::Plan> plans;
    for (Start& start : starts) {
      std::optional<ReplayLog::Plan> plan = record->carries.at(start.layer).log.MakePlan(start.position);
      if (!plan.has_value()) {
        // Not known: a fresh one, which takes no step but one that starts over.
        plan = ReplayLog(LogShape(model_, 0)).MakePlan();
        start.needs_start = true;
        ++dropped_;
      }
      plan->blob.layer_index = start.layer;
      open.layers.push_back(plan->blob);
      plans.push_back(*std::move(plan));
    }
    absl::StatusOr<Sequence> opened = site_->client->OpenSequence(open);
    if (!opened.ok()) return opened.status();
    built_.push_back({record, std::make_shared<Sequence>(*std::move(opened))});
    Sequence* const sequence = built_.back().handle.get();
    if (!sequence->fresh()) {
      if (absl::Status s = sequence->Restore({model_.model_id, open.layers}); !s.ok()) return s;
    }
    for (size_t i = 0; i < starts.size(); ++i) {
      if (absl::Status s = Replay(*sequence, starts[i], plans[i]); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // Until every replay has been answered.
  absl::Status Finish() {
    absl::Status status;
    for (auto& answer : answers_) {
      if (answer.wait_for(absl::ToChronoNanoseconds(options_.rpc_timeout)) != std::future_status::ready) {
        return absl::UnavailableError("a replayed step is not answered");
      }
      const absl::StatusOr<StepResult> result = answer.get();
      if (!result.ok() && status.ok()) status = result.status();
    }
    answers_.clear();
    bytes_ = 0;
    return status;
  }

  std::vector<Built>& built() { return built_; }
  uint64_t replayed_tokens() const { return replayed_tokens_; }
  uint64_t dropped() const { return dropped_; }

 private:
  absl::Status Replay(const Sequence& sequence, const Start& start, const ReplayLog::Plan& plan) {
    uint64_t from = plan.start;
    for (const uint64_t cut : plan.cuts) {
      while (from < cut) {
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(cut - from, model_.max_tokens));
        const auto tokens = absl::MakeConstSpan(plan.tokens).subspan(from - plan.start, count);
        Step step;
        step.layer_index = start.layer;
        step.segments.push_back({&sequence, count, /*fresh=*/false, from});
        for (const LoggedToken* token : tokens) step.token_ids.push_back(token->id);
        const std::shared_ptr<std::string> tensor = Tensor(tokens, model_.channels);
        step.highway.data = {reinterpret_cast<const std::byte*>(tensor->data()), tensor->size()};
        step.highway.owner = tensor;
        step.output_kind = OutputKind::kDelta;
        step.output_dtype = DType::kBf16;
        step.output_pieces = true;
        auto answer = std::make_shared<std::promise<absl::StatusOr<StepResult>>>();
        answers_.push_back(answer->get_future());
        // A server that hangs would keep this thread.
        site_->stream->SubmitLater(
            std::move(step), [answer](absl::StatusOr<StepResult> result) { answer->set_value(std::move(result)); });
        from += count;
        replayed_tokens_ += count;
        bytes_ += tensor->size();
        if (bytes_ <= kReplayBytesAtOnce) continue;
        if (absl::Status s = Finish(); !s.ok()) return s;
      }
    }
    if (!start.needs_start) return absl::OkStatus();
    // Refused on this side: steps to come must say where they start, as behind the one that had failed.
    static std::byte nothing[1];
    Step refused;
    refused.layer_index = start.layer;
    refused.segments.push_back({&sequence, 0, /*fresh=*/false, from});
    refused.output = absl::MakeSpan(nothing);
    (void)site_->stream->Submit(std::move(refused));
    return absl::OkStatus();
  }

  const ReplicatedOptions& options_;
  const ModelInfo& model_;
  Site* const site_;
  std::vector<Built> built_;
  std::vector<std::future<absl::StatusOr<StepResult>>> answers_;
  uint64_t bytes_ = 0;  // of tensors of unanswered replays
  uint64_t replayed_tokens_ = 0;
  uint64_t dropped_ = 0;
};

absl::Status ReplicatedCore::BuildAll(const SitePtr& site) {
  Rebuild rebuild(options_, model_, site.get());
  std::vector<std::pair<RecordPtr, std::vector<Rebuild::Start>>> work;
  {
    MutexLock lock(&mutex_);
    for (const RecordPtr& record : records_) {
      if (record->site == site->number && !record->gone) continue;
      std::vector<Rebuild::Start> starts;
      for (const auto& [layer, carry] : record->carries) starts.push_back({layer, std::nullopt, carry.needs_start});
      for (Rebuild::Start& start : starts) {
        bool found = false;
        for (const Pending& pending : pending_) {
          for (size_t i = 0; i < pending.records.size() && !found; ++i) {
            if (pending.records[i] != record || pending.layer != start.layer || pending.carry(i) == nullptr) continue;
            start.position = pending.step.segments[i].position;
            found = true;
          }
          if (found) break;
        }
      }
      work.emplace_back(record, std::move(starts));
    }
  }
  absl::Status status;
  for (const auto& [record, starts] : work) {
    status = rebuild.Add(record, starts);
    if (!status.ok()) break;
  }
  if (status.ok()) status = rebuild.Finish();
  MutexLock lock(&mutex_);
  for (Built& built : rebuild.built()) {
    ReplicatedRecord& record = *built.record;
    if (!status.ok() || record.released) {
      Discard(std::move(built.handle));
      continue;
    }
    // A live client key gives the same sequence back: then the old handle must not release it.
    if (record.handle != nullptr && record.replica == site->replica && record.id == built.handle->id()) {
      (void)std::move(*record.handle).Detach();
    }
    Discard(std::exchange(record.handle, std::move(built.handle)));
    record.id = record.handle->id();
    if (record.gone && record.site == site->number) ++counters_.mended;
    ++counters_.rebuilt;
    record.site = site->number;
    record.replica = site->replica;
    record.gone = false;
  }
  if (status.ok()) {
    counters_.replayed_tokens += rebuild.replayed_tokens();
    counters_.dropped += rebuild.dropped();
  }
  return status;
}

}  // namespace pleiad::client::internal
