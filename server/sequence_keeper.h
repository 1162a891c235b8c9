// Keeps open sequences in --state-dir over a restart: written when the server has stopped, taken back before it serves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/engine/engine.h"

namespace pleiad {

// What TakeBack has done in this process.
struct TakenBack {
  uint64_t sequences = 0;
  uint64_t files_set_aside = 0;
};

// Used by one thread at a time, Abandon and the counts aside. Every call but those blocks on the disk.
class SequenceKeeper {
 public:
  // InvalidArgument naming --state-dir unless it is a folder that can be read and written.
  static absl::Status CheckFolder(const std::string& state_dir);

  // Owns the folder, until destroyed, against other servers: two that share one would each take the other's sequences.
  // FailedPrecondition naming --state-dir when another has it, statuses as CheckFolder.
  static absl::StatusOr<std::unique_ptr<SequenceKeeper>> Open(const std::string& state_dir);

  // Gives `engine`, which serves nobody yet, what the last run kept, each after `on_taken`, and removes the file: from
  // then on these sequences live in this process alone, and a later start never finds them where they stood before. A
  // file that is damaged, of another model or of a version that is not known is renamed to sequences.bad-N with a line
  // in the log; the engine then has none. Every error is a reason not to start and leaves the file: FailedPrecondition
  // when it holds more than the engine's max_sequences, Unavailable when it cannot be read, renamed or removed,
  // Internal when the device is lost, Cancelled when `cancelled`, which is polled, says so.
  absl::Status TakeBack(Engine& engine, const std::function<void(KeptSequence&)>& on_taken,
                        const std::function<bool()>& cancelled);

  // After Engine::Stop: writes what is open, if anything is. Only after TakeBack has succeeded; else nothing, so that a
  // file which was not taken back stays. Unavailable when it cannot be written, Internal when the device is lost: the
  // sequences end with the process then, and no part of a file is left.
  absl::Status Keep(Engine& engine);
  // While another thread is in Keep, which must not go on: removes what it has written. The process ends.
  void Abandon() const;

  // Thread-safe.
  TakenBack counts() const { return {sequences_taken_back_.load(), files_set_aside_.load()}; }

 private:
  SequenceKeeper(const std::string& state_dir, UniqueFd folder);

  absl::Status SetAside(const absl::Status& why);
  // Makes a change of names last.
  absl::Status SyncFolder();

  const std::string path_;
  const UniqueFd folder_;  // locked
  bool taken_back_ = false;
  std::atomic<uint64_t> sequences_taken_back_{0};
  std::atomic<uint64_t> files_set_aside_{0};
};

}  // namespace pleiad
