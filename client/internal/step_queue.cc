#include "client/internal/step_queue.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "client/error_info.h"
#include "client/sequence.h"

namespace pleiad::client::internal {

struct alignas(64) StepQueue::Lane {
  struct Item {
    EntryPtr entry;
    uint64_t start = 0;
    uint64_t end = 0;
    bool rewinds = false;  // starts before an end the carry may stand at, and adds tokens; known when admitted
  };
  LaneKey key;
  absl::InlinedVector<Item, 2> items;  // unanswered, in order
  size_t admitted = 0;                 // of them, from the front
  uint64_t next = 0;                   // end of the last step submitted

  void Prefetch() const {
    __builtin_prefetch(this, 1);
    __builtin_prefetch(reinterpret_cast<const char*>(this) + 64, 1);
  }
};

namespace {

constexpr uint64_t kMessageOverhead = 1 << 10;  // of a request besides its tensor, token ids and segments

absl::Status Refuse(absl::StatusCode code, std::string message, ErrorDetail detail) {
  return WithDetail(absl::Status(code, message), detail);
}

// The first segment whose sequence an earlier one names.
std::optional<uint32_t> Repeated(const std::vector<StepSegment>& segments) {
  std::vector<std::pair<const Sequence*, uint32_t>> named;
  named.reserve(segments.size());
  for (uint32_t i = 0; i < segments.size(); ++i) {
    if (segments[i].sequence != nullptr) named.emplace_back(segments[i].sequence, i);
  }
  std::sort(named.begin(), named.end());
  std::optional<uint32_t> first;
  for (size_t i = 1; i < named.size(); ++i) {
    if (named[i].first != named[i - 1].first) continue;
    first = std::min(first.value_or(named[i].second), named[i].second);
  }
  return first;
}

uint64_t NextStreamId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

uint32_t TimeoutMs(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return 0;
  const int64_t ms = absl::ToInt64Milliseconds(timeout);
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 1, std::numeric_limits<uint32_t>::max()));
}

}  // namespace

StepQueue::StepQueue(const ModelInfo& model) : model_(model), stream_id_(NextStreamId()) {}
StepQueue::~StepQueue() = default;

absl::Status StepQueue::Prepare(const Step& step, WireStep* wire) const {
  wire->layer_index = step.layer_index;
  if (!wire->layer_index.has_value()) {
    if (model_.layers.size() != 1) {
      return Refuse(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("layer_index is absent: the model has ", model_.layers.size(), " PLE layers"),
                    {.reason = Reason::kLayerUnknown, .field = "layer_index"});
    }
    wire->layer_index = model_.layers[0].layer_index;
  }
  for (uint32_t i = 0; i < step.segments.size(); ++i) {
    const Sequence* sequence = step.segments[i].sequence;
    if (sequence == nullptr) continue;
    if (sequence->state_ == nullptr) {
      return Refuse(absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("segments[", i, "].sequence names no sequence: it was moved from or released"),
                    {.reason = Reason::kSequenceUnknown, .segment = i, .field = "sequence"});
    }
  }
  if (const std::optional<uint32_t> i = Repeated(step.segments)) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("segments[", *i, "].sequence appears twice: a step takes a sequence once"),
                  {.reason = Reason::kDuplicateSequence, .segment = *i, .field = "sequence"});
  }
  const uint64_t bytes = step.highway.data.size() + uint64_t{5} * step.token_ids.size() +
                         uint64_t{32} * step.segments.size() + kMessageOverhead;
  // Beyond twice the limit gRPC ends the stream, and with it the steps of others; below, the server judges.
  if (bytes > 2 * model_.max_message_bytes) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("step of ", bytes, " bytes: the server takes max_message_bytes = ",
                               model_.max_message_bytes, " (--max-tokens ", model_.max_tokens, ")"),
                  {.reason = Reason::kTooManyTokens,
                   .field = "highway",
                   .value = absl::StrCat(bytes),
                   .limit = absl::StrCat(model_.max_message_bytes)});
  }
  if (step.token_region && !step.token_ids.empty()) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("token_ids has ", step.token_ids.size(), " ids: must be empty beside a token_region"),
                  {.reason = Reason::kInvalidField, .field = "token_ids"});
  }
  const std::optional<RegionSpan>& in = step.highway.region;
  if (in && step.mode == StepMode::kForward) {
    const std::optional<RegionSpan>& out = step.output_region;
    if (!out || (out->region_id == in->region_id && out->offset < in->offset + in->bytes &&
                 in->offset < out->offset + out->bytes)) {
      return Refuse(absl::StatusCode::kInvalidArgument,
                    "output_region must be given and apart from highway.region: a step whose output takes the place of "
                    "its input cannot be sent again after a broken connection",
                    {.reason = Reason::kInvalidField, .field = "output_region"});
    }
  }
  uint64_t tokens = 0;
  for (const StepSegment& segment : step.segments) tokens += segment.num_tokens;
  const uint64_t output = tokens * model_.channels * ByteSize(step.output_dtype.value_or(step.highway.dtype));
  if (!step.output.empty() && step.mode == StepMode::kForward && step.output.size() != output) {
    return Refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrCat("output has room for ", step.output.size(), " bytes: the step's takes ", output),
                  {.reason = Reason::kSizeMismatch,
                   .field = "output",
                   .value = absl::StrCat(step.output.size()),
                   .limit = absl::StrCat(output)});
  }
  return absl::OkStatus();
}

