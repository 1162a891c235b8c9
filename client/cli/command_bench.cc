#include <iostream>
#include <vector>

#include "client/cli/bench_load.h"
#include "client/cli/commands.h"
#include "core/base/freed_memory.h"

namespace pleiad::cli {
namespace {

struct BenchFlags {
  ServerFlags server;
  BenchOptions bench;
  std::vector<std::string> beside;
  std::string transport = "inline";
  bool bf16 = false;
  std::string arrivals = "poisson";
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
  const absl::StatusOr<Transport> transport = ParseTransport(flags->bf16 ? "bf16-delta" : flags->transport);
  if (!transport.ok()) {
    std::cerr << "pleiad: --transport " << transport.status().message() << "\n";
    return kExitBadFlags;
  }
  flags->bench.transport = *transport;
  flags->bench.arrivals = flags->arrivals == "fixed" ? Arrivals::kFixed : Arrivals::kPoisson;
  flags->bench.address = flags->server.address;
  if (flags->server.addresses.size() > 1) flags->bench.replicas = flags->server.addresses;
  flags->bench.access = flags->server.Options();
  if (!flags->server.affinity.empty()) flags->bench.affinity = flags->server.affinity;
  if (absl::Status s = flags->bench.Validate(); !s.ok()) {
    std::cerr << "pleiad: --" << s.message() << "\n";
    return kExitBadFlags;
  }
  KeepFreedMemory();
  // With several, the first says what they serve.
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
      "bench", "Load the server: every sequence has one step in flight; print latency, tokens/s, hit rate, CPU time");
  flags->server.AddSeveralTo(command);
  command->get_option("--affinity")
      ->description(
          "key by which a balancer, or with several servers the client (then with /N behind it where there are several "
          "streams; bench unless given), chooses the server");
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
  CLI::Option* transport =
      command
          ->add_option(
              "--transport", flags->transport,
              "inline: F32 highway in the message, HIGHWAY output; bf16-delta: BF16, DELTA; shm: as inline, in memory "
              "shared with a server that has --allow-client-regions; echo: messages of the size of inline, to a "
              "pleiad-bench-server that sends them back as they came; echo-64: of 64 bytes")
          ->capture_default_str();
  command->add_option("--shm-dir", bench.shm_dir, "with --transport shm: the server's")->capture_default_str();
  command->add_flag("--bf16", flags->bf16, "short for --transport bf16-delta")->excludes(transport);
  command
      ->add_option("--rate", bench.rate,
                   "steps/s that arrive, of all sequences of the load together; latency counts from the arrival "
                   "(0: each step follows the answer to the one before)")
      ->capture_default_str();
  command->add_option("--arrivals", flags->arrivals, "with --rate: at random, or at even intervals")
      ->check(CLI::IsMember({"poisson", "fixed"}))
      ->capture_default_str();
  command->add_option("--metrics", bench.metrics, "HOST:PORT of the server's metrics, for the CPU time it takes")
      ->check(MetricsAddressRule());
  command->add_option("--seed", bench.seed, "of tokens, highways and arrivals")->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON (default: a table)");
  command->callback([flags, exit] { *exit = Run(flags.get()); });
}

}  // namespace pleiad::cli
