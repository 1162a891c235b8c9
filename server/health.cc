#include "server/health.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

grpc::Status Stopping() { return {grpc::StatusCode::UNAVAILABLE, "the server is stopping"}; }

// Writes the state whenever it differs from what was written last.
class Watch final : public grpc::ServerWriteReactor<HealthCheckResponse>, public HealthWatcher {
 public:
  static Watch* Start(Health* health, const std::string& name) {
    std::shared_ptr<Watch> watch(new Watch(health, name));
    watch->self_ = watch;
    if (const grpc::Status refusal = health->Add(watch); !refusal.ok()) {
      watch->EndWith(refusal);
    } else {
      watch->Update();
    }
    return watch.get();
  }

  void Update() override {
    MutexLock lock(&mutex_);
    WriteIfChanged();
  }

  void End() override { EndWith(Stopping()); }

  void EndWith(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      ended_ = true;
      status_ = status;
    }
    FinishIfOver();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      ended_ = ended_ || !ok;
      WriteIfChanged();
    }
    FinishIfOver();
  }

  void OnCancel() override { End(); }

  void OnDone() override {
    health_->Remove(this);
    const std::shared_ptr<Watch> self = std::move(self_);
  }

 private:
  Watch(Health* health, std::string name) : health_(health), name_(std::move(name)) {}

  void WriteIfChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Health::ServingStatus now = health_->Get(name_);
    if (writing_ || ended_ || written_ == now) return;
    writing_ = true;
    written_ = now;
    response_.set_status(now);
    StartWrite(&response_);
  }

  void FinishIfOver() {
    grpc::Status status;
    {
      MutexLock lock(&mutex_);
      if (!ended_ || writing_ || finished_) return;
      finished_ = true;
      status = status_;
    }
    Finish(status);
  }

  Health* const health_;
  const std::string name_;
  std::shared_ptr<Watch> self_;  // until OnDone

  Mutex mutex_;
  HealthCheckResponse response_ ABSL_GUARDED_BY(mutex_);
  std::optional<Health::ServingStatus> written_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_) = Stopping();
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void Health::Set(Readiness readiness) {
  {
    MutexLock lock(&mutex_);
    readiness_ = readiness;
  }
  UpdateWatchers();
}

void Health::SetTable(TableHealth table) {
  {
    MutexLock lock(&mutex_);
    table_ = table;
  }
  UpdateWatchers();
}

void Health::UpdateWatchers() {
  std::vector<std::shared_ptr<HealthWatcher>> watchers;
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, watcher] : watchers_) {
      if (auto live = watcher.lock()) watchers.push_back(std::move(live));
    }
  }
  for (const auto& watcher : watchers) watcher->Update();
}

bool Health::serving() const {
  MutexLock lock(&mutex_);
  return readiness_ == Readiness::kServing && table_ == TableHealth::kReadable;
}

Health::ServingStatus Health::Get(const std::string& name) const {
  if (name == "pleiad.live") return HealthCheckResponse::SERVING;
  if (!name.empty() && name != "pleiad.v1.Ple") return HealthCheckResponse::SERVICE_UNKNOWN;
  return serving() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

grpc::Status Health::Add(const std::shared_ptr<HealthWatcher>& watcher) {
  MutexLock lock(&mutex_);
  if (ended_) return Stopping();
  if (watchers_.size() >= kMaxWatchers) {
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            absl::StrCat("Watch: at most ", kMaxWatchers, " at a time; Check works")};
  }
  watchers_.emplace(watcher.get(), watcher);
  return grpc::Status::OK;
}

void Health::Remove(const HealthWatcher* watcher) {
  MutexLock lock(&mutex_);
  watchers_.erase(watcher);
}

void Health::EndWatches() {
  std::vector<std::shared_ptr<HealthWatcher>> watchers;
  {
    MutexLock lock(&mutex_);
    ended_ = true;
    for (const auto& [key, watcher] : watchers_) {
      if (auto live = watcher.lock()) watchers.push_back(std::move(live));
    }
  }
  for (const auto& watcher : watchers) watcher->End();
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Health::ServingStatus status = health_->Get(request->service());
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(
        grpc::Status(grpc::StatusCode::NOT_FOUND, "names with a health: \"\", \"pleiad.v1.Ple\", \"pleiad.live\""));
  } else {
    response->set_status(status);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(grpc::CallbackServerContext*,
                                                                    const HealthCheckRequest* request) {
  return pleiad::Watch::Start(health_, request->service());
}

}  // namespace pleiad
