// Cold rows of a table larger than the caches of the disk: the io_uring reader beside fio on the same files with the
// same block size and depth, and beside the pread reader and mmap, interleaved in one run. --json writes the medians.
//
//   read_bench --dir FOLDER    the table there, or one of 10 GB made there first and removed at the end
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "client/cli/synth.h"
#include "core/base/mutex.h"
#include "core/model/checkpoint.h"
#include "core/rows/direct_file.h"
#include "core/rows/row_reader_factory.h"
#include "core/rows/uring_system.h"
#include "tests/bench/fio.h"
#include "tests/bench/report.h"

namespace pleiad {
namespace {

using bench::Median;
using bench::Microseconds;

struct Settings {
  std::string dir;
  uint32_t tokens = 512;
  uint32_t depth = 128;
  uint32_t threads = 1;
  uint32_t rounds = 15;
  uint32_t calls = 8;
  uint32_t bursts = 1500;
  double fio_seconds = 1;
  std::vector<std::string> engines = {"io_uring", "libaio"};
  std::string json;
};

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double CpuMicroseconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& t) { return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec); };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// Random rows of the table with their destinations.
class ColdRows {
 public:
  ColdRows(const TableLayout& table, size_t most)
      : table_(table), bytes_(table.disk_row_bytes()), memory_(most * table.disk_row_bytes()) {}

  absl::Span<const RowRead> Draw(size_t count) {
    reads_.clear();
    for (size_t i = 0; i < count; ++i) {
      const RowLocation at = table_.Locate(RowId(random_() % table_.rows));
      reads_.push_back({.id = i,
                        .file = at.file,
                        .offset = at.offset,
                        .bytes = at.bytes,
                        .destination = memory_.data() + i * bytes_});
    }
    return reads_;
  }

 private:
  const TableLayout& table_;
  const uint32_t bytes_;
  // Other rows in every run: storage may remember those of the last one.
  std::mt19937_64 random_{std::random_device()()};
  std::vector<RowRead> reads_;
  std::vector<std::byte> memory_;
};

// Reads all rows of one call, and waits as a plan does.
void ReadAll(RowReader& reader, absl::Span<const RowRead> reads) {
  Mutex mutex;
  CondVar done;
  size_t left = reads.size();
  reader.Submit(reads, [&](absl::Span<const RowReadResult> results) {
    for (const RowReadResult& result : results) {
      if (!result.status.ok()) Fail(result.status);
    }
    MutexLock lock(&mutex);
    left -= results.size();
    if (left == 0) done.NotifyOne();
  });
  MutexLock lock(&mutex);
  while (left > 0) done.Wait(&mutex);
}

// Empties the page cache of the files.
void DropCache(const std::vector<CheckpointFile>& files) {
  for (const CheckpointFile& file : files) ::posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_DONTNEED);
}

