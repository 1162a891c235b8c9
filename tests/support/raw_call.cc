#include "tests/support/raw_call.h"

#include <gtest/gtest.h>

#include "grpcpp/generic/generic_stub.h"

namespace pleiad::testing {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

v1::ForwardResponse ResponseOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  v1::ForwardResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes));
  return response;
}

// One operation at a time.
class Queue {
 public:
  grpc::CompletionQueue* get() { return &queue_; }
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

 private:
  grpc::CompletionQueue queue_;
};

}  // namespace

RawResult StreamRaw(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& messages) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  Queue queue;
  const auto rpc = stub.PrepareCall(&context, "/pleiad.v1.Ple/ForwardStream", queue.get());
  rpc->StartCall(nullptr);
  EXPECT_TRUE(queue.Wait());
  for (const std::string& message : messages) {
    rpc->Write(BufferOf(message), nullptr);
    if (!queue.Wait()) break;
  }
  rpc->WritesDone(nullptr);
  queue.Wait();
  RawResult result;
  grpc::ByteBuffer answer;
  for (rpc->Read(&answer, nullptr); queue.Wait(); rpc->Read(&answer, nullptr)) {
    result.responses.push_back(ResponseOf(answer));
  }
  rpc->Finish(&result.status, nullptr);
  EXPECT_TRUE(queue.Wait());
  return result;
}

RawResult ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& message) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  Queue queue;
  const auto rpc = stub.PrepareUnaryCall(&context, "/pleiad.v1.Ple/Forward", BufferOf(message), queue.get());
  rpc->StartCall();
  RawResult result;
  grpc::ByteBuffer answer;
  rpc->Finish(&answer, &result.status, nullptr);
  EXPECT_TRUE(queue.Wait());
  if (result.status.ok()) result.responses.push_back(ResponseOf(answer));
  return result;
}

}  // namespace pleiad::testing
