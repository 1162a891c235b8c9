#include <iostream>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/replay.h"
#include "client/cli/trace.h"

namespace pleiad::cli {
namespace {

struct RunFlags {
  ServerFlags server;
  std::string trace;
  ReplayOptions replay;
};

int Run(const RunFlags& flags) {
  const absl::StatusOr<Trace> trace = Trace::Read(flags.trace);
  if (!trace.ok()) return Fail(trace.status());
  absl::StatusOr<client::Client> client = flags.server.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::StatusOr<std::vector<Comparison>> comparisons = Replay(&*client, *trace, flags.replay);
  if (!comparisons.ok()) return Fail(comparisons.status());
  PrintTable(*comparisons, std::cout);
  return AllPassed(*comparisons) ? kExitOk : kExitDisagrees;
}

}  // namespace

void AddRun(CLI::App* app, int* exit) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app->add_subcommand(
      "run", "Replay a trace, as DELTA and as HIGHWAY, and compare; exit code 1 when a tensor is past its bound");
  flags->server.AddTo(command);
  command
      ->add_option("--trace", flags->trace,
                   "safetensors file with NAME.tokens, NAME.highway_in and any of NAME.ngram_ids, NAME.embeddings, "
                   "NAME.ple_out, NAME.highway_out, NAME.conv_after30, NAME.step_lengths")
      ->required();
  command->add_option("--prefix", flags->replay.prefix, "NAME of the tensors, such as run.layer2")->required();
  command->add_option("--layer-index", flags->replay.layer_index,
                      "zero-based decoder layer (default: the model's only PLE layer)");
  command
      ->add_option("--steps", flags->replay.steps,
                   "tokens of each step, the last one repeated to the end (default: NAME.step_lengths, else all "
                   "tokens in one step)")
      ->delimiter(',');
  command
      ->add_option("--bound", flags->replay.bound,
                   "relative L2 allowed for outputs and conv rows (ids and embeddings: exact); 3e-4 for traces "
                   "computed with k and v rounded to BF16")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--disturb", flags->replay.disturb,
                    "halfway, rewind a rejected draft, take a snapshot, release, and go on in a new sequence that it "
                    "was restored into");
  command->callback([flags, exit] { *exit = Run(*flags); });
}

}  // namespace pleiad::cli
