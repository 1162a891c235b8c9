// How a client shows who it is and knows its server: credentials of channels, token and affinity key of each call.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/client_options.h"
#include "client/internal/mutex.h"

namespace pleiad::client::internal {

// Thread-safe.
class ChannelAccess {
 public:
  // Blocks as reads of small files do. InvalidArgument naming the member of `options` whose file is no good, never what
  // is in it.
  static absl::StatusOr<std::shared_ptr<ChannelAccess>> Open(const ClientOptions& options);

  const std::shared_ptr<grpc::ChannelCredentials>& credentials() const { return credentials_; }
  // Checked instead of the address's host; empty: the host is.
  const std::string& server_name() const { return server_name_; }

  // Adds token and affinity key, where there are, to a call that is to begin. A token file that has changed is read
  // again; one that is no good any more leaves the token from before. Blocks as stat does.
  void AddTo(grpc::ClientContext* context) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  ChannelAccess() = default;
  static absl::StatusOr<std::string> ReadToken(const std::string& path, struct ::stat* info);

  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::string server_name_;
  std::string affinity_key_;
  std::string token_file_;  // empty: no token
  Mutex mutex_;
  struct ::stat read_ ABSL_GUARDED_BY(mutex_) = {};
  std::string authorization_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pleiad::client::internal
