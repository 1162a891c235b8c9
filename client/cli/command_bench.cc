#include <iostream>
#include <vector>

#include "client/cli/bench_load.h"
#include "client/cli/commands.h"

namespace pleiad::cli {
namespace {

struct BenchFlags {
  ServerFlags server;
  BenchOptions bench;
  std::vector<std::string> beside;
  bool json = false;
};

int Run(BenchFlags* flags) {
  for (const std::string& text : flags->beside) {
    const absl::StatusOr<LoadGroup> group = ParseLoadGroup(text);
    if (!group.ok()) {
      std::cerr << "pleiad: --beside: " << group.status().message() << "\n";
      return kExitBadFlags;
    }
    flags->bench.beside.push_back(*group);
  }
  if (absl::Status s = flags->bench.Validate(); !s.ok()) {
    std::cerr << "pleiad: --" << s.message() << "\n";
    return kExitBadFlags;
  }
  absl::StatusOr<client::Client> client = flags->server.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::StatusOr<BenchReport> report = RunBench(&*client, flags->bench);
  if (!report.ok()) return Fail(report.status());
  std::cout << (flags->json ? ReportJson(*report, flags->bench, client->model()) + "\n" : ReportTable(*report));
  return kExitOk;
}

}  // namespace

void AddBench(CLI::App* app, int* exit) {
  auto flags = std::make_shared<BenchFlags>();
  BenchOptions& bench = flags->bench;
  CLI::App* command = app->add_subcommand(
      "bench", "Load the server: every sequence has one step in flight; print latency, tokens/s and hit rate");
  flags->server.AddTo(command);
  command->add_option("--sequences", bench.load.sequences, "sequences of the measured load")->capture_default_str();
  command->add_option("--tokens-per-step", bench.load.tokens_per_step, "tokens of each of its steps")
      ->capture_default_str();
  command->add_option("--beside", flags->beside,
                      "N:T, N more sequences that step T tokens as long as the load runs, reported apart; repeatable");
  command->add_option("--sequences-per-request", bench.sequences_per_request, "sequences that share each request")
      ->capture_default_str();
  command->add_option("--steps", bench.steps, "measured steps of each sequence")->capture_default_str();
  command->add_option("--warmup", bench.warmup, "steps before them")->capture_default_str();
  command->add_option("--streams", bench.streams, "gRPC streams the sequences are dealt over")->capture_default_str();
  command->add_option("--layer-index", bench.layer_index,
                      "zero-based decoder layer (default: the model's only PLE layer)");
  command->add_flag("--bf16", bench.delta_bf16, "BF16 highway and DELTA output (default: F32 and HIGHWAY)");
  command->add_option("--seed", bench.seed, "of tokens and highways")->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON (default: a table)");
  command->callback([flags, exit] { *exit = Run(flags.get()); });
}

}  // namespace pleiad::cli
