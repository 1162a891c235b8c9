// A client of regions by hand: a file of the server's --shm-dir, attached on a stream of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "pleiad/v1/ple.grpc.pb.h"

namespace pleiad::testing {

class RegionClient {
 public:
  // Makes a file of `bytes` zeros in the folder and attaches all of it; fails the test where that is refused.
  RegionClient(v1::Ple::Stub& stub, const std::string& shm_dir, const std::string& name, uint64_t bytes);
  // Detaches, and removes the file.
  ~RegionClient();

  uint64_t id() const { return id_; }
  const std::string& path() const { return path_; }
  v1::RegionRef Ref(uint64_t offset, uint64_t bytes) const;
  void Put(uint64_t offset, absl::string_view bytes) const;
  std::string Get(uint64_t offset, uint64_t bytes) const;
  // Another request on its stream.
  v1::AttachRegionsResponse Attach(const v1::AttachRegionsRequest& request);
  // Half-closes, and waits until the server has ended the stream.
  grpc::Status Detach();

 private:
  const std::string path_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRegionsRequest, v1::AttachRegionsResponse>> stream_;
  uint64_t id_ = 0;
  bool detached_ = false;
};

}  // namespace pleiad::testing
