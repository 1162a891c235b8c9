#include <cstring>

#include "core/base/numeric.h"
#include "tests/client/fake_ple_server.h"

namespace pleiad::client::testing {
namespace {

uint64_t Mix(uint64_t v) {
  v += 0x9E3779B97F4A7C15;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9;
  return v ^ (v >> 27);
}
// In [-1, 1), exact in F32.
float Unit(uint64_t v) { return static_cast<float>(static_cast<int32_t>(Mix(v) >> 48) - 32768) / 32768.0f; }

}  // namespace

FakeCarry::FakeCarry(uint32_t channels) : history(2, kEos), rows(size_t{kStateLen} * channels, 0.0f) {}

void FakeCarry::MoveTo(uint64_t target, uint32_t channels) {
  if (target < low) low = target;  // by undo
  history.resize(2 + (target - base));
  rows.resize((kStateLen + (target - base)) * channels);
  position = target;
}

std::vector<float> FakeCarry::Push(uint32_t token, const float* highway, uint32_t channels) {
  const size_t h = history.size();
  const uint64_t window = (uint64_t{token} * 1009 + history[h - 1]) * 1009 + history[h - 2];
  std::vector<float> delta(channels);
  for (uint32_t c = 0; c < channels; ++c) {
    const float x = Unit(window * 64 + c) + 0.25f * highway[c];
    const size_t n = rows.size() - c;  // one past the newest row
    delta[c] = x + 0.5f * rows[n - channels + c] + 0.25f * rows[n - size_t{kStateLen} * channels + c];
    rows.push_back(x);
  }
  history.push_back(token);
  ++position;
  return delta;
}

std::string FakeCarry::Aux(uint32_t channels) const {
  const uint32_t count = 2;
  std::string aux(4 + 8 + size_t{kStateLen} * channels * 4, '\0');
  std::memcpy(aux.data(), &count, 4);
  std::memcpy(aux.data() + 4, history.data() + history.size() - 2, 8);
  std::memcpy(aux.data() + 12, rows.data() + rows.size() - size_t{kStateLen} * channels,
              size_t{kStateLen} * channels * 4);
  return aux;
}

std::vector<uint64_t> FakeRowIds(uint32_t token, uint32_t back1, uint32_t back2) {
  return {Mix(token * 1009u + back1) % 500, 500 + Mix((token * 1009u + back1) * uint64_t{1009} + back2) % 500};
}

std::vector<uint16_t> FakeEmbedding(const std::vector<uint64_t>& row_ids) {
  std::vector<uint16_t> row;
  for (uint64_t id : row_ids) {
    for (uint64_t i = 0; i < kEmbedDim / kHeads; ++i) row.push_back(FloatToBf16(Unit(id * 8 + i)));
  }
  return row;
}

}  // namespace pleiad::client::testing