std::vector<StepQueue::Lane*> StepQueue::FindLanes(const Step& step, uint32_t layer_index) {
  // Steps of many sequences find them cold, so what is touched of all is asked for before the first is.
  std::vector<Lane*> lanes(step.segments.size());
  const auto key = [&](size_t i) {
    const Sequence* sequence = step.segments[i].sequence;
    return LaneKey(sequence == nullptr ? nullptr : sequence->state_.get(), layer_index);
  };
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (key(i).first == nullptr) continue;
    key(i).first->Prefetch();
    lanes_.prefetch(key(i));
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (key(i).first == nullptr) continue;
    std::unique_ptr<Lane>& lane = lanes_[key(i)];
    if (lane == nullptr) {
      lane = std::make_unique<Lane>();
      lane->key = key(i);
    }
    lanes[i] = lane.get();
    lanes[i]->Prefetch();
  }
  return lanes;
}

void StepQueue::JoinLanes(const Step& step, Entry* entry) {
  entry->wire.segments.reserve(step.segments.size());
  entry->places.reserve(step.segments.size());
  const std::vector<Lane*> lanes = FindLanes(step, *entry->wire.layer_index);
  for (uint32_t i = 0; i < step.segments.size(); ++i) {
    const StepSegment& segment = step.segments[i];
    WireSegment& wire = entry->wire.segments.emplace_back();
    wire.num_tokens = segment.num_tokens;
    wire.fresh = segment.fresh;
    wire.position = segment.position;
    if (segment.sequence == nullptr || segment.sequence->state_ == nullptr) continue;
    const std::shared_ptr<SequenceState>& sequence = segment.sequence->state_;
    wire.sequence = sequence->id();
    const auto joined = [&](const Entry::Place& place) { return place.sequence == sequence; };
    if (entry->doom.has_value() && absl::c_any_of(entry->places, joined)) continue;  // a step may be doomed for that
    if (sequence->JoinStream(stream_id_) && sequence->epoch() >= std::max(epoch_, wanted_epoch_)) {
      wanted_epoch_ = sequence->epoch() + 1;
    }

    Lane* const lane = lanes[i];
    // What it was left at may be another sequence's that was in the same place, or from before a restore.
    if (lane->items.empty()) lane->next = sequence->carry(lane->key.second).position;
    Entry::Place place{sequence, lane, i};
    place.names_start = segment.fresh || segment.position.has_value();
    place.fresh = segment.fresh;
    place.start = segment.position.value_or(segment.fresh ? 0 : lane->next);
    place.end = place.start + segment.num_tokens;
    wire.position = place.start;
    if (entry->moves() && !entry->doom.has_value()) lane->next = place.end;
    entry->places.push_back(std::move(place));
  }
}

