#include "tests/server/fake_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace pleiad {
namespace {

constexpr uint64_t kFirstUnknown = 1001;

Outcome Unknown(std::optional<uint32_t> segment) {
  ErrorDetail detail;
  detail.reason = Reason::kSequenceUnknown;
  detail.segment = segment;
  detail.field = "sequence_id";
  return {.code = absl::StatusCode::kNotFound, .message = "no such sequence", .details = {detail}};
}

Outcome Stopped() { return {.code = absl::StatusCode::kUnavailable, .message = "stopped", .details = {}}; }

}  // namespace

ModelConfig FakeConfig() {
  ModelConfig config;
  config.geometry.hidden_size = 4;
  config.geometry.hc_count = 2;
  config.geometry.embed_dim = 32;
  config.geometry.heads_per_ngram = 2;
  config.ple_layers = {LayerIndex(1)};
  config.num_hidden_layers = 4;
  config.vocab_size = 1000;
  config.eos_token_id = 7;
  config.image_token_id = 998;
  return config;
}

FakeEngine::FakeEngine(Mode mode) : mode_(mode) {
  model_.config = FakeConfig();
  model_.model_id = "fake-model";
  device_.name = "cpu";
  device_.detail = "none";
}

void FakeEngine::WaitForHeld(size_t count) {
  MutexLock lock(&mutex_);
  while (held_.size() < count) changed_.Wait(&mutex_);
}

size_t FakeEngine::held() const {
  MutexLock lock(&mutex_);
  return held_.size();
}

void FakeEngine::AnswerOldest() {
  Held step;
  {
    MutexLock lock(&mutex_);
    step = std::move(held_.front());
    held_.pop_front();
  }
  step.done(RunStep(step.request));
}

void FakeEngine::SetMode(Mode mode) {
  MutexLock lock(&mutex_);
  mode_ = mode;
}

void FakeEngine::WaitForCancels(size_t count) {
  MutexLock lock(&mutex_);
  while (cancels_ < count) changed_.Wait(&mutex_);
}

void FakeEngine::BecomeIdle() {
  std::function<void()> fn;
  {
    MutexLock lock(&mutex_);
    while (!on_idle_) changed_.Wait(&mutex_);
    fn = on_idle_;
  }
  fn();
}

void FakeEngine::LoseDevice() {
  std::function<void(absl::Status)> fn;
  {
    MutexLock lock(&mutex_);
    while (!on_lost_) changed_.Wait(&mutex_);
    fn = on_lost_;
  }
  fn(absl::InternalError("gone"));
}

void FakeEngine::BlockStop() {
  MutexLock lock(&mutex_);
  stop_blocked_ = true;
}

void FakeEngine::UnblockStop() {
  MutexLock lock(&mutex_);
  stop_blocked_ = false;
  changed_.NotifyAll();
}

void FakeEngine::WaitForStop() {
  MutexLock lock(&mutex_);
  while (!stopped_) changed_.Wait(&mutex_);
}

void FakeEngine::BlockGive() {
  MutexLock lock(&mutex_);
  give_blocked_ = true;
}

void FakeEngine::WaitForGive() {
  MutexLock lock(&mutex_);
  while (!given_) changed_.Wait(&mutex_);
}

StepRequest FakeEngine::last() const {
  MutexLock lock(&mutex_);
  return *last_;
}

std::shared_ptr<ImportTable> FakeEngine::imports() const {
  MutexLock lock(&mutex_);
  return imports_;
}

absl::StatusOr<std::shared_ptr<ClientMemory>> FakeEngine::ImportMemory(const ClientMemoryHandles& handles) {
  const std::shared_ptr<ImportTable> from = imports();
  return from == nullptr ? absl::UnimplementedError("device fake: no memory") : from->Import(handles);
}

absl::StatusOr<std::shared_ptr<ClientMemory>> FakeEngine::ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                                     std::shared_ptr<void> until_released) {
  const std::shared_ptr<ImportTable> from = imports();
  if (from == nullptr) return absl::UnimplementedError("device fake: no files");
  return from->ImportFile(fd, offset, bytes, std::move(until_released));
}

void FakeEngine::SetImports(std::shared_ptr<ImportTable> imports) {
  MutexLock lock(&mutex_);
  imports_ = std::move(imports);
}

void FakeEngine::Open(OpenRequest request, std::function<void(OpenResult)> done) {
  OpenResult result;
  result.sequence = SequenceId(1);
  result.existing = request.client_key == "known";
  if (!result.existing && request.refused) result.outcome = *request.refused;
  done(result);
}

