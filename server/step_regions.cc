#include "server/step_regions.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/convert.h"

namespace pleiad {
namespace {

uint64_t InputBytes(const v1::ForwardRequest& request, const ServiceLimits& limits) {
  const uint64_t tokens = SumTokens(request);
  if (tokens > limits.max_tokens) return 0;
  return tokens * limits.channels * (request.highway().dtype() == v1::DTYPE_BF16 ? 2 : 4);
}

bool TakesItsPlace(const v1::ForwardRequest& request) {
  return request.highway().has_region() && !request.output().has_region() && request.mode() == v1::MODE_FORWARD;
}

// What the device asks of addresses.
constexpr uint64_t kDeviceAlignment = 16;

std::shared_ptr<const Region> RegionOf(const v1::RegionRef& ref, const RegionAccess& access) {
  return access.table == nullptr ? nullptr : access.table->Find(ref.region_id());
}

bool NamesMemory(const v1::RegionRef& ref, const RegionAccess& access) {
  const std::shared_ptr<const Region> region = RegionOf(ref, access);
  return region != nullptr && region->memory() != nullptr;
}

bool Usable(const Region& region, uint64_t offset) {
  return region.pages() != nullptr &&
         (reinterpret_cast<uintptr_t>(region.pages()->data()) + offset) % kDeviceAlignment == 0;
}

bool NamesPages(const v1::RegionRef& ref, const RegionAccess& access) {
  const std::shared_ptr<const Region> region = RegionOf(ref, access);
  return region != nullptr && Usable(*region, ref.offset());
}

// What lies in pages beside a tensor that is sent is copied.
bool NamesPagesAlone(const v1::ForwardRequest& request, const RegionAccess& access) {
  if (request.mode() != v1::MODE_FORWARD) return false;
  const bool zeros = request.highway().source_case() == v1::Tensor::kZeros;
  if (!zeros && !(request.highway().has_region() && NamesPages(request.highway().region(), access))) return false;
  return TakesItsPlace(request) || (request.output().has_region() && NamesPages(request.output().region(), access));
}

std::string Show(uint64_t bytes) { return absl::StrCat(bytes, " bytes"); }

// The file is not what it was when it was attached.
Outcome Gone(const char* field, const absl::Status& status) {
  return Failed(status.code(), absl::StrCat(field, ": ", std::string(status.message())),
                MakeDetail(Reason::kInvalidField, field, "", std::string(status.message())));
}

}  // namespace

uint64_t BytesBeside(const v1::ForwardRequest& request, const ServiceLimits& limits, const RegionAccess& access) {
  uint64_t bytes = 0;
  // Where one tensor lies in device memory the other does, or the step is refused.
  const bool in_memory = (request.highway().has_region() && NamesMemory(request.highway().region(), access)) ||
                         (request.output().has_region() && NamesMemory(request.output().region(), access));
  if (!in_memory && !NamesPagesAlone(request, access)) {
    bytes += OutputBytes(request, limits);
    if (request.highway().has_region() && !TakesItsPlace(request)) bytes += InputBytes(request, limits);
  }
  const uint64_t tokens = SumTokens(request);
  if (request.has_token_region() && tokens <= limits.max_tokens) bytes += tokens * 4;
  return bytes;
}

std::optional<Outcome> StepRegions::Find(const v1::RegionRef& ref, const char* field, const RegionAccess& access,
                                         Span* span) {
  if (access.table == nullptr) {
    return Failed(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", access.refusal),
                  MakeDetail(Reason::kNotSupported, field, "", access.refusal));
  }
  span->region = access.table->Find(ref.region_id());
  if (span->region == nullptr) {
    // The id is as secret as a sequence's.
    return InvalidField(Reason::kInvalidField, absl::StrCat(field, ".region_id"), "",
                        "must name a region that is attached");
  }
  const uint64_t size = span->region->bytes();
  if (ref.bytes() == 0 || ref.bytes() > size || ref.offset() > size - ref.bytes()) {
    return InvalidField(Reason::kInvalidField, absl::StrCat(field, ".offset"),
                        absl::StrCat(ref.offset(), " + bytes ", ref.bytes()),
                        absl::StrCat("must be a span within the region, which has ", size, " bytes"));
  }
  span->offset = ref.offset();
  span->bytes = ref.bytes();
  return std::nullopt;
}

std::optional<Outcome> StepRegions::FindAll(const v1::ForwardRequest& request, const RegionAccess& access,
                                            const ServiceLimits& limits) {
  const uint64_t tokens = SumTokens(request);
  if (request.has_token_region()) {
    if (auto bad = Find(request.token_region(), "token_region", access, &tokens_)) return bad;
    if (IsMemory(tokens_)) {
      return InvalidField(Reason::kInvalidField, "token_region.region_id", "",
                          "must name a region of REGION_KIND_SHM_FILE");
    }
    if (request.token_ids_size() != 0) {
      return InvalidField(Reason::kInvalidField, "token_ids", absl::StrCat(request.token_ids_size(), " ids"),
                          "must be empty where there is a token_region");
    }
    if (tokens > limits.max_tokens) {
      return InvalidField(Reason::kTooManyTokens, "segments", absl::StrCat(tokens, " tokens"),
                          absl::StrCat("at most ", limits.max_tokens, " (--max-tokens)"));
    }
    if (tokens_.bytes != tokens * 4) {
      return InvalidField(Reason::kSizeMismatch, "token_region.bytes", Show(tokens_.bytes),
                          absl::StrCat("must be 4 for each of the ", tokens, " tokens of the segments"));
    }
  }
  if (request.highway().has_region()) {
    if (auto bad = Find(request.highway().region(), "highway.region", access, &input_)) return bad;
  }
  if (request.output().has_region()) {
    if (auto bad = Find(request.output().region(), "output.region", access, &output_)) return bad;
    if (request.mode() != v1::MODE_FORWARD) {
      return InvalidField(Reason::kInvalidField, "output.region", "present", "a prestage has no output");
    }
    output_ref_ = request.output().region();
  } else if (TakesItsPlace(request)) {
    output_ = input_;
    output_ref_ = request.highway().region();
  }
  if (auto bad = CheckMemory(request)) return bad;
  if (output_.region == nullptr) return std::nullopt;
  const uint64_t bytes = OutputBytes(request, limits);
  if (tokens <= limits.max_tokens && output_.bytes != bytes) {
    return InvalidField(Reason::kSizeMismatch,
                        request.output().has_region() ? "output.region.bytes" : "highway.region.bytes",
                        Show(output_.bytes),
                        absl::StrCat("must be the output's ", bytes,
                                     " (an output of another dtype than its input's "
                                     "takes a region of its own)"));
  }
  in_place_ = input_.region != nullptr && output_.region == input_.region && output_.offset == input_.offset &&
              output_.bytes == input_.bytes;
  if ((!in_place_ && output_.Overlaps(input_)) || output_.Overlaps(tokens_)) {
    return InvalidField(Reason::kInvalidField, "output.region", absl::StrCat("offset ", output_.offset),
                        "must be the highway's span or apart from it and from the token_region");
  }
  return std::nullopt;
}

std::optional<Outcome> StepRegions::CheckMemory(const v1::ForwardRequest& request) const {
  if (!IsMemory(input_) && !IsMemory(output_)) return std::nullopt;
  // In device memory is all or nothing; of zeros there is nothing.
  if (IsMemory(output_) && !IsMemory(input_) && request.highway().source_case() != v1::Tensor::kZeros) {
    return InvalidField(Reason::kInvalidField, "output.region", "of REGION_KIND_CUDA_IPC",
                        "must not be, unless the highway is in such a region too, or zeros");
  }
  if (IsMemory(input_) && !IsMemory(output_) && request.mode() == v1::MODE_FORWARD) {
    return InvalidField(Reason::kInvalidField, "output.region", "of REGION_KIND_SHM_FILE",
                        "must be of REGION_KIND_CUDA_IPC, or absent, as the highway is in such a region");
  }
  const std::pair<const char*, const Span*> spans[] = {{"highway.region.offset", &input_},
                                                       {"output.region.offset", &output_}};
  for (const auto& [field, span] : spans) {
    if (IsMemory(*span) && reinterpret_cast<uintptr_t>(Address(*span)) % kDeviceAlignment != 0) {
      return InvalidField(Reason::kInvalidField, field, absl::StrCat(span->offset),
                          absl::StrCat("must lie at a multiple of ", kDeviceAlignment, " bytes of the allocation"));
    }
  }
  return std::nullopt;
}

void StepRegions::UseMemory(StepRequest* step) const {
  step->memory = TensorMemory::kDevice;
  if (IsMemory(input_)) {
    step->input.data = Address(input_);
    step->client_memory.push_back(input_.region->memory());
  }
  if (IsMemory(output_) && output_.region != input_.region) step->client_memory.push_back(output_.region->memory());
}

bool StepRegions::LiesInPages(const v1::ForwardRequest& request) const {
  if (request.mode() != v1::MODE_FORWARD || output_.region == nullptr) return false;
  const bool zeros = request.highway().source_case() == v1::Tensor::kZeros;
  if (!zeros && (input_.region == nullptr || !Usable(*input_.region, input_.offset))) return false;
  return Usable(*output_.region, output_.offset);
}

void StepRegions::UsePages(StepRequest* step) const {
  step->memory = TensorMemory::kPinned;
  if (input_.region != nullptr) {
    step->input.data = PageAddress(input_);
    step->client_memory.push_back(input_.region->pages());
  }
  if (output_.region != input_.region) step->client_memory.push_back(output_.region->pages());
}

std::optional<Outcome> StepRegions::ReadTokens(StepRequest* step) const {
  std::vector<uint32_t>& ids = step->token_ids;
  ids.resize(tokens_.bytes / sizeof(uint32_t));
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(ids.data()), tokens_.bytes);
  if (const absl::Status status = tokens_.region->Read(tokens_.offset, bytes); !status.ok()) {
    return Gone("token_region", status);
  }
  return std::nullopt;
}

