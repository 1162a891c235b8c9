#include "client/internal/raw_stream.h"

#include <grpc/grpc.h>
#include <grpcpp/impl/rpc_method.h>

#include <utility>

namespace pleiad::client::internal {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, int receive_bytes, const ChannelAccess* access) {
  // The library is never shut down: that waits up to 10 s for a poller that a stalled write has left behind.
  [[maybe_unused]] static const bool kept = (grpc_init(), true);
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(receive_bytes);
  args.SetMaxSendMessageSize(-1);
  // A broken connection is tried again at once; pauses are the caller's.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Also the least time that a connection attempt is given.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kKeepaliveTime.count()));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kKeepaliveTimeout.count()));
  // While no call is open too, so that the next one finds a connection that works; and for as long as a stream is idle,
  // where gRPC would stop after two.
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A connection of its own, whatever other clients of this process do.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (access != nullptr && !access->server_name().empty()) args.SetSslTargetNameOverride(access->server_name());
  return grpc::CreateCustomChannel(
      address, access == nullptr ? grpc::InsecureChannelCredentials() : access->credentials(), args);
}

namespace {

grpc::ClientContext* WithMetadata(grpc::ClientContext* context, ChannelAccess* access) {
  if (access != nullptr) access->AddTo(context);
  return context;
}

}  // namespace

RawStream::RawStream(std::shared_ptr<grpc::Channel> channel, const char* method, ChannelAccess* access)
    : channel_(std::move(channel)),
      // As generated stubs open theirs.
      stream_(grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel_.get(), grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::BIDI_STREAMING),
          WithMetadata(&context_, access))) {}

RawStream::~RawStream() {
  if (finished_) return;
  context_.TryCancel();
  grpc::ByteBuffer ignored;
  while (stream_->Read(&ignored)) {
  }
  (void)stream_->Finish();
}

grpc::Status RawStream::Finish() {
  finished_ = true;
  return stream_->Finish();
}

}  // namespace pleiad::client::internal
