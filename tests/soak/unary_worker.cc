#include "tests/soak/unary_worker.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad::testing {
namespace {

constexpr size_t kLives = 4;
constexpr uint64_t kLongestLine = 200;

std::string Text(const grpc::Status& status) {
  return absl::StrCat(static_cast<int>(status.error_code()), " ", status.error_message());
}

}  // namespace

UnaryWorker::UnaryWorker(const SoakSetup* setup, uint32_t number)
    : setup_(setup), random_(setup->seed * 1000 + number), judge_(setup, &tally_) {}

Tally UnaryWorker::Run(const std::function<bool()>& more) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // Connections of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::Ple::NewStub(grpc::CreateCustomChannel(setup_->address, grpc::InsecureChannelCredentials(), arguments));
  ++tally_.connections;
  while (more()) Operate();
  while (!lives_.empty()) {
    if (Below(3) == 0) {
      ++tally_.abandoned;
      Forget(*lives_.back());
    } else {
      Release(*lives_.back());
    }
  }
  stub_ = nullptr;
  return tally_;
}

template <typename Request, typename Response, typename Method>
grpc::Status UnaryWorker::Call(Method method, const Request& request, Response* response, GiveUp give_up) {
  grpc::ClientContext context;
  if (give_up == GiveUp::kDeadline) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(100 + Below(2000)));
  }
  grpc::CompletionQueue queue;
  grpc::Status status;
  auto call = (stub_.get()->*method)(&context, request, &queue);
  call->Finish(response, &status, nullptr);
  if (give_up == GiveUp::kLater) {
    // Meanwhile the call gets somewhere.
    grpc::ClientContext model_context;
    v1::GetModelResponse model;
    (void)stub_->GetModel(&model_context, {}, &model);
  }
  if (give_up == GiveUp::kAtOnce || give_up == GiveUp::kLater) context.TryCancel();
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

void UnaryWorker::Operate() {
  while (lives_.size() < kLives) {
    const size_t before = lives_.size();
    Open();
    if (lives_.size() == before) return;
  }
  Life& life = *lives_[Below(static_cast<uint32_t>(lives_.size()))];
  const size_t layer = Below(static_cast<uint32_t>(life.carries.size()));
  const uint32_t dice = Below(100);
  if (dice < 60) {
    Forward(life, layer, GiveUp::kNever);
  } else if (dice < 85) {
    Forward(life, layer, dice < 68 ? GiveUp::kAtOnce : dice < 76 ? GiveUp::kLater : GiveUp::kDeadline);
  } else if (dice < 95) {
    Snapshot(life, layer, dice < 92 ? GiveUp::kNever : GiveUp::kAtOnce);
  } else {
    Release(life);
  }
  for (size_t i = lives_.size(); i-- > 0;) {
    const auto& carries = lives_[i]->carries;
    if (std::any_of(carries.begin(), carries.end(), [](const auto& c) { return c.line.size() > kLongestLine; })) {
      Release(*lives_[i]);
    }
  }
}

void UnaryWorker::Open() {
  v1::OpenSequenceRequest request;
  request.set_label("soak, unary");
  v1::OpenSequenceResponse response;
  grpc::ClientContext context;
  const auto begun = std::chrono::steady_clock::now();
  const grpc::Status status = stub_->OpenSequence(&context, request, &response);
  if (!status.ok()) {
    tally_.Wrong(absl::StrCat("open: ", Text(status)));
    return;
  }
  ++tally_.opened;
  auto life = std::make_unique<Life>();
  life->id = response.sequence_id();
  life->touched = begun;
  const Sampled sampled = Below(3) == 0 ? Sampled::kYes : Sampled::kNo;
  for (const client::LayerInfo& layer : setup_->model.layers) life->carries.emplace_back(layer.layer_index, sampled);
  lives_.push_back(std::move(life));
}

bool UnaryWorker::Expired(const Life& life, const grpc::Status& status) {
  ++tally_.refused[static_cast<absl::StatusCode>(status.error_code())];
  if (status.error_code() != grpc::StatusCode::NOT_FOUND ||
      std::chrono::steady_clock::now() - life.touched < absl::ToChronoNanoseconds(setup_->sequence_ttl)) {
    return false;
  }
  ++tally_.expired;
  Forget(life);
  return true;
}

