// Opening: a place in the pool, fresh or restored.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/engine/engine_impl.h"
#include "core/engine/request_rules.h"

namespace pleiad {
namespace {

constexpr size_t kMaxNameBytes = 64;

void CheckName(const char* field, const std::string& value, std::vector<ErrorDetail>& errors) {
  if (value.size() <= kMaxNameBytes) return;
  errors.push_back(MakeDetail(Reason::kInvalidField, field, absl::StrCat(value.size(), " bytes"),
                              absl::StrCat("at most ", kMaxNameBytes, " bytes")));
}

OpenResult Refusal(Reason reason, std::string field, std::string value, std::string limit) {
  OpenResult result;
  result.outcome = Refused({MakeDetail(reason, std::move(field), std::move(value), std::move(limit))});
  return result;
}

}  // namespace

void EngineImpl::Open(OpenRequest request, std::function<void(OpenResult)> done) {
  OpenResult result;
  std::vector<ErrorDetail> errors;
  CheckName("label", request.label, errors);
  CheckName("client_key", request.client_key, errors);
  std::shared_ptr<RestoreOp> restore;
  {
    Section section(this);
    Sequence* existing = nullptr;
    if (errors.empty() && !request.client_key.empty()) existing = sequences_.FindByKey(request.client_key);
    std::vector<ErrorDetail> of_blobs = CheckBlobs(existing != nullptr ? absl::Span<const CarryBlob>() : request.layers,
                                                   request.model_id, model_.model_id, model_.config);
    for (ErrorDetail& detail : of_blobs) errors.push_back(std::move(detail));
    if (Outcome now = RefusedNow(); !now.ok()) {
      result.outcome = std::move(now);
    } else if (!errors.empty()) {
      result.outcome = Refused(std::move(errors));
    } else if (existing != nullptr) {
      sequences_.Touch(existing, clock_->Now());
      result.sequence = existing->id;
      result.existing = true;
    } else if (request.refused) {
      result.outcome = *std::move(request.refused);
    } else if (draining_) {
      result = Refusal(Reason::kDraining, "server", "draining", "opens no sequence; try another replica");
    } else {
      SequenceId id(ids_.Next());
      while (sequences_.Find(id) != nullptr) id = SequenceId(ids_.Next());
      Sequence* sequence = sequences_.Open(id, request.client_key, clock_->Now());
      if (sequence == nullptr) {
        result = Refusal(Reason::kCarriesFull, "sequences", absl::StrCat(sequences_.open()),
                         absl::StrCat("at most ", options_.max_sequences,
                                      " (--max-sequences); release some or try another replica"));
      } else {
        sequence->label.assign(request.label);
        sequence->owner = std::move(request.owner);
        ++stats_.sequences_opened;
        sequence->place = std::move(request.place);
        result.sequence = id;
        if (!request.layers.empty()) {
          restore = std::make_shared<RestoreOp>();
          restore->kind = OpKind::kRestore;
          restore->id = id;
          restore->TakeBlobs(request.layers, model_.config);
          restore->done = [fn = std::move(done), result](Outcome outcome) mutable {
            result.outcome = std::move(outcome);
            fn(std::move(result));
          };
          ArriveSequenceOp(section, restore, {});
        }
      }
    }
  }
  if (restore == nullptr) done(std::move(result));
}

}  // namespace pleiad
