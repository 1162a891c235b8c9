// Rows of all PLE layers on the device: which slot or staging row holds a row id now, and for whom.
//
// A plan *holds* what its gather names until the batch that uses it is enqueued; only unheld, present slots are
// victims. A row is *present* once its fill is enqueued and *arriving* before that; an arriving row has one fill,
// emitted with the first of its plans to be enqueued. No plan waits for a slot: a missed row that finds none is
// gathered from staging. Staging is taken whole or not at all, first come first served.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/base/histogram.h"
#include "core/base/plan.h"
#include "core/base/strong_id.h"

namespace pleiad {

// Counted where ids are resolved: hits + misses + joins = ids. A duplicate of a present row is a hit, of a
// missing or arriving one a join.
struct RowCounts {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t joins = 0;
};

// A row that could not be read.
struct RowFailure {
  size_t id_index = 0;  // into the ids of the plan
  std::string file;
  uint64_t offset = 0;  // bytes
};

struct ResolveResult {
  // DataLoss: `failures` are unreadable; DeadlineExceeded: --read-timeout. Nothing is held then.
  absl::Status status;
  RowCounts counts;
  std::vector<RowFailure> failures;
};

// The holds of one plan. Destroying it ends them, cancels what only it waited for and leaves other waiters alone;
// `done` is not called after that. Used by one thread at a time.
class RowPlan {
 public:
  virtual ~RowPlan() = default;
  // [ids], valid from `done` with OK until the plan is destroyed.
  virtual absl::Span<const GatherIndex> gather() const = 0;
  // For a prestage: claims it for a forward, after which it does not yield, until a part of it is enqueued or the claim
  // is given up. False when it has yielded already.
  virtual bool Claim() = 0;
  virtual void Unclaim() = 0;  // as Claim and Held, calls nobody back
  // False once a prestage has yielded.
  virtual bool Held() const = 0;
};

enum class ResolvePurpose {
  kStep,
  kPrestage,  // may be held for long, may yield
  kWarm,      // as a step's, and not counted
};

struct RowStoreStats {
  uint64_t slots_free = 0, slots_arriving = 0, slots_idle = 0, slots_held = 0;
  uint64_t evictions = 0, bypasses = 0;
  uint64_t read_bytes = 0, used_bytes = 0;  // read from the files; of them, bytes of rows asked for
  uint64_t read_errors = 0;
  uint64_t reads_in_flight = 0;
  uint64_t staging_free = 0, staging_quarantined = 0;
  uint64_t plans_waiting = 0;  // for staging
  DurationHistogram read_seconds;
  std::vector<RowCounts> lookups;  // [layers]
};

// Thread-safe.
class RowStore {
 public:
  using DoneFn = std::function<void(ResolveResult)>;

  virtual ~RowStore() = default;

  // "resident" or "cached".
  virtual const char* mode() const = 0;

  // Nothing misses and plans hold nothing: they never fail, yield or wait, so several carries may use one.
  virtual bool holds_nothing() const { return false; }

  // Resolves `ids` of one layer. `done` is called exactly once unless the plan is destroyed first, possibly before
  // Resolve returns, and never while a lock of the store is held. At most max_tokens * heads ids.
  virtual std::unique_ptr<RowPlan> Resolve(LayerOrdinal layer, std::vector<RowId> ids, ResolvePurpose purpose,
                                           DoneFn done) = 0;

  // Where row r of a layer always lies in slot ResidentFirstSlots + r, and so need not be resolved: true, and `ids` of
  // them count as hits. Else false, and nothing has happened.
  virtual bool ResolveInPlace(LayerOrdinal layer, size_t ids) {
    (void)layer;
    (void)ids;
    return false;
  }

  // While a batch is built, one at a time: appends the fills that ids [first, first + count) of `plan` still need.
  virtual void AppendFills(RowPlan& plan, size_t first, size_t count, std::vector<Fill>& fills) = 0;
  // After Device::Run of that batch, before the next is built: the holds of ids [first, first + count) end with
  // `ticket`. With `count` 0 only the fills went out, and all holds stay.
  virtual void Enqueued(RowPlan& plan, size_t first, size_t count, Ticket ticket) = 0;
  // `ticket` and all before it are done; their staging rows return. Called in the order of tickets.
  virtual void Completed(Ticket ticket) = 0;

  virtual RowStoreStats stats() const = 0;

  // The rows that are present, [layers], the latest named first. Empty where all rows always are.
  virtual std::vector<std::vector<RowId>> CachedRows() const { return {}; }
};

}  // namespace pleiad