void StepQueue::DropIdleLanes() {
  absl::erase_if(lanes_, [](const auto& entry) { return entry.second->items.empty(); });
  most_lanes_ = kMostIdleLanes + 2 * lanes_.size();
}

void StepQueue::Add(Step step, StepCallback done) {
  if (lanes_.size() >= most_lanes_) DropIdleLanes();
  auto entry = std::make_shared<Entry>();
  entry->done = std::move(done);
  entry->place = {step.output, step.output_pieces};
  WireStep& wire = entry->wire;
  wire.request_id = next_request_id_++;
  wire.mode = step.mode;
  absl::Status prepared = Prepare(step, &wire);
  if (!prepared.ok()) entry->doom = std::move(prepared);
  if (wire.layer_index.has_value()) JoinLanes(step, entry.get());
  wire.token_ids = std::move(step.token_ids);
  wire.token_region = step.token_region;
  wire.highway = std::move(step.highway);
  wire.output_kind = step.output_kind;
  wire.output_dtype = step.output_dtype;
  wire.output_region = step.output_region;
  wire.timeout_ms = TimeoutMs(step.timeout);
  wire.release_after = std::move(step.release_after);

  entries_.emplace(wire.request_id, entry);
  std::vector<Lane*> lanes;
  lanes.reserve(entry->places.size());
  for (const Entry::Place& place : entry->places) {
    place.lane->items.push_back({entry, place.start, place.end});
    lanes.push_back(place.lane);
  }
  if (!lanes.empty()) {
    Advance(std::move(lanes));
  } else if (entry->doom.has_value()) {
    (void)Complete(entry, *entry->doom);
  } else {
    entry->admitted = true;
    ++admitted_;
    ready_.push_back(std::move(entry));
  }
}

bool StepQueue::Admissible(const Entry& entry) const {
  if (entry.doom.has_value() || wanted_epoch_ > epoch_) return false;
  for (const Entry::Place& place : entry.places) {
    const Lane& lane = *place.lane;
    if (lane.items[lane.admitted].entry.get() != &entry) return false;
    if (!entry.moves()) continue;
    bool alone = true;
    uint64_t tokens = place.end - place.start;
    for (size_t i = 0; i < lane.admitted; ++i) {
      const Lane::Item& before = lane.items[i];
      if (!before.entry->moves()) continue;
      alone = false;
      tokens += before.end - before.start;
      if (before.rewinds || place.fresh || place.start < before.start) return false;
    }
    if (!alone && tokens > model_.rollback_tokens) return false;
  }
  return true;
}

void StepQueue::Admit(const EntryPtr& entry) {
  entry->admitted = true;
  ++admitted_;
  for (const Entry::Place& place : entry->places) {
    Lane& lane = *place.lane;
    Lane::Item& item = lane.items[lane.admitted];
    uint64_t reached = place.sequence->carry(lane.key.second).position;
    for (size_t i = 0; i < lane.admitted; ++i) reached = std::max(reached, lane.items[i].end);
    item.rewinds = entry->moves() && item.end > item.start && item.start < reached;
    ++lane.admitted;
  }
  ready_.push_back(entry);
}

void StepQueue::DoomFollower(Entry* entry) {
  for (const Entry::Place& place : entry->places) {
    if (entry->doom.has_value()) return;
    if (place.names_start || place.lane->items.front().entry.get() != entry) continue;
    const CarryState carry = place.sequence->carry(place.lane->key.second);
    if (!carry.needs_start) continue;
    entry->doom = Refuse(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat("segments[", place.segment, "].position is absent and the step before failed: ",
                                      "the last answered step ended at ", carry.position),
                         {.reason = Reason::kPredecessorFailed,
                          .segment = place.segment,
                          .field = "position",
                          .value = "",
                          .limit = "",
                          .position = carry.position,
                          .low = {}});
  }
}

