// Reads: begun, ended, failed, timed out; the health of the table.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/numeric.h"
#include "core/rows/cached_row_store_impl.h"

namespace pleiad {
namespace {

constexpr uint32_t kFailuresUntilUnhealthy = 3;
// Probes that a reader never answers are given up; so many may be out at once.
constexpr uint32_t kMaxProbesOut = 16;

uint64_t ReadId(uint32_t generation, uint32_t arrival) { return uint64_t{generation} << 32 | arrival; }

}  // namespace

void CachedRowStoreImpl::AskFor(uint32_t row, Actions& actions) {
  const Arrival& arrival = staging_[row];
  const RowLocation at = Locate(arrival.key);
  std::byte* destination = landing_.size() == 0 ? options_.staging.data + uint64_t{row} * options_.staging.row_bytes
                                                : landing_.data() + uint64_t{row} * at.bytes;
  actions.reads.push_back({ReadId(arrival.generation, row), at.file, at.offset, at.bytes, destination});
}

void CachedRowStoreImpl::OnResults(absl::Span<const RowReadResult> results) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    last_result_ = now;
    for (const RowReadResult& result : results) {
      const uint32_t row = static_cast<uint32_t>(result.id);
      if (row >= staging_.rows()) continue;
      Arrival& arrival = staging_[row];
      if (arrival.state == ArrivalState::kQuarantined) {
        staging_.EndQuarantine(row);
        continue;
      }
      // A reader gives each read one result; a result that is nobody's changes nothing.
      if (arrival.state != ArrivalState::kReading || ReadId(arrival.generation, row) != result.id) continue;
      staging_.ReadEnds(row, now);
      stats_.read_seconds.Add(absl::ToDoubleSeconds(now - arrival.submitted));
      if (!result.status.ok()) {
        FailRead(row, result.status, actions);
        staging_.Return(row);
        continue;
      }
      failures_in_a_row_ = 0;
      if (landing_.size() != 0) {
        const TableLayout& table = tables_[LayerOfKey(arrival.key)];
        RoundToBf16(landing_.data() + uint64_t{row} * table.disk_row_bytes(), table.head_dim,
                    options_.staging.data + uint64_t{row} * options_.staging.row_bytes);
      }
      stats_.used_bytes += tables_[LayerOfKey(arrival.key)].disk_row_bytes();
      arrival.state = ArrivalState::kRead;
      const auto waiters = std::move(arrival.waiters);
      arrival.waiters.clear();
      for (const Waiter& waiter : waiters) {
        if (--waiter.plan->reads_pending == 0) Answer(*waiter.plan, actions);
      }
      if (arrival.state == ArrivalState::kRead && arrival.plans == 0) {
        Forget(row);
        staging_.ReturnAfter(row, arrival.last_use);
      }
    }
    ServeQueue(actions);
  }
  Perform(std::move(actions));
}

void CachedRowStoreImpl::FailRead(uint32_t row, const absl::Status& status, Actions& actions) {
  Arrival& arrival = staging_[row];
  const RowLocation at = Locate(arrival.key);
  // A reader that stops says nothing about the table.
  if (!absl::IsCancelled(status)) Failed(at, status, actions);
  Forget(row);
  const auto waiters = std::move(arrival.waiters);
  arrival.waiters.clear();
  for (const Waiter& waiter : waiters) {
    PlanState* const plan = waiter.plan;
    RowFailure failure;
    failure.id_index = plan->named[waiter.entry].first_id;
    failure.file = files_[at.file];
    failure.offset = at.offset;
    plan->result.failures.push_back(std::move(failure));
    // What is damaged is worse than what is late.
    if (plan->result.status.ok() || absl::IsDataLoss(status)) plan->result.status = status;
    if (--plan->reads_pending == 0) Answer(*plan, actions);
  }
}

void CachedRowStoreImpl::Forget(uint32_t row) {
  Arrival& arrival = staging_[row];
  maps_[LayerOfKey(arrival.key)].Erase(RowId(RowOfKey(arrival.key)));
  if (arrival.slot != kNone) slots_.Free(arrival.slot);
  arrival.slot = kNone;
  arrival.plans = 0;
  ++arrival.generation;
}

void CachedRowStoreImpl::Failed(const RowLocation& location, const absl::Status& status, Actions& actions) {
  ++stats_.read_errors;
  failed_at_ = location;
  if (++failures_in_a_row_ < kFailuresUntilUnhealthy || !health_.ok()) return;
  health_ = status;
  actions.health = true;
  probe_due_ = clock_->Now() + options_.probe_interval;
  timer_cv_.NotifyOne();
}

void CachedRowStoreImpl::TimerLoop() {
  for (;;) {
    Actions actions;
    bool probe = false;
    {
      MutexLock lock(&mutex_);
      if (stop_) return;
      const absl::Time now = clock_->Now();
      for (uint32_t row = staging_.oldest_read(); row != kNone; row = staging_.oldest_read()) {
        // Those behind it count from their turn, or where the reader has not moved for so long, with it.
        const bool stalled = now >= last_result_ + options_.read_timeout;
        const absl::Time since = stalled ? staging_[row].submitted : staging_[row].begun;
        if (now < since + options_.read_timeout) break;
        staging_.ReadEnds(row, now);
        const RowLocation at = Locate(staging_[row].key);
        FailRead(
            row,
            absl::DeadlineExceededError(absl::StrCat(files_[at.file], " at byte ", at.offset, ": not read within ",
                                                     absl::FormatDuration(options_.read_timeout), " (--read-timeout)")),
            actions);
        staging_.Quarantine(row);
      }
      ServeQueue(actions);
      probe = now >= probe_due_;
      if (probe) probe_due_ = now + options_.probe_interval;
      if (actions.reads.empty() && actions.answers.empty() && !actions.health && !probe) {
        // No read that starts while this waits is due before it wakes.
        absl::Time due = std::min(now + options_.read_timeout, probe_due_);
        if (staging_.oldest_read() != kNone) {
          due = std::min(due, staging_[staging_.oldest_read()].begun + options_.read_timeout);
        }
        clock_->WaitUntil(&timer_cv_, &mutex_, due);
        continue;
      }
    }
    Perform(std::move(actions));
    if (probe) Probe();
  }
}

void CachedRowStoreImpl::Probe() {
  RowRead read;
  {
    MutexLock lock(&mutex_);
    if (health_.ok() || probes_out_ == kMaxProbesOut) return;
    ++probes_out_;
    read.file = failed_at_.file;
    read.offset = failed_at_.offset;
    read.bytes = failed_at_.bytes;
  }
  auto row = std::make_shared<std::vector<std::byte>>(read.bytes);
  read.destination = row->data();
  reader_->Submit({&read, 1}, [this, row](absl::Span<const RowReadResult> results) {
    {
      MutexLock lock(&mutex_);
      --probes_out_;
      if (!results.front().status.ok()) return;
      failures_in_a_row_ = 0;
      health_ = absl::OkStatus();
      probe_due_ = absl::InfiniteFuture();
    }
    TellHealth();
  });
}

void CachedRowStoreImpl::TellHealth() {
  if (!options_.on_table_health) return;
  MutexLock telling(&health_mutex_);
  absl::Status health;
  {
    MutexLock lock(&mutex_);
    health = health_;
  }
  if (health.ok() == told_.ok()) return;
  told_ = health;
  options_.on_table_health(health);
}

}  // namespace pleiad
