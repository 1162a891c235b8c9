// Steps inline against an echo of the same size, and steps in shared memory against an echo of 64 bytes, on one server
// without a stage, over a Unix socket: what the wire costs.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "client/cli/bench_load.h"
#include "client/cli/synth.h"
#include "client/client.h"
#include "core/base/freed_memory.h"
#include "tests/bench/report.h"
#include "tests/support/process/child_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad::bench {
namespace {

using cli::BenchOptions;
using cli::BenchReport;
using cli::Transport;

struct Settings {
  std::string server;
  uint32_t rounds = 21;
  uint32_t in_flight = 4;  // of the throughput
  std::string json;
};

struct Case {
  uint32_t tokens;
  uint32_t steps;  // of a round
};
constexpr Case kCases[] = {{1, 400}, {64, 40}, {512, 8}};
constexpr Case kShmCases[] = {{1, 400}, {64, 100}, {512, 16}};

// Medians over rounds.
struct Figures {
  std::vector<double> p50_us, p99_us, tokens_per_second, client_us_per_token, server_us_per_token;

  nlohmann::json Json() const {
    return {{"p50_us", Median(p50_us)},
            {"p99_us", Median(p99_us)},
            {"tokens_per_second", Median(tokens_per_second)},
            {"client_cpu_us_per_token", Median(client_us_per_token)},
            {"server_cpu_us_per_token", Median(server_us_per_token)}};
  }
};

class WireBench {
 public:
  explicit WireBench(const Settings& settings) : settings_(settings) {}

  int Run() {
    SynthOptions synth;
    synth.dir = dir_ / "model";
    synth.config = ReleasedConfig();
    synth.config.ngram_vocab_size_base = 2000;
    if (const absl::Status s = RunSynth(synth, nullptr); !s.ok()) return Fail(s);
    address_ = "unix:" + (dir_ / "socket");
    testing::ChildProcess server({settings_.server,
                                  "--model",
                                  synth.dir,
                                  "--listen",
                                  address_,
                                  "--metrics-listen",
                                  "127.0.0.1:0",
                                  "--allow-client-regions",
                                  "--shm-dir",
                                  "/dev/shm",
                                  "--device",
                                  "cpu",
                                  "--table",
                                  "resident",
                                  "--max-tokens",
                                  "512",
                                  "--max-sequences",
                                  "64",
                                  "--max-inflight-bytes",
                                  "2GiB",
                                  "--log-level",
                                  "warning"});
    const std::optional<std::string> ready = server.ReadOutputLine();
    if (!ready.has_value()) return Fail(absl::UnavailableError(server.DrainError()));
    metrics_ = ready->substr(ready->rfind(' ') + 1);
    const int code = Measure();
    server.Signal(SIGTERM);
    return server.Wait() == 0 ? code : 1;
  }

 private:
  static int Fail(const absl::Status& status) {
    std::fprintf(stderr, "wire_bench: %s\n", status.ToString().c_str());
    return 1;
  }

  int Measure() {
    nlohmann::json report = StartReport(Machine(), {{"rounds", settings_.rounds}, {"in_flight", settings_.in_flight}});
    std::printf("%6s %9s %11s %11s %8s %8s %13s %13s %8s %12s %12s\n", "T", "in flight", "echo p50", "inline p50",
                "ratio", "us more", "echo tokens/s", "inline", "ratio", "client us/t", "server us/t");
    for (const Case& at : kCases) {
      for (const uint32_t in_flight : {1u, settings_.in_flight}) {
        Figures echo, ours;
        for (uint32_t round = 0; round < settings_.rounds; ++round) {
          // In turns, and each first as often as second.
          for (const bool first : {true, false}) {
            const bool is_echo = first == (round % 2 == 0);
            const absl::Status s =
                Load(at, in_flight, is_echo ? Transport::kEcho : Transport::kInline, is_echo ? echo : ours);
            if (!s.ok()) return Fail(s);
          }
        }
        Print(at, in_flight, echo, ours);
        report["cases"].push_back(
            {{"tokens", at.tokens},
             {"in_flight", in_flight},
             {"echo", echo.Json()},
             {"inline", ours.Json()},
             {"p50_ratio", Median(ours.p50_us) / Median(echo.p50_us)},
             {"throughput_ratio", Median(ours.tokens_per_second) / Median(echo.tokens_per_second)}});
      }
    }
    if (const absl::Status s = MeasureShm(report); !s.ok()) return Fail(s);
    return WriteReport(report, settings_.json) ? 0 : 1;
  }