std::optional<Outcome> StepRegions::ReadInput(OutputPool* memory, StepRequest* step) {
  input_bytes_ = memory->Take(input_.bytes);
  const auto bytes = absl::MakeSpan(input_bytes_.get(), input_.bytes);
  if (const absl::Status status = input_.region->Read(input_.offset, bytes); !status.ok()) {
    return Gone("highway.region", status);
  }
  step->input.data = input_bytes_.get();
  return std::nullopt;
}

std::optional<Outcome> StepRegions::Begin(const v1::ForwardRequest& request, const RegionAccess& access,
                                          const ServiceLimits& limits, OutputPool* memory, StepRequest* step) {
  if (auto bad = FindAll(request, access, limits)) return bad;
  if (tokens_.region != nullptr) {
    if (auto bad = ReadTokens(step)) return bad;
  }
  const bool in_memory = IsMemory(input_) || IsMemory(output_);
  if (output_.region != nullptr && !in_memory) {
    if (const absl::Status status = output_.region->CheckFile(output_.offset, output_.bytes); !status.ok()) {
      return Gone(in_place_ ? "highway.region" : "output.region", status);
    }
  }
  if (in_memory && request.mode() == v1::MODE_FORWARD) UseMemory(step);
  in_pages_ = LiesInPages(request);
  if (in_pages_) UsePages(step);
  if (input_.region == nullptr) return std::nullopt;
  step->input.source = StepInput::Source::kData;
  step->input.bytes = input_.bytes;
  // The engine refuses these, in its own words.
  if (request.mode() != v1::MODE_FORWARD || input_.bytes != InputBytes(request, limits) || in_memory) {
    return std::nullopt;
  }
  if (in_pages_) {
    if (const absl::Status status = input_.region->CheckFile(input_.offset, input_.bytes); !status.ok()) {
      return Gone("highway.region", status);
    }
    return std::nullopt;
  }
  return ReadInput(memory, step);
}

std::byte* StepRegions::AllocateOutput(OutputPool* memory, uint64_t bytes) {
  if (IsMemory(output_)) return Address(output_);
  if (in_pages_) return PageAddress(output_);
  output_bytes_ = in_place_ ? input_bytes_ : memory->Take(bytes);
  return output_bytes_.get();
}

std::optional<Outcome> StepRegions::WriteOutput() const {
  if (!in_pages_ && output_bytes_ == nullptr) return std::nullopt;
  const absl::Status status = in_pages_ ? output_.region->CheckFile(output_.offset, output_.bytes)
                                        : output_.region->Write(output_.offset, {output_bytes_.get(), output_.bytes});
  if (status.ok()) return std::nullopt;
  return Failed(absl::StatusCode::kDataLoss,
                absl::StrCat("the step was applied and its output is lost: ", std::string(status.message())),
                MakeDetail(Reason::kInvalidField, "output.region", "", std::string(status.message())));
}

}  // namespace pleiad
