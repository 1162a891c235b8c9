// Any bytes as a ForwardRequest: the server's conversion and a real engine answer it exactly once, with an output of
// the right size or a refusal with details, and a sequence beside it does not notice.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "pleiad/v1/ple.pb.h"
#include "proto/wire/forward_message.h"
#include "server/convert.h"
#include "tests/fuzz/tiny_engine.h"

namespace pleiad::testing {
namespace {

constexpr size_t kSequences = 4;

struct World {
  Bystander bystander;
  SequenceId sequences[kSequences];
  ServiceLimits limits;

  World() {
    for (SequenceId& sequence : sequences) sequence = TinyEngine().Open();
    ServerFlags flags;
    flags.max_tokens = kTinyMaxTokens;
    const auto computed = ComputeLimits(flags, TinyEngine().config().geometry.channels());
    Require(computed.ok(), "limits");
    limits = *computed;
  }

  // Ids 1 to 4 of an input name sequences that exist; those released meanwhile are opened anew.
  SequenceId Sequence(uint64_t id) {
    if (id < 1 || id > kSequences) return SequenceId(id);
    SequenceId& sequence = sequences[id - 1];
    if (!TinyEngine().Get(sequence).outcome.ok()) sequence = TinyEngine().Open();
    return sequence;
  }
};

struct Call {
  std::string output;
  std::atomic<int> answers{0};
  std::promise<StepResult> done;
};

// A message as it is received.
struct Message {
  v1::ForwardRequest request;
  TensorBytes tensor;
  uint64_t bytes = 0;
};

std::string ToString(const TensorBytes& tensor) {
  std::string bytes(tensor.size(), '\0');
  tensor.CopyTo(reinterpret_cast<std::byte*>(bytes.data()));
  return bytes;
}

// The reader of plain requests sees what the general one sees, within limits too.
void CompareReaders(const grpc::ByteBuffer& buffer, const ForwardRequestLimits& limits) {
  Message message, any;
  const ForwardRequestParse parse = ParseForwardRequest(buffer, limits, &message.request, &message.tensor);
  const ForwardRequestParse of_any = ParseAnyForwardRequest(buffer, limits, &any.request, &any.tensor);
  Require(of_any == (parse == ForwardRequestParse::kPlain ? ForwardRequestParse::kWhole : parse),
          "both ways judge alike");
  if (parse == ForwardRequestParse::kMalformed) return;
  Require(message.request.SerializeAsString() == any.request.SerializeAsString(), "both ways see one message");
  Require(ToString(message.tensor) == ToString(any.tensor), "both ways see one tensor");
}

// Nothing where the bytes are none; what the generated class says must be the same.
std::optional<Message> Read(const uint8_t* data, size_t size) {
  Message message;
  message.bytes = size;
  // Cut where the bytes say, so that the fuzzer finds places.
  const size_t cut = size == 0 ? 0 : data[size - 1] % (size + 1);
  const grpc::Slice slices[] = {grpc::Slice(data, cut), grpc::Slice(data + cut, size - cut)};
  grpc::ByteBuffer buffer(slices, 2);
  CompareReaders(buffer, {});
  CompareReaders(buffer, {.bytes = size - cut, .segments = 2});
  const grpc::Slice whole(data, size);
  CompareReaders(grpc::ByteBuffer(&whole, 1), {});
  const bool good = ParseForwardMessage(&buffer, &message.request, &message.tensor);
  v1::ForwardRequest generated;
  Require(generated.ParseFromArray(data, static_cast<int>(size)) == good, "both readers judge alike");
  if (!good) return std::nullopt;
  Require(ToString(message.tensor) == generated.highway().data(), "both readers see one tensor");
  Require(generated.token_ids_size() == message.request.token_ids_size() &&
              generated.segments_size() == message.request.segments_size() &&
              generated.highway().dtype() == message.request.highway().dtype(),
          "both readers see one message");
  return message;
}

void Feed(World& world, Message message) {
  v1::ForwardRequest& request = message.request;
  for (v1::Segment& segment : *request.mutable_segments()) {
    segment.set_sequence_id(world.Sequence(segment.sequence_id()).value());
  }
  for (uint64_t& id : *request.mutable_release_after()) id = world.Sequence(id).value();
  // Epochs only rise: high ones would turn every later input away.
  request.set_epoch(request.epoch() % 2);
  // A step that ends by the clock is no fault, but one that depends on it is no use here.
  request.set_timeout_ms(0);

  StepRequest step = ToStepRequest(request, message.tensor, message.bytes, world.limits);
  const bool refused_before = step.refused.has_value();
  const uint64_t expected = OutputBytes(request, world.limits);
  const auto call = std::make_shared<Call>();
  step.output.allocate = [call](uint64_t bytes) {
    Require(call->output.empty(), "the output is allocated once");
    call->output.resize(bytes);
    return reinterpret_cast<std::byte*>(call->output.data());
  };
  TinyEngine().engine().Submit(std::move(step), [call](StepResult result) {
    Require(++call->answers == 1, "one answer");
    call->done.set_value(std::move(result));
  });
  const StepResult result = call->done.get_future().get();
  if (result.outcome.ok()) {
    Require(!refused_before, "what the server refuses is not run");
    Require(call->output.size() == expected, "as many bytes as the server reserved");
    Require(result.segments.size() == static_cast<size_t>(request.segments_size()), "a result for each segment");
  } else {
    Require(!result.outcome.message.empty() && !result.outcome.details.empty(), "a refusal says why");
  }
  v1::ForwardResponse response;
  FillResponse(result, response);
  Require(ToStatusMetadata(result.outcome).size() <= 8192, "the status fits in gRPC's headers");
}

}  // namespace
}  // namespace pleiad::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using pleiad::testing::World;
  static World* const world = new World;
  auto message = pleiad::testing::Read(data, size);
  if (!message) return -1;
  world->bystander.Begin();
  pleiad::testing::Feed(*world, std::move(*message));
  world->bystander.Finish();
  return 0;
}
