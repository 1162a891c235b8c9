// Opens sequences and then does nothing until it is killed: abandoning_client ADDRESS COUNT
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto stub = pleiad::v1::Ple::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  const int count = std::atoi(argv[2]);
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    pleiad::v1::OpenSequenceResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<pleiad::v1::OpenSequenceResponse>> reader;
  };
  int begun = 0;
  const auto begin = [&] {
    auto* call = new Call;
    call->reader = stub->AsyncOpenSequence(&call->context, {}, &queue);
    call->reader->Finish(&call->response, &call->status, call);
    ++begun;
  };
  for (int i = 0; i < 64 && begun < count; ++i) begin();
  for (int done = 0; done < count; ++done) {
    void* tag = nullptr;
    bool ok = false;
    if (!queue.Next(&tag, &ok)) return 1;
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    if (!call->status.ok()) {
      std::printf("%s\n", call->status.error_message().c_str());
      return 1;
    }
    if (begun < count) begin();
  }
  std::puts("opened");
  std::fflush(stdout);
  for (;;) ::pause();
}
