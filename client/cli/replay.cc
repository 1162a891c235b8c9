#include "client/cli/replay.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pleiad::cli {
namespace {

using client::Client;
using client::ModelInfo;
using client::OutputKind;
using client::Sequence;
using client::Step;
using client::StepResult;
using client::StepStream;

constexpr uint64_t kConvTokens = 30;  // of `conv_after30`
constexpr size_t kDraftTokens = 5;    // of the draft that a disturbed replay rejects

std::vector<float> ToFloats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

std::vector<char> Bytes(const std::string& bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<float> Bf16ToFloats(const std::string& bytes) {
  std::vector<uint16_t> bits(bytes.size() / 2);
  if (!bits.empty()) std::memcpy(bits.data(), bytes.data(), bits.size() * 2);
  std::vector<float> values;
  for (uint16_t b : bits) values.push_back(std::bit_cast<float>(uint32_t{b} << 16));
  return values;
}

template <typename T>
Comparison Exact(std::string tensor, std::string how, const std::vector<T>& seen, const std::vector<T>& expected) {
  Comparison c{std::move(tensor), std::move(how), expected.size(), /*exact=*/true};
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i >= seen.size() || !(seen[i] == expected[i])) c.difference += 1;
  }
  c.passed = c.difference == 0 && seen.size() == expected.size();
  return c;
}

Comparison Close(std::string tensor, std::string how, const std::vector<float>& seen,
                 const std::vector<float>& expected, double bound) {
  Comparison c{std::move(tensor), std::move(how), expected.size()};
  c.difference = seen.size() == expected.size() ? RelativeL2(seen, expected) : std::nan("");
  c.bound = bound;
  c.passed = c.difference <= bound;
  return c;
}

enum class Course { kPlain, kDisturbed };

class Replayer {
 public:
  Replayer(Client* client, const Trace& trace, const ReplayOptions& options)
      : client_(client), trace_(trace), options_(options) {}

  absl::StatusOr<std::vector<Comparison>> Run() {
    if (absl::Status s = Load(); !s.ok()) return s;
    if (absl::Status s = CompareLookup(); !s.ok()) return s;
    if (absl::Status s = CompareOutputs(OutputKind::kDelta); !s.ok()) return s;
    if (absl::Status s = CompareOutputs(OutputKind::kHighway); !s.ok()) return s;
    if (absl::Status s = CompareConv(); !s.ok()) return s;
    if (comparisons_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the trace has nothing to compare under ", options_.prefix));
    }
    return std::move(comparisons_);
  }

 private:
  std::string Name(const char* tensor) const { return absl::StrCat(options_.prefix, ".", tensor); }

  uint32_t Layer() const {
    const ModelInfo& model = client_->model();
    return options_.layer_index.value_or(model.layers.empty() ? 0 : model.layers[0].layer_index);
  }

  absl::Status Load() {
    absl::StatusOr<std::vector<uint32_t>> tokens = trace_.I32(Name("tokens"));
    if (!tokens.ok()) return tokens.status();
    tokens_ = *std::move(tokens);
    if (tokens_.empty()) return absl::InvalidArgumentError(absl::StrCat(Name("tokens"), ": must hold a token"));
    absl::StatusOr<std::vector<float>> highway = trace_.F32(Name("highway_in"), tokens_.size());
    if (!highway.ok()) return highway.status();
    highway_ = *std::move(highway);
    channels_ = client_->model().channels;
    if (highway_.size() != tokens_.size() * channels_) {
      return absl::InvalidArgumentError(absl::StrCat(Name("highway_in"), ": ", highway_.size(), " values for ",
                                                     tokens_.size(), " tokens of ", channels_, " channels"));
    }
    steps_ = options_.steps;
    if (steps_.empty() && trace_.Has(Name("step_lengths"))) {
      absl::StatusOr<std::vector<uint32_t>> lengths = trace_.I32(Name("step_lengths"));
      if (!lengths.ok()) return lengths.status();
      steps_ = *std::move(lengths);
    }
    if (steps_.empty()) steps_ = {static_cast<uint32_t>(tokens_.size())};
    if (absl::Status s = CheckSteps(); !s.ok()) return s;
    stream_ = *client_->OpenStream();
    return absl::OkStatus();
  }

  // Each listed step has tokens, is no longer than the trace and begins inside it.
  absl::Status CheckSteps() const {
    const std::string from = options_.steps.empty() ? Name("step_lengths") : "steps";
    uint64_t begin = 0;
    for (size_t i = 0; i < steps_.size(); begin += steps_[i++]) {
      if (steps_[i] >= 1 && steps_[i] <= tokens_.size() && begin < tokens_.size()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(from, "[", i, "] ", steps_[i], ", from token ", begin, ": must have 1 to ", tokens_.size(),
                       " tokens and begin before the end of ", Name("tokens"), ", ", tokens_.size()));
    }
    return absl::OkStatus();
  }

