#include "client/cli/bench_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/echo_stream.h"
#include "client/cli/marks.h"

namespace pleiad::cli {
namespace {

using Clock = std::chrono::steady_clock;

absl::Span<const std::byte> Bytes(const void* data, size_t size) {
  return absl::MakeSpan(static_cast<const std::byte*>(data), size);
}

// All but the highway of kShm, and the sequences.
client::Step StepOf(const BenchRequest& request, Transport transport) {
  client::Step step;
  step.layer_index = request.layer_index;
  step.token_ids = request.token_ids;
  const bool halves = transport == Transport::kBf16Delta;
  step.highway.dtype = halves ? client::DType::kBf16 : client::DType::kF32;
  step.output_kind = halves ? client::OutputKind::kDelta : client::OutputKind::kHighway;
  if (transport != Transport::kShm) {
    step.highway.data = request.highway;
    step.highway.owner = request.owner;
    step.output_pieces = true;
  }
  return step;
}

// `output`: where it is, unless it comes in pieces.
client::StepCallback Counting(absl::Span<const std::byte> output, BenchStream::Callback done) {
  return [output, done = std::move(done)](const absl::StatusOr<client::StepResult>& result) {
    const Clock::time_point arrival = Clock::now();
    if (!result.ok()) return done(result.status());
    MarkSum sum;
    if (!output.empty()) sum.Add(output);
    for (const auto& piece : result->output_pieces.pieces) sum.Add(piece);
    done(BenchAnswer{result->stats, sum.value(), arrival});
  };
}

class StepSender final : public BenchStream {
 public:
  StepSender(client::Client* client, std::unique_ptr<client::StepStream> stream, Transport transport)
      : client_(client), stream_(std::move(stream)), transport_(transport) {}
  ~StepSender() override { stream_->Drain(); }

  absl::Status Open(BenchRequest* request, uint32_t count) override {
    for (uint32_t i = 0; i < count; ++i) {
      absl::StatusOr<client::Sequence> sequence = client_->OpenSequence({.label = "pleiad bench"});
      if (!sequence.ok()) return sequence.status();
      request->sequences.push_back(*std::move(sequence));
    }
    return absl::OkStatus();
  }

  void Send(BenchRequest* request, Callback done) override {
    client::Step step = StepOf(*request, transport_);
    for (const client::Sequence& sequence : request->sequences) {
      step.segments.push_back({&sequence, request->tokens_per_step});
    }
    absl::Span<const std::byte> output;
    if (transport_ == Transport::kShm) {
      const uint64_t bytes = request->highway.size();
      step.highway.region = request->region->Span(0, bytes);
      step.output_region = request->region->Span(bytes, bytes);
      output = request->region->data().subspan(bytes);
    }
    stream_->Submit(std::move(step), Counting(output, std::move(done)));
  }

 private:
  client::Client* const client_;
  const std::unique_ptr<client::StepStream> stream_;
  const Transport transport_;
};

class ReplicatedSender final : public BenchStream {
 public:
  ReplicatedSender(client::ReplicatedClient* client, Transport transport) : client_(client), transport_(transport) {}
  ~ReplicatedSender() override { client_->Drain(); }

  absl::Status Open(BenchRequest* request, uint32_t count) override {
    for (uint32_t i = 0; i < count; ++i) {
      absl::StatusOr<client::ReplicatedSequence> sequence = client_->OpenSequence({.label = "pleiad bench"});
      if (!sequence.ok()) return sequence.status();
      request->replicated.push_back(*std::move(sequence));
    }
    return absl::OkStatus();
  }

  void Send(BenchRequest* request, Callback done) override {
    client::Step step = StepOf(*request, transport_);
    std::vector<const client::ReplicatedSequence*> sequences;
    for (const client::ReplicatedSequence& sequence : request->replicated) {
      step.segments.push_back({nullptr, request->tokens_per_step});
      sequences.push_back(&sequence);
    }
    client_->Submit(std::move(step), sequences, Counting({}, std::move(done)));
  }

