#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/token_file.h"
#include "client/cli/warm.h"
#include "core/base/status_macros.h"

namespace pleiad::cli {
namespace {

struct WarmFlags {
  ServerFlags server;
  std::string trace;
  std::string prefix;
  WarmOptions warm;
};

absl::Status Run(const WarmFlags& flags) {
  PLEIAD_ASSIGN_OR_RETURN(client::Client client, flags.server.Connect());
  const client::ModelInfo& model = client.model();
  PLEIAD_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, ReadTokens(flags.trace, flags.prefix, model.vocab_size));
  if (model.table_mode == "resident") std::cerr << "the whole table is in memory: there is nothing to bring\n";
  uint64_t shown = 0;
  const auto progress = [&shown](uint64_t done, uint64_t total) {
    const uint64_t percent = done * 100 / total;
    if (percent == shown) return;
    shown = percent;
    std::cerr << "\r" << percent << " % of " << total << " tokens" << (percent == 100 ? "\n" : "") << std::flush;
  };
  PLEIAD_ASSIGN_OR_RETURN(const WarmReport report, Warm(&client, tokens, flags.warm, progress));
  std::cout << absl::StreamFormat("%d tokens at %d layer%s: rows %d, hits %d, joins %d, misses %d, seconds %.3f\n",
                                  tokens.size(), report.layers, report.layers == 1 ? "" : "s", report.sum.rows,
                                  report.sum.hits, report.sum.joins, report.sum.misses,
                                  absl::ToDoubleSeconds(report.elapsed));
  return absl::OkStatus();
}

}  // namespace

void AddWarm(CLI::App* app, int* exit) {
  auto flags = std::make_shared<WarmFlags>();
  CLI::App* command = app->add_subcommand("warm", "Bring the rows of a trace's tokens into the server's row cache");
  flags->server.AddTo(command);
  command
      ->add_option("--trace", flags->trace,
                   "tokens of one text: little-endian 32-bit ids, or with --prefix a safetensors file")
      ->required();
  command->add_option("--prefix", flags->prefix, "NAME of the I32 tensor NAME.tokens, such as run.layer2");
  command->add_option("--layer-index", flags->warm.layer_index, "zero-based decoder layer (default: all PLE layers)");
  command->callback([flags, exit] {
    const absl::Status status = Run(*flags);
    *exit = status.ok() ? kExitOk : Fail(status);
  });
}

}  // namespace pleiad::cli
