// What a worker of a soak knows of one carry, and how an answer about it is judged.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/types.h"
#include "tests/soak/tally.h"
#include "tests/soak/undisturbed.h"

namespace pleiad::testing {

// Shared by the workers; what it points to outlives them.
struct SoakSetup {
  std::string address;
  const Highways* highways = nullptr;
  Undisturbed* calm = nullptr;
  client::ModelInfo model;
  absl::Duration sequence_ttl;  // the server's
  uint32_t seed = 1;
  // Applied to each output before it is judged; may be empty. Thread-safe.
  std::function<void(std::string* output)> tamper;
};

// Few distinct tokens and many EOS, so that windows repeat and are cut.
SoakLine RandomTokens(std::mt19937& random, uint32_t count, const SoakSetup& setup);

enum class Sampled : uint8_t { kNo, kYes };

struct SoakCarry {
  SoakCarry(uint32_t layer_index, Sampled is_sampled) : layer(layer_index), sampled(is_sampled) {}

  uint32_t layer;
  Sampled sampled;    // its outputs are compared
  SoakLine line;      // consumed, as far as answers tell
  uint64_t next = 0;  // where the next step shall start, at most line.size() and reachable
  uint64_t low = 0;
  CalmCarry calm;
};

// Of one segment's answer.
struct SoakAnswer {
  uint64_t start = 0;
  absl::Span<const SoakToken> tokens;
  uint64_t position = 0, low = 0;
  OutputKind kind = OutputKind::kDelta;
  DType dtype = DType::kF32;
  absl::string_view output;
};

class SoakJudge {
 public:
  SoakJudge(const SoakSetup* setup, Tally* tally) : setup_(setup), tally_(tally) {}

  // Moves the carry on, and compares.
  void Step(SoakCarry& carry, const SoakAnswer& answer);
  // Of a throw-away carry.
  void ThrowAway(uint32_t layer, const SoakAnswer& answer);
  void Blob(SoakCarry& carry, uint64_t position, const std::string& aux);
  void Embeddings(uint32_t layer, const std::vector<uint32_t>& tokens, const std::string& embeddings);
  void End(SoakCarry& carry) { setup_->calm->End(carry.calm); }

 private:
  void Compare(CalmCarry& calm, uint32_t layer, const SoakLine& before, const SoakAnswer& answer);

  const SoakSetup* const setup_;
  Tally* const tally_;
};

}  // namespace pleiad::testing
