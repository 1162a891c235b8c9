#include "core/rows/cached_row_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rows/cached_row_store_impl.h"

namespace pleiad {
namespace {

RowMapKind MapKind(const TableLayout& table, uint64_t most_cached, const std::optional<RowMapKind>& asked) {
  return asked.value_or(ChooseRowMap(table.rows, most_cached));
}

}  // namespace

uint64_t CachedRowStoreBytes(absl::Span<const TableLayout* const> tables, uint32_t slots, uint32_t staging_rows) {
  const uint64_t most_cached = uint64_t{slots} + staging_rows;
  uint64_t bytes = slots * (sizeof(SlotWord) + sizeof(uint64_t)) + PolicyBytes(kDefaultPolicy, slots) +
                   staging_rows * sizeof(Arrival);
  for (const TableLayout* table : tables) {
    bytes += RowMapBytes(ChooseRowMap(table->rows, most_cached), table->rows, most_cached);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<RowStore>> CreateCachedRowStore(absl::Span<const TableLayout* const> tables,
                                                               std::vector<std::string> files,
                                                               std::unique_ptr<RowReader> reader,
                                                               CachedRowStoreOptions options) {
  if (options.slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrCat("slots: ", options.slots, " of the arena; must be <= ", kMaxSlots));
  }
  if (options.staging.rows == 0 || options.staging.rows > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging.rows: ", options.staging.rows, "; must be 1 to ", kMaxSlots));
  }
  if (options.read_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("read_timeout: ", absl::FormatDuration(options.read_timeout), "; must be positive"));
  }
  const uint64_t most_cached = uint64_t{options.slots} + options.staging.rows;
  std::vector<RowMap> maps;
  HostMemory landing;
  for (const TableLayout* table : tables) {
    if (options.staging.row_bytes != table->arena_row_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("staging.row_bytes: ", options.staging.row_bytes, "; rows have ",
                                                     table->arena_row_bytes(), " bytes"));
    }
    PLEIAD_ASSIGN_OR_RETURN(RowMap map, RowMap::Create(MapKind(*table, most_cached, options.map), table->rows,
                                                       most_cached, options.huge_pages));
    maps.push_back(std::move(map));
    if (table->disk_row_bytes() != table->arena_row_bytes() && landing.size() == 0) {
      PLEIAD_ASSIGN_OR_RETURN(
          landing, HostMemory::Allocate("rows as read", uint64_t{options.staging.rows} * table->disk_row_bytes(),
                                        HugePages::kNo));
    }
  }
  PLEIAD_ASSIGN_OR_RETURN(SlotTable slots, SlotTable::Create(options.slots, options.huge_pages));
  return std::make_unique<CachedRowStoreImpl>(tables, std::move(files), std::move(reader), std::move(options),
                                              std::move(maps), std::move(slots), std::move(landing));
}

CachedRowStoreImpl::CachedRowStoreImpl(absl::Span<const TableLayout* const> tables, std::vector<std::string> files,
                                       std::unique_ptr<RowReader> reader, CachedRowStoreOptions options,
                                       std::vector<RowMap> maps, SlotTable slots, HostMemory landing)
    : tables_([&] {
        std::vector<TableLayout> copies;
        for (const TableLayout* table : tables) copies.push_back(*table);
        return copies;
      }()),
      files_(std::move(files)),
      options_(std::move(options)),
      clock_(options_.clock != nullptr ? options_.clock : Clock::Real()),
      on_results_([this](absl::Span<const RowReadResult> results) { OnResults(results); }),
      landing_(std::move(landing)),
      maps_(std::move(maps)),
      slots_(std::move(slots)),
      policy_(options_.make_policy ? options_.make_policy(options_.slots)
                                   : CreatePolicy(kDefaultPolicy, options_.slots)),
      staging_(options_.staging.rows),
      reader_(std::move(reader)) {
  if (slots_.size() > 0) policy_->ShareUses(slots_.uses(), sizeof(SlotWord));
  stats_.lookups.resize(tables_.size());
  timer_ = std::thread([this] { TimerLoop(); });
}

CachedRowStoreImpl::~CachedRowStoreImpl() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    timer_cv_.NotifyAll();
  }
  timer_.join();
  reader_.reset();
}

RowStoreStats CachedRowStoreImpl::stats() const {
  RowStoreStats stats;
  uint32_t slots = 0;
  {
    MutexLock lock(&mutex_);
    stats = stats_;
    stats.reads_in_flight = staging_.reading();
    stats.staging_free = staging_.free();
    stats.staging_quarantined = staging_.quarantined();
    stats.plans_waiting = queue_.size();
    slots = slots_.size();
  }
  // Held is a question to each slot; the lock is given up between parts so that plans are not kept waiting.
  constexpr uint32_t kPart = 1 << 16;
  for (uint32_t begin = 0; begin < slots; begin += kPart) {
    MutexLock lock(&mutex_);
    const uint64_t oldest_live = live_.oldest();
    for (uint32_t slot = begin; slot < std::min(slots, begin + kPart); ++slot) {
      switch (static_cast<SlotState>(slots_[slot].state)) {
        case SlotState::kFree:
          ++stats.slots_free;
          break;
        case SlotState::kArriving:
          ++stats.slots_arriving;
          break;
        case SlotState::kPresent:
          ++(Evictable(slot, oldest_live) ? stats.slots_idle : stats.slots_held);
          break;
      }
    }
  }
  const RowReaderStats reads = reader_->stats();
  stats.read_bytes = reads.bytes_read;
  return stats;
}

std::vector<std::vector<RowId>> CachedRowStoreImpl::CachedRows() const {
  struct Named {
    uint64_t stamp, key;
  };
  std::vector<Named> rows;
  {
    MutexLock lock(&mutex_);
    for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].state != static_cast<uint64_t>(SlotState::kPresent)) continue;
      rows.push_back({slots_[slot].stamp, slots_.key(slot)});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const Named& a, const Named& b) { return a.stamp > b.stamp; });
  std::vector<std::vector<RowId>> layers(tables_.size());
  for (const Named& row : rows) layers[LayerOfKey(row.key)].push_back(RowId(RowOfKey(row.key)));
  return layers;
}

}  // namespace pleiad
