#include "server/service_state.h"

#include <utility>
#include <vector>

#include "server/convert.h"
#include "server/device_choice.h"

namespace pleiad {

void ServiceState::SetServing(Engine* engine, v1::GetModelResponse model, const ServerFlags& flags) {
  model_ = std::move(model);
  spinner_.Start(SpinFor(flags, engine->device_info().run_cost));
  engine_.store(engine);
}

std::optional<Outcome> ServiceState::Refusal() const {
  if (stopping_.load()) return Stopping();
  if (engine_.load() == nullptr) return Loading();
  return std::nullopt;
}

RegionAccess ServiceState::RegionsFor(const std::string& peer) const {
  if (regions_ == nullptr) return {.table = nullptr, .refusal = "regions are off (--allow-client-regions)"};
  if (peer.rfind("unix:", 0) != 0) return {.table = nullptr, .refusal = "regions are for clients of a unix: listener"};
  return {.table = regions_.get(), .refusal = ""};
}

void ServiceState::UseCertificates(std::shared_ptr<CertificateFiles> certificates) {
  MutexLock lock(&mutex_);
  certificates_ = std::move(certificates);
}

std::shared_ptr<const Certificate> ServiceState::certificate() const {
  std::shared_ptr<CertificateFiles> files;
  {
    MutexLock lock(&mutex_);
    files = certificates_;
  }
  return files == nullptr ? nullptr : files->Current().certificate;
}

void ServiceState::BeginCall() {
  MutexLock lock(&mutex_);
  ++calls_;
}

void ServiceState::EndCall() {
  MutexLock lock(&mutex_);
  if (--calls_ == 0) calls_changed_.NotifyAll();
}

void ServiceState::WaitForCalls(std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&mutex_);
  while (calls_ > 0 && std::chrono::steady_clock::now() < deadline) calls_changed_.WaitUntil(&mutex_, deadline);
}

void ServiceState::AddStream(const std::shared_ptr<EndableStream>& stream) {
  {
    MutexLock lock(&mutex_);
    if (!streams_ended_) {
      streams_.emplace(stream.get(), stream);
      return;
    }
  }
  stream->End();
}

void ServiceState::RemoveStream(const EndableStream* stream) {
  MutexLock lock(&mutex_);
  streams_.erase(stream);
}

void ServiceState::EndStreams() {
  std::vector<std::shared_ptr<EndableStream>> streams;
  {
    MutexLock lock(&mutex_);
    streams_ended_ = true;
    for (const auto& [key, stream] : streams_) {
      if (auto live = stream.lock()) streams.push_back(std::move(live));
    }
  }
  for (const auto& stream : streams) stream->End();
}

}  // namespace pleiad
