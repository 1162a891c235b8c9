#include "client/internal/replay_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pleiad::client::internal {
namespace {

void Append(uint32_t value, std::string* to) {
  for (int shift = 0; shift < 32; shift += 8) to->push_back(static_cast<char>((value >> shift) & 0xFF));
}

uint32_t Number(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

uint64_t Cost(const LoggedToken& token) { return sizeof(LoggedToken) + token.row.size(); }

}  // namespace

LogShape::LogShape(const ModelInfo& model, uint64_t max_log_bytes)
    : context(model.ngram_size < 1 ? 0 : model.ngram_size - 1),
      state_len(model.state_len),
      rollback(model.rollback_tokens),
      channels(model.channels),
      eos(model.eos_token_id),
      max_bytes(max_log_bytes) {}

std::vector<LoggedToken> CaptureTokens(const LogShape& shape, const Step& step, uint64_t first, uint32_t count) {
  const uint64_t width = step.highway.zeros ? 0 : shape.channels * ByteSize(step.highway.dtype);
  // What the server will refuse is not looked at.
  if (first + count > step.token_ids.size() || (first + count) * width > step.highway.data.size()) return {};
  const bool whole = count * (width + sizeof(LoggedToken)) <= shape.max_bytes;
  const uint32_t kept = whole ? count : std::min(count, shape.tail());
  std::vector<LoggedToken> tokens(kept);
  for (uint32_t i = 0; i < kept; ++i) {
    const uint64_t t = first + count - kept + i;
    tokens[i] = {step.token_ids[t], step.highway.dtype, std::string()};
    if (width > 0) tokens[i].row.assign(reinterpret_cast<const char*>(step.highway.data.data()) + t * width, width);
  }
  return tokens;
}

ReplayLog::ReplayLog(const LogShape& shape) : shape_(shape), history_(shape.context, shape.eos) {}

void ReplayLog::Rebase(const LayerAux& blob) {
  *this = ReplayLog(shape_);
  base_ = last_start_ = blob.position.value_or(0);
  const uint32_t count = blob.aux.size() < 4 ? 0 : Number(blob.aux, 0);
  if (count == 0) return;  // fresh
  aux_ = blob.aux;
  for (uint32_t i = 0; i < shape_.context && i < count && 4 * size_t{count} + 4 <= blob.aux.size(); ++i) {
    history_[shape_.context - 1 - i] = Number(blob.aux, 4 * size_t{count - i});
  }
}

void ReplayLog::StartOver(uint64_t base) {
  *this = ReplayLog(shape_);
  base_ = last_start_ = base;
  known_ = false;
}

void ReplayLog::Push(LoggedToken token) {
  bytes_ += Cost(token);
  tokens_.push_back(std::move(token));
}

void ReplayLog::DropBack() {
  bytes_ -= Cost(tokens_.back());
  tokens_.pop_back();
}

void ReplayLog::DropFront() {
  history_.push_back(tokens_.front().id);
  history_.erase(history_.begin());
  aux_.reset();
  bytes_ -= Cost(tokens_.front());
  tokens_.pop_front();
  ++base_;
}

void ReplayLog::Apply(const Applied& step, std::vector<LoggedToken> tokens) {
  if (step.fresh) *this = ReplayLog(shape_);
  if (step.start < end()) Expect(step.start);
  if (step.start < base_ && before_ != nullptr && before_->end() == step.start) {
    const std::unique_ptr<ReplayLog> before = std::move(before_);
    *this = std::move(*before);
  }
  if (step.start < base_ || step.start > end()) StartOver(step.start);
  while (end() > step.start) DropBack();
  if (step.num_tokens == 0) return;
  before_.reset();
  const bool goes_on = known_ && tokens.size() == step.num_tokens;
  if (!goes_on) {
    std::unique_ptr<ReplayLog> before;
    if (known_) before = std::make_unique<ReplayLog>(std::move(*this));
    StartOver(step.start + step.num_tokens - tokens.size());
    known_ = tokens.size() >= shape_.tail();
    if (before != nullptr) before->offer_.reset();
    before_ = std::move(before);
  }
  last_start_ = step.start;
  for (LoggedToken& token : tokens) Push(std::move(token));
  // The first tokens of a tail are the ids before the rest.
  for (uint32_t i = 0; !goes_on && known_ && i < shape_.context; ++i) DropFront();
  Settle(std::min(step.low, std::max(last_start_, base_)));
}

void ReplayLog::Settle(uint64_t floor) {
  if (offer_.has_value() && *offer_->position <= std::min(floor, end())) {
    if (*offer_->position > base_) {
      while (base_ < *offer_->position) DropFront();
      aux_ = std::move(offer_->aux);
    }
    offer_.reset();
  }
  const uint64_t keep = floor > shape_.state_len ? floor - shape_.state_len : 0;
  while (bytes_ > shape_.max_bytes && base_ < keep) DropFront();
}

void ReplayLog::Expect(uint64_t start) {
  if (offer_.has_value() && start < *offer_->position) offer_.reset();
}

void ReplayLog::Offer(LayerAux snapshot) {
  if (!known_ && snapshot.position == end()) return Rebase(snapshot);
  if (known_ && snapshot.position.has_value() && *snapshot.position > base_) offer_ = std::move(snapshot);
}

LayerAux ReplayLog::BaseBlob() const {
  LayerAux blob;
  blob.position = base_;
  if (aux_.has_value()) {
    blob.aux = *aux_;
    return blob;
  }
  Append(shape_.context, &blob.aux);
  for (const uint32_t id : history_) Append(id, &blob.aux);
  blob.aux.append(uint64_t{4} * shape_.state_len * shape_.channels, '\0');
  return blob;
}

std::optional<ReplayLog::Plan> ReplayLog::MakePlan(std::optional<uint64_t> next_start) const {
  if (next_start.has_value() && *next_start < base_ && before_ != nullptr && before_->end() == *next_start) {
    return before_->MakePlan();
  }
  if (!known_) return std::nullopt;
  Plan plan;
  plan.start = base_;
  plan.blob = BaseBlob();
  for (const LoggedToken& token : tokens_) plan.tokens.push_back(&token);
  if (tokens_.empty()) return plan;
  // The start of the last step can be reached by itself.
  if (last_start_ > base_ && last_start_ < end()) plan.cuts.push_back(last_start_);
  plan.cuts.push_back(end());
  return plan;
}

}  // namespace pleiad::client::internal