  absl::Status CompareLookup() {
    const bool ids = trace_.Has(Name("ngram_ids")), embeddings = trace_.Has(Name("embeddings"));
    if (!ids && !embeddings) return absl::OkStatus();
    client::LookupQuery query;
    query.layer_index = options_.layer_index;
    query.segments.push_back({static_cast<uint32_t>(tokens_.size()), {}});
    query.token_ids = tokens_;
    query.want_row_ids = ids;
    query.want_embeddings = embeddings;
    const absl::StatusOr<client::LookupResult> seen = client_->Lookup(query);
    if (!seen.ok()) return seen.status();
    if (ids) {
      const absl::StatusOr<std::vector<uint64_t>> expected = trace_.I64(Name("ngram_ids"), tokens_.size());
      if (!expected.ok()) return expected.status();
      comparisons_.push_back(Exact("ngram_ids", "Lookup", seen->row_ids, *expected));
    }
    if (embeddings) {
      const absl::StatusOr<std::vector<float>> expected = trace_.F32(Name("embeddings"), tokens_.size());
      if (!expected.ok()) return expected.status();
      comparisons_.push_back(Exact("embeddings", "Lookup", Bf16ToFloats(seen->embeddings), *expected));
    }
    return absl::OkStatus();
  }

  // Lengths of the steps that feed the first `count` tokens.
  std::vector<uint64_t> Cut(uint64_t count) const {
    std::vector<uint64_t> lengths;
    for (uint64_t done = 0; done < count; done += lengths.back()) {
      lengths.push_back(std::min<uint64_t>(steps_[std::min(lengths.size(), steps_.size() - 1)], count - done));
    }
    return lengths;
  }