StepResult FakeEngine::RunStep(const StepRequest& request) {
  StepResult result;
  if (request.refused) {
    result.outcome = *request.refused;
    return result;
  }
  uint64_t tokens = 0;
  for (uint32_t i = 0; i < request.segments.size(); ++i) {
    const StepSegment& segment = request.segments[i];
    if (segment.sequence.value() >= kFirstUnknown) {
      result.outcome = Unknown(i);
      result.segments.clear();
      return result;
    }
    const uint64_t position = segment.position.value_or(Position(0)).value() + segment.num_tokens;
    result.segments.push_back({segment.sequence, Position(position), Position(0)});
    tokens += segment.num_tokens;
  }
  result.output_dtype = request.output.dtype.value_or(request.input.dtype.value_or(DType::kF32));
  result.stats.rows.hits = tokens * 4;
  result.stats.batch_tokens = static_cast<uint32_t>(tokens);
  result.stats.device = absl::Microseconds(5);
  if (request.mode == StepMode::kForward && tokens > 0) {
    const uint64_t bytes = tokens * FakeConfig().geometry.channels() * ByteSize(result.output_dtype);
    std::byte* out = request.output.allocate(bytes);
    const StepInput& input = request.input;
    if (request.memory == TensorMemory::kDevice) return result;
    if (input.source == StepInput::Source::kData && input.bytes == bytes) {
      if (input.data != nullptr) std::memcpy(out, input.data, bytes);
      for (const TensorPiece& piece : input.pieces) std::memcpy(out + piece.offset, piece.data, piece.bytes);
    } else {
      std::memset(out, 0xAB, bytes);
    }
  }
  if (request.output.deliver) {
    if (auto lost = request.output.deliver()) return {.outcome = *std::move(lost), .segments = {}, .stats = {}};
  }
  return result;
}

void FakeEngine::FailNext(Outcome outcome) {
  MutexLock lock(&mutex_);
  fail_next_ = std::move(outcome);
}

StepId FakeEngine::Submit(StepRequest request, std::function<void(StepResult)> done) {
  StepId id;
  std::optional<StepResult> result;
  {
    MutexLock lock(&mutex_);
    id = StepId(++submitted_);
    last_ = request;
    if (stopped_) {
      result = StepResult{.outcome = Stopped(), .segments = {}, .stats = {}};
    } else if (fail_next_) {
      result = StepResult{.outcome = *std::exchange(fail_next_, std::nullopt), .segments = {}, .stats = {}};
    } else if (mode_ == Mode::kHold) {
      held_.push_back({id, std::move(request), std::move(done)});
      changed_.NotifyAll();
      return id;
    }
  }
  if (!result) result = RunStep(request);
  done(*result);
  return id;
}

void FakeEngine::Cancel(StepId step) {
  std::function<void(StepResult)> done;
  {
    MutexLock lock(&mutex_);
    ++cancels_;
    const auto found = std::find_if(held_.begin(), held_.end(), [step](const Held& held) { return held.id == step; });
    if (found != held_.end()) {
      done = std::move(found->done);
      held_.erase(found);
    }
    changed_.NotifyAll();
  }
  if (!done) return;
  done({.outcome = {.code = absl::StatusCode::kCancelled, .message = "cancelled", .details = {}},
        .segments = {},
        .stats = {}});
}

void FakeEngine::Get(SequenceId sequence, uint64_t epoch, std::function<void(GetSequenceResult)> done) {
  GetSequenceResult result;
  if (sequence.value() >= kFirstUnknown) {
    result.outcome = Unknown(std::nullopt);
  } else {
    result.layers = {{LayerIndex(1), Position(30), Position(22), Position(25), 4}};
    result.idle = absl::Milliseconds(1500);
    result.epoch = epoch;
  }
  done(result);
}

void FakeEngine::Snapshot(SequenceId sequence, uint64_t, std::optional<LayerIndex>,
                          std::function<void(SnapshotResult)> done) {
  SnapshotResult result;
  if (sequence.value() >= kFirstUnknown) {
    result.outcome = Unknown(std::nullopt);
  } else {
    CarryBlob blob;
    blob.layer = LayerIndex(1);
    blob.position = Position(30);
    blob.aux = "blob";
    result.layers.push_back(blob);
  }
  done(std::move(result));
}

