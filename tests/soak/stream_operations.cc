// What a StreamWorker does.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/error_info.h"
#include "tests/soak/stream_worker.h"

namespace pleiad::testing {
namespace {

constexpr size_t kSaved = 6;
constexpr uint64_t kLongestLine = 300;

}  // namespace

void StreamWorker::Operate() {
  Fill();
  if (lives_.empty()) {
    Disconnect();
    return;
  }
  const uint32_t dice = Below(1000);
  if (dice < 250) {
    Decode(Ending::kAnswer);
  } else if (dice < 330) {
    Step(AnyLife(), AnyLayer(), 1 + Below(Below(4) == 0 ? setup_->model.max_tokens : 40));
  } else if (dice < 480) {
    Draft();
  } else if (dice < 580) {
    Batch();
  } else if (dice < 640) {
    Rewind();
  } else if (dice < 700) {
    Save();
  } else if (dice < 740) {
    Restore();
  } else if (dice < 760) {
    Reopen();
  } else if (dice < 780) {
    Fork();
  } else if (dice < 830) {
    Decode(Ending::kDeadline);
  } else if (dice < 870) {
    Cut();
  } else if (dice < 900) {
    Prestage();
  } else if (dice < 930) {
    Lookup();
  } else if (dice < 950) {
    Refusal();
  } else if (dice < 970) {
    StartOver();
  } else if (dice < 990) {
    Life& life = AnyLife();
    if (life.handle.one() != nullptr && Below(2) == 0) {
      std::move(*life.handle.one()).Detach();
      ++tally_.abandoned;
      End(life);
    } else if (Judge(life, life.handle.Release().status(), "release")) {
      End(life);
    }
  } else if (dice < 994) {
    Disconnect();
  }
  for (size_t i = lives_.size(); i-- > 0;) {
    const auto& carries = lives_[i]->carries;
    if (std::any_of(carries.begin(), carries.end(), [](const auto& c) { return c.line.size() > kLongestLine; })) {
      End(*lives_[i]);  // the handle releases it
    }
  }
}

void StreamWorker::Decode(Ending ending) {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  std::vector<Sent> sent;
  if (ending == Ending::kDeadline && Below(2) == 0) {
    sent.push_back(Send(layer, {{&life, Tokens(1 + Below(setup_->model.max_tokens))}}, ending));
  } else {
    for (uint32_t i = 1 + Below(12); i > 0; --i) sent.push_back(Send(layer, {{&life, Tokens(1)}}, ending));
  }
  const uint64_t deadlines = tally_.deadlines;
  Receive(std::move(sent));
  // One that its deadline ended has moved nothing.
  if (tally_.deadlines == deadlines || !Lives(&life) || life.handle.one() == nullptr) return;
  const absl::StatusOr<client::SequenceStatus> status = life.handle.one()->Get();
  if (!Judge(life, status.status(), "get after a deadline")) return;
  const uint64_t at = life.carries[layer].line.size(), position = status->layers.at(layer).position;
  if (position != at) tally_.Wrong(absl::StrCat("after a deadline at ", at, ": position ", position));
}

void StreamWorker::Draft() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  for (uint32_t cycle = 1 + Below(4); cycle > 0; --cycle) {
    const uint32_t count = 2 + Below(setup_->model.rollback_tokens - 1);
    const uint64_t start = life.carries[layer].next, failures = tally_.wrong + tally_.expired;
    Step(life, layer, count);
    if (tally_.wrong + tally_.expired != failures) return;
    const uint32_t accepted = 1 + Below(count);
    life.carries[layer].next = start + accepted;
    if (accepted < count) ++tally_.rewinds;
  }
  if (Below(2) == 0) Settle(life, layer);
}

void StreamWorker::Batch() {
  std::set<Life*> lives;
  for (uint32_t i = 2 + Below(5); i > 0; --i) lives.insert(&AnyLife());
  std::vector<std::pair<Life*, SoakLine>> parts;
  for (Life* life : lives) parts.emplace_back(life, Tokens(Below(5)));
  if (Below(4) == 0) parts.emplace_back(nullptr, Tokens(1 + Below(6)));
  ReceiveOne(Send(AnyLayer(), std::move(parts)));
}

