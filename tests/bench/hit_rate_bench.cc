// The hit rate of the eviction policies beside Belady's MIN, on made-up and on real traces of row lookups; arenas are
// shares of the distinct rows of a trace. Prints a table; --json writes it to a file.
//
// zipf S      lookups of a million rows, row k named with probability about k^-S (a bounded Pareto, rounded down);
// after
//             every 9 million of lookups a scan of a million rows that are named just then.
// docs, code  files of this machine's packages (text_corpus.h says how they are cut into tokens), read by 64 sequences
//             that take turns, --chunk tokens at a time, each going on to the next file when its own ends; a token's 16
//             row ids are those of the released geometry's hash.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "client/cli/synth.h"
#include "core/model/hash_constants.h"
#include "core/model/ngram_hasher.h"
#include "core/rows/cache_simulator.h"
#include "tests/bench/report.h"
#include "tests/bench/text_corpus.h"

namespace pleiad::testing {
namespace {

struct Settings {
  uint64_t lookups = 20'000'000;  // of each Zipf trace
  uint64_t tokens = 2'000'000;    // of each text trace
  uint32_t sequences = 64;
  uint32_t chunk = 1;
  uint32_t steps = 0xFFFFFFFFu;
  std::vector<double> percents = {0.1, 0.3, 1, 3, 10};
  std::string json;
};

struct NamedTrace {
  std::string name;
  std::string detail;
  CacheTrace trace;
};

NamedTrace ZipfTrace(double exponent, const Settings& settings) {
  constexpr double kRows = 1e6;
  const uint64_t scan = settings.lookups / 20;
  const uint64_t period = 10 * scan;
  std::mt19937_64 rng(11);
  std::vector<uint64_t> keys(settings.lookups);
  const double span = std::pow(kRows + 1, 1 - exponent) - 1;
  for (uint64_t i = 0; i < keys.size(); ++i) {
    if (scan > 0 && i % period >= period - scan) {
      keys[i] = (uint64_t{1} << 32) + i;
    } else {
      const double uniform = static_cast<double>(rng() >> 11) * 0x1p-53;
      keys[i] = static_cast<uint64_t>(std::pow(1 + uniform * span, 1 / (1 - exponent)));
    }
  }
  char name[32];
  std::snprintf(name, sizeof(name), "zipf %.2f", exponent);
  return {name, "1e6 rows, 5 % of the lookups in each of 2 scans", CacheTrace::Of(keys)};
}

NamedTrace TextTrace(std::string name, CorpusOptions options, const Settings& settings) {
  const ModelConfig config = ReleasedConfig();
  options.tokens = settings.tokens;
  options.vocab_size = config.vocab_size;
  const std::vector<std::vector<uint32_t>> files = ReadCorpus(options);
  const NgramHasher hasher(DeriveHashConstants(config, LayerOrdinal(0)), config.geometry.ngram_size,
                           config.geometry.heads_per_ngram, config.eos_token_id);
  const std::vector<uint32_t> fresh(hasher.context_len(), config.eos_token_id);
  struct Reading {
    std::vector<RowId> ids;
    size_t done = 0;
  };
  std::deque<Reading> readers;
  std::vector<uint64_t> keys;
  uint64_t tokens = 0;
  for (size_t next = 0; next < files.size() || !readers.empty();) {
    while (readers.size() < settings.sequences && next < files.size()) {
      const std::vector<uint32_t>& file = files[next++];
      tokens += file.size();
      readers.push_back({std::vector<RowId>(file.size() * hasher.heads()), 0});
      hasher.Hash(fresh, file, absl::MakeSpan(readers.back().ids));
    }
    Reading reader = std::move(readers.front());
    readers.pop_front();
    const size_t end = std::min(reader.ids.size(), reader.done + size_t{settings.chunk} * hasher.heads());
    for (; reader.done < end; ++reader.done) keys.push_back(reader.ids[reader.done].value());
    if (end < reader.ids.size()) readers.push_back(std::move(reader));
  }
  const std::string detail = std::to_string(files.size()) + " files, " + std::to_string(tokens) + " tokens";
  return {std::move(name), detail, CacheTrace::Of(keys)};
}

class Report {
 public:
  explicit Report(const Settings& settings)
      : settings_(settings),
        json_(bench::StartReport(bench::Machine(), {{"lookups", settings.lookups},
                                                    {"tokens", settings.tokens},
                                                    {"sequences", settings.sequences},
                                                    {"chunk", settings.chunk},
                                                    {"steps", settings.steps}})) {}

