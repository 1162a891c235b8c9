#include "tests/soak/stream_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/error_info.h"

namespace pleiad::testing {
namespace {

constexpr size_t kLives = 8;
constexpr uint32_t kSampledOf = 3;  // one life in so many is compared

}  // namespace

StreamWorker::StreamWorker(const SoakSetup* setup, SoakClient kind, uint32_t number)
    : setup_(setup), kind_(kind), number_(number), random_(setup->seed * 1000 + number), judge_(setup, &tally_) {}

Tally StreamWorker::Run(const std::function<bool()>& more) {
  while (more() && (caller_ != nullptr || Connect())) Operate();
  Disconnect();
  return tally_;
}

bool StreamWorker::Connect() {
  absl::StatusOr<std::unique_ptr<SoakCaller>> caller = SoakCaller::Connect(kind_, setup_->address, number_);
  if (!caller.ok()) {
    tally_.Wrong(absl::StrCat("connect: ", caller.status().ToString()));
    return false;
  }
  caller_ = *std::move(caller);
  ++tally_.connections;
  Fill();
  return true;
}

void StreamWorker::Disconnect() {
  if (caller_ == nullptr) return;
  for (auto& life : lives_) {
    for (SoakCarry& carry : life->carries) judge_.End(carry);
    if (life->handle.one() != nullptr && Below(4) == 0) {
      std::move(*life->handle.one()).Detach();
      ++tally_.abandoned;
    }
  }
  lives_.clear();
  caller_ = nullptr;
  ++tally_.streams_closed;
}

std::vector<SoakCarry> StreamWorker::FreshCarries() {
  const Sampled sampled = Below(kSampledOf) == 0 ? Sampled::kYes : Sampled::kNo;
  std::vector<SoakCarry> carries;
  for (const client::LayerInfo& layer : setup_->model.layers) carries.emplace_back(layer.layer_index, sampled);
  return carries;
}

void StreamWorker::Open(client::OpenOptions options, std::vector<SoakCarry> carries) {
  const SteadyClock::time_point begun = SteadyClock::now();
  absl::StatusOr<SoakHandle> handle = caller_->Open(options);
  if (!handle.ok()) {
    tally_.Wrong(absl::StrCat("open: ", handle.status().ToString()));
    return;
  }
  ++tally_.opened;
  lives_.push_back(std::make_unique<Life>(Life{*std::move(handle), std::move(carries), begun}));
}

void StreamWorker::Fill() {
  for (size_t i = lives_.size(); i < kLives; ++i) Open({.label = "soak"}, FreshCarries());
}

void StreamWorker::End(Life& life) {
  for (SoakCarry& carry : life.carries) judge_.End(carry);
  lives_.erase(std::find_if(lives_.begin(), lives_.end(), [&](const auto& own) { return own.get() == &life; }));
}

bool StreamWorker::Lives(const Life* life) const {
  return std::any_of(lives_.begin(), lives_.end(), [life](const auto& own) { return own.get() == life; });
}

StreamWorker::Sent StreamWorker::Send(size_t layer, std::vector<std::pair<Life*, SoakLine>> parts, Ending ending) {
  Sent sent;
  sent.layer = layer;
  sent.ending = ending;
  sent.kind = Below(2) == 0 ? client::OutputKind::kDelta : client::OutputKind::kHighway;
  sent.dtype = Below(4) == 0 ? client::DType::kBf16 : client::DType::kF32;
  client::Step step;
  step.layer_index = setup_->model.layers[layer].layer_index;
  step.output_kind = sent.kind;
  step.output_dtype = sent.dtype;
  if (ending == Ending::kDeadline) step.timeout = absl::Milliseconds(1);
  SoakLine all;
  std::vector<const SoakHandle*> handles;
  for (auto& [life, tokens] : parts) {
    Part part;
    part.life = life;
    part.tokens = std::move(tokens);
    client::StepSegment segment{nullptr, static_cast<uint32_t>(part.tokens.size()), false, std::nullopt};
    if (life != nullptr) {
      SoakCarry& carry = life->carries[layer];
      part.start = carry.next;
      segment.position = part.start;
      carry.next += part.tokens.size();
    }
    step.segments.push_back(segment);
    handles.push_back(life == nullptr ? nullptr : &life->handle);
    all.insert(all.end(), part.tokens.begin(), part.tokens.end());
    sent.parts.push_back(std::move(part));
  }
  for (const SoakToken& token : all) step.token_ids.push_back(token.id);
  sent.highway = setup_->highways->Of(all);
  step.highway.data = {reinterpret_cast<const std::byte*>(sent.highway.data()), sent.highway.size() * sizeof(float)};
  sent.at = SteadyClock::now();
  sent.answer = caller_->Submit(std::move(step), handles);
  return sent;
}

void StreamWorker::ReceiveOne(Sent sent) {
  std::vector<Sent> one;
  one.push_back(std::move(sent));
  Receive(std::move(one));
}

void StreamWorker::Receive(std::vector<Sent> sent) {
  bool failed = false;
  for (Sent& step : sent) {
    const absl::StatusOr<client::StepResult> result = step.answer.get();
    if (!result.ok()) {
      ReceiveError(step, result.status(), failed);
      failed = true;
      continue;
    }
    if (step.parts.size() > 1) ++tally_.batches;
    const size_t token_bytes = size_t{setup_->model.channels} * client::ByteSize(step.dtype);
    size_t offset = 0;
    for (size_t i = 0; i < step.parts.size(); ++i) {
      const Part& part = step.parts[i];
      const size_t bytes = part.tokens.size() * token_bytes;
      SoakAnswer answer;
      answer.start = part.start;
      answer.tokens = part.tokens;
      answer.kind = step.kind == client::OutputKind::kDelta ? OutputKind::kDelta : OutputKind::kHighway;
      answer.dtype = step.dtype == client::DType::kF32 ? DType::kF32 : DType::kBf16;
      if (i < result->segments.size()) {
        answer.position = result->segments[i].position;
        answer.low = result->segments[i].low;
      }
      if (offset <= result->output.size()) {
        answer.output = absl::string_view(result->output).substr(offset, bytes);
      }
      offset += bytes;
      if (part.life == nullptr) {
        judge_.ThrowAway(setup_->model.layers[step.layer].layer_index, answer);
      } else {
        part.life->touched = step.at;
        judge_.Step(part.life->carries[step.layer], answer);
      }
    }
    if (offset != result->output.size()) {
      tally_.Wrong(absl::StrCat("an output of ", result->output.size(), " bytes, expected ", offset));
    }
  }
  for (const Sent& step : sent) {
    for (const Part& part : step.parts) {
      if (part.life == nullptr) continue;
      SoakCarry& carry = part.life->carries[step.layer];
      carry.next = carry.line.size();
    }
  }
  for (Life* life : ended_) End(*life);
  ended_.clear();
}

void StreamWorker::ReceiveError(const Sent& sent, const absl::Status& status, bool after_failure) {
  if (sent.ending == Ending::kCut && absl::IsCancelled(status)) {
    ++tally_.cancels;
    return;
  }
  ++tally_.refused[status.code()];
  if (sent.ending == Ending::kDeadline && absl::IsDeadlineExceeded(status)) {
    ++tally_.deadlines;
    return;
  }
  if (after_failure && absl::IsFailedPrecondition(status)) return;
  if (absl::IsNotFound(status)) {
    const auto ttl = absl::ToChronoNanoseconds(setup_->sequence_ttl);
    bool explained = false;
    for (const Part& part : sent.parts) {
      if (part.life == nullptr) continue;
      const bool known = std::count(ended_.begin(), ended_.end(), part.life) > 0;
      if (!known && SteadyClock::now() - part.life->touched < ttl) continue;
      explained = true;
      if (known) continue;
      ended_.push_back(part.life);
      ++tally_.expired;
    }
    if (explained) return;
  }
  tally_.Wrong(absl::StrCat("step of ", sent.parts.size(), " sequences: ", status.ToString()));
}

bool StreamWorker::Judge(Life& life, const absl::Status& status, const char* what) {
  const auto idle = SteadyClock::now() - life.touched;
  if (status.ok()) return true;
  ++tally_.refused[status.code()];
  if (absl::IsNotFound(status) && idle >= absl::ToChronoNanoseconds(setup_->sequence_ttl)) {
    ++tally_.expired;
    End(life);
  } else {
    tally_.Wrong(absl::StrCat(what, ": ", status.ToString()));
  }
  return false;
}

bool StreamWorker::Settle(Life& life, size_t layer) {
  SoakCarry& carry = life.carries[layer];
  if (carry.next == carry.line.size()) return true;
  const uint64_t to = carry.next;
  ReceiveOne(Send(layer, {{&life, SoakLine()}}));
  return Lives(&life) && carry.line.size() == to;
}

}  // namespace pleiad::testing
