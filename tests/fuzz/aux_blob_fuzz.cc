// Any bytes as an aux blob: refused by name and without a trace, or restored and given back as the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/engine/aux_blob.h"
#include "tests/fuzz/tiny_engine.h"

namespace pleiad::testing {
namespace {

void Feed(std::string aux) {
  LocalEngine& engine = TinyEngine();
  static const SequenceId sequence = engine.Open();
  const LayerIndex layer = engine.config().ple_layers[1];
  const Geometry& geometry = engine.config().geometry;
  const auto parsed = ParseAuxBlob(aux, geometry, engine.config().vocab_size);
  if (parsed.ok() && !parsed->fresh) {
    Require(parsed->history.size() == geometry.context_len(), "hist_len");
    for (const uint32_t id : parsed->history) Require(id < engine.config().vocab_size, "ids in the vocabulary");
    std::string again = MakeAuxBlob(parsed->history, geometry);
    std::memcpy(again.data() + AuxConvOffset(geometry), parsed->conv_rows.data(), parsed->conv_rows.size() * 4);
    Require(again == aux, "what was parsed is what was sent");
  } else if (!parsed.ok()) {
    Require(!parsed.status().message().empty(), "a refusal says why");
  }

  const std::string before = engine.Snapshot(sequence, layer).layers.at(0).aux;
  const Outcome outcome = engine.Restore(
      sequence, {{.layer = layer, .position = Position(aux.size() % 3), .crc32 = std::nullopt, .aux = aux}});
  const std::string after = engine.Snapshot(sequence, layer).layers.at(0).aux;
  // A fresh blob takes no position but 0.
  const bool good = parsed.ok() && (!parsed->fresh || aux.size() % 3 == 0);
  Require(outcome.ok() == good, "restore accepts what parses");
  if (!good) {
    Require(!outcome.details.empty(), "a refusal says why");
    Require(after == before, "a refused restore leaves no trace");
  } else if (!parsed->fresh) {
    Require(after == aux, "a snapshot of a restored sequence is the blob");
  }
}

}  // namespace
}  // namespace pleiad::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static pleiad::testing::Bystander* const bystander = new pleiad::testing::Bystander;
  bystander->Begin();
  pleiad::testing::Feed({reinterpret_cast<const char*>(data), size});
  bystander->Finish();
  return 0;
}
