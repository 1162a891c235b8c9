// A row reader that fails by script.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/rows/row_reader.h"

namespace pleiad {

enum class ReadFault {
  kNone,   // goes to the inner reader
  kError,  // DataLoss "input/output error"; the destination is scribbled on
  kShort,  // the first half is read, then DataLoss "file ends"
  kHold,   // late: waits for Release
  kNever,  // has no result until the reader is destroyed, then Cancelled
};

// Decorates a reader. Thread-safe; the script is called with the read and its ordinal among all reads submitted,
// under a lock.
class ScriptedReader : public RowReader {
 public:
  using Script = std::function<ReadFault(const RowRead& read, size_t ordinal)>;
  enum class Order { kSubmitted, kReversed };

  ScriptedReader(std::unique_ptr<RowReader> inner, Script script);
  ~ScriptedReader() override;

  const RowReaderInfo& info() const override { return inner_->info(); }
  void Submit(absl::Span<const RowRead> reads, ResultFn on_results) override;

  // Reads submitted so far.
  size_t submitted();
  // Of them, held or never answered.
  size_t withheld();
  // Blocks until at least `count` reads are held or never answered.
  void AwaitHeld(size_t count);
  // Hands the held reads, the `most` oldest of them, to the inner reader, one by one in `order`, each after the result
  // of the one before.
  void Release(Order order, size_t most = SIZE_MAX);

 private:
  struct Pending {
    RowRead read;
    std::shared_ptr<const ResultFn> on_results;
  };

  const std::unique_ptr<RowReader> inner_;
  const Script script_;

  Mutex mutex_;
  CondVar changed_;
  size_t ordinal_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Pending> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<Pending> never_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad
