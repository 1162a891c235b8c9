#include "core/rows/resident_row_store.h"

#include <atomic>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rows/resident_loader.h"

namespace pleiad {
namespace {

class ResidentPlan : public RowPlan {
 public:
  ResidentPlan(absl::Span<const RowId> ids, uint64_t first_slot) : gather_(ids.size()) {
    for (size_t i = 0; i < ids.size(); ++i) {
      gather_[i] = GatherIndex::OfSlot(Slot(static_cast<uint32_t>(first_slot + ids[i].value())));
    }
  }
  absl::Span<const GatherIndex> gather() const override { return gather_; }
  bool Claim() override { return true; }
  void Unclaim() override {}
  bool Held() const override { return true; }

 private:
  absl::InlinedVector<GatherIndex, 16> gather_;  // those of a token lie in the plan itself
};

class ResidentRowStore : public RowStore {
 public:
  // `first_slots` [layers].
  ResidentRowStore(std::vector<uint64_t> first_slots, uint64_t slots, uint64_t bytes_read)
      : first_slots_(std::move(first_slots)), slots_(slots), bytes_read_(bytes_read), hits_(first_slots_.size()) {}

  const char* mode() const override { return "resident"; }
  bool holds_nothing() const override { return true; }

  std::unique_ptr<RowPlan> Resolve(LayerOrdinal layer, std::vector<RowId> ids, ResolvePurpose /*purpose*/,
                                   DoneFn done) override {
    hits_[layer.value()].fetch_add(ids.size(), std::memory_order_relaxed);
    auto plan = std::make_unique<ResidentPlan>(ids, first_slots_[layer.value()]);
    ResolveResult result;
    result.counts.hits = ids.size();
    done(std::move(result));
    return plan;
  }

  bool ResolveInPlace(LayerOrdinal layer, size_t ids) override {
    hits_[layer.value()].fetch_add(ids, std::memory_order_relaxed);
    return true;
  }

  void AppendFills(RowPlan&, size_t, size_t, std::vector<Fill>&) override {}
  void Enqueued(RowPlan&, size_t, size_t, Ticket) override {}
  void Completed(Ticket) override {}

  RowStoreStats stats() const override {
    RowStoreStats stats;
    stats.slots_idle = slots_;
    stats.read_bytes = bytes_read_;
    stats.used_bytes = bytes_read_;
    for (const std::atomic<uint64_t>& hits : hits_) {
      stats.lookups.push_back({.hits = hits.load(std::memory_order_relaxed)});
    }
    return stats;
  }

 private:
  const std::vector<uint64_t> first_slots_;
  const uint64_t slots_;
  const uint64_t bytes_read_;
  std::vector<std::atomic<uint64_t>> hits_;
};

std::vector<const TableLayout*> Tables(const Checkpoint& checkpoint) {
  std::vector<const TableLayout*> tables;
  for (const PleLayer& layer : checkpoint.layers()) tables.push_back(&layer.table);
  return tables;
}

}  // namespace

absl::StatusOr<uint64_t> ResidentSlots(absl::Span<const TableLayout* const> tables) {
  uint64_t slots = 0;
  for (const TableLayout* table : tables) {
    if (table->rows > GatherIndex::kLimit - slots) {
      return absl::InvalidArgumentError(absl::StrCat("rows of all tables: at least ", slots, " + ", table->rows,
                                                     "; the resident table holds at most ", GatherIndex::kLimit));
    }
    slots += table->rows;
  }
  return slots;
}

absl::StatusOr<uint64_t> ResidentSlots(const Checkpoint& checkpoint) { return ResidentSlots(Tables(checkpoint)); }

std::vector<uint64_t> ResidentFirstSlots(absl::Span<const TableLayout* const> tables) {
  std::vector<uint64_t> first_slots;
  uint64_t next = 0;
  for (const TableLayout* table : tables) {
    first_slots.push_back(next);
    next += table->rows;
  }
  return first_slots;
}

std::vector<uint64_t> ResidentFirstSlots(const Checkpoint& checkpoint) {
  return ResidentFirstSlots(Tables(checkpoint));
}

absl::StatusOr<std::unique_ptr<RowStore>> LoadResidentRowStore(absl::Span<const TableLayout* const> tables,
                                                               RowReader& reader, const ResidentLoadOptions& options) {
  PLEIAD_ASSIGN_OR_RETURN(const uint64_t slots, ResidentSlots(tables));
  std::vector<uint64_t> first_slots = ResidentFirstSlots(tables);
  uint64_t bytes = 0;
  for (const TableLayout* table : tables) bytes += table->rows * table->disk_row_bytes();
  PLEIAD_RETURN_IF_ERROR(LoadChunks(PlanLoad(tables, first_slots), reader, options));
  return std::make_unique<ResidentRowStore>(std::move(first_slots), slots, bytes);
}

absl::StatusOr<std::unique_ptr<RowStore>> LoadResidentRowStore(const Checkpoint& checkpoint, RowReader& reader,
                                                               const ResidentLoadOptions& options) {
  return LoadResidentRowStore(Tables(checkpoint), reader, options);
}

}  // namespace pleiad
