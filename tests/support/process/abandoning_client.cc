// Opens sequences, steps every sixteenth of them, says so, and then does nothing until it is killed.
//   abandoning_client ADDRESS COUNT
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace {

using pleiad::v1::Ple;

constexpr uint32_t kAtOnce = 64;

void Require(const grpc::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.error_message().c_str());
  std::exit(1);
}

struct OpenCall {
  grpc::ClientContext context;
  pleiad::v1::OpenSequenceResponse response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<pleiad::v1::OpenSequenceResponse>> reader;
};

// Some calls in flight at once.
std::vector<uint64_t> Open(Ple::Stub& stub, uint32_t count) {
  grpc::CompletionQueue queue;
  std::vector<uint64_t> ids;
  uint32_t begun = 0;
  const auto begin = [&] {
    auto* call = new OpenCall;
    call->reader = stub.AsyncOpenSequence(&call->context, {}, &queue);
    call->reader->Finish(&call->response, &call->status, call);
    ++begun;
  };
  while (begun < kAtOnce && begun < count) begin();
  while (ids.size() < count) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) std::abort();
    const std::unique_ptr<OpenCall> call(static_cast<OpenCall*>(tag));
    Require(call->status, "open");
    ids.push_back(call->response.sequence_id());
    if (begun < count) begin();
  }
  return ids;
}

void StepSome(Ple::Stub& stub, const std::vector<uint64_t>& ids) {
  grpc::ClientContext context;
  const auto stream = stub.ForwardStream(&context);
  for (size_t first = 0; first < ids.size(); first += 16 * kAtOnce) {
    pleiad::v1::ForwardRequest request;
    for (size_t i = first; i < ids.size() && i < first + 16 * kAtOnce; i += 16) {
      pleiad::v1::Segment* segment = request.add_segments();
      segment->set_sequence_id(ids[i]);
      segment->set_num_tokens(3);
      for (const uint32_t id : {1, 2, 3}) request.add_token_ids(id);
    }
    request.mutable_highway()->set_zeros(true);
    pleiad::v1::ForwardResponse response;
    if (!stream->Write(request) || !stream->Read(&response)) Require(stream->Finish(), "stream");
    Require({static_cast<grpc::StatusCode>(response.status().code()), response.status().message()}, "step");
  }
  stream->WritesDone();
  Require(stream->Finish(), "stream");
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t count = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &count)) return 2;
  const auto stub = Ple::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  StepSome(*stub, Open(*stub, count));
  std::puts("opened");
  std::fflush(stdout);
  for (;;) ::pause();
}
