#include "server/clients.h"

#include <grpc/grpc_security_constants.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pleiad {
namespace {

Outcome Over(const std::string& client, Reason reason, uint64_t value, const char* what, uint64_t limit,
             const char* flag, const char* with = "") {
  const std::string rule = absl::StrCat("at most ", limit, " ", what, " (", flag, ")");
  return Failed(absl::StatusCode::kResourceExhausted, absl::StrCat(client, ": ", value, " ", what, with, ": ", rule),
                MakeDetail(reason, client, absl::StrCat(value), rule));
}

// "ipv4:10.0.0.7:41234" without the port.
std::string HostOf(const std::string& peer) {
  if (!absl::StartsWith(peer, "ipv4:") && !absl::StartsWith(peer, "ipv6:")) return "unix";
  return peer.substr(0, peer.rfind(':'));
}

}  // namespace

Client::Client(std::string name, const AccessFlags& limits)
    : name_(std::move(name)),
      max_sequences_(limits.client_max_sequences),
      limits_({.requests = limits.client_max_requests, .bytes = limits.client_max_bytes}),
      in_flight_(limits_) {}

std::shared_ptr<const void> Client::TakeSequence(const std::shared_ptr<Client>& client) {
  uint32_t open = client->sequences_.load();
  do {
    if (client->max_sequences_ > 0 && open >= client->max_sequences_) return nullptr;
  } while (!client->sequences_.compare_exchange_weak(open, open + 1));
  return PlaceOf(client);
}

std::shared_ptr<const void> Client::KeepSequence(const std::shared_ptr<Client>& client) {
  client->sequences_.fetch_add(1);
  return PlaceOf(client);
}

std::shared_ptr<const void> Client::PlaceOf(const std::shared_ptr<Client>& client) {
  // The deleter runs under a lock of the engine's: it takes none itself.
  return {client.get(), [client](const void*) { client->sequences_.fetch_sub(1); }};
}

Outcome Client::TooManySequences() const {
  return Over(name_, Reason::kCarriesFull, sequences_.load(), "sequences", max_sequences_, "--client-max-sequences");
}

Outcome Client::TooManyInFlight(Admission::Limit limit, const AdmissionLimits& used) const {
  if (limit == Admission::Limit::kClientBytes) {
    return Over(name_, Reason::kTooManyInFlight, used.bytes, "bytes in flight", limits_.bytes, "--client-max-bytes",
                " with this request");
  }
  return Over(name_, Reason::kTooManyInFlight, used.requests, "requests in flight", limits_.requests,
              "--client-max-requests");
}

ClientTable::ClientTable(const AccessFlags& limits)
    : limits_(limits),
      limited_(limits.client_max_sequences > 0 || limits.client_max_requests > 0 || limits.client_max_bytes > 0) {}

std::string ClientTable::NameOf(const grpc::CallbackServerContext& context) const {
  if (tokens_ != nullptr) {
    const auto authorization = context.client_metadata().find("authorization");
    if (authorization != context.client_metadata().end()) {
      const auto name = tokens_->NameOf({authorization->second.data(), authorization->second.size()});
      if (name) return absl::StrCat("token ", *name);
    }
  }
  if (const auto peer = context.auth_context(); peer != nullptr && peer->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> subject = peer->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
    if (!subject.empty()) return absl::StrCat("certificate ", absl::string_view(subject[0].data(), subject[0].size()));
  }
  return absl::StrCat("peer ", HostOf(context.peer()));
}

std::shared_ptr<Client> ClientTable::Find(const grpc::CallbackServerContext& context) {
  return limited_ ? Named(NameOf(context)) : nullptr;
}

std::shared_ptr<Client> ClientTable::Named(const std::string& name) {
  if (!limited_) return nullptr;
  MutexLock lock(&mutex_);
  std::weak_ptr<Client>& known = clients_[name];
  if (std::shared_ptr<Client> client = known.lock()) return client;
  auto client = std::make_shared<Client>(name, limits_);
  known = client;
  if (clients_.size() >= sweep_at_) {
    absl::erase_if(clients_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = 2 * clients_.size() + 64;
  }
  return client;
}

}  // namespace pleiad
