#include "tests/support/raw_call.h"

#include <gtest/gtest.h>

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

}  // namespace

bool OneAtATime::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

RawStream::RawStream(const std::shared_ptr<grpc::Channel>& channel)
    : rpc_(grpc::GenericStub(channel).PrepareCall(&context_, "/pleiad.v1.Ple/ForwardStream", queue_.get())) {
  rpc_->StartCall(nullptr);
  EXPECT_TRUE(queue_.Wait());
}

RawStream::~RawStream() {
  if (finished_) return;
  context_.TryCancel();
  Finish();
}

bool RawStream::Write(const grpc::ByteBuffer& message) {
  rpc_->Write(message, nullptr);
  return queue_.Wait();
}

bool RawStream::Read(grpc::ByteBuffer* message) {
  rpc_->Read(message, nullptr);
  return queue_.Wait();
}

void RawStream::HalfClose() {
  rpc_->WritesDone(nullptr);
  queue_.Wait();
}

grpc::Status RawStream::Finish() {
  grpc::Status status;
  rpc_->Finish(&status, nullptr);
  EXPECT_TRUE(queue_.Wait());
  finished_ = true;
  return status;
}

RawResult StreamRaw(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& messages) {
  RawStream stream(channel);
  for (const std::string& message : messages) {
    if (!stream.Write(BufferOf(message))) break;
  }
  stream.HalfClose();
  RawResult result;
  for (grpc::ByteBuffer answer; stream.Read(&answer);) result.responses.push_back(ResponseOf(answer));
  result.status = stream.Finish();
  return result;
}

RawResult ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& message) {
  RawResult result;
  grpc::ByteBuffer answer;
  result.status = ForwardRaw(channel, BufferOf(message), &answer);
  if (result.status.ok()) result.responses.push_back(ResponseOf(answer));
  return result;
}

grpc::Status ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& message,
                        grpc::ByteBuffer* answer) {
  return CallRaw(channel, "Forward", message, answer);
}

grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& rpc,
                     const grpc::ByteBuffer& message, grpc::ByteBuffer* answer) {
  OneAtATime queue;
  grpc::ClientContext context;
  const auto call =
      grpc::GenericStub(channel).PrepareUnaryCall(&context, "/pleiad.v1.Ple/" + rpc, message, queue.get());
  call->StartCall();
  grpc::Status status;
  call->Finish(answer, &status, nullptr);
  EXPECT_TRUE(queue.Wait());
  return status;
}

}  // namespace pleiad::testing
