// An Engine that does what the test says: it records what it is asked and answers when told to.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/import_table.h"
#include "core/engine/engine.h"
#include "server/model_loader.h"

namespace pleiad {

// Channels 8 (hc 2, hidden 4), one PLE layer 1.
ModelConfig FakeConfig();
inline ModelSummary FakeSummary() {
  return {.config = FakeConfig(), .layers = {{.index = LayerIndex(1), .rows = 256, .row_dtype = "BF16"}}};
}

class FakeEngine final : public Engine {
 public:
  enum class Mode { kAnswerAtOnce, kHold };

  struct Held {
    StepId id;
    StepRequest request;
    std::function<void(StepResult)> done;
    bool cancelled = false;
  };

  explicit FakeEngine(Mode mode = Mode::kAnswerAtOnce);

  // The next step that comes is answered so at once.
  void FailNext(Outcome outcome);
  // Of held steps, oldest first. Waits until there are `count`.
  void WaitForHeld(size_t count);
  size_t held() const;
  // Answers the oldest held step as kAnswerAtOnce would.
  void AnswerOldest();
  void SetMode(Mode mode);
  // Waits until the steps that Cancel named are `count`.
  void WaitForCancels(size_t count);
  void BecomeIdle();
  void LoseDevice();
  // Stop waits between these two; WaitForStop returns once it does.
  void BlockStop();
  void UnblockStop();
  void WaitForStop();
  // From now on memory of clients is imported from there; null: from nowhere.
  void SetImports(std::shared_ptr<ImportTable> imports);
  // From now on GiveSequences gives one sequence and never returns; WaitForGive returns once it has given it.
  void BlockGive();
  void WaitForGive();
  // The rows of each Warm, once there are `count` calls.
  std::vector<std::vector<RowId>> WaitForWarms(size_t count);
  // Warms from the `first`th on, counted from 0, are answered Unavailable.
  void FailWarmsFrom(size_t first);
  void SetCachedRows(std::vector<std::vector<RowId>> rows);
  uint64_t submitted() const {
    MutexLock lock(&mutex_);
    return submitted_;
  }
  bool draining() const {
    MutexLock lock(&mutex_);
    return draining_;
  }
  // Of the last step submitted; data pointers are not to be followed.
  StepRequest last() const;

  void Attend(const std::function<void()>& fn) override { fn(); }

  const EngineOptions& options() const override { return options_; }
  const EngineModel& model() const override { return model_; }
  const DeviceInfo& device_info() const override { return device_; }
  const char* table_mode() const override { return "resident"; }
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportMemory(const ClientMemoryHandles& handles) override;
  absl::StatusOr<std::shared_ptr<ClientMemory>> ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                           std::shared_ptr<void> until_released) override;
  void Open(OpenRequest request, std::function<void(OpenResult)> done) override;
  StepId Submit(StepRequest request, std::function<void(StepResult)> done) override;
  void Cancel(StepId step) override;
  void Get(SequenceId sequence, uint64_t epoch, std::function<void(GetSequenceResult)> done) override;
  void Snapshot(SequenceId sequence, uint64_t epoch, std::optional<LayerIndex> layer,
                std::function<void(SnapshotResult)> done) override;
  void Restore(SequenceId sequence, uint64_t epoch, std::string model_id, std::vector<CarryBlob> layers,
               std::function<void(Outcome)> done) override;
  void Release(SequenceId sequence, uint64_t epoch, std::function<void(ReleaseResult)> done) override;
  void Lookup(LookupRequest request, std::function<void(LookupResult)> done) override;
  void Warm(LayerOrdinal layer, std::vector<RowId> rows, std::function<void(Outcome)> done) override;
  std::vector<std::vector<RowId>> CachedRows() const override;
  void StartDraining() override;
  bool idle() const override;
  void NotifyWhenIdle(std::function<void()> fn) override;
  void NotifyDeviceLost(std::function<void(absl::Status)> fn) override;
  uint64_t Stop() override;
  absl::Status GiveSequences(const SequenceSink& sink) override;
  absl::StatusOr<uint64_t> TakeSequences(const SequenceSource& source) override;
  EngineStats stats() const override;

 private:
  std::shared_ptr<ImportTable> imports() const;
  // Refusals pass; a sequence above 1000 is unknown; else positions advance and the output is the input, or 0xAB; in
  // memory of a device nothing is written.
  static StepResult RunStep(const StepRequest& request);

  const EngineOptions options_;
  EngineModel model_;
  DeviceInfo device_;
  mutable Mutex mutex_;
  CondVar changed_;
  Mode mode_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> fail_next_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  std::optional<StepRequest> last_ ABSL_GUARDED_BY(mutex_);
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<RowId>> warms_ ABSL_GUARDED_BY(mutex_);
  size_t warms_fail_from_ ABSL_GUARDED_BY(mutex_) = ~size_t{0};
  std::vector<std::vector<RowId>> cached_rows_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ImportTable> imports_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_blocked_ ABSL_GUARDED_BY(mutex_) = false;
  bool give_blocked_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_idle_ ABSL_GUARDED_BY(mutex_);
  std::function<void(absl::Status)> on_lost_ ABSL_GUARDED_BY(mutex_);
};

// Loads a FakeEngine when Finish is called, or at once.
class FakeLoader final : public ModelLoader {
 public:
  // Shared with the test.
  struct Control {
    // Lets Load return; with an error it fails.
    void Finish(absl::Status status = absl::OkStatus());

    Mutex mutex;
    CondVar changed;
    std::optional<absl::Status> result ABSL_GUARDED_BY(mutex);
    FakeEngine* engine ABSL_GUARDED_BY(mutex) = nullptr;
  };

  FakeLoader(std::shared_ptr<Control> control, FakeEngine::Mode mode) : control_(std::move(control)), mode_(mode) {}

  absl::StatusOr<ModelSummary> Open() override { return FakeSummary(); }
  // Polls `cancelled`.
  absl::StatusOr<LoadedModel> Load(const LoadHooks& hooks) override;

 private:
  const std::shared_ptr<Control> control_;
  const FakeEngine::Mode mode_;
};

}  // namespace pleiad
