// Rows: hashing, resolving, and what happens when the row store has answered. Runs without the lock; an operation in
// kResolving belongs to the thread that resolves it.
#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"
#include "core/engine/request_rules.h"

namespace pleiad {
namespace {

// `segment_of` maps a failed id to a segment of the request.
template <typename SegmentOf>
Outcome Unreadable(const ResolveResult& answer, SegmentOf segment_of) {
  Outcome outcome;
  outcome.code = answer.status.code();
  outcome.message = std::string(answer.status.message());
  std::map<uint32_t, const RowFailure*> first;  // of each segment
  for (const RowFailure& failure : answer.failures) {
    const RowFailure*& known = first[segment_of(failure.id_index)];
    if (known == nullptr || failure.id_index < known->id_index) known = &failure;
  }
  for (const auto& [segment, found] : first) {
    const RowFailure& failure = *found;
    ErrorDetail detail;
    detail.reason = Reason::kTableUnreadable;
    detail.segment = segment;
    detail.field = "file";
    detail.value = absl::StrCat(failure.file, " at byte ", failure.offset);
    detail.limit = "unreadable";
    outcome.details.push_back(std::move(detail));
  }
  return outcome;
}

}  // namespace

void EngineImpl::Resolve(const OpPtr& op) {
  switch (op->kind) {
    case OpKind::kLookup:
      ResolveLookup(std::static_pointer_cast<LookupOp>(op));
      return;
    case OpKind::kPrestage:
      ResolvePrestage(std::static_pointer_cast<StepOp>(op));
      return;
    default:
      ResolveStep(std::static_pointer_cast<StepOp>(op));
  }
}

void EngineImpl::ResolveStep(const std::shared_ptr<StepOp>& op) {
  const NgramHasher& hasher = model_.hashers[op->layer.value()];
  const auto tokens = absl::MakeConstSpan(op->request.token_ids);
  size_t count = 0;
  for (size_t i = 0; i < op->segments.size(); ++i) {
    if (!op->segments[i].prestaged) count += size_t{op->request.segments[i].num_tokens} * heads_;
  }
  // What is prestaged alone is short, and found.
  if (count > 0 && FoundByDevice(tokens.size()) && rows_->ResolveInPlace(op->layer, count)) {
    op->hashed = true;
    op->result.stats.rows.hits += count;
    count = 0;
  }
  std::vector<RowId> ids(count);
  size_t first = 0;
  for (size_t i = 0; !op->hashed && i < op->segments.size(); ++i) {
    SegmentWork& work = op->segments[i];
    const size_t rows = size_t{op->request.segments[i].num_tokens} * heads_;
    if (work.prestaged || rows == 0) continue;
    work.first_row = first;
    hasher.Hash(work.start.history, tokens.subspan(work.first_token, op->request.segments[i].num_tokens),
                absl::MakeSpan(ids).subspan(first, rows));
    first += rows;
  }
  const uint64_t output_bytes =
      uint64_t{tokens.size()} * model_.config.geometry.channels() * ByteSize(OutputDType(op->request));
  op->output_bytes = output_bytes;
  if (output_bytes > 0) op->output = op->request.output.allocate(output_bytes);
  {
    MutexLock lock(&mutex_);
    op->plans_pending = 1 + (ids.empty() ? 0 : 1);
  }
  if (!ids.empty()) {
    op->plans.push_back(rows_->Resolve(op->layer, std::move(ids), ResolvePurpose::kStep,
                                       [this, op](ResolveResult answer) { PlanAnswered(op, std::move(answer), 0); }));
  }
  // Mostly it is, and then costs no change of threads.
  if (const absl::StatusOr<bool> ready = AskReady(*op); ready.ok()) op->client_ready = *ready;
  PlanAnswered<StepOp>(op, std::nullopt, 0);
}

void EngineImpl::ResolvePrestage(const std::shared_ptr<StepOp>& op) {
  const NgramHasher& hasher = model_.hashers[op->layer.value()];
  const auto tokens = absl::MakeConstSpan(op->request.token_ids);
  // A segment whose first row is 0 begins a plan.
  std::vector<size_t> found;  // segments
  uint32_t plans = 0;
  size_t in_plan = 0;  // tokens
  for (size_t i = 0; i < op->segments.size(); ++i) {
    const uint32_t count = op->request.segments[i].num_tokens;
    if (op->segments[i].carry == nullptr || count == 0 || FoundByDevice(count)) continue;
    found.push_back(i);
    if (!rows_->holds_nothing() || in_plan + count > kPrestagedTogether) in_plan = 0;
    if (in_plan == 0) ++plans;
    op->segments[i].first_row = in_plan * heads_;
    in_plan += count;
  }
  {
    MutexLock lock(&mutex_);
    op->plans_pending = 1 + plans;
  }
  std::vector<RowId> ids;
  size_t first_id = 0;  // of the plan, among the rows of the request
  for (size_t i = 0; i < found.size(); ++i) {
    const SegmentWork& work = op->segments[found[i]];
    const uint32_t count = op->request.segments[found[i]].num_tokens;
    if (work.first_row == 0) first_id = size_t{work.first_token} * heads_;
    ids.resize(work.first_row + size_t{count} * heads_);
    hasher.Hash(work.start.history, tokens.subspan(work.first_token, count),
                absl::MakeSpan(ids).subspan(work.first_row));
    if (i + 1 < found.size() && op->segments[found[i + 1]].first_row != 0) continue;
    // A plan of several segments holds nothing and does not fail, so nobody asks which of them it was.
    op->plans.push_back(
        rows_->Resolve(op->layer, std::exchange(ids, {}), ResolvePurpose::kPrestage,
                       [this, op, first_id](ResolveResult answer) { PlanAnswered(op, std::move(answer), first_id); }));
  }
  PlanAnswered<StepOp>(op, std::nullopt, 0);
}

void EngineImpl::ResolveLookup(const std::shared_ptr<LookupOp>& op) {
  if (!op->warm.empty()) {
    ResolveRows(op, op->warm);
    return;
  }
  const NgramHasher& hasher = model_.hashers[op->layer.value()];
  const size_t context_len = hasher.context_len();
  std::vector<RowId> ids(op->request.token_ids.size() * heads_);
  size_t first = 0;
  for (const LookupSegment& segment : op->request.segments) {
    std::vector<uint32_t> history(context_len, model_.config.eos_token_id);
    const size_t known = std::min(context_len, segment.context_ids.size());
    std::copy(segment.context_ids.end() - static_cast<ptrdiff_t>(known), segment.context_ids.end(),
              history.end() - static_cast<ptrdiff_t>(known));
    hasher.Hash(history, absl::MakeConstSpan(op->request.token_ids).subspan(first, segment.num_tokens),
                absl::MakeSpan(ids).subspan(first * heads_, size_t{segment.num_tokens} * heads_));
    first += segment.num_tokens;
  }
  if (op->request.want_row_ids) {
    for (RowId id : ids) op->result.row_ids.push_back(id.value());
  }
  if (!op->request.want_embeddings) ids.clear();
  op->result.embeddings.resize(ids.size() / heads_ * model_.config.geometry.embed_dim * sizeof(Bf16));
  ResolveRows(op, std::move(ids));
}

void EngineImpl::ResolveRows(const std::shared_ptr<LookupOp>& op, std::vector<RowId> ids) {
  const bool read = !ids.empty();
  {
    MutexLock lock(&mutex_);
    op->plans_pending = 1 + (read ? 1 : 0);
  }
  if (read) {
    op->plan =
        rows_->Resolve(op->layer, std::move(ids), op->warm.empty() ? ResolvePurpose::kStep : ResolvePurpose::kWarm,
                       [this, op](ResolveResult answer) { PlanAnswered(op, std::move(answer), 0); });
  }
  PlanAnswered<LookupOp>(op, std::nullopt, 0);
}

// `answer` is the row store's; without it the call says that all plans are made.
template <typename OpT>
void EngineImpl::PlanAnswered(const std::shared_ptr<OpT>& op, std::optional<ResolveResult> answer, size_t first_id) {
  Section section(this);
  if (!answer) op->made = true;
  if (answer && !answer->status.ok() && op->resolve_outcome.ok()) {
    op->resolve_outcome = Unreadable(*answer, [&](size_t id_index) {
      size_t token = (first_id + id_index) / heads_;
      if constexpr (std::is_same_v<OpT, StepOp>) {
        // Ids of a forward skip the prestaged segments.
        for (uint32_t i = 0; i < op->segments.size(); ++i) {
          if (op->segments[i].prestaged) continue;
          const uint32_t count = op->request.segments[i].num_tokens;
          if (token < count) return i;
          token -= count;
        }
      } else {
        for (uint32_t i = 0; i < op->request.segments.size(); ++i) {
          if (token < op->request.segments[i].num_tokens) return i;
          token -= op->request.segments[i].num_tokens;
        }
      }
      return uint32_t{0};
    });
  }
  if constexpr (std::is_same_v<OpT, StepOp>) {
    if (answer) {
      op->result.stats.rows.hits += answer->counts.hits;
      op->result.stats.rows.misses += answer->counts.misses;
      op->result.stats.rows.joins += answer->counts.joins;
      op->fills |= answer->counts.misses + answer->counts.joins > 0;
    }
  }
  --op->plans_pending;
  if (op->state != OpState::kResolving) return;  // aborted meanwhile
  if (!answer && op->refused) {
    Finish(section, op, std::move(*op->refused));
    return;
  }
  if (op->plans_pending > 0) return;
  const Outcome outcome = std::move(op->resolve_outcome);
  Resolved(section, op, outcome);
}

void EngineImpl::Resolved(Section& section, const OpPtr& op, const Outcome& outcome) {
  op->ready = clock_->Now();
  if (op->kind == OpKind::kStep) stats_.resolve.Add(absl::ToDoubleSeconds(op->ready - op->begun));
  if (!outcome.ok()) {
    Finish(section, op, outcome);
    return;
  }
  ReadyStep ready;
  ready.arrival = op->arrival;
  if (op->kind == OpKind::kPrestage) {
    auto step = std::static_pointer_cast<StepOp>(op);
    step->result.stats.resolve = op->ready - op->begun;
    step->result.stats.queue = op->begun - op->arrived;
    if (!step->fills) {
      InstallPrestages(section, *step);
      Finish(section, op, Outcome());
      return;
    }
    ready.layer = step->layer;
    ready.sharing = Sharing::kAlone;
  } else if (op->kind == OpKind::kLookup) {
    auto lookup = std::static_pointer_cast<LookupOp>(op);
    if (lookup->plan == nullptr) {
      Finish(section, op, Outcome());
      return;
    }
    ready.layer = lookup->layer;
    ready.num_tokens = static_cast<uint32_t>(lookup->request.token_ids.size());
    ready.sharing = Sharing::kAlone;
  } else {
    auto step = std::static_pointer_cast<StepOp>(op);
    step->client_ready ? MakeStepReady(step) : AwaitReady(step);
    return;
  }
  MakeReady(op, std::move(ready));
}

void EngineImpl::MakeStepReady(const std::shared_ptr<StepOp>& op) {
  ReadyStep ready;
  ready.arrival = op->arrival;
  ready.layer = op->layer;
  ready.num_tokens = static_cast<uint32_t>(op->request.token_ids.size());
  if (op->request.memory == TensorMemory::kDevice) ready.sharing = Sharing::kAlone;
  MakeReady(op, std::move(ready));
}

void EngineImpl::MakeReady(const OpPtr& op, ReadyStep ready) {
  op->state = OpState::kReady;
  ready.op = op;
  batcher_.Add(std::move(ready));
  if (!Section::Enqueues()) device_cv_.NotifyOne();
}

}  // namespace pleiad
