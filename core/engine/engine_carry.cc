// Carries: commits, prestages, snapshots, the end of a sequence.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"
#include "core/engine/request_rules.h"

namespace pleiad {

void EngineImpl::CommitStep(Section& section, StepOp& op) {
  op.result.segments.reserve(op.segments.size());
  for (size_t i = 0; i < op.segments.size(); ++i) {
    SegmentWork& work = op.segments[i];
    const StepSegment& asked = op.request.segments[i];
    StepSegmentResult result{work.id, Position(asked.num_tokens), Position(0)};
    if (work.carry != nullptr) {
      const auto tokens = absl::MakeConstSpan(op.request.token_ids).subspan(work.first_token, asked.num_tokens);
      work.carry->state.Commit(work.start, tokens);
      work.carry->predecessor_failed = false;
      UpdatePrestage(section, work, tokens);
      stats_.tokens[op.layer.value()] += tokens.size();
      result.position = work.carry->state.position();
      result.low = work.carry->state.low();
    }
    op.result.segments.push_back(result);
  }
  op.result.output_dtype = OutputDType(op.request);
}

void EngineImpl::UpdatePrestage(Section& section, const SegmentWork& work, absl::Span<const uint32_t> tokens) {
  Carry& carry = *work.carry;
  if (!carry.prestage) return;
  Prestage& prestage = *carry.prestage;
  if (work.prestaged) {
    prestage.used += static_cast<uint32_t>(tokens.size());
    prestage.position = carry.state.position();
    prestage.kind = StartKind::kRing;
    prestage.history.insert(prestage.history.end(), tokens.begin(), tokens.end());
    prestage.history.erase(prestage.history.begin(), prestage.history.end() - model_.config.geometry.context_len());
    if (prestage.left() == 0) DropPrestage(section, carry);
    return;
  }
  const bool stays = tokens.empty() && work.start.kind != StartKind::kFresh &&
                     (prestage.kind == StartKind::kFresh || prestage.position == carry.state.position());
  if (!stays) DropPrestage(section, carry);
}

void EngineImpl::DropPrestage(Section& section, Carry& carry) {
  if (!carry.prestage) return;
  Prestage& prestage = *carry.prestage;
  if (prestage.left() == 0) {
    ++stats_.prestage_used;
  } else if (prestage.used > 0) {
    ++stats_.prestage_partly_used;
  } else if (!prestage.plan->Held()) {
    ++stats_.prestage_yielded;
  } else {
    ++stats_.prestage_dropped;
  }
  section.trash.push_back(std::move(prestage.plan));
  carry.prestage.reset();
}

void EngineImpl::InstallPrestages(Section& section, StepOp& op) {
  op.result.segments.reserve(op.segments.size());
  size_t plans = 0;  // seen so far
  for (size_t i = 0; i < op.segments.size(); ++i) {
    SegmentWork& work = op.segments[i];
    const StepSegment& asked = op.request.segments[i];
    StepSegmentResult result{work.id, Position(0), Position(0)};
    if (work.carry != nullptr) {
      result.position = work.carry->state.position();
      result.low = work.carry->state.low();
      if (asked.num_tokens > 0) {
        DropPrestage(section, *work.carry);
      }
      if (asked.num_tokens > 0 && !FoundByDevice(asked.num_tokens)) {
        Prestage prestage;
        prestage.position = work.start.position;
        prestage.kind = asked.fresh ? StartKind::kFresh : StartKind::kRing;
        prestage.history = work.start.history;
        const auto tokens = absl::MakeConstSpan(op.request.token_ids).subspan(work.first_token, asked.num_tokens);
        prestage.tokens.assign(tokens.begin(), tokens.end());
        if (work.first_row == 0) ++plans;
        prestage.plan = op.plans[plans - 1];
        prestage.first_row = work.first_row;
        work.carry->prestage = std::move(prestage);
      }
    }
    op.result.segments.push_back(result);
  }
}

void EngineImpl::BeginGet(Section& section, const std::shared_ptr<GetOp>& op) {
  const Sequence& sequence = *op->sequence;
  op->result.epoch = sequence.epoch;
  op->result.idle = std::max(absl::ZeroDuration(), clock_->Now() - sequence.last_used);
  for (const Carry& carry : sequence.carries) {
    SequenceLayerState state;
    state.layer = model_.config.ple_layers[carry.layer.value()];
    state.position = carry.state.position();
    state.low = carry.state.low();
    state.last_step_start = carry.state.last_step_start();
    if (carry.prestage && carry.prestage->plan->Held()) state.prestaged_tokens = carry.prestage->left();
    op->result.layers.push_back(state);
  }
  Finish(section, op, Outcome());
}

void EngineImpl::BeginSnapshot(Section& section, const std::shared_ptr<SnapshotOp>& op) {
  const std::vector<Carry>& carries = op->sequence->carries;
  if (!op->layer) {
    for (const Carry& carry : carries) {
      if (carry.state.position() == carries.front().state.position()) continue;
      const std::string apart = absl::StrCat("layer ", model_.config.ple_layers[0].value(), " stands at ",
                                             carries.front().state.position().value(), ", layer ",
                                             model_.config.ple_layers[carry.layer.value()].value(), " at ",
                                             carry.state.position().value(), "; name one");
      Finish(section, op, Refused({MakeDetail(Reason::kLayersApart, "layer_index", "absent", apart)}));
      return;
    }
  }
  op->state = OpState::kRunning;
  carry_ops_.push_back(op);
  device_cv_.NotifyOne();
}

void EngineImpl::CommitRestore(Section& section, RestoreOp& op) {
  for (const RestoreOp::Layer& layer : op.layers) {
    Carry& carry = op.sequence->carries[layer.layer.value()];
    if (layer.aux.fresh) {
      carry.state.Reset();
    } else {
      carry.state.Restore(layer.position, layer.aux.history);
    }
    carry.predecessor_failed = false;
    DropPrestage(section, carry);
  }
}

void EngineImpl::EndSequence(Section& section, Sequence* sequence, uint64_t& reason) {
  for (Carry& carry : sequence->carries) DropPrestage(section, carry);
  sequences_.Kill(sequence);
  ++reason;
}

}  // namespace pleiad