void FakeEngine::Restore(SequenceId sequence, uint64_t, std::string, std::vector<CarryBlob>,
                         std::function<void(Outcome)> done) {
  done(sequence.value() >= kFirstUnknown ? Unknown(std::nullopt) : Outcome{});
}

void FakeEngine::Release(SequenceId sequence, uint64_t, std::function<void(ReleaseResult)> done) {
  done({.outcome = {}, .released = sequence.value() < kFirstUnknown});
}

void FakeEngine::Lookup(LookupRequest request, std::function<void(LookupResult)> done) {
  LookupResult result;
  if (request.want_row_ids) result.row_ids = {1, 2, 3, 4};
  if (request.want_embeddings) result.embeddings = std::string(64, 'e');
  done(std::move(result));
}

void FakeEngine::Warm(LayerOrdinal, std::vector<RowId> rows, std::function<void(Outcome)> done) {
  Outcome outcome;
  {
    MutexLock lock(&mutex_);
    if (warms_.size() >= warms_fail_from_) outcome = Stopped();
    warms_.push_back(std::move(rows));
    changed_.NotifyAll();
  }
  done(std::move(outcome));
}

std::vector<std::vector<RowId>> FakeEngine::CachedRows() const {
  MutexLock lock(&mutex_);
  return cached_rows_;
}

std::vector<std::vector<RowId>> FakeEngine::WaitForWarms(size_t count) {
  MutexLock lock(&mutex_);
  while (warms_.size() < count) changed_.Wait(&mutex_);
  return warms_;
}

void FakeEngine::FailWarmsFrom(size_t first) {
  MutexLock lock(&mutex_);
  warms_fail_from_ = first;
}

void FakeEngine::SetCachedRows(std::vector<std::vector<RowId>> rows) {
  MutexLock lock(&mutex_);
  cached_rows_ = std::move(rows);
}

void FakeEngine::StartDraining() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

bool FakeEngine::idle() const { return false; }

void FakeEngine::NotifyWhenIdle(std::function<void()> fn) {
  MutexLock lock(&mutex_);
  on_idle_ = std::move(fn);
  changed_.NotifyAll();
}

void FakeEngine::NotifyDeviceLost(std::function<void(absl::Status)> fn) {
  MutexLock lock(&mutex_);
  on_lost_ = std::move(fn);
  changed_.NotifyAll();
}

uint64_t FakeEngine::Stop() {
  std::deque<Held> held;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    changed_.NotifyAll();
    while (stop_blocked_) changed_.Wait(&mutex_);
    held.swap(held_);
  }
  for (Held& step : held) step.done({.outcome = Stopped(), .segments = {}, .stats = {}});
  return held.size();
}

absl::Status FakeEngine::GiveSequences(const SequenceSink& sink) {
  MutexLock lock(&mutex_);
  if (!give_blocked_) return absl::OkStatus();
  KeptSequence kept;
  kept.id = SequenceId(1);
  kept.carries.resize(1);
  if (absl::Status status = sink(kept); !status.ok()) return status;
  given_ = true;
  changed_.NotifyAll();
  while (give_blocked_) changed_.Wait(&mutex_);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FakeEngine::TakeSequences(const SequenceSource&) { return 0; }

EngineStats FakeEngine::stats() const {
  EngineStats stats;
  stats.tokens = {42};
  stats.sequences = 3;
  stats.queue.counts[0] = 2;
  stats.queue.sum_seconds = 1e-5;
  stats.rows.lookups = {{.hits = 5, .misses = 6, .joins = 7}};
  stats.rows.slots_free = 11;
  return stats;
}

void FakeLoader::Control::Finish(absl::Status status) {
  MutexLock lock(&mutex);
  result = std::move(status);
  changed.NotifyAll();
}

absl::StatusOr<LoadedModel> FakeLoader::Load(const LoadHooks& hooks) {
  LoadProgress progress;
  progress.bytes_read = 1;
  progress.bytes_total = 2;
  hooks.on_progress(progress);
  MutexLock lock(&control_->mutex);
  while (!control_->result && !hooks.cancelled()) {
    control_->changed.WaitUntil(&control_->mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(10));
  }
  if (!control_->result) return absl::CancelledError("cancelled");
  if (!control_->result->ok()) return *control_->result;
  auto engine = std::make_unique<FakeEngine>(mode_);
  control_->engine = engine.get();
  return LoadedModel{.engine = std::move(engine), .reader = {.name = "pread", .detail = "buffered"}};
}

}  // namespace pleiad
