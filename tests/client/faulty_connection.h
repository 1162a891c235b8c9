// A Connection whose streams break where a script says. Kept beside: the steps that were lost, as they were sent.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/connection.h"
#include "core/base/mutex.h"

namespace pleiad::client::testing {

enum class KillPoint {
  kBeforeSend,  // the step never leaves
  kAfterSend,   // it leaves, and the stream is cancelled at once: the server has it or not
  kReplyLost,   // it was applied, and the reply is lost
  kAfterReply,  // between two steps
};

// At the nth write (kBeforeSend, kAfterSend) or the nth reply (the others), counted over all streams from 0.
struct Kill {
  KillPoint point = KillPoint::kBeforeSend;
  uint64_t nth = 0;
};

// A step that was lost, with its highway.
struct LateCopy {
  WireStep step;
  std::string highway;
};

class FaultyConnection final : public Connection {
 public:
  FaultyConnection(std::shared_ptr<Connection> inner, std::vector<Kill> kills)
      : inner_(std::move(inner)), kills_(std::move(kills)) {}

  absl::StatusOr<ModelInfo> GetModel() override { return inner_->GetModel(); }
  absl::StatusOr<OpenResult> Open(const OpenOptions& options) override { return inner_->Open(options); }
  absl::StatusOr<SequenceStatus> GetSequence(SequenceId sequence, uint64_t epoch) override {
    return inner_->GetSequence(sequence, epoch);
  }
  absl::StatusOr<SequenceSnapshot> Snapshot(SequenceId sequence, uint64_t epoch,
                                            std::optional<uint32_t> layer_index) override {
    return inner_->Snapshot(sequence, epoch, layer_index);
  }
  absl::Status Restore(SequenceId sequence, uint64_t epoch, const SequenceSnapshot& snapshot) override {
    return inner_->Restore(sequence, epoch, snapshot);
  }
  absl::StatusOr<bool> Release(SequenceId sequence, uint64_t epoch) override {
    return inner_->Release(sequence, epoch);
  }
  void ReleaseLater(SequenceId sequence, uint64_t epoch) override { inner_->ReleaseLater(sequence, epoch); }
  absl::StatusOr<LookupResult> Lookup(const LookupQuery& query) override { return inner_->Lookup(query); }
  absl::StatusOr<StepResult> Forward(const WireStep& step) override { return inner_->Forward(step); }
  absl::StatusOr<HealthState> Health(const std::string& service) override { return inner_->Health(service); }
  std::unique_ptr<StepConnection> OpenStream() override { return std::make_unique<Stream>(this, inner_->OpenStream()); }

  absl::StatusOr<std::unique_ptr<RegionLease>> AttachFile(const std::string& path, uint64_t bytes) override {
    return inner_->AttachFile(path, bytes);
  }
  absl::StatusOr<std::unique_ptr<RegionLease>> AttachDeviceMemory(const DeviceMemoryHandles& handles) override {
    return inner_->AttachDeviceMemory(handles);
  }

  std::vector<LateCopy> late_copies() {
    MutexLock lock(&mutex_);
    return late_copies_;
  }
  size_t kills_done() {
    MutexLock lock(&mutex_);
    return kills_done_;
  }

 private:
  class Stream final : public StepConnection {
   public:
    Stream(FaultyConnection* owner, std::unique_ptr<StepConnection> inner) : owner_(owner), inner_(std::move(inner)) {}

    bool Write(const WireStep& step) override {
      const std::optional<KillPoint> kill = owner_->OnWrite(step);
      if (kill == KillPoint::kBeforeSend) {
        inner_->Cancel();
        return false;
      }
      const bool sent = inner_->Write(step);
      if (kill == KillPoint::kAfterSend) inner_->Cancel();
      return sent;
    }
    std::optional<WireReply> Read() override {
      std::optional<WireReply> reply;
      if (!kill_next_) reply = inner_->Read();
      const std::optional<KillPoint> kill = reply.has_value() ? owner_->OnReply(reply->request_id) : std::nullopt;
      if (kill == KillPoint::kReplyLost) reply.reset();
      if (kill == KillPoint::kAfterReply) {
        kill_next_ = true;
      } else if (!reply.has_value()) {
        inner_->Cancel();
        while (inner_->Read().has_value()) {
        }
      }
      return reply;
    }
    void Cancel() override { inner_->Cancel(); }
    absl::Status Finish() override { return inner_->Finish(); }

   private:
    FaultyConnection* const owner_;
    const std::unique_ptr<StepConnection> inner_;
    bool kill_next_ = false;
  };

  std::optional<KillPoint> Strike(uint64_t count, bool at_write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Kill& kill : kills_) {
      const bool of_write = kill.point == KillPoint::kBeforeSend || kill.point == KillPoint::kAfterSend;
      if (of_write != at_write || kill.nth != count) continue;
      ++kills_done_;
      return kill.point;
    }
    return std::nullopt;
  }
  std::optional<KillPoint> OnWrite(const WireStep& step) {
    MutexLock lock(&mutex_);
    const std::optional<KillPoint> kill = Strike(writes_++, /*at_write=*/true);
    LateCopy copy{step, std::string(reinterpret_cast<const char*>(step.highway.data.data()), step.highway.data.size())};
    if (kill.has_value()) late_copies_.push_back(copy);
    sent_.push_back(std::move(copy));
    return kill;
  }
  std::optional<KillPoint> OnReply(uint64_t request_id) {
    MutexLock lock(&mutex_);
    const std::optional<KillPoint> kill = Strike(replies_++, /*at_write=*/false);
    if (kill == KillPoint::kReplyLost) {
      for (const LateCopy& copy : sent_) {
        if (copy.step.request_id == request_id) late_copies_.push_back(copy);
      }
    }
    return kill;
  }

  const std::shared_ptr<Connection> inner_;
  const std::vector<Kill> kills_;

  Mutex mutex_;
  uint64_t writes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t replies_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t kills_done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<LateCopy> sent_ ABSL_GUARDED_BY(mutex_);
  std::vector<LateCopy> late_copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::client::testing
