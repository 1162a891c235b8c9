// Row lookups that hit: plans of present rows resolved, enqueued and ended, over the map of the released size.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/rows/cached_row_store.h"
#include "tests/bench/report.h"
#include "tests/support/rows/label_table.h"

namespace pleiad::bench {
namespace {

constexpr LayerOrdinal kLayer{0};
constexpr size_t kBatch = 8192;  // 512 tokens of 16 ids
constexpr size_t kToken = 16;

struct Settings {
  uint64_t rows = 320'000'000;  // 102.4 GB of rows of 320 bytes
  uint32_t slots = 8'388'608;
  size_t rounds = 301;
};

class Store {
 public:
  Store(const Settings& settings, HugePages huge_pages)
      : staging_rows_(1 << 18), staging_(size_t{staging_rows_} * kLabelBytes), random_(7) {
    table_ = LabelTable(0, settings.rows);
    CachedRowStoreOptions options;
    options.slots = settings.slots;
    options.staging = {staging_.data(), staging_rows_, kLabelBytes};
    options.huge_pages = huge_pages;
    options.map = RowMapKind::kDirect;
    auto store = CreateCachedRowStore({&table_}, {"table"}, std::make_unique<LabelReader>(), std::move(options));
    if (!store.ok()) {
      std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
      std::exit(1);
    }
    store_ = *std::move(store);
    floor_ = *HostMemory::Allocate("floor", settings.rows * sizeof(uint32_t), huge_pages);
    std::memset(floor_.data(), 1, floor_.size());
    // Rows spread over the whole table, one in every `stride`.
    const uint64_t stride = settings.rows / settings.slots;
    present_.reserve(settings.slots);
    for (uint64_t i = 0; i < settings.slots; ++i) present_.push_back(RowId(i * stride + random_() % stride));
    std::vector<RowId> order = present_;
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t first = 0; first < order.size(); first += 1 << 17) {
      const auto end = order.begin() + static_cast<ptrdiff_t>(std::min(first + (1 << 17), order.size()));
      Run({order.begin() + static_cast<ptrdiff_t>(first), end});
    }
  }

  std::vector<RowId> Draw(size_t count) {
    std::vector<RowId> ids;
    for (size_t i = 0; i < count; ++i) ids.push_back(present_[random_() % present_.size()]);
    return ids;
  }

  // The floor: as many random reads of an array of the map's size, prefetched, and nothing else.
  uint64_t ReadMapAlone(const std::vector<RowId>& ids) {
    constexpr size_t kAhead = 32;
    uint64_t sum = 0;
    for (size_t i = 0; i < ids.size() + kAhead; ++i) {
      if (i < ids.size()) __builtin_prefetch(floor_.As<uint32_t>() + ids[i].value());
      if (i >= kAhead) sum += floor_.As<uint32_t>()[ids[i - kAhead].value()];
    }
    return sum;
  }

  // One plan from its making to its end; how many of its ids hit.
  uint64_t Run(std::vector<RowId> ids) {
    uint64_t hits = 0;
    const size_t count = ids.size();
    const std::unique_ptr<RowPlan> plan =
        store_->Resolve(kLayer, std::move(ids), ResolvePurpose::kStep,
                        [&hits](const ResolveResult& result) { hits = result.counts.hits; });
    fills_.clear();
    store_->AppendFills(*plan, 0, count, fills_);
    store_->Enqueued(*plan, 0, count, Ticket(++ticket_));
    if (!fills_.empty()) store_->Completed(Ticket(ticket_));
    return hits;
  }

 private:
  const uint32_t staging_rows_;
  std::vector<std::byte> staging_;
  std::mt19937_64 random_;
  TableLayout table_;
  std::unique_ptr<RowStore> store_;
  std::vector<RowId> present_;
  HostMemory floor_;
  std::vector<Fill> fills_;
  uint64_t ticket_ = 0;
};

struct Figures {
  std::vector<double> batch, token, floor;  // us
};

// Rounds of both stores alternate; ids are drawn anew each time, so no cache holds what they touch.
void Measure(Store& store, size_t rounds, Figures& figures) {
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<RowId> ids = store.Draw(kBatch);
    uint64_t hits = 0;
    uint64_t sum = 0;
    const std::vector<RowId> others = store.Draw(kBatch);
    figures.floor.push_back(Microseconds([&] { sum = store.ReadMapAlone(others); }));
    figures.batch.push_back(Microseconds([&] { hits = store.Run(std::move(ids)); }));
    if (hits != kBatch || sum != kBatch * 0x01010101ull) {
      std::fprintf(stderr, "%zu ids, %lu hits\n", kBatch, static_cast<unsigned long>(hits));
      std::exit(1);
    }
    std::vector<std::vector<RowId>> few;
    for (int i = 0; i < 64; ++i) few.push_back(store.Draw(kToken));
    figures.token.push_back(Microseconds([&] {
                              for (std::vector<RowId>& token : few) hits += store.Run(std::move(token));
                            }) /
                            64);
  }
}

int Main(const Settings& settings, const std::string& json) {
  Store huge(settings, HugePages::kAdvise);
  Store small(settings, HugePages::kNo);
  Figures with, without;
  for (size_t part = 0; part < 10; ++part) {
    Measure(huge, settings.rounds / 10 + 1, with);
    Measure(small, settings.rounds / 10 + 1, without);
  }
  nlohmann::json report =
      StartReport(Machine(), {{"rows", settings.rows}, {"slots", settings.slots}, {"rounds", settings.rounds}});
  std::printf("%-34s %14s %14s\n", "uniform ids that all hit, one core", "huge pages", "4 KiB pages");
  const auto rate = [](const std::vector<double>& us) { return kBatch / Median(us); };
  const double huge_rate = rate(with.batch), small_rate = rate(without.batch);
  std::printf("%-34s %14.1f %14.1f   M ids/s\n", "floor: the map read, alone", rate(with.floor), rate(without.floor));
  std::printf("%-34s %14.1f %14.1f   M ids/s (targets 50 and 25)\n", "plans of 8192 ids", huge_rate, small_rate);
  std::printf("%-34s %14.3f %14.3f   us (target 0.5)\n", "a plan of 16 ids, whole", Median(with.token),
              Median(without.token));
  report["batch_million_ids_per_second"] = {{"huge_pages", huge_rate}, {"small_pages", small_rate}};
  report["floor_million_ids_per_second"] = {{"huge_pages", rate(with.floor)}, {"small_pages", rate(without.floor)}};
  report["token_us"] = {{"huge_pages", Median(with.token)}, {"small_pages", Median(without.token)}};
  return WriteReport(report, json) ? 0 : 1;
}

}  // namespace
}  // namespace pleiad::bench

int main(int argc, char** argv) {
  pleiad::bench::Settings settings;
  std::string json;
  CLI::App app("Rates of row lookups that hit.", "lookup_bench");
  app.add_option("--rows", settings.rows, "Rows of the table")->capture_default_str();
  app.add_option("--slots", settings.slots, "Slots of the arena, all present")->capture_default_str();
  app.add_option("--rounds", settings.rounds, "Rounds")->capture_default_str();
  app.add_option("--json", json, "Writes the figures there");
  CLI11_PARSE(app, argc, argv);
  return pleiad::bench::Main(settings, json);
}
