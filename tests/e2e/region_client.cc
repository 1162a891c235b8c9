#include "tests/e2e/region_client.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace pleiad::testing {

RegionClient::RegionClient(v1::Ple::Stub& stub, const std::string& shm_dir, const std::string& name, uint64_t bytes)
    : path_(shm_dir + "/" + name), stream_(stub.AttachRegions(&context_)) {
  std::ofstream(path_, std::ios::binary) << std::string(bytes, '\0');
  v1::AttachRegionsRequest request;
  request.set_kind(v1::REGION_KIND_SHM_FILE);
  request.set_path(name);
  request.set_bytes(bytes);
  const v1::AttachRegionsResponse response = Attach(request);
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  id_ = response.region_id();
}

RegionClient::~RegionClient() {
  if (!detached_) {
    context_.TryCancel();
    (void)stream_->Finish();
  }
  std::filesystem::remove(path_);
}

v1::RegionRef RegionClient::Ref(uint64_t offset, uint64_t bytes) const {
  v1::RegionRef ref;
  ref.set_region_id(id_);
  ref.set_offset(offset);
  ref.set_bytes(bytes);
  return ref;
}

void RegionClient::Put(uint64_t offset, absl::string_view bytes) const {
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good());
}

std::string RegionClient::Get(uint64_t offset, uint64_t bytes) const {
  std::string out(bytes, '\0');
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(out.data(), static_cast<std::streamsize>(bytes));
  EXPECT_TRUE(file.good());
  return out;
}

v1::AttachRegionsResponse RegionClient::Attach(const v1::AttachRegionsRequest& request) {
  v1::AttachRegionsResponse response;
  EXPECT_TRUE(stream_->Write(request) && stream_->Read(&response));
  return response;
}

grpc::Status RegionClient::Detach() {
  detached_ = true;
  stream_->WritesDone();
  return stream_->Finish();
}

}  // namespace pleiad::testing
