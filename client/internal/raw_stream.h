// A bidirectional gRPC stream of byte buffers, whatever the method's messages are, and channels to open it on.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/sync_stream.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/internal/channel_access.h"

namespace pleiad::client::internal {

// A server that has been silent for kKeepaliveTime is asked for a sign of life, and calls end, Unavailable, where it
// gives none within kKeepaliveTimeout. Well above what the server lets clients ask.
inline constexpr std::chrono::milliseconds kKeepaliveTime = std::chrono::seconds(20);
inline constexpr std::chrono::milliseconds kKeepaliveTimeout = std::chrono::seconds(20);

// `address`: "HOST:PORT" or "unix:PATH". Connects when the first call is made; sends messages of any size. `access`
// null: plaintext.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int receive_bytes,
                                           const ChannelAccess* access = nullptr);

// One thread may write while one reads; Cancel is for any thread.
class RawStream {
 public:
  // Opens the stream; `method` ("/package.Service/Method") lives as long as this. `access` null: without its metadata.
  RawStream(std::shared_ptr<grpc::Channel> channel, const char* method, ChannelAccess* access = nullptr);
  // Cancels the stream unless Finish has returned.
  ~RawStream();

  // Blocks while the server takes nothing. Memory that the message's slices refer to is in use until gRPC drops them,
  // which after a break may be later than this object's end. False: the stream is broken.
  [[nodiscard]] bool Write(const grpc::ByteBuffer& message) { return stream_->Write(message); }
  // Blocks for the next message. False: the stream has ended, call Finish.
  [[nodiscard]] bool Read(grpc::ByteBuffer* message) { return stream_->Read(message); }
  // Makes Read and Write return soon.
  void Cancel() { context_.TryCancel(); }
  // How the stream ended. Once, after Read has returned false.
  grpc::Status Finish();
  // After Finish.
  const grpc::ClientContext& context() const { return context_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream_;
  bool finished_ = false;  // of the reading thread
};

}  // namespace pleiad::client::internal