void StreamWorker::Rewind() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  SoakCarry& carry = life.carries[layer];
  if (carry.line.size() <= carry.low) return;
  carry.next = carry.low + Below(static_cast<uint32_t>(carry.line.size() - carry.low));
  ++tally_.rewinds;
  Step(life, layer, 1 + Below(20));
}

void StreamWorker::Save() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  if (!Settle(life, layer)) return;
  SoakCarry& carry = life.carries[layer];
  absl::StatusOr<client::SequenceSnapshot> snapshot = life.handle.Snapshot(carry.layer);
  if (!Judge(life, snapshot.status(), "snapshot")) return;
  judge_.Blob(carry, snapshot->layers.at(0).position.value_or(0), snapshot->layers.at(0).aux);
  Saved saved{layer, carry.line, *std::move(snapshot)};
  if (saved_.size() < kSaved) {
    saved_.push_back(std::move(saved));
  } else {
    saved_[Below(kSaved)] = std::move(saved);
  }
}

void StreamWorker::Restore() {
  if (saved_.empty()) return;
  Life& life = AnyLife();
  const Saved& saved = saved_[Below(static_cast<uint32_t>(saved_.size()))];
  if (!Judge(life, life.handle.Restore(saved.snapshot), "restore")) return;
  SoakCarry& carry = life.carries[saved.layer];
  carry.line = saved.line;
  carry.next = carry.low = carry.line.size();
  ++tally_.restores;
}

void StreamWorker::Reopen() {
  Life& life = AnyLife();
  client::OpenOptions options;
  options.label = "reopened";
  for (size_t layer = 0; layer < life.carries.size(); ++layer) {
    if (!Settle(life, layer)) return;
    SoakCarry& carry = life.carries[layer];
    absl::StatusOr<client::SequenceSnapshot> snapshot = life.handle.Snapshot(carry.layer);
    if (!Judge(life, snapshot.status(), "snapshot")) return;
    judge_.Blob(carry, snapshot->layers.at(0).position.value_or(0), snapshot->layers.at(0).aux);
    options.model_id = snapshot->model_id;
    options.layers.push_back(std::move(snapshot->layers.at(0)));
  }
  std::vector<SoakCarry> carries = life.carries;
  for (SoakCarry& carry : carries) {
    carry.calm = {};
    carry.low = carry.next = carry.line.size();
  }
  if (!Judge(life, life.handle.Release().status(), "release")) return;
  End(life);
  Open(options, std::move(carries));
  ++tally_.restores;
}

void StreamWorker::Fork() {
  if (saved_.empty()) return;
  const Saved& saved = saved_[Below(static_cast<uint32_t>(saved_.size()))];
  std::vector<SoakCarry> carries = FreshCarries();
  SoakCarry& carry = carries[saved.layer];
  carry.line = saved.line;
  carry.next = carry.low = carry.line.size();
  client::OpenOptions options;
  options.label = "fork";
  options.layers = saved.snapshot.layers;
  End(AnyLife());
  Open(options, std::move(carries));
  ++tally_.restores;
}

// Steps given up under way may have been applied or not; either way the carry can be had back where they began.
void StreamWorker::Cut() {
  const size_t layer = AnyLayer();
  std::set<Life*> lives;
  for (uint32_t i = 1 + Below(3); i > 0; --i) lives.insert(&AnyLife());
  std::vector<Sent> sent;
  for (Life* life : lives) {
    SoakCarry& carry = life->carries[layer];
    carry.line.resize(carry.next);
    if (Below(2) == 0) {
      sent.push_back(Send(layer, {{life, Tokens(1 + Below(setup_->model.max_tokens))}}, Ending::kCut));
    } else {
      for (uint32_t i = 1 + Below(12); i > 0; --i) sent.push_back(Send(layer, {{life, Tokens(1)}}, Ending::kCut));
    }
  }
  ++tally_.streams_closed;
  if (kind_ == SoakClient::kReplicated) {
    // Its sequences are of no use without it.
    caller_ = nullptr;
    Receive(std::move(sent));
    tally_.abandoned += lives_.size();
    for (auto& life : lives_) {
      for (SoakCarry& carry : life->carries) judge_.End(carry);
    }
    lives_.clear();
    return;
  }
  if (const absl::Status cut = caller_->Cut(); !cut.ok()) {
    tally_.Wrong(absl::StrCat("cut: ", cut.ToString()));
    return;
  }
  Receive(std::move(sent));
  for (Life* life : lives) {
    if (!Lives(life)) continue;
    CheckReach(*life, layer);
    if (Lives(life)) Step(*life, layer, 1 + Below(4));
  }
}

