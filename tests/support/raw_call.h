// Calls with any bytes as their messages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad::testing {

// A completion queue for one operation at a time.
class OneAtATime {
 public:
  grpc::CompletionQueue* get() { return &queue_; }
  bool Wait();

 private:
  grpc::CompletionQueue queue_;
};

// A ForwardStream; one call at a time, each waits. Cancelled when destroyed before Finish.
class RawStream {
 public:
  explicit RawStream(const std::shared_ptr<grpc::Channel>& channel);
  ~RawStream();

  // False: the stream has ended.
  bool Write(const grpc::ByteBuffer& message);
  bool Read(grpc::ByteBuffer* message);
  void HalfClose();
  grpc::Status Finish();

 private:
  OneAtATime queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  bool finished_ = false;
};

struct RawResult {
  grpc::Status status;
  std::vector<v1::ForwardResponse> responses;
};

// ForwardStream: writes the messages, half-closes and reads to the end. Writes that come after the server has ended the
// stream are lost.
RawResult StreamRaw(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& messages);

// Forward.
RawResult ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& message);
grpc::Status ForwardRaw(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& message,
                        grpc::ByteBuffer* answer);

// Any unary RPC of the service.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& rpc,
                     const grpc::ByteBuffer& message, grpc::ByteBuffer* answer);

}  // namespace pleiad::testing