  // The first `count` tokens in their steps; what comes back, joined. A disturbance puts another sequence in place.
  absl::StatusOr<std::vector<float>> Feed(Sequence* sequence, OutputKind kind, uint64_t count, Course course) {
    const std::vector<uint64_t> lengths = Cut(count);
    if (course == Course::kDisturbed && lengths.size() < 2)
      return absl::InvalidArgumentError("one step has no middle to disturb");
    std::vector<float> outputs;
    uint64_t done = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (course == Course::kDisturbed && i == lengths.size() / 2) {
        if (absl::Status s = Disturb(sequence, done); !s.ok()) return s;
      }
      const uint64_t length = lengths[i];
      Step step = StepOf(*sequence, done, length);
      step.highway.data =
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&highway_[done * channels_]), length * channels_ * 4);
      step.output_kind = kind;
      absl::StatusOr<StepResult> result = stream_->Run(std::move(step));
      if (!result.ok()) return result.status();
      const std::vector<float> output = ToFloats(result->output);
      outputs.insert(outputs.end(), output.begin(), output.end());
      done += length;
    }
    return outputs;
  }

  // Tokens `begin` and on of the trace, without a highway.
  Step StepOf(const Sequence& sequence, uint64_t begin, uint64_t length) const {
    Step step;
    step.layer_index = options_.layer_index;
    step.segments.push_back({&sequence, static_cast<uint32_t>(length)});
    step.token_ids.assign(tokens_.begin() + static_cast<ptrdiff_t>(begin),
                          tokens_.begin() + static_cast<ptrdiff_t>(begin + length));
    return step;
  }

  absl::Status Disturb(Sequence* sequence, uint64_t position) {
    // A draft of tokens that do not belong here, all rejected.
    Step draft = StepOf(*sequence, 0, std::min(kDraftTokens, tokens_.size()));
    draft.highway.zeros = true;
    Step rewind;
    rewind.layer_index = options_.layer_index;
    rewind.segments.push_back({.sequence = sequence, .position = position});
    for (Step* step : {&draft, &rewind}) {
      if (absl::Status s = stream_->Run(std::move(*step)).status(); !s.ok()) return s;
    }
    const absl::StatusOr<client::SequenceSnapshot> before = sequence->Snapshot(Layer());
    if (!before.ok()) return before.status();

    const client::SequenceId id = sequence->id();
    const absl::StatusOr<bool> released = sequence->Release();
    if (!released.ok()) return released.status();
    if (!*released || !absl::IsNotFound(client_->Attach(id).status())) {
      return absl::InternalError("the sequence outlived its release");
    }
    absl::StatusOr<Sequence> next = client_->OpenSequence({.label = "pleiad run"});
    if (!next.ok()) return next.status();
    *sequence = *std::move(next);
    if (absl::Status s = sequence->Restore(*before); !s.ok()) return s;
    const absl::StatusOr<client::SequenceSnapshot> after = sequence->Snapshot(Layer());
    if (!after.ok()) return after.status();
    if (before->layers.size() != 1 || after->layers.size() != 1 || before->layers[0].position != position ||
        after->layers[0].position != position) {
      return absl::InternalError(absl::StrCat("a snapshot is not of one layer at position ", position));
    }
    comparisons_.push_back(Exact("carry, bytes", "Restore", Bytes(after->layers[0].aux), Bytes(before->layers[0].aux)));
    return absl::OkStatus();
  }

  absl::Status CompareOutputs(OutputKind kind) {
    const bool delta = trace_.Has(Name("ple_out")), highway = trace_.Has(Name("highway_out"));
    if (!delta && !(highway && kind == OutputKind::kHighway)) return absl::OkStatus();
    absl::StatusOr<Sequence> sequence = client_->OpenSequence({.label = "pleiad run"});
    if (!sequence.ok()) return sequence.status();
    absl::StatusOr<std::vector<float>> seen =
        Feed(&*sequence, kind, tokens_.size(), options_.disturb ? Course::kDisturbed : Course::kPlain);
    if (!seen.ok()) return seen.status();
    if (highway && kind == OutputKind::kHighway) {
      const absl::StatusOr<std::vector<float>> expected = trace_.F32(Name("highway_out"), tokens_.size());
      if (!expected.ok()) return expected.status();
      comparisons_.push_back(Close("highway_out", "HIGHWAY", *seen, *expected, options_.bound));
    }
    if (!delta) return absl::OkStatus();
    const absl::StatusOr<std::vector<float>> expected = trace_.F32(Name("ple_out"), tokens_.size());
    if (!expected.ok()) return expected.status();
    if (kind == OutputKind::kHighway) {
      for (size_t i = 0; i < std::min(seen->size(), highway_.size()); ++i) (*seen)[i] -= highway_[i];
    }
    comparisons_.push_back(
        Close("ple_out", kind == OutputKind::kDelta ? "DELTA" : "HIGHWAY - input", *seen, *expected, options_.bound));
    return absl::OkStatus();
  }

  absl::Status CompareConv() {
    if (!trace_.Has(Name("conv_after30")) || tokens_.size() < kConvTokens) return absl::OkStatus();
    const ModelInfo& model = client_->model();
    const absl::StatusOr<std::vector<float>> expected = trace_.F32(Name("conv_after30"), model.state_len);
    if (!expected.ok()) return expected.status();
    absl::StatusOr<Sequence> sequence = client_->OpenSequence({.label = "pleiad run"});
    if (!sequence.ok()) return sequence.status();
    absl::StatusOr<std::vector<float>> fed = Feed(&*sequence, OutputKind::kDelta, kConvTokens, Course::kPlain);
    if (!fed.ok()) return fed.status();
    const absl::StatusOr<client::SequenceSnapshot> snapshot = sequence->Snapshot(Layer());
    if (!snapshot.ok()) return snapshot.status();
    const size_t rows = size_t{model.state_len} * channels_ * 4;
    if (snapshot->layers.size() != 1 || snapshot->layers[0].aux.size() < rows) {
      return absl::InternalError("the snapshot is shorter than its conv rows");
    }
    const std::string& aux = snapshot->layers[0].aux;
    comparisons_.push_back(
        Close("conv_after30", "Snapshot", ToFloats(aux.substr(aux.size() - rows)), *expected, options_.bound));
    return absl::OkStatus();
  }

  Client* const client_;
  const Trace& trace_;
  const ReplayOptions& options_;
  std::vector<uint32_t> tokens_;
  std::vector<float> highway_;
  std::vector<uint32_t> steps_;
  size_t channels_ = 0;
  std::unique_ptr<StepStream> stream_;
  std::vector<Comparison> comparisons_;
};

}  // namespace

absl::StatusOr<std::vector<Comparison>> Replay(Client* client, const Trace& trace, const ReplayOptions& options) {
  return Replayer(client, trace, options).Run();
}

bool AllPassed(const std::vector<Comparison>& comparisons) {
  return std::all_of(comparisons.begin(), comparisons.end(), [](const Comparison& c) { return c.passed; });
}

void PrintTable(const std::vector<Comparison>& comparisons, std::ostream& out) {
  out << absl::StreamFormat("%-14s %-16s %10s  %-22s %-10s %s\n", "tensor", "through", "values", "difference", "bound",
                            "");
  for (const Comparison& c : comparisons) {
    const std::string difference = c.exact ? absl::StrFormat("%.0f values differ", c.difference)
                                           : absl::StrFormat("%.3e relative L2", c.difference);
    const std::string bound = c.exact ? "exact" : absl::StrFormat("%.1e", c.bound);
    out << absl::StreamFormat("%-14s %-16s %10d  %-22s %-10s %s\n", c.tensor, c.how, c.values, difference, bound,
                              c.passed ? "ok" : "FAILED");
  }
}

double RelativeL2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference + norm);
}

}  // namespace pleiad::cli
