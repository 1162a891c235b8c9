#include "tests/soak/soak_carry.h"

#include "absl/strings/str_cat.h"

namespace pleiad::testing {

SoakLine RandomTokens(std::mt19937& random, uint32_t count, const SoakSetup& setup) {
  SoakLine tokens;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t kind = random() % 8;
    const uint32_t id = kind == 0  ? setup.model.eos_token_id
                        : kind < 4 ? static_cast<uint32_t>(random() % 5)
                                   : static_cast<uint32_t>(random() % setup.model.vocab_size);
    tokens.push_back({id, static_cast<uint32_t>(random() % setup.highways->rows())});
  }
  return tokens;
}

void SoakJudge::Compare(CalmCarry& calm, uint32_t layer, const SoakLine& before, const SoakAnswer& answer) {
  std::string output(answer.output);
  if (setup_->tamper) setup_->tamper(&output);
  const std::string expected =
      setup_->calm->Output(calm, LayerIndex(layer), before, answer.tokens, answer.kind, answer.dtype);
  ++tally_->compared_outputs;
  tally_->compared_bytes += output.size();
  if (output == expected) return;
  size_t at = 0;
  while (at < output.size() && at < expected.size() && output[at] == expected[at]) ++at;
  tally_->Wrong(absl::StrCat("output of ", answer.tokens.size(), " tokens at ", answer.start, ", layer ", layer, ": ",
                             output.size(), " bytes, expected ", expected.size(), ", first difference at ", at));
}

void SoakJudge::Step(SoakCarry& carry, const SoakAnswer& answer) {
  const uint64_t end = answer.start + answer.tokens.size();
  if (answer.start > carry.line.size() || answer.position != end || answer.low > end) {
    tally_->Wrong(absl::StrCat("a step of ", answer.tokens.size(), " tokens at ", answer.start, " of ",
                               carry.line.size(), ", layer ", carry.layer, ", ended at position ", answer.position,
                               ", low ", answer.low));
    return;
  }
  carry.line.resize(answer.start);
  if (carry.sampled == Sampled::kYes && !answer.tokens.empty()) {
    Compare(carry.calm, carry.layer, carry.line, answer);
  }
  carry.line.insert(carry.line.end(), answer.tokens.begin(), answer.tokens.end());
  carry.low = answer.low;
  ++tally_->steps;
  tally_->tokens += answer.tokens.size();
}

void SoakJudge::ThrowAway(uint32_t layer, const SoakAnswer& answer) {
  CalmCarry calm;
  Compare(calm, layer, {}, answer);
  setup_->calm->End(calm);
  ++tally_->steps;
  tally_->tokens += answer.tokens.size();
}

void SoakJudge::Blob(SoakCarry& carry, uint64_t position, const std::string& aux) {
  ++tally_->snapshots;
  if (position != carry.line.size()) {
    tally_->Wrong(absl::StrCat("a snapshot at position ", position, " of a carry at ", carry.line.size()));
  }
  if (carry.sampled == Sampled::kNo) return;
  ++tally_->compared_blobs;
  if (setup_->calm->Blob(carry.calm, LayerIndex(carry.layer), carry.line) != aux) {
    tally_->Wrong(absl::StrCat("the snapshot of a carry at ", carry.line.size(), ", layer ", carry.layer));
  }
}

void SoakJudge::Embeddings(uint32_t layer, const std::vector<uint32_t>& tokens, const std::string& embeddings) {
  ++tally_->lookups;
  ++tally_->compared_outputs;
  tally_->compared_bytes += embeddings.size();
  if (setup_->calm->Embeddings(LayerIndex(layer), tokens) != embeddings) {
    tally_->Wrong(absl::StrCat("embeddings of ", tokens.size(), " tokens, layer ", layer));
  }
}

}  // namespace pleiad::testing
