// Who calls, and what each of them may have at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "core/base/mutex.h"
#include "core/engine/failure.h"
#include "grpcpp/grpcpp.h"
#include "server/access_flags.h"
#include "server/admission.h"
#include "server/token_file.h"

namespace pleiad {

// One client: all calls under one name. Thread-safe. The table's clients share its limits.
class Client {
 public:
  Client(std::string name, const AccessFlags& limits);

  // "token engine-3", "certificate engine-3", "peer ipv4:10.0.0.7", "peer unix".
  const std::string& name() const { return name_; }
  // What its calls and streams have in flight.
  Admission::Client* in_flight() { return &in_flight_; }

  // A place for one sequence, given back when the last copy goes; null where the client has all it may.
  static std::shared_ptr<const void> TakeSequence(const std::shared_ptr<Client>& client);
  // Of one that it has already, whatever it may have.
  static std::shared_ptr<const void> KeepSequence(const std::shared_ptr<Client>& client);

  // RESOURCE_EXHAUSTED naming client, value and flag. `used`: what it has in flight.
  Outcome TooManySequences() const;
  Outcome TooManyInFlight(Admission::Limit limit, const AdmissionLimits& used) const;

 private:
  // Of a sequence that is counted.
  static std::shared_ptr<const void> PlaceOf(const std::shared_ptr<Client>& client);

  const std::string name_;
  const uint32_t max_sequences_;
  const AdmissionLimits limits_;
  std::atomic<uint32_t> sequences_{0};
  Admission::Client in_flight_;
};

// Thread-safe.
class ClientTable {
 public:
  explicit ClientTable(const AccessFlags& limits);

  // Names calls by their tokens; before the first call. Outlives the calls.
  void UseTokens(TokenFile* tokens) { tokens_ = tokens; }

  // The client of a call: by its token, else by its certificate's subject (CN), else by its host; the clients of all
  // Unix sockets are one. Null where no limit is set.
  std::shared_ptr<Client> Find(const grpc::CallbackServerContext& context) ABSL_LOCKS_EXCLUDED(mutex_);
  // The client of that name (Client::name); null where no limit is set.
  std::shared_ptr<Client> Named(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_);

  // Its name, also where no limit is set.
  std::string NameOf(const grpc::CallbackServerContext& context) const;

 private:
  const AccessFlags limits_;
  const bool limited_;
  TokenFile* tokens_ = nullptr;
  Mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<Client>> clients_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 64;  // clients that are gone are forgotten then
};

}  // namespace pleiad
