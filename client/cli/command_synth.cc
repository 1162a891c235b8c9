#include <iostream>
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/synth.h"

namespace pleiad::cli {
namespace {

struct Flags {
  SynthOptions options;
  std::string row_dtype = "BF16";
  std::vector<uint32_t> layer_ids = {2};
  bool sparse = false;
};

int Run(Flags flags) {
  SynthOptions& options = flags.options;
  options.row_fill = flags.sparse ? RowFill::kSparse : RowFill::kRandom;
  options.row_dtype = flags.row_dtype == "F8_E4M3" ? DType::kF8E4M3
                      : flags.row_dtype == "F32"   ? DType::kF32
                                                   : DType::kBf16;
  options.config.ple_layers.clear();
  for (uint32_t id : flags.layer_ids) options.config.ple_layers.push_back(LayerIndex(id - 1));
  uint64_t shown = 0;
  const auto progress = [&shown](const SynthProgress& at) {
    const uint64_t percent = at.bytes_total == 0 ? 100 : at.bytes_written * 100 / at.bytes_total;
    if (percent == shown) return;
    shown = percent;
    std::cerr << "\r" << percent << " % of " << at.bytes_total / 1000000 << " MB" << (percent == 100 ? "\n" : "")
              << std::flush;
  };
  const absl::Status status = RunSynth(options, progress);
  if (!status.ok()) return Fail(status);
  std::cout << "wrote " << options.dir << "\n";
  return kExitOk;
}

}  // namespace

void AddSynth(CLI::App* app, int* exit) {
  CLI::App* command = app->add_subcommand("synth", "Write a checkpoint in the released layout with random numbers");
  auto flags = std::make_shared<Flags>();
  SynthOptions& options = flags->options;
  options.config = ReleasedConfig();
  Geometry& geometry = options.config.geometry;
  command->add_option("--out", options.dir, "Folder to write; made when absent, refused when it holds a checkpoint")
      ->required();
  command->add_option("--row-dtype", flags->row_dtype, "Rows of the table")
      ->check(CLI::IsMember({"BF16", "F8_E4M3", "F32"}))
      ->capture_default_str();
  command
      ->add_option("--base", options.config.ngram_vocab_size_base,
                   "ngram_vocab_size_base: a layer gets about heads x base rows")
      ->capture_default_str();
  command->add_option("--hidden", geometry.hidden_size, "hidden_size, values")->capture_default_str();
  command->add_option("--streams", geometry.hc_count, "hc_count, streams of the highway")->capture_default_str();
  command->add_option("--embed-dim", geometry.embed_dim, "ple_embed_dim, values")->capture_default_str();
  command->add_option("--conv-kernel", geometry.conv_kernel_size, "ple_conv_kernel_size, taps")->capture_default_str();
  command->add_option("--ngram", geometry.ngram_size, "ngram_size, tokens")->capture_default_str();
  command->add_option("--heads-per-ngram", geometry.heads_per_ngram, "Heads of each order")->capture_default_str();
  command->add_option("--vocab", options.config.vocab_size, "vocab_size, ids")->capture_default_str();
  command->add_option("--eos", options.config.eos_token_id, "eos_token_id")->capture_default_str();
  command->add_option("--layer-ids", flags->layer_ids, "ple_layer_ids, one-based")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--shards", options.shards, "Shards of each table")->capture_default_str();
  command->add_option("--files", options.files, "Files they are spread over")->capture_default_str();
  command->add_option("--seed", options.weight_seed, "Of weights and rows")->capture_default_str();
  command->add_flag("--sparse", flags->sparse, "Write no rows: they read as zeros and take no disk");
  command->callback([flags, exit] { *exit = Run(*flags); });
}

}  // namespace pleiad::cli