// The files mapped, the rows copied by several threads.
class Mapped {
 public:
  explicit Mapped(const std::vector<CheckpointFile>& files) {
    for (const CheckpointFile& file : files) {
      void* const data = ::mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED, file.fd.get(), 0);
      if (data == MAP_FAILED) Fail(absl::UnavailableError("mmap"));
      ::madvise(data, file.bytes, MADV_RANDOM);
      files_.push_back({static_cast<std::byte*>(data), file.bytes});
    }
  }
  ~Mapped() {
    for (const auto& [data, bytes] : files_) ::munmap(data, bytes);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  void Forget() {
    for (const auto& [data, bytes] : files_) ::madvise(data, bytes, MADV_DONTNEED);
  }

  void ReadAll(absl::Span<const RowRead> reads, uint32_t threads) {
    std::vector<std::thread> workers;
    for (uint32_t i = 0; i < threads; ++i) {
      workers.emplace_back([this, reads, i, threads] {
        for (size_t at = i; at < reads.size(); at += threads) {
          const RowRead& read = reads[at];
          std::memcpy(read.destination, files_[read.file].first + read.offset, read.bytes);
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
  }

 private:
  std::vector<std::pair<std::byte*, uint64_t>> files_;
};

// Reads all files once past the page cache, so that whatever lies behind the disk knows all of them equally well: a
// virtual disk may be ten times slower where it was not read lately, and the first to read would pay for the others.
void Preread(const std::vector<CheckpointFile>& files) {
  constexpr size_t kBlock = size_t{4} << 20;
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(4096, kBlock), &std::free);
  for (const CheckpointFile& file : files) {
    const auto direct = OpenDirect(file, UringSystem());
    if (!direct.ok()) Fail(direct.status());
    for (uint64_t at = 0; at < file.bytes; at += kBlock) {
      if (::pread(direct->fd.get(), block.get(), kBlock, static_cast<off_t>(at)) <= 0) {
        Fail(absl::DataLossError(file.path));
      }
    }
  }
}

std::unique_ptr<RowReader> Reader(const std::vector<CheckpointFile>& files, const RowReaderOptions& options) {
  auto reader = CreateRowReader(files, options);
  if (!reader.ok()) Fail(reader.status());
  return *std::move(reader);
}

void MakeTable(const std::string& dir) {
  std::printf("making a table in %s\n", dir.c_str());
  SynthOptions options;
  options.dir = dir;
  options.config = ReleasedConfig();
  options.config.ngram_vocab_size_base = 2000000;
  const absl::Status made = RunSynth(options, [](const SynthProgress&) {});
  if (!made.ok()) Fail(made);
}

struct Line {
  std::string name;
  std::vector<double> per_second;  // rows, of T tokens
  std::vector<double> cpu_us;      // of each of these rows
  std::vector<double> burst_us;    // mean of one round
};

void Run(const Settings& settings) {
  auto checkpoint = Checkpoint::Open({.dir = settings.dir, .eos_token_id = {}});
  if (!checkpoint.ok()) Fail(checkpoint.status());
  const std::vector<CheckpointFile>& files = (*checkpoint)->files();
  const TableLayout& table = (*checkpoint)->layers()[0].table;
  const uint32_t heads = (*checkpoint)->config().geometry.heads();
  const size_t cold = size_t{settings.tokens} * heads;

  const auto direct = OpenDirect(files[0], UringSystem());
  if (!direct.ok()) Fail(direct.status());
  bench::FioOptions fio;
  for (const CheckpointFile& file : files) fio.files.push_back(file.path);
  fio.block_bytes = direct->alignment;
  fio.seconds = settings.fio_seconds;

  const auto uring = Reader(files, {.kind = ReaderKind::kIoUring,
                                    .direct = DirectMode::kRequire,
                                    .threads = settings.threads,
                                    .depth = settings.depth});
  const auto pread = Reader(files, {.kind = ReaderKind::kPread});
  Mapped mapped(files);
  constexpr uint32_t kMapThreads = 8;
  ColdRows rows(table, cold);

  nlohmann::json report = bench::StartReport(
      bench::Machine(), {{"table_gb", static_cast<double>(table.rows) * table.disk_row_bytes() / 1e9},
                         {"files", files.size()},
                         {"row_bytes", table.disk_row_bytes()},
                         {"block_bytes", direct->alignment},
                         {"tokens", settings.tokens},
                         {"rows", cold},
                         {"depth", settings.depth},
                         {"rings", settings.threads},
                         {"rounds", settings.rounds},
                         {"calls_a_round", settings.calls},
                         {"bursts_a_round", settings.bursts},
                         {"fio_seconds_a_round", settings.fio_seconds}});
  std::printf("io_uring: %s\npread: %s\nmmap: MADV_RANDOM, %u threads\n", uring->info().detail.c_str(),
              pread->info().detail.c_str(), kMapThreads);

  const double preread_us = Microseconds([&] { Preread(files); });
  std::printf("read once in %.0f s\n", preread_us / 1e6);

  std::vector<Line> floors;
  for (const std::string& engine : settings.engines) floors.push_back({"fio " + engine, {}, {}, {}});
  std::vector<Line> lines = {{"io_uring reader", {}, {}, {}}, {"pread reader", {}, {}, {}}, {"mmap", {}, {}, {}}};
  const std::vector<std::function<void(absl::Span<const RowRead>)>> ways = {
      [&](absl::Span<const RowRead> reads) { ReadAll(*uring, reads); },
      [&](absl::Span<const RowRead> reads) { ReadAll(*pread, reads); },
      [&](absl::Span<const RowRead> reads) { mapped.ReadAll(reads, reads.size() > heads ? kMapThreads : 1); }};
  std::vector<double> every_burst;

  const auto run_fio = [&](uint32_t depth, uint32_t batch) {
    std::vector<bench::FioResult> results;
    for (const std::string& engine : settings.engines) {
      fio.engine = engine;
      fio.depth = depth;
      fio.batch = batch;
      const auto result = bench::RunFio(fio);
      if (!result.ok()) Fail(result.status());
      results.push_back(*result);
    }
    return results;
  };
  for (uint32_t round = 0; round <= settings.rounds; ++round) {
    const bool counts = round > 0;  // the first warms up
    const auto flat = run_fio(settings.depth, 1);
    for (size_t way = 0; way < ways.size(); ++way) {
      // The buffered ways are slow and only compared: one call a round.
      const uint32_t calls = way == 0 ? settings.calls : 1;
      double us = 0;
      double cpu = 0;
      for (uint32_t call = 0; call < calls; ++call) {
        if (way == 2) mapped.Forget();
        if (way != 0) DropCache(files);
        const absl::Span<const RowRead> reads = rows.Draw(cold);
        cpu -= CpuMicroseconds();
        us += Microseconds([&] { ways[way](reads); });
        cpu += CpuMicroseconds();
      }
      if (!counts) continue;
      lines[way].per_second.push_back(1e6 * static_cast<double>(cold) * calls / us);
      lines[way].cpu_us.push_back(cpu / static_cast<double>(cold * calls));
    }
    const auto burst = run_fio(heads, heads);
    for (size_t way = 0; way < ways.size(); ++way) {
      if (way == 2) mapped.Forget();
      if (way != 0) DropCache(files);
      const uint32_t bursts = way == 0 ? settings.bursts : settings.bursts / 10 + 1;
      double us = 0;
      for (uint32_t i = 0; i < bursts; ++i) {
        const absl::Span<const RowRead> reads = rows.Draw(heads);
        const double one = Microseconds([&] { ways[way](reads); });
        us += one;
        if (counts && way == 0) every_burst.push_back(one);
      }
      if (counts) lines[way].burst_us.push_back(us / bursts);
    }
    if (!counts) continue;
    for (size_t i = 0; i < floors.size(); ++i) {
      floors[i].per_second.push_back(flat[i].reads_per_second);
      floors[i].cpu_us.push_back(flat[i].cpu_us_per_read);
      floors[i].burst_us.push_back(1e6 * heads / burst[i].reads_per_second);
    }
  }

  double best_rate = 0;
  double best_burst = 1e18;
  for (const Line& floor : floors) {
    best_rate = std::max(best_rate, Median(floor.per_second));
    best_burst = std::min(best_burst, Median(floor.burst_us));
  }
  std::printf("\nmedians of %u rounds; of fio's engines the faster one is the floor\n%-18s %12s %10s %12s %14s %10s\n",
              settings.rounds, "", "rows/s cold", "/ fio", "CPU us/row", "us a token", "/ fio");
  floors.insert(floors.end(), lines.begin(), lines.end());
  for (const Line& line : floors) {
    const double rate = Median(line.per_second);
    const double burst = Median(line.burst_us);
    std::printf("%-18s %12.0f %10.2f %12.2f %14.0f %10.2f\n", line.name.c_str(), rate, rate / best_rate,
                Median(line.cpu_us), burst, burst / best_burst);
    report["lines"].push_back({{"name", line.name},
                               {"rows_per_second", rate},
                               {"of_fio", rate / best_rate},
                               {"cpu_us_per_row", Median(line.cpu_us)},
                               {"token_us", burst},
                               {"token_of_fio", burst / best_burst}});
  }
  std::sort(every_burst.begin(), every_burst.end());
  const double p50 = every_burst[every_burst.size() / 2];
  const double p99 = every_burst[every_burst.size() * 99 / 100];
  const RowReaderStats stats = uring->stats();
  const double used = static_cast<double>(stats.bytes_used) / static_cast<double>(stats.bytes_read);
  std::printf("\none token by the io_uring reader: p50 %.0f us, p99 %.0f us; bytes used of bytes read %.2f\n", p50, p99,
              used);
  report["token_p50_us"] = p50;
  report["token_p99_us"] = p99;
  report["bytes_used_of_read"] = used;
  if (!bench::WriteReport(report, settings.json)) std::exit(1);
}

int Main(const Settings& settings) {
  const bool make = !std::filesystem::exists(settings.dir + "/config.json");
  if (make) MakeTable(settings.dir);
  Run(settings);
  if (make) std::filesystem::remove_all(settings.dir);
  return 0;
}

}  // namespace
}  // namespace pleiad

int main(int argc, char** argv) {
  pleiad::Settings settings;
  CLI::App app("Cold rows by io_uring, pread and mmap beside fio");
  app.add_option("--dir", settings.dir, "folder of the checkpoint; made there when absent")->required();
  app.add_option("--tokens", settings.tokens, "tokens of a large call")->capture_default_str();
  app.add_option("--depth", settings.depth, "reads in flight")->capture_default_str();
  app.add_option("--rings", settings.threads, "rings of the io_uring reader")->capture_default_str();
  app.add_option("--rounds", settings.rounds, "measured rounds")->capture_default_str()->check(CLI::Range(1, 10000));
  app.add_option("--calls", settings.calls, "large calls a round")->capture_default_str();
  app.add_option("--bursts", settings.bursts, "tokens a round")->capture_default_str();
  app.add_option("--fio-seconds", settings.fio_seconds, "of each run of fio")->capture_default_str();
  app.add_option("--engines", settings.engines, "fio's engines")->delimiter(',')->capture_default_str();
  app.add_option("--json", settings.json, "file for the result");
  CLI11_PARSE(app, argc, argv);
  return pleiad::Main(settings);
}
