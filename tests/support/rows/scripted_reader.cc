#include "tests/support/rows/scripted_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

void Deliver(const RowReader::ResultFn& on_results, uint64_t id, absl::Status status) {
  const RowReadResult result{.id = id, .status = std::move(status)};
  on_results(absl::MakeConstSpan(&result, 1));
}

absl::Status ReadAndWait(RowReader& reader, const RowRead& read) {
  Mutex mutex;
  CondVar arrived;
  bool done = false;
  absl::Status status;
  reader.Submit(absl::MakeConstSpan(&read, 1), [&](absl::Span<const RowReadResult> results) {
    MutexLock lock(&mutex);
    status = results.front().status;
    done = true;
    arrived.NotifyAll();
  });
  MutexLock lock(&mutex);
  while (!done) arrived.Wait(&mutex);
  return status;
}

}  // namespace

ScriptedReader::ScriptedReader(std::unique_ptr<RowReader> inner, Script script)
    : inner_(std::move(inner)), script_(std::move(script)) {}

ScriptedReader::~ScriptedReader() {
  std::vector<Pending> left;
  {
    MutexLock lock(&mutex_);
    left.swap(held_);
    left.insert(left.end(), never_.begin(), never_.end());
    never_.clear();
  }
  for (const Pending& pending : left) {
    Deliver(*pending.on_results, pending.read.id, absl::CancelledError("the row reader is stopping"));
  }
}

void ScriptedReader::Submit(absl::Span<const RowRead> reads, ResultFn on_results) {
  const auto fn = std::make_shared<const ResultFn>(std::move(on_results));
  std::vector<RowRead> pass;
  std::vector<RowRead> failing;
  std::vector<RowRead> ending;
  {
    MutexLock lock(&mutex_);
    for (const RowRead& read : reads) {
      switch (script_(read, ordinal_++)) {
        case ReadFault::kNone:
          pass.push_back(read);
          break;
        case ReadFault::kError:
          failing.push_back(read);
          break;
        case ReadFault::kShort:
          ending.push_back(read);
          break;
        case ReadFault::kHold:
          held_.push_back({read, fn});
          break;
        case ReadFault::kNever:
          never_.push_back({read, fn});
          break;
      }
    }
  }
  changed_.NotifyAll();
  if (!pass.empty()) inner_->Submit(pass, *fn);
  for (const RowRead& read : failing) {
    std::memset(read.destination, 0xEE, read.bytes);
    Deliver(*fn, read.id,
            absl::DataLossError(absl::StrCat("file ", read.file, ", offset ", read.offset, ": input/output error")));
  }
  for (const RowRead& read : ending) {
    RowRead half = read;
    half.bytes /= 2;
    if (half.bytes > 0) ReadAndWait(*inner_, half).IgnoreError();
    Deliver(*fn, read.id,
            absl::DataLossError(absl::StrCat("file ", read.file, ", offset ", read.offset, ": file ends after ",
                                             half.bytes, " of ", read.bytes, " bytes")));
  }
}

size_t ScriptedReader::submitted() {
  MutexLock lock(&mutex_);
  return ordinal_;
}

size_t ScriptedReader::withheld() {
  MutexLock lock(&mutex_);
  return held_.size() + never_.size();
}

void ScriptedReader::AwaitHeld(size_t count) {
  MutexLock lock(&mutex_);
  while (held_.size() + never_.size() < count) changed_.Wait(&mutex_);
}

void ScriptedReader::Release(Order order, size_t most) {
  std::vector<Pending> released;
  {
    MutexLock lock(&mutex_);
    released.swap(held_);
    if (released.size() > most) {
      held_.assign(released.begin() + static_cast<ptrdiff_t>(most), released.end());
      released.resize(most);
    }
  }
  if (order == Order::kReversed) std::reverse(released.begin(), released.end());
  for (const Pending& pending : released) {
    absl::Status status = ReadAndWait(*inner_, pending.read);
    Deliver(*pending.on_results, pending.read.id, std::move(status));
  }
}

}  // namespace pleiad
