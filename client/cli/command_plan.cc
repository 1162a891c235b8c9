#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands.h"
#include "client/cli/plan.h"
#include "client/cli/plan_sizes.h"
#include "client/cli/token_file.h"
#include "core/base/status_macros.h"

namespace pleiad::cli {
namespace {

struct PlanFlags {
  std::string model;
  std::string trace;
  std::string prefix;
  std::vector<std::string> arenas;
  std::string memory;
  std::string svg;
  std::string reader = "auto";
  double seconds = 2;
};

absl::StatusOr<uint64_t> MemAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == "MemAvailable:" && absl::SimpleAtoi(words[1], &kib)) return kib * 1024;
  }
  return absl::FailedPreconditionError("--memory: /proc/meminfo has no MemAvailable, must be given");
}

absl::StatusOr<PlanOptions> OptionsOf(const PlanFlags& flags) {
  PlanOptions options;
  for (const std::string& text : flags.arenas) {
    PLEIAD_ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes("--arena", text));
    options.arenas.push_back(bytes);
  }
  PLEIAD_ASSIGN_OR_RETURN(options.memory, flags.memory.empty() ? MemAvailable() : ParseBytes("--memory", flags.memory));
  options.measure_time =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(flags.seconds));
  options.reader.kind = flags.reader == "io_uring" ? ReaderKind::kIoUring
                        : flags.reader == "pread"  ? ReaderKind::kPread
                                                   : ReaderKind::kAuto;
  return options;
}

absl::Status Run(const PlanFlags& flags, const PlanOptions& options) {
  CheckpointOptions model;
  model.dir = flags.model;
  PLEIAD_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model));
  PLEIAD_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens,
                          ReadTokens(flags.trace, flags.prefix, checkpoint->config().vocab_size));
  PLEIAD_ASSIGN_OR_RETURN(const Plan plan, MakePlan(*checkpoint, tokens, options));
  std::cout << PlanTable(plan);
  if (flags.svg.empty()) return absl::OkStatus();
  std::ofstream file(flags.svg, std::ios::binary);
  file << PlanSvg(plan) << std::flush;
  if (!file) return absl::UnknownError(absl::StrCat("--svg ", flags.svg, ": cannot be written"));
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, int* exit) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app->add_subcommand(
      "plan", "Size a row cache: measure this disk, simulate the eviction policies on a trace of tokens");
  command->add_option("--model", flags->model, "checkpoint folder")->required();
  command
      ->add_option("--trace", flags->trace,
                   "tokens in the order they are served: little-endian 32-bit ids, or with --prefix a safetensors file")
      ->required();
  command->add_option("--prefix", flags->prefix, "NAME of the I32 tensor NAME.tokens, such as run.layer2");
  command
      ->add_option("--arena", flags->arenas,
                   "arenas to simulate, such as 1GiB,4GiB (default: 0.1 to 100 % of the rows of the trace)")
      ->delimiter(',');
  command->add_option("--memory", flags->memory, "what the server may take (default: what is available here)");
  command->add_option("--seconds", flags->seconds, "of reading at each of the depths 1, 16 and 128")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command->add_option("--reader", flags->reader, "of the rows")
      ->check(CLI::IsMember({"auto", "io_uring", "pread"}))
      ->capture_default_str();
  command->add_option("--svg", flags->svg, "file for a plot of the hit rates");
  command->callback([flags, exit] {
    const absl::StatusOr<PlanOptions> options = OptionsOf(*flags);
    if (!options.ok()) {
      std::cerr << "pleiad: " << options.status().message() << "\n";
      *exit = kExitBadFlags;
      return;
    }
    const absl::Status status = Run(*flags, *options);
    *exit = status.ok() ? kExitOk : Fail(status);
  });
}

}  // namespace pleiad::cli
