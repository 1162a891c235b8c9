#include "server/warm_start.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "server/log.h"

namespace pleiad {

WarmStart::WarmStart(Engine* engine, const std::string& state_dir, std::vector<uint64_t> table_rows)
    : engine_(engine), path_(absl::StrCat(state_dir, "/warm-rows")), table_rows_(std::move(table_rows)) {}

WarmStart::~WarmStart() { Stop(); }

void WarmStart::Start() {
  thread_ = std::thread([this] { Read(); });
}

void WarmStart::Save() {
  if (!thread_.joinable()) return;
  Stop();
  thread_ = std::thread([this] { Write(); });
}

void WarmStart::Stop() {
  {
    MutexLock lock(&waiting_->mutex);
    waiting_->stop = true;
    waiting_->changed.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void WarmStart::Read() {
  absl::StatusOr<WarmRows> rows = LoadWarmRows(path_, engine_->model().model_id, table_rows_);
  if (!rows.ok()) {
    if (absl::IsNotFound(rows.status())) return;
    spdlog::warn("cached rows of the last run are not read back: {}", rows.status().ToString());
    return;
  }
  unread_ = *std::move(rows);
  // Those of one token at a time: far fewer than a disk serves side by side, and no more than any engine takes.
  const size_t at_once = engine_->model().config.geometry.heads();
  uint64_t read = 0;
  for (uint32_t layer = 0; layer < unread_.size(); ++layer) {
    std::vector<RowId>& ids = unread_[layer];
    std::reverse(ids.begin(), ids.end());  // the next ones at the end
    while (!ids.empty()) {
      const std::vector<RowId> next(ids.end() - static_cast<ptrdiff_t>(std::min(at_once, ids.size())), ids.end());
      const std::optional<Outcome> outcome = ReadBack(LayerOrdinal(layer), next);
      if (!outcome) return;
      if (!outcome->ok()) {
        spdlog::warn("reading back cached rows stopped after {}: {}", read, outcome->message);
        return;
      }
      ids.resize(ids.size() - next.size());
      read += next.size();
    }
  }
  spdlog::info("{} cached rows of the last run are back", read);
}

std::optional<Outcome> WarmStart::ReadBack(LayerOrdinal layer, std::vector<RowId> rows) {
  {
    MutexLock lock(&waiting_->mutex);
    if (waiting_->stop) return std::nullopt;
    waiting_->outcome.reset();
  }
  engine_->Warm(layer, std::move(rows), [waiting = waiting_](Outcome outcome) {
    MutexLock lock(&waiting->mutex);
    waiting->outcome = std::move(outcome);
    waiting->changed.NotifyAll();
  });
  MutexLock lock(&waiting_->mutex);
  while (!waiting_->stop && !waiting_->outcome) waiting_->changed.Wait(&waiting_->mutex);
  return std::move(waiting_->outcome);
}

void WarmStart::Write() {
  WarmRows rows = engine_->CachedRows();
  uint64_t count = 0;
  for (uint32_t layer = 0; layer < rows.size(); ++layer) {
    if (layer < unread_.size()) {
      const absl::flat_hash_set<RowId> cached(rows[layer].begin(), rows[layer].end());
      std::copy_if(unread_[layer].rbegin(), unread_[layer].rend(), std::back_inserter(rows[layer]),
                   [&cached](RowId row) { return !cached.contains(row); });
    }
    count += rows[layer].size();
  }
  const absl::Status status = SaveWarmRows(path_, engine_->model().model_id, rows);
  if (status.ok()) {
    spdlog::info("the ids of {} cached rows are in {}", count, path_);
  } else {
    spdlog::warn("the ids of cached rows are not kept: {}", status.ToString());
  }
}

}  // namespace pleiad
