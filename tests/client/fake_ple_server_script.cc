// What tests make the fake server do.
#include <grpcpp/health_check_service_interface.h>

#include "tests/client/fake_ple_server.h"

namespace pleiad::client::testing {

size_t FakePleServer::open_sequences() {
  MutexLock lock(&mutex_);
  return sequences_.size();
}

void FakePleServer::WaitUntilEmpty() {
  MutexLock lock(&mutex_);
  while (!sequences_.empty()) changed_.Wait(&mutex_);
}

void FakePleServer::FailNextSteps(int count) {
  MutexLock lock(&mutex_);
  fail_steps_ = count;
}

void FakePleServer::SetDraining() {
  MutexLock lock(&mutex_);
  draining_ = true;
}

void FakePleServer::SetHealthy(const std::string& service, bool healthy) {
  server_->GetHealthCheckService()->SetServingStatus(service, healthy);
}

void FakePleServer::ExpireOldest() {
  MutexLock lock(&mutex_);
  sequences_.erase(sequences_.begin());
}

void FakePleServer::SetRoom(size_t sequences) {
  MutexLock lock(&mutex_);
  room_ = sequences;
}

void FakePleServer::SetModelId(const std::string& model_id) {
  Forget();
  MutexLock lock(&mutex_);
  model_id_ = model_id;
}

void FakePleServer::SetToken(const std::string& token) {
  MutexLock lock(&mutex_);
  token_ = token;
}

}  // namespace pleiad::client::testing
