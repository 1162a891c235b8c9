// What the end-to-end tests send: seeded tokens and highways, as steps of the client library.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/client.h"
#include "pleiad/v1/ple.grpc.pb.h"
#include "tests/support/checkpoint_writer.h"

namespace pleiad::testing {

// Tokens of one sequence at one layer with their highway.
struct Passage {
  std::vector<uint32_t> tokens;
  std::vector<float> highway;  // [tokens, channels]
  uint32_t channels = 0;

  uint32_t size() const { return static_cast<uint32_t>(tokens.size()); }
  void Append(const Passage& more);
  // [first, first + count), copied.
  Passage Slice(uint32_t first, uint32_t count) const;
};

// Few distinct tokens and many EOS, so that windows repeat and are cut.
Passage RandomPassage(std::mt19937& random, uint32_t count, const client::ModelInfo& model);

// Tokens [first, first + count) of `passage`, which outlives the answer; as DELTA.
client::Step StepOf(const client::Sequence& sequence, const Passage& passage, uint32_t first, uint32_t count,
                    std::optional<uint64_t> position = std::nullopt,
                    std::optional<uint32_t> layer_index = std::nullopt);

// Moves the carry without a token.
client::Step MoveOf(const client::Sequence& sequence, uint64_t position,
                    std::optional<uint32_t> layer_index = std::nullopt);

// The passage as consecutive steps of `lengths` (the last one repeats; empty: one step), all in flight at once; the
// outputs one behind the other as bytes. Fails the test on any refusal.
std::string RunPassage(client::StepStream& stream, const client::Sequence& sequence, const Passage& passage,
                       const std::vector<uint32_t>& lengths = {}, std::optional<uint32_t> layer_index = std::nullopt);

std::vector<float> ToFloats(const std::string& bytes);

// The same step for the generated stub.
v1::ForwardRequest RequestOf(uint64_t sequence, const Passage& passage, std::optional<uint64_t> position = std::nullopt,
                             std::optional<uint32_t> layer_index = std::nullopt);

// All a client can see of a sequence, epoch and idle time aside: GetSequence's numbers and a hash of each layer's
// blob, as text. Asked for with epoch 0.
std::string VisibleState(v1::Ple::Stub& stub, uint64_t sequence);

// Two PLE layers of toy size.
CheckpointSpec TwoLayerSpec();

}  // namespace pleiad::testing