 private:
  client::ReplicatedClient* const client_;
  const Transport transport_;
};

class EchoSender final : public BenchStream {
 public:
  EchoSender(const std::string& address, Transport transport) : stream_(address), transport_(transport) {}

  absl::Status Open(BenchRequest*, uint32_t) override { return absl::OkStatus(); }

  void Send(BenchRequest* request, Callback done) override {
    // About what a request has around its tensor: ids of three bytes, segments with ids and positions.
    const std::string head(transport_ == Transport::kEcho64
                               ? 0
                               : 24 + 3 * request->token_ids.size() +
                                     16 * request->token_ids.size() / std::max(1u, request->tokens_per_step),
                           'h');
    auto* owner = new std::shared_ptr<const void>(request->owner);
    const grpc::Slice slices[] = {
        grpc::Slice(head), grpc::Slice(
                               request->highway.data(), request->highway.size(),
                               [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); }, owner)};
    stream_.Send(grpc::ByteBuffer(slices, 2), [skip = head.size(), size = head.size() + request->highway.size(),
                                               done = std::move(done)](absl::StatusOr<grpc::ByteBuffer> message) {
      done(message.ok() ? Check(*message, skip, size) : message.status());
    });
  }

 private:
  static absl::StatusOr<BenchAnswer> Check(const grpc::ByteBuffer& message, size_t skip, size_t size) {
    const Clock::time_point arrival = Clock::now();
    if (message.Length() != size) {
      return absl::DataLossError(absl::StrCat("an echo of ", message.Length(), " bytes, ", size, " were sent"));
    }
    std::vector<grpc::Slice> slices;
    if (!message.Dump(&slices).ok()) return absl::InternalError("an echo that cannot be read");
    MarkSum sum;
    for (const grpc::Slice& slice : slices) {
      const size_t head = std::min(skip, slice.size());
      skip -= head;
      sum.Add(Bytes(slice.begin() + head, slice.size() - head));
    }
    return BenchAnswer{{}, sum.value(), arrival};
  }

  EchoStream stream_;
  const Transport transport_;
};

}  // namespace

absl::StatusOr<Transport> ParseTransport(const std::string& text) {
  for (const Transport transport :
       {Transport::kInline, Transport::kBf16Delta, Transport::kShm, Transport::kEcho, Transport::kEcho64}) {
    if (text == Name(transport)) return transport;
  }
  if (text == "cuda-ipc")
    return absl::InvalidArgumentError(absl::StrCat(text, ": needs CUDA; tests/bench has cuda_ipc_bench"));
  return absl::InvalidArgumentError(absl::StrCat(text, ": must be inline, bf16-delta, shm, echo or echo-64"));
}

const char* Name(Transport transport) {
  switch (transport) {
    case Transport::kInline:
      return "inline";
    case Transport::kBf16Delta:
      return "bf16-delta";
    case Transport::kShm:
      return "shm";
    case Transport::kEcho:
      return "echo";
    case Transport::kEcho64:
      return "echo-64";
  }
  return "?";
}

size_t ValueBytes(Transport transport) { return transport == Transport::kBf16Delta ? 2 : 4; }

absl::StatusOr<std::unique_ptr<BenchStream>> OpenBenchStream(client::Client* client, Transport transport,
                                                             const std::string& address) {
  if (IsEcho(transport)) return std::make_unique<EchoSender>(address, transport);
  absl::StatusOr<std::unique_ptr<client::StepStream>> stream = client->OpenStream();
  if (!stream.ok()) return stream.status();
  return std::make_unique<StepSender>(client, *std::move(stream), transport);
}

std::unique_ptr<BenchStream> OverReplicas(client::ReplicatedClient* client, Transport transport) {
  return std::make_unique<ReplicatedSender>(client, transport);
}

}  // namespace pleiad::cli