  absl::Status MeasureShm(nlohmann::json& report) {
    std::printf("\n%6s %13s %11s %11s %15s %15s\n", "T", "echo 64 p50", "shm p50", "us more", "its copies us",
                "shm tokens/s");
    for (const Case& at : kShmCases) {
      Figures echo, ours;
      std::vector<double> copies;
      for (uint32_t round = 0; round < settings_.rounds; ++round) {
        for (const bool first : {true, false}) {
          const bool is_echo = first == (round % 2 == 0);
          const absl::Status s = Load(at, 1, is_echo ? Transport::kEcho64 : Transport::kShm, is_echo ? echo : ours);
          if (!s.ok()) return s;
        }
        const absl::StatusOr<double> us = CopiesUs(at);
        if (!us.ok()) return us.status();
        copies.push_back(*us);
      }
      const double more = Median(ours.p50_us) - Median(echo.p50_us);
      std::printf("%6u %13.1f %11.1f %11.1f %15.1f %15.0f\n", at.tokens, Median(echo.p50_us), Median(ours.p50_us), more,
                  Median(copies), Median(ours.tokens_per_second));
      std::fflush(stdout);
      report["shm"].push_back({{"tokens", at.tokens},
                               {"echo_64", echo.Json()},
                               {"shm", ours.Json()},
                               {"us_more", more},
                               {"copies_us", Median(copies)}});
    }
    return absl::OkStatus();
  }

  // What reading a step's highway from a file in memory and writing an output of that size there takes: the floor.
  static absl::StatusOr<double> CopiesUs(const Case& at) {
    constexpr int kRepeats = 50;
    const std::string path = absl::StrCat("/dev/shm/pleiad-wire-bench-", ::getpid());
    const size_t bytes = size_t{at.tokens} * ReleasedConfig().geometry.channels() * sizeof(float);
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    ::unlink(path.c_str());
    std::vector<std::byte> memory(bytes);
    bool good = ::posix_fallocate(fd, 0, static_cast<off_t>(2 * bytes)) == 0;
    std::vector<double> us;
    for (int i = 0; i < kRepeats && good; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      good = ::pread(fd, memory.data(), bytes, 0) == static_cast<ssize_t>(bytes) &&
             ::pwrite(fd, memory.data(), bytes, static_cast<off_t>(bytes)) == static_cast<ssize_t>(bytes);
      us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    ::close(fd);
    if (!good) return absl::ErrnoToStatus(errno, path);
    return Median(us);
  }

  absl::Status Load(const Case& at, uint32_t in_flight, Transport transport, Figures& figures) {
    client::ClientOptions where;
    where.address = address_;
    absl::StatusOr<client::Client> client = client::Client::Connect(where);
    if (!client.ok()) return client.status();
    BenchOptions options;
    options.load = {.sequences = in_flight, .tokens_per_step = at.tokens};
    options.steps = at.steps;
    options.warmup = at.steps / 4;
    options.transport = transport;
    options.address = address_;
    options.metrics = metrics_;
    const absl::StatusOr<BenchReport> report = RunBench(&*client, options);
    if (!report.ok()) return report.status();
    if (report->checksum != report->input_checksum) return absl::DataLossError("what came back is not what was sent");
    figures.p50_us.push_back(report->loads[0].p50_us);
    figures.p99_us.push_back(report->loads[0].p99_us);
    figures.tokens_per_second.push_back(report->loads[0].tokens_per_second);
    const double tokens = static_cast<double>(report->tokens);
    figures.client_us_per_token.push_back(1e6 * report->client_cpu_seconds / tokens);
    figures.server_us_per_token.push_back(1e6 * report->server_cpu_seconds.value_or(0) / tokens);
    return absl::OkStatus();
  }

  // Targets: 90 % of the echo's throughput; p50 within 1.15 of it, or 40 us. In shared memory: 60 us beyond the echo of
  // 64 bytes, and from 64 tokens on the copies at 0.9 of their speed.
  static void Print(const Case& at, uint32_t in_flight, const Figures& echo, const Figures& ours) {
    const double floor = Median(echo.p50_us), p50 = Median(ours.p50_us);
    const double rate = Median(ours.tokens_per_second), floor_rate = Median(echo.tokens_per_second);
    std::printf("%6u %9u %11.1f %11.1f %8.3f %8.1f %13.0f %13.0f %8.3f %5.1f %6.1f %5.1f %6.1f\n", at.tokens, in_flight,
                floor, p50, p50 / floor, p50 - floor, floor_rate, rate, rate / floor_rate,
                Median(echo.client_us_per_token), Median(ours.client_us_per_token), Median(echo.server_us_per_token),
                Median(ours.server_us_per_token));
    std::fflush(stdout);
  }

  const Settings settings_;
  testing::TempDir dir_;
  std::string address_, metrics_;
};

}  // namespace
}  // namespace pleiad::bench

int main(int argc, char** argv) {
  pleiad::bench::Settings settings;
  CLI::App app("What inline tensors cost on the wire, beside an echo of the same size.", "wire_bench");
  app.add_option("--server", settings.server, "Path of pleiad-bench-server")->required();
  app.add_option("--rounds", settings.rounds, "Rounds; echo and inline take turns in each")->capture_default_str();
  app.add_option("--in-flight", settings.in_flight, "Steps in flight beside one, on one stream")->capture_default_str();
  app.add_option("--json", settings.json, "Writes the figures there");
  CLI11_PARSE(app, argc, argv);
  pleiad::KeepFreedMemory();
  return pleiad::bench::WireBench(settings).Run();
}
