// How a plan finds its rows: look up, hold, place what misses.
#include <algorithm>

#include "core/rows/cached_row_store_impl.h"

namespace pleiad {
namespace {

// Ids between the prefetch of a place and its use; enough memory accesses in flight to hide one.
constexpr size_t kBlock = 64;

// Candidates looked at for victims: so many, and so many more for each miss.
constexpr uint32_t kSweepBase = 64;
constexpr uint32_t kSweepPerMiss = 4;

uint64_t Stamp(const PlanState& plan) { return std::min(plan.number, SlotWord::kMaxStamp); }

}  // namespace

CachedRowStoreImpl::Found CachedRowStoreImpl::Attempt(PlanState& plan, Actions& actions) {
  plan.number = ++last_number_;
  fresh_.clear();
  arriving_ids_.clear();
  if (!short_.empty()) short_.clear();
  Lookup(plan);
  if (!short_.empty()) {
    plan.staging_wanted = static_cast<uint32_t>(short_.size() + fresh_.size());
    UndoLookup(plan);
    return Found::kShort;
  }
  if (plan.purpose != ResolvePurpose::kPrestage) live_.Begin(plan.number);
  HoldSlots(plan);
  PlaceMisses(plan);
  if (plan.purpose != ResolvePurpose::kWarm) {
    RowCounts& total = stats_.lookups[plan.layer.value()];
    total.hits += plan.result.counts.hits;
    total.misses += plan.result.counts.misses;
    total.joins += plan.result.counts.joins;
  }
  for (const uint32_t arrival : fresh_) AskFor(arrival, actions);
  plan.phase = PlanPhase::kReading;
  return plan.reads_pending == 0 ? Found::kAll : Found::kReading;
}

void CachedRowStoreImpl::Lookup(PlanState& plan) {
  RowMap& map = maps_[plan.layer.value()];
  const std::vector<RowId>& ids = plan.ids;
  const size_t count = ids.size();
  const bool step = plan.purpose != ResolvePurpose::kPrestage;
  places_.resize(std::max(places_.size(), count));
  plan.gather.resize(count);
  const uint64_t stamp = Stamp(plan);
  // Those who wait for staging come first.
  const bool may_take = queue_.empty() || queue_.front() == &plan;
  uint64_t not_hit = 0;
  for (size_t begin = 0; begin < count + 2 * kBlock; begin += kBlock) {
    for (size_t i = begin; i < std::min(count, begin + kBlock); ++i) map.Prefetch(ids[i]);
    if (begin >= kBlock) {
      for (size_t i = begin - kBlock; i < std::min(count, begin); ++i) {
        const RowPlace place = map.Find(ids[i]);
        places_[i] = place;
        if (place.absent() || place.arriving()) continue;
        slots_.Prefetch(place.slot());
      }
    }
    if (begin < 2 * kBlock) continue;
    for (size_t i = begin - 2 * kBlock; i < std::min(count, begin - kBlock); ++i) {
      RowPlace place = places_[i];
      if (!place.absent() && !place.arriving()) {
        if (step) slots_[place.slot()].stamp = stamp;
        policy_->Touch(place.slot());
        plan.gather[i] = GatherIndex::OfSlot(Slot(place.slot()));
        continue;
      }
      ++not_hit;
      // An id shortly before may have been the same row.
      if (place.absent()) place = map.Find(ids[i]);
      if (place.absent()) {
        if (!may_take || staging_.free() == 0) {
          short_.insert(ids[i].value());
          continue;
        }
        const uint32_t row = staging_.Take();
        staging_[row].key = RowKey(plan.layer.value(), ids[i].value());
        staging_[row].state = ArrivalState::kReading;
        map.Set(ids[i], RowPlace::Arriving(row));
        fresh_.push_back(row);
        NameArrival(plan, static_cast<uint32_t>(i), row);
      } else {
        NameArrival(plan, static_cast<uint32_t>(i), place.arrival());
      }
    }
  }
  plan.result.counts.hits = count - not_hit;
  plan.result.counts.misses = fresh_.size();
  plan.result.counts.joins = not_hit - fresh_.size();
}

void CachedRowStoreImpl::NameArrival(PlanState& plan, uint32_t id, uint32_t arrival) {
  Arrival& coming = staging_[arrival];
  if (coming.stamp != plan.number) {
    coming.stamp = plan.number;
    coming.entry = static_cast<uint32_t>(plan.named.size());
    plan.named.push_back({arrival, coming.generation, id, id});
    ++coming.plans;
    if (coming.state == ArrivalState::kReading) {
      coming.waiters.push_back({&plan, coming.entry});
      ++plan.reads_pending;
    }
  } else {
    plan.named[coming.entry].last_id = id;
  }
  plan.gather[id] = GatherIndex::OfStaging(arrival);
  arriving_ids_.push_back(id);
}

void CachedRowStoreImpl::UndoLookup(PlanState& plan) {
  for (const NamedArrival& named : plan.named) {
    --staging_[named.arrival].plans;
    staging_.RemoveWaiter(named.arrival, &plan);
  }
  for (const uint32_t row : fresh_) {
    maps_[plan.layer.value()].Erase(RowId(RowOfKey(staging_[row].key)));
    ++staging_[row].generation;
    staging_.Return(row);
  }
  fresh_.clear();
  plan.named.clear();
  plan.reads_pending = 0;
  plan.result = ResolveResult();
}

void CachedRowStoreImpl::HoldSlot(PlanState& plan, uint32_t slot, uint32_t last_id) {
  SlotWord& word = slots_[slot];
  const uint64_t stamp = Stamp(plan);
  if (word.stamp == stamp && stamp != SlotWord::kMaxStamp) return;
  word.stamp = stamp;
  if (plan.purpose != ResolvePurpose::kPrestage) return;
  word.Hold();
  plan.held.push_back({slot, last_id});
}

// Of a step's plan the slots it hit bear its stamp already. A prestage's holds end part by part, each with the last
// id that names the slot, so they are taken from the end.
void CachedRowStoreImpl::HoldSlots(PlanState& plan) {
  if (plan.purpose == ResolvePurpose::kPrestage) {
    for (size_t i = plan.gather.size(); i > 0; --i) {
      const GatherIndex index = plan.gather[i - 1];
      if (!index.in_staging()) HoldSlot(plan, index.row(), static_cast<uint32_t>(i - 1));
    }
  }
  for (const NamedArrival& named : plan.named) {
    if (staging_[named.arrival].slot != kNone) HoldSlot(plan, staging_[named.arrival].slot, named.last_id);
  }
}

void CachedRowStoreImpl::PlaceMisses(PlanState& plan) {
  uint32_t steps = kSweepBase + kSweepPerMiss * static_cast<uint32_t>(fresh_.size());
  for (const uint32_t row : fresh_) {
    Arrival& arrival = staging_[row];
    arrival.slot = TakeSlot(&steps);
    if (arrival.slot == kNone) {
      ++stats_.bypasses;
      continue;
    }
    // Holds of a plan that waited here for a row that failed are still to end: they count on.
    slots_[arrival.slot].state = static_cast<uint8_t>(SlotState::kArriving);
    slots_.key(arrival.slot) = arrival.key;
    HoldSlot(plan, arrival.slot, plan.named[arrival.entry].last_id);
  }
  if (plan.purpose == ResolvePurpose::kPrestage) {
    std::sort(plan.held.begin(), plan.held.end(),
              [](const HeldSlot& a, const HeldSlot& b) { return a.last_id > b.last_id; });
  }
  for (const uint32_t id : arriving_ids_) {
    const uint32_t slot = staging_[plan.gather[id].row()].slot;
    if (slot != kNone) plan.gather[id] = GatherIndex::OfSlot(Slot(slot));
  }
}

bool CachedRowStoreImpl::Evictable(uint32_t slot, uint64_t oldest_live) const {
  const SlotWord& word = slots_[slot];
  return word.state == static_cast<uint8_t>(SlotState::kPresent) && word.holds == 0 && word.stamp < oldest_live &&
         word.stamp != SlotWord::kMaxStamp;
}

uint32_t CachedRowStoreImpl::TakeSlot(uint32_t* steps) {
  if (const std::optional<uint32_t> free = slots_.TakeFree()) return *free;
  if (*steps == 0 || slots_.size() == 0) return kNone;
  const uint64_t oldest_live = live_.oldest();
  const std::optional<uint32_t> victim =
      policy_->Evict([&](uint32_t slot) ABSL_NO_THREAD_SAFETY_ANALYSIS { return Evictable(slot, oldest_live); }, steps);
  if (!victim) return kNone;
  const uint64_t key = slots_.key(*victim);
  maps_[LayerOfKey(key)].Erase(RowId(RowOfKey(key)));
  ++stats_.evictions;
  return *victim;
}

void CachedRowStoreImpl::YieldFor(uint32_t wanted) {
  while (staging_.free() < wanted && !idle_.empty()) {
    PlanState& plan = *idle_.front();
    LeaveIdle(plan);
    EndHolds(plan);
    plan.yielded = true;
  }
}

void CachedRowStoreImpl::ServeQueue(Actions& actions) {
  while (!queue_.empty()) {
    PlanState& plan = *queue_.front();
    const uint32_t most = staging_.rows() - staging_.quarantined();
    const uint32_t wanted = std::min(plan.staging_wanted, most);
    YieldFor(wanted);
    if (staging_.free() < wanted && staging_.busy() > 0) return;
    const Found found = Attempt(plan, actions);
    if (found == Found::kShort) {
      if (staging_.busy() > 0) continue;
      plan.result.status = absl::DeadlineExceededError(
          "staging: too many of its rows are quarantined by reads that never ended (--read-timeout)");
    }
    if (found != Found::kReading) Answer(plan, actions);
    queue_.pop_front();
    plan.queued = false;
  }
}

}  // namespace pleiad
