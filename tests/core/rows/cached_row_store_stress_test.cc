// Every row is its own: eight threads of random plans over labelled tables, with prestages, cancels and faults, while a
// device thread enqueues and a stream runs behind it.
#include <atomic>
#include <deque>

#include "tests/core/rows/cached_row_store_fixture.h"
#include "tests/support/rows/holds_nothing.h"

namespace pleiad {
namespace {

constexpr uint64_t kRows = 3000;
constexpr uint32_t kStaging = 512;
constexpr size_t kThreads = 8;
constexpr size_t kLayers = 2;

struct Outcome {
  uint64_t rows = 0, wrong = 0, batches = 0, failed = 0, cancelled = 0, yielded = 0;
  RowStoreStats stats;
};

// A plan that is ready for the device, or a part of one.
struct Batch {
  std::shared_ptr<Asked> asked;
  LayerOrdinal layer;
  size_t first = 0, count = 0;
  std::shared_ptr<std::atomic<bool>> enqueued;
};

class Load {
 public:
  Load(uint32_t slots, size_t batches, uint64_t seed,
       std::function<std::unique_ptr<EvictionPolicy>(uint32_t)> make_policy, bool faults)
      : stream_(slots, kStaging), batches_(batches), seed_(seed) {
    for (FileIndex file = 0; file < kLayers; ++file) tables_.push_back(LabelTable(file, kRows));
    auto reader = std::make_unique<ScriptedReader>(
        std::make_unique<LabelReader>(), [faults, random = std::mt19937_64(seed)](const RowRead&, size_t) mutable {
          if (!faults) return ReadFault::kNone;
          const uint64_t draw = random() % 1000;
          if (draw < 4) return ReadFault::kError;
          if (draw < 7) return ReadFault::kShort;
          if (draw < 10) return ReadFault::kHold;
          return draw == 10 ? ReadFault::kNever : ReadFault::kNone;
        });
    reader_ = reader.get();
    auto later = std::make_unique<LaterReader>(std::move(reader), seed);
    CachedRowStoreOptions options;
    options.slots = slots;
    options.staging = {stream_.staging(), kStaging, kLabelBytes};
    options.make_policy = std::move(make_policy);
    options.clock = &clock_;
    store_ = *CreateCachedRowStore({&tables_[0], &tables_[1]}, {"a", "b"}, std::move(later), std::move(options));
  }

  Outcome Run() {
    std::thread device([this] { Device(); });
    std::thread stream([this] { Stream(); });
    std::vector<std::thread> clients;
    for (size_t i = 0; i < kThreads; ++i) clients.emplace_back([this, i] { Client(seed_ * 1000 + i); });
    {
      std::thread time([this] { Time(); });
      for (std::thread& client : clients) client.join();
      clients_done_ = true;
      time.join();
    }
    Push({});
    device.join();
    stream_stop_ = true;
    stream.join();
    reader_->Release(ScriptedReader::Order::kReversed);
    outcome_.stats = store_->stats();
    outcome_.rows = stream_.rows();
    outcome_.wrong = stream_.wrong();
    outcome_.batches = enqueued_;
    store_.reset();
    return outcome_;
  }

 private:
  void Push(Batch batch) {
    MutexLock lock(&mutex_);
    work_.push_back(std::move(batch));
    changed_.NotifyAll();
  }

  void Device() {
    std::mt19937_64 random(seed_ + 1);
    for (;;) {
      Batch batch;
      {
        MutexLock lock(&mutex_);
        while (work_.empty()) changed_.Wait(&mutex_);
        // Plans are enqueued in another order than they were made; the last comes at the end.
        const size_t take = work_.back().asked == nullptr && work_.size() == 1 ? 0 : random() % work_.size();
        if (work_[take].asked == nullptr && work_.size() > 1) continue;
        batch = std::move(work_[take]);
        work_.erase(work_.begin() + static_cast<ptrdiff_t>(take));
      }
      if (batch.asked == nullptr) return;
      std::vector<Fill> fills;
      store_->AppendFills(*batch.asked->plan, batch.first, batch.count, fills);
      const auto gather = batch.asked->plan->gather().subspan(batch.first, batch.count);
      std::vector<uint64_t> labels;
      for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
        labels.push_back(Label(batch.layer.value(), batch.asked->ids[i].value()));
      }
      const Ticket ticket = stream_.Enqueue(std::move(fills), {gather.begin(), gather.end()}, std::move(labels));
      store_->Enqueued(*batch.asked->plan, batch.first, batch.count, ticket);
      ++enqueued_;
      *batch.enqueued = true;
      batch.enqueued->notify_all();
    }
  }

  void Stream() {
    while (true) {
      const bool last = stream_stop_;
      const Ticket done = stream_.RunOne();
      if (done != Ticket(0)) {
        store_->Completed(done);
      } else if (last) {
        return;
      } else {
        std::this_thread::yield();
      }
    }
  }

