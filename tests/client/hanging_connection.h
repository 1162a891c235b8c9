// A Connection that stops answering when told to, as one to a server that hangs or was stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/connection.h"
#include "core/base/mutex.h"

namespace pleiad::client::testing {

// What the connections to one server do. Thread-safe.
class Hang {
 public:
  enum class Health { kToo, kAnswers };

  // From now on calls end with DeadlineExceeded, at once, and streams give no replies; health is asked for in vain
  // too, or answered, and prestages with it.
  void Begin(Health health) {
    MutexLock lock(&mutex_);
    hangs_ = true;
    healthy_ = health == Health::kAnswers;
  }
  // Streams take no steps either, as when connections and their windows are full.
  void TakeNothing() {
    MutexLock lock(&mutex_);
    takes_nothing_ = true;
  }
  // What was held back comes.
  void End() {
    MutexLock lock(&mutex_);
    hangs_ = takes_nothing_ = false;
    changed_.NotifyAll();
  }
  enum class Point { kAfterOpen, kBeforeSnapshot, kAfterSnapshot, kAfterRestore };
  // Called once, in the next such call: before the server has it, or after it has answered and before the caller knows.
  void SetHook(Point point, std::function<void()> fn) {
    MutexLock lock(&mutex_);
    hooks_[point] = std::move(fn);
  }
  // Blocks until a reply is held back.
  void AwaitHeld() {
    MutexLock lock(&mutex_);
    while (held_ == 0) changed_.Wait(&mutex_);
  }

 private:
  friend class HangingConnection;

  Mutex mutex_;
  CondVar changed_;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  bool takes_nothing_ ABSL_GUARDED_BY(mutex_) = false;
  bool healthy_ ABSL_GUARDED_BY(mutex_) = true;
  int held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<Point, std::function<void()>> hooks_ ABSL_GUARDED_BY(mutex_);
};

class HangingConnection final : public Connection {
 public:
  HangingConnection(std::shared_ptr<Connection> inner, std::shared_ptr<Hang> hang)
      : inner_(std::move(inner)), hang_(std::move(hang)) {}

  absl::StatusOr<ModelInfo> GetModel() override { return inner_->GetModel(); }
  absl::StatusOr<OpenResult> Open(const OpenOptions& options) override {
    if (Hangs()) return NoAnswer();
    absl::StatusOr<OpenResult> opened = inner_->Open(options);
    RunHook(Hang::Point::kAfterOpen);
    return opened;
  }
  absl::StatusOr<SequenceStatus> GetSequence(SequenceId sequence, uint64_t epoch) override {
    if (Hangs()) return NoAnswer();
    return inner_->GetSequence(sequence, epoch);
  }
  absl::StatusOr<SequenceSnapshot> Snapshot(SequenceId sequence, uint64_t epoch,
                                            std::optional<uint32_t> layer_index) override {
    if (Hangs()) return NoAnswer();
    RunHook(Hang::Point::kBeforeSnapshot);
    absl::StatusOr<SequenceSnapshot> snapshot = inner_->Snapshot(sequence, epoch, layer_index);
    RunHook(Hang::Point::kAfterSnapshot);
    return snapshot;
  }
  absl::Status Restore(SequenceId sequence, uint64_t epoch, const SequenceSnapshot& snapshot) override {
    if (Hangs()) return NoAnswer();
    const absl::Status status = inner_->Restore(sequence, epoch, snapshot);
    RunHook(Hang::Point::kAfterRestore);
    return status;
  }
  absl::StatusOr<bool> Release(SequenceId sequence, uint64_t epoch) override {
    return inner_->Release(sequence, epoch);
  }
  void ReleaseLater(SequenceId sequence, uint64_t epoch) override { inner_->ReleaseLater(sequence, epoch); }
  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override { return inner_->Lookup(query); }
  absl::StatusOr<StepResult> Forward(const WireStep& step) override { return inner_->Forward(step); }
  absl::StatusOr<HealthState> Health(const std::string& service) override {
    {
      MutexLock lock(&hang_->mutex_);
      if (hang_->hangs_ && !hang_->healthy_) return NoAnswer();
    }
    return inner_->Health(service);
  }
  std::unique_ptr<StepConnection> OpenStream() override {
    return std::make_unique<Stream>(hang_.get(), inner_->OpenStream());
  }
  absl::StatusOr<std::unique_ptr<RegionLease>> AttachFile(const std::string& path, uint64_t bytes) override {
    return inner_->AttachFile(path, bytes);
  }
  absl::StatusOr<std::unique_ptr<RegionLease>> AttachDeviceMemory(const DeviceMemoryHandles& handles) override {
    return inner_->AttachDeviceMemory(handles);
  }

 private:
  class Stream final : public StepConnection {
   public:
    Stream(Hang* hang, std::unique_ptr<StepConnection> inner) : hang_(hang), inner_(std::move(inner)) {}

    bool Write(const WireStep& step) override {
      MutexLock lock(&hang_->mutex_);
      if (hang_->hangs_ && hang_->healthy_ && step.mode == StepMode::kPrestage) {
        prestages_.push_back(step.request_id);
        hang_->changed_.NotifyAll();
      }
      while (hang_->takes_nothing_ && !cancelled_) hang_->changed_.Wait(&hang_->mutex_);
      if (cancelled_) return false;
      hang_->mutex_.Unlock();
      const bool sent = inner_->Write(step);
      hang_->mutex_.Lock();
      return sent;
    }
    std::optional<WireReply> Read() override {
      std::optional<WireReply> reply = std::exchange(kept_, std::nullopt);
      if (!reply.has_value()) reply = inner_->Read();
      MutexLock lock(&hang_->mutex_);
      if (!reply.has_value() || !hang_->hangs_) return reply;
      ++hang_->held_;
      hang_->changed_.NotifyAll();
      while (hang_->hangs_ && !cancelled_ && prestages_.empty()) hang_->changed_.Wait(&hang_->mutex_);
      --hang_->held_;
      if (cancelled_) return std::nullopt;
      if (prestages_.empty()) return reply;
      kept_ = std::move(reply);
      const uint64_t prestage = prestages_.front();
      prestages_.pop_front();
      return WireReply{prestage};
    }
    void Cancel() override {
      inner_->Cancel();
      MutexLock lock(&hang_->mutex_);
      cancelled_ = true;
      hang_->changed_.NotifyAll();
    }
    absl::Status Finish() override {
      while (inner_->Read().has_value()) {
      }
      return inner_->Finish();
    }

   private:
    Hang* const hang_;
    const std::unique_ptr<StepConnection> inner_;
    std::optional<WireReply> kept_;  // of the reading thread
    // Guarded by the hang's mutex.
    bool cancelled_ = false;
    std::deque<uint64_t> prestages_;
  };

  void RunHook(Hang::Point point) {
    std::function<void()> hook;
    {
      MutexLock lock(&hang_->mutex_);
      hook = std::exchange(hang_->hooks_[point], nullptr);
    }
    if (hook) hook();
  }
  static absl::Status NoAnswer() { return absl::DeadlineExceededError("no answer in time"); }
  bool Hangs() const {
    MutexLock lock(&hang_->mutex_);
    return hang_->hangs_;
  }

  const std::shared_ptr<Connection> inner_;
  const std::shared_ptr<Hang> hang_;
};

}  // namespace pleiad::client::testing