  void Run(const NamedTrace& named) {
    const CacheTrace& trace = named.trace;
    const double lookups = static_cast<double>(trace.ids.size());
    const double again = 1 - trace.distinct / lookups;
    std::printf("\n%s: %s; %zu lookups of %u rows, %.1f %% name a row again\n", named.name.c_str(),
                named.detail.c_str(), trace.ids.size(), trace.distinct, 100 * again);
    std::printf("%8s %12s |%8s%8s%8s%8s | steps of an eviction, mean (most)\n", "arena %", "slots", "clock", "s3fifo",
                "sieve", "MIN");
    for (const double percent : settings_.percents) {
      const auto slots = static_cast<uint32_t>(trace.distinct * percent / 100);
      std::printf("%8g %12u |", percent, slots);
      const double best = SimulateMin(slots, trace).hit_rate();
      std::string steps;
      for (const PolicyKind kind : kPolicyKinds) {
        const auto start = std::chrono::steady_clock::now();
        const CacheCounts counts = SimulatePolicy(kind, slots, trace, settings_.steps);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        const double mean = static_cast<double>(counts.steps) / std::max(1.0, static_cast<double>(counts.evictions));
        std::printf("%8.2f", 100 * counts.hit_rate());
        std::fflush(stdout);
        char text[64];
        std::snprintf(text, sizeof(text), " %.2f (%u)", mean, counts.max_steps);
        steps += text;
        if (best > 0) shares_[static_cast<size_t>(kind)].push_back(counts.hit_rate() / best);
        json_["runs"].push_back({{"trace", named.name},
                                 {"detail", named.detail},
                                 {"lookups", trace.ids.size()},
                                 {"rows", trace.distinct},
                                 {"slots", slots},
                                 {"arena_percent", percent},
                                 {"policy", Name(kind)},
                                 {"hit_rate", counts.hit_rate()},
                                 {"min_hit_rate", best},
                                 {"steps_mean", mean},
                                 {"steps_most", counts.max_steps},
                                 {"seconds", took.count()}});
      }
      std::printf("%8.2f |%s\n", 100 * best, steps.c_str());
    }
  }

  // False when the file cannot be written.
  bool Finish() {
    std::printf("\nshare of MIN's hit rate, mean and worst of all runs:");
    for (const PolicyKind kind : kPolicyKinds) {
      const std::vector<double>& shares = shares_[static_cast<size_t>(kind)];
      double sum = 0, worst = 1;
      for (const double share : shares) sum += share, worst = std::min(worst, share);
      const double mean = shares.empty() ? 0 : sum / static_cast<double>(shares.size());
      std::printf("  %s %.3f %.3f", Name(kind), mean, worst);
      json_["share_of_min"][Name(kind)] = {{"mean", mean}, {"worst", worst}};
    }
    std::printf("\n");
    return bench::WriteReport(json_, settings_.json);
  }

 private:
  const Settings& settings_;
  nlohmann::json json_;
  std::vector<double> shares_[std::size(kPolicyKinds)];
};

int Main(const Settings& settings) {
  Report report(settings);
  for (const double exponent : {0.5, 0.95}) report.Run(ZipfTrace(exponent, settings));
  CorpusOptions docs;
  docs.folders = {"/usr/share/doc"};
  docs.suffixes = {".html", ".htm", ".txt", ".md", ".rst", ".tex", ".xml"};
  report.Run(TextTrace("docs", docs, settings));
  CorpusOptions code;
  code.folders = {"/usr/include", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/share/perl"};
  code.suffixes = {".h", ".hpp", ".hh", ".py", ".pm", ".pl"};
  report.Run(TextTrace("code", code, settings));
  return report.Finish() ? 0 : 1;
}

}  // namespace
}  // namespace pleiad::testing

int main(int argc, char** argv) {
  pleiad::testing::Settings settings;
  CLI::App app("Hit rates of the eviction policies beside Belady's MIN");
  app.add_option("--lookups", settings.lookups, "of each Zipf trace")->capture_default_str();
  app.add_option("--tokens", settings.tokens, "of each text trace")->capture_default_str();
  app.add_option("--sequences", settings.sequences, "that take turns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--chunk", settings.chunk, "tokens a turn")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--steps", settings.steps, "candidates an eviction looks at")->capture_default_str();
  app.add_option("--percents", settings.percents, "arenas, % of the distinct rows")->delimiter(',');
  app.add_option("--json", settings.json, "file for the result");
  CLI11_PARSE(app, argc, argv);
  return pleiad::testing::Main(settings);
}