  // A second passes with every hundred plans, and when nothing but withheld reads is under way.
  void Time() {
    size_t last = 0;
    while (!clients_done_) {
      const RowStoreStats stats = store_->stats();
      const bool stuck =
          stats.reads_in_flight > 0 && stats.reads_in_flight + stats.staging_quarantined <= reader_->withheld();
      if (!stuck && started_ < last + 100) {
        std::this_thread::yield();
        continue;
      }
      last = started_;
      clock_.Advance(absl::Seconds(1));
      if (++ticks_ % 3 == 0) reader_->Release(ScriptedReader::Order::kReversed);
    }
  }

  void Client(uint64_t seed) {
    std::mt19937_64 random(seed);
    while (started_++ < batches_) {
      const LayerOrdinal layer(static_cast<uint32_t>(random() % kLayers));
      const auto purpose = random() % 4 == 0 ? ResolvePurpose::kPrestage : ResolvePurpose::kStep;
      auto asked = std::make_shared<Asked>();
      const uint64_t range = random() % 2 == 0 ? 40 : kRows;
      for (size_t count = 1 + random() % 64; count > 0; --count) asked->ids.push_back(RowId(random() % range));
      asked->plan = store_->Resolve(layer, asked->ids, purpose,
                                    [answer = asked->result](ResolveResult result) { answer->Set(std::move(result)); });
      if (random() % 10 == 0) {
        asked->plan.reset();  // answered or not
        ++cancelled_;
        continue;
      }
      if (!asked->answer().status.ok()) {
        ++failed_;
        continue;
      }
      Enqueue(asked, layer, purpose, random);
    }
    MutexLock lock(&mutex_);
    outcome_.failed = failed_;
    outcome_.cancelled = cancelled_;
    outcome_.yielded = yielded_;
  }

  void Enqueue(const std::shared_ptr<Asked>& asked, LayerOrdinal layer, ResolvePurpose purpose,
               std::mt19937_64& random) {
    const size_t total = asked->ids.size();
    size_t first = 0;
    if (purpose == ResolvePurpose::kPrestage && random() % 2 == 0) EnqueuePart(asked, layer, 0, 0);
    while (first < total) {
      size_t count = total - first;
      if (purpose == ResolvePurpose::kPrestage) {
        if (random() % 8 == 0) return;  // dropped, perhaps partly used
        if (!asked->plan->Claim()) {
          ++yielded_;
          return;
        }
        if (random() % 8 == 0) {
          asked->plan->Unclaim();
          continue;
        }
        count = 1 + random() % count;
      }
      EnqueuePart(asked, layer, first, count);
      first += count;
    }
  }

  // A plan belongs to one thread at a time: waits until the device thread has let go of it.
  void EnqueuePart(const std::shared_ptr<Asked>& asked, LayerOrdinal layer, size_t first, size_t count) {
    auto enqueued = std::make_shared<std::atomic<bool>>(false);
    Push({asked, layer, first, count, enqueued});
    enqueued->wait(false);
  }

  FakeClock clock_;
  std::vector<TableLayout> tables_;
  LabelStream stream_;
  const size_t batches_;
  const uint64_t seed_;
  ScriptedReader* reader_ = nullptr;
  std::unique_ptr<RowStore> store_;
  std::atomic<size_t> started_ = 0, failed_ = 0, cancelled_ = 0, yielded_ = 0;
  std::atomic<bool> clients_done_ = false, stream_stop_ = false;
  size_t ticks_ = 0;     // of the time thread
  size_t enqueued_ = 0;  // of the device thread
  Mutex mutex_;
  CondVar changed_;
  std::deque<Batch> work_ ABSL_GUARDED_BY(mutex_);
  Outcome outcome_;
};

class EveryRowIsItsOwn : public testing::TestWithParam<uint32_t> {};

TEST_P(EveryRowIsItsOwn, WithPrestagesCancelsAndFaults) {
  Load load(GetParam(), 2500, 7 + GetParam(), nullptr, true);
  const Outcome outcome = load.Run();
  EXPECT_EQ(outcome.wrong, 0u);
  EXPECT_GT(outcome.rows, 10000u);
  EXPECT_GT(outcome.failed, 0u);
  EXPECT_GT(outcome.cancelled, 0u);
  // All is given back, aside from what the reader never answered.
  EXPECT_EQ(outcome.stats.slots_held, 0u);
  EXPECT_EQ(outcome.stats.slots_arriving, 0u);
  EXPECT_EQ(outcome.stats.plans_waiting, 0u);
  EXPECT_EQ(outcome.stats.staging_free + outcome.stats.staging_quarantined + outcome.stats.reads_in_flight, kStaging);
}

INSTANTIATE_TEST_SUITE_P(Arenas, EveryRowIsItsOwn, testing::Values(0u, 8u, 64u, 4096u));

TEST(EveryRowIsItsOwnNegative, IsNoticedToBeFalseWhenPlansHoldNothing) {
  Load load(
      64, 2000, 3, [](uint32_t slots) { return std::make_unique<HoldsNothing>(slots); }, false);
  EXPECT_GT(load.Run().wrong, 0u);
}

}  // namespace
}  // namespace pleiad
