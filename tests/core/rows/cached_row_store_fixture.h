// A row cache over labelled tables, a reader that fails by script, and a stream that runs by hand.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/rows/cached_row_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/rows/label_table.h"
#include "tests/support/rows/scripted_reader.h"

namespace pleiad {

inline constexpr LayerOrdinal kLayer{0};

// What a plan was answered, from any thread.
class PlanAnswer {
 public:
  void Set(ResolveResult result) {
    MutexLock lock(&mutex_);
    EXPECT_FALSE(result_.has_value()) << "answered twice";
    result_ = std::move(result);
    changed_.NotifyAll();
  }
  bool has_value() {
    MutexLock lock(&mutex_);
    return result_.has_value();
  }
  const ResolveResult& Await() {
    MutexLock lock(&mutex_);
    while (!result_) changed_.Wait(&mutex_);
    return *result_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<ResolveResult> result_ ABSL_GUARDED_BY(mutex_);
};

struct Asked {
  std::vector<RowId> ids;
  std::unique_ptr<RowPlan> plan;
  std::shared_ptr<PlanAnswer> result = std::make_shared<PlanAnswer>();

  bool answered() const { return result->has_value(); }
  const ResolveResult& answer() const { return result->Await(); }
};

class CachedRowStoreTest : public testing::Test {
 protected:
  void Make(uint32_t slots, uint32_t staging_rows, ScriptedReader::Script script = nullptr,
            std::optional<RowMapKind> map = std::nullopt) {
    stream_ = std::make_unique<LabelStream>(slots, staging_rows);
    tables_ = {LabelTable(0, 1000), LabelTable(1, 1000)};
    auto reader = std::make_unique<ScriptedReader>(
        std::make_unique<LabelReader>(),
        script ? std::move(script) : [](const RowRead&, size_t) { return ReadFault::kNone; });
    reader_ = reader.get();
    CachedRowStoreOptions options;
    options.slots = slots;
    options.staging = {stream_->staging(), staging_rows, kLabelBytes};
    options.map = map;
    options.make_policy = [](uint32_t count) { return CreatePolicy(PolicyKind::kClock, count); };
    options.clock = &clock_;
    options.on_table_health = [this](const absl::Status& status) { health_.push_back(status); };
    auto store = CreateCachedRowStore({&tables_[0], &tables_[1]}, {"a.safetensors", "b.safetensors"}, std::move(reader),
                                      std::move(options));
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }

  Asked Ask(std::vector<uint64_t> rows, ResolvePurpose purpose = ResolvePurpose::kStep, LayerOrdinal layer = kLayer) {
    Asked asked;
    for (const uint64_t row : rows) asked.ids.push_back(RowId(row));
    asked.plan = store_->Resolve(layer, asked.ids, purpose,
                                 [answer = asked.result](ResolveResult result) { answer->Set(std::move(result)); });
    return asked;
  }

  // Enqueues ids [first, first + count) of the plan; returns how many fills went with them.
  size_t Enqueue(Asked& asked, size_t first, size_t count, LayerOrdinal layer = kLayer) {
    std::vector<Fill> fills;
    store_->AppendFills(*asked.plan, first, count, fills);
    const size_t filled = fills.size();
    const auto gather = asked.plan->gather().subspan(first, count);
    std::vector<uint64_t> labels;
    for (size_t i = first; i < first + count; ++i) labels.push_back(Label(layer.value(), asked.ids[i].value()));
    const Ticket ticket = stream_->Enqueue(std::move(fills), {gather.begin(), gather.end()}, std::move(labels));
    store_->Enqueued(*asked.plan, first, count, ticket);
    return filled;
  }
  size_t Enqueue(Asked& asked) { return Enqueue(asked, 0, asked.ids.size()); }

  size_t FillOnly(Asked& asked) {
    std::vector<Fill> fills;
    store_->AppendFills(*asked.plan, 0, asked.ids.size(), fills);
    const size_t filled = fills.size();
    store_->Enqueued(*asked.plan, 0, 0, stream_->Enqueue(std::move(fills), {}, {}));
    return filled;
  }

  void RunStream() {
    for (Ticket done = stream_->RunOne(); done != Ticket(0); done = stream_->RunOne()) store_->Completed(done);
  }

  // A whole step: asked, enqueued, run.
  RowCounts Step(std::vector<uint64_t> rows) {
    Asked asked = Ask(std::move(rows));
    EXPECT_TRUE(asked.answered() && asked.answer().status.ok());
    Enqueue(asked);
    RunStream();
    return asked.answer().counts;
  }

  ~CachedRowStoreTest() override {
    if (stream_ != nullptr) {
      EXPECT_EQ(stream_->wrong(), 0u);
    }
  }

  FakeClock clock_;
  std::vector<absl::Status> health_;
  std::vector<TableLayout> tables_;
  std::unique_ptr<LabelStream> stream_;
  ScriptedReader* reader_ = nullptr;
  std::unique_ptr<RowStore> store_;
};

}  // namespace pleiad