void StreamWorker::CheckReach(Life& life, size_t layer) {
  SoakCarry& carry = life.carries[layer];
  const absl::StatusOr<client::SequenceStatus> status = life.handle.one()->Get();
  if (!Judge(life, status.status(), "get after a cut")) return;
  const client::SequenceLayer& stands = status->layers.at(layer);
  const uint64_t at = carry.line.size();
  if ((at < stands.low || at > stands.position) && at != stands.last_step_start) {
    tally_.Wrong(absl::StrCat("after a cut at ", at, ": position ", stands.position, ", low ", stands.low,
                              ", last step at ", stands.last_step_start));
  }
}

void StreamWorker::Prestage() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  SoakCarry& carry = life.carries[layer];
  const SoakLine tokens = Tokens(1 + Below(30));
  client::Step hint;
  hint.mode = client::StepMode::kPrestage;
  hint.layer_index = carry.layer;
  hint.segments.push_back({nullptr, static_cast<uint32_t>(tokens.size()), false, carry.next});
  for (const SoakToken& token : tokens) hint.token_ids.push_back(token.id);
  SoakCaller::Answer hinted = caller_->Submit(std::move(hint), {&life.handle});
  // The same, its beginning, or something else.
  SoakLine step = tokens;
  const uint32_t use = Below(4);
  if (use == 1) step.resize(1 + Below(static_cast<uint32_t>(step.size())));
  if (use == 2) step = Tokens(3);
  std::vector<Sent> sent;
  if (use != 3) sent.push_back(Send(layer, {{&life, std::move(step)}}));
  const absl::Status status = hinted.get().status();
  ++tally_.prestages;
  if (!status.ok() && !absl::IsNotFound(status)) tally_.Wrong(absl::StrCat("prestage: ", status.ToString()));
  if (!status.ok()) ++tally_.refused[status.code()];
  Receive(std::move(sent));
}

void StreamWorker::Lookup() {
  if (caller_->client() == nullptr) return;
  client::LookupQuery query;
  query.layer_index = setup_->model.layers[AnyLayer()].layer_index;
  for (const SoakToken& token : Tokens(1 + Below(60))) query.token_ids.push_back(token.id);
  query.segments.push_back({static_cast<uint32_t>(query.token_ids.size()), {}});
  query.want_row_ids = false;
  query.want_embeddings = true;
  const absl::StatusOr<client::LookupResult> result = caller_->client()->Lookup(query);
  if (!result.ok()) {
    tally_.Wrong(absl::StrCat("lookup: ", result.status().ToString()));
    return;
  }
  judge_.Embeddings(*query.layer_index, query.token_ids, result->embeddings);
}

void StreamWorker::Refusal() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  client::Step step;
  step.layer_index = life.carries[layer].layer;
  step.segments.push_back({nullptr, 1, false, life.carries[layer].next});
  step.token_ids = {setup_->model.vocab_size + Below(1000)};
  step.highway.zeros = true;
  const absl::StatusOr<client::StepResult> result = caller_->Submit(std::move(step), {&life.handle}).get();
  if (client::ErrorReason(result.status()) == client::Reason::kTokenOutOfVocabulary) {
    ++tally_.refused[result.status().code()];
  } else if (Judge(life, result.status(), "a token out of the vocabulary")) {
    tally_.Wrong("a token out of the vocabulary was taken");
  }
}

void StreamWorker::StartOver() {
  Life& life = AnyLife();
  const size_t layer = AnyLayer();
  SoakCarry& carry = life.carries[layer];
  client::Step step;
  step.layer_index = carry.layer;
  step.segments.push_back({nullptr, 0, /*fresh=*/true, std::nullopt});
  const absl::StatusOr<client::StepResult> result = caller_->Submit(std::move(step), {&life.handle}).get();
  if (!Judge(life, result.status(), "reset")) return;
  carry.line.clear();
  carry.next = carry.low = 0;
}

}  // namespace pleiad::testing