void StepQueue::Advance(std::vector<Lane*> lanes) {
  while (!lanes.empty()) {
    Lane* lane = lanes.back();
    lanes.pop_back();
    if (lane->admitted == lane->items.size()) continue;
    const EntryPtr entry = lane->items[lane->admitted].entry;
    DoomFollower(entry.get());
    if (entry->doom.has_value()) {
      const bool first = std::all_of(entry->places.begin(), entry->places.end(), [&](const Entry::Place& place) {
        return place.lane->items.front().entry == entry;
      });
      if (!first) continue;
      for (Lane* next : Complete(entry, *entry->doom)) lanes.push_back(next);
    } else if (Admissible(*entry)) {
      Admit(entry);
      for (const Entry::Place& place : entry->places) {
        if (place.lane->admitted < place.lane->items.size()) lanes.push_back(place.lane);
      }
    }
  }
  if (wanted_epoch_ > epoch_ && admitted_ == 0) {
    epoch_ = wanted_epoch_;
    AdvanceAll();
  }
}

void StepQueue::AdvanceAll() {
  std::vector<Lane*> lanes;
  for (const auto& [key, lane] : lanes_) lanes.push_back(lane.get());
  Advance(std::move(lanes));
}

std::shared_ptr<const StepQueue::Entry> StepQueue::Next() {
  if (ready_.empty()) return nullptr;
  EntryPtr entry = std::move(ready_.front());
  ready_.pop_front();
  entry->wire.epoch = epoch_;
  for (const Entry::Place& place : entry->places) place.sequence->RaiseEpoch(epoch_);
  return entry;
}

std::vector<StepQueue::Lane*> StepQueue::Complete(const EntryPtr& entry, absl::StatusOr<StepResult> result) {
  std::vector<Lane*> lanes;
  lanes.reserve(entry->places.size());
  for (const Entry::Place& place : entry->places) {
    place.lane->Prefetch();
    place.sequence->Prefetch();
  }
  for (const Entry::Place& place : entry->places) {
    Lane& lane = *place.lane;
    if (lane.items.size() > 1) lanes.push_back(&lane);
    lane.items.erase(std::find_if(lane.items.begin(), lane.items.end(),
                                  [&](const Lane::Item& item) { return item.entry == entry; }));
    if (entry->admitted) --lane.admitted;
    if (!entry->moves()) continue;
    CarryState carry = place.sequence->carry(lane.key.second);
    carry.needs_start = !result.ok();
    if (result.ok()) {
      const bool told = result->segments.size() > place.segment;
      carry.position = told ? result->segments[place.segment].position : place.end;
    }
    place.sequence->set_carry(lane.key.second, carry);
  }
  if (entry->admitted) --admitted_;
  entries_.erase(entry->wire.request_id);
  completions_.push_back({std::move(entry->done), std::move(result), entry->place});
  return lanes;
}

void StepQueue::Answer(WireReply reply) {
  const auto it = entries_.find(reply.request_id);
  if (it == entries_.end() || !it->second->admitted) return;
  const EntryPtr entry = it->second;
  Advance(Complete(entry, std::move(reply.result)));
}

void StepQueue::Break() {
  epoch_ = std::max(epoch_ + 1, wanted_epoch_);
  wanted_epoch_ = epoch_;
  ready_.clear();
  for (const auto& [id, entry] : entries_) {
    if (entry->admitted) ready_.push_back(entry);
  }
  AdvanceAll();
}

void StepQueue::FailAll(const absl::Status& status) {
  ready_.clear();
  while (!entries_.empty()) {
    const EntryPtr entry = entries_.begin()->second;
    (void)Complete(entry, status);
  }
  lanes_.clear();
}

}  // namespace pleiad::client::internal
