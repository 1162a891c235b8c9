#include "client/cli/warm.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace pleiad::cli {
namespace {

absl::StatusOr<std::vector<uint32_t>> LayersOf(const client::ModelInfo& model, const WarmOptions& options) {
  std::vector<uint32_t> layers;
  for (const client::LayerInfo& layer : model.layers) layers.push_back(layer.layer_index);
  if (!options.layer_index.has_value()) return layers;
  if (std::find(layers.begin(), layers.end(), *options.layer_index) == layers.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--layer-index is ", *options.layer_index,
                     ": must be a zero-based PLE layer of the model: ", absl::StrJoin(layers, ", ")));
  }
  return std::vector<uint32_t>{*options.layer_index};
}

}  // namespace

absl::StatusOr<WarmReport> Warm(client::Client* client, absl::Span<const uint32_t> tokens, const WarmOptions& options,
                                const std::function<void(uint64_t done, uint64_t total)>& on_progress) {
  const client::ModelInfo& model = client->model();
  PLEIAD_ASSIGN_OR_RETURN(const std::vector<uint32_t> layers, LayersOf(model, options));
  const size_t most = std::min(kWarmTokens, model.max_tokens);
  const size_t overlap = model.ngram_size - 1;
  if (tokens.size() > most && most <= overlap) {
    return absl::FailedPreconditionError(absl::StrCat("--max-tokens of the server is ", model.max_tokens,
                                                      ": must be above ngram_size - 1 = ", overlap, " to warm ",
                                                      tokens.size(), " tokens"));
  }
  PLEIAD_ASSIGN_OR_RETURN(client::Sequence sequence, client->OpenSequence({.label = "pleiad warm"}));
  PLEIAD_ASSIGN_OR_RETURN(const std::unique_ptr<client::StepStream> stream, client->OpenStream());

  WarmReport report;
  report.layers = layers.size();
  const absl::Time start = absl::Now();
  for (size_t begin = 0, end = 0; end < tokens.size(); begin = end - overlap) {
    end = std::min(begin + most, tokens.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      client::Step step;
      step.mode = client::StepMode::kPrestage;
      step.layer_index = layers[i];
      step.segments = {{.sequence = &sequence, .num_tokens = static_cast<uint32_t>(end - begin)}};
      step.token_ids.assign(tokens.begin() + static_cast<ptrdiff_t>(begin),
                            tokens.begin() + static_cast<ptrdiff_t>(end));
      PLEIAD_ASSIGN_OR_RETURN(const client::StepResult result, stream->Run(std::move(step)));
      report.sum.rows += result.stats.rows;
      report.sum.hits += result.stats.hits;
      report.sum.misses += result.stats.misses;
      report.sum.joins += result.stats.joins;
    }
    if (on_progress) on_progress(end * layers.size(), tokens.size() * layers.size());
  }
  report.elapsed = absl::Now() - start;
  PLEIAD_RETURN_IF_ERROR(sequence.Release().status());
  return report;
}

}  // namespace pleiad::cli
