// What one step takes from regions and puts into them. Tensors of files pass through memory of the server, which is the
// step's alone. Those in device memory, and in files whose pages the device holds, stay where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/engine/engine.h"
#include "pleiad/v1/ple.pb.h"
#include "server/limits.h"
#include "server/output_pool.h"
#include "server/regions.h"

namespace pleiad {

// Whether the peer of a call may name regions, and if not why.
struct RegionAccess {
  RegionTable* table = nullptr;
  const char* refusal = "";  // reads after the name of a field
};

// Bytes that a step's tensors and regions hold beside its message: of the output, and of what is read from files, where
// an output may take the place of its input. Tensors that the device finds in regions hold none. 0 for what will be
// refused.
uint64_t BytesBeside(const v1::ForwardRequest& request, const ServiceLimits& limits, const RegionAccess& access);

// Its calls come one after another.
class StepRegions {
 public:
  // Finds the regions that `request` names, and reads those of files into `step`, whose `input` and `token_ids` they
  // replace; `memory` outlives the step. Of tensors that the device finds where they are `step` gets the addresses, and
  // what holds them.
  // An outcome: why the step is refused. Blocks as reads of memory files do.
  std::optional<Outcome> Begin(const v1::ForwardRequest& request, const RegionAccess& access,
                               const ServiceLimits& limits, OutputPool* memory, StepRequest* step);

  bool has_output() const { return output_.region != nullptr; }
  // WriteOutput has something to do.
  bool delivers_output() const { return has_output() && !IsMemory(output_); }
  // Where the device writes the output, `bytes` long; with has_output.
  std::byte* AllocateOutput(OutputPool* memory, uint64_t bytes);
  // Writes the output to its file or, where the device did, sees that the file still has it; with has_output, after the
  // device. An outcome: the step was applied, and its output is lost.
  std::optional<Outcome> WriteOutput() const;
  // Of the output, as the response tells it.
  const v1::RegionRef& output_ref() const { return output_ref_; }

 private:
  struct Span {
    std::shared_ptr<const Region> region;
    uint64_t offset = 0;
    uint64_t bytes = 0;

    bool Overlaps(const Span& other) const {
      return region != nullptr && other.region != nullptr &&
             region->Overlaps(offset, bytes, *other.region, other.offset, other.bytes);
    }
  };

  // Of device memory at all; whether the tensors lie as the device can use them there.
  static bool IsMemory(const Span& span) { return span.region != nullptr && span.region->memory() != nullptr; }
  static std::byte* Address(const Span& span) { return span.region->memory()->data() + span.offset; }
  std::optional<Outcome> CheckMemory(const v1::ForwardRequest& request) const;
  void UseMemory(StepRequest* step) const;
  // As NamesPagesAlone, of what was found: the stream may have detached it since.
  bool LiesInPages(const v1::ForwardRequest& request) const;
  // The pages that the device finds the tensors of files in.
  void UsePages(StepRequest* step) const;
  static std::byte* PageAddress(const Span& span) { return span.region->pages()->data() + span.offset; }
  static std::optional<Outcome> Find(const v1::RegionRef& ref, const char* field, const RegionAccess& access,
                                     Span* span);
  std::optional<Outcome> FindAll(const v1::ForwardRequest& request, const RegionAccess& access,
                                 const ServiceLimits& limits);
  std::optional<Outcome> ReadTokens(StepRequest* step) const;
  std::optional<Outcome> ReadInput(OutputPool* memory, StepRequest* step);

  Span tokens_, input_, output_;
  v1::RegionRef output_ref_;
  bool in_place_ = false;
  bool in_pages_ = false;
  std::shared_ptr<std::byte[]> input_bytes_;
  std::shared_ptr<std::byte[]> output_bytes_;
};

}  // namespace pleiad
