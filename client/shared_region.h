// Memory that this process shares with a server on the same host, so that tensors need not be sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/connection.h"
#include "client/types.h"

namespace pleiad::client {

// A new file in the server's --shm-dir, mapped here and attached there. Thread-safe; what the memory holds is the
// user's to guard: a span that a step names is the server's until the step's callback has run. Steps that name it must
// be answered before it is destroyed, which detaches it and removes the file. After the server has restarted, or the
// connection has broken, steps that name it are refused (kInvalidField): share anew.
class SharedRegion {
 public:
  // `shm_dir` as this process sees the folder. Blocks for a round trip. ResourceExhausted: no room for `bytes` there;
  // Unavailable, NotFound, PermissionDenied: the folder; else the server's refusal.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(std::shared_ptr<Connection> connection,
                                                              const std::string& shm_dir, uint64_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  absl::Span<std::byte> data() const { return data_; }
  // [offset, offset + bytes) of it, for a step.
  RegionSpan Span(uint64_t offset, uint64_t bytes) const { return {lease_->id(), offset, bytes}; }

 private:
  SharedRegion(std::shared_ptr<Connection> connection, std::string path, absl::Span<std::byte> data)
      : connection_(std::move(connection)), path_(std::move(path)), data_(data) {}

  const std::shared_ptr<Connection> connection_;
  const std::string path_;
  const absl::Span<std::byte> data_;
  std::unique_ptr<RegionLease> lease_;
};

}  // namespace pleiad::client