void UnaryWorker::Forward(Life& life, size_t layer, GiveUp give_up) {
  SoakCarry& carry = life.carries[layer];
  const SoakLine tokens =
      RandomTokens(random_, Below(3) == 0 ? 1 + Below(setup_->model.max_tokens / 2) : 1 + Below(4), *setup_);
  v1::ForwardRequest request;
  request.set_epoch(life.epoch);
  request.set_layer_index(carry.layer);
  v1::Segment* segment = request.add_segments();
  segment->set_sequence_id(life.id);
  segment->set_num_tokens(static_cast<uint32_t>(tokens.size()));
  segment->set_position(carry.line.size());
  for (const SoakToken& token : tokens) request.add_token_ids(token.id);
  request.mutable_output()->set_kind(v1::OUTPUT_KIND_DELTA);
  const std::vector<float> highway = setup_->highways->Of(tokens);
  request.mutable_highway()->set_dtype(v1::DTYPE_F32);
  request.mutable_highway()->set_data(highway.data(), highway.size() * sizeof(float));
  v1::ForwardResponse response;
  const auto begun = std::chrono::steady_clock::now();
  const grpc::Status status = Call(&v1::Ple::Stub::AsyncForward, request, &response, give_up);
  if (status.ok()) {
    SoakAnswer answer;
    answer.start = carry.line.size();
    answer.tokens = tokens;
    if (response.segments_size() == 1) {
      answer.position = response.segments(0).position();
      answer.low = response.segments(0).low();
    }
    answer.output = response.output().data();
    judge_.Step(carry, answer);
    life.touched = begun;
    return;
  }
  if (Expired(life, status)) return;
  const bool cancelled = give_up != GiveUp::kNever && status.error_code() == grpc::StatusCode::CANCELLED;
  const bool late = give_up == GiveUp::kDeadline && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (!cancelled && !late) {
    tally_.Wrong(absl::StrCat("unary step: ", Text(status)));
    return;
  }
  ++(late ? tally_.deadlines : tally_.cancels);
  TakeOver(life, layer);
}

void UnaryWorker::TakeOver(Life& life, size_t layer) {
  ++life.epoch;
  v1::GetSequenceRequest request;
  request.set_sequence_id(life.id);
  request.set_epoch(life.epoch);
  v1::GetSequenceResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->GetSequence(&context, request, &response);
  if (!status.ok()) {
    if (!Expired(life, status)) tally_.Wrong(absl::StrCat("get after a call was given up: ", Text(status)));
    return;
  }
  const v1::SequenceLayer& stands = response.layers(static_cast<int>(layer));
  const uint64_t at = life.carries[layer].line.size();
  if ((at < stands.low() || at > stands.position()) && at != stands.last_step_start()) {
    tally_.Wrong(absl::StrCat("after a call was given up at ", at, ": ", stands.ShortDebugString()));
  }
  Forward(life, layer, GiveUp::kNever);
}

void UnaryWorker::Snapshot(Life& life, size_t layer, GiveUp give_up) {
  SoakCarry& carry = life.carries[layer];
  v1::SnapshotRequest request;
  request.set_sequence_id(life.id);
  request.set_epoch(life.epoch);
  request.set_layer_index(carry.layer);
  v1::SnapshotResponse response;
  const auto begun = std::chrono::steady_clock::now();
  const grpc::Status status = Call(&v1::Ple::Stub::AsyncSnapshot, request, &response, give_up);
  if (status.ok()) {
    judge_.Blob(carry, response.layers(0).position(), response.layers(0).aux());
    life.touched = begun;
  } else if (!Expired(life, status)) {
    if (give_up == GiveUp::kAtOnce && status.error_code() == grpc::StatusCode::CANCELLED) {
      ++tally_.cancels;
    } else {
      tally_.Wrong(absl::StrCat("unary snapshot: ", Text(status)));
    }
  }
}

void UnaryWorker::Release(Life& life) {
  v1::ReleaseRequest request;
  request.set_sequence_id(life.id);
  request.set_epoch(life.epoch);
  v1::ReleaseResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Release(&context, request, &response);
  if (!status.ok()) tally_.Wrong(absl::StrCat("release: ", Text(status)));
  Forget(life);
}

void UnaryWorker::Forget(const Life& life) {
  const auto found = std::find_if(lives_.begin(), lives_.end(), [&](const auto& own) { return own.get() == &life; });
  for (SoakCarry& carry : (*found)->carries) judge_.End(carry);
  lives_.erase(found);
}

}  // namespace pleiad::testing
