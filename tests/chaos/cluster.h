// Three pleiad-server processes over one checkpoint, and a load of 64 sequences that four clients spread over them.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/replicated_client.h"
#include "tests/chaos/decoding_load.h"
#include "tests/support/process/server_process.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

inline constexpr size_t kServers = 3, kClients = 4, kSequences = 64;

// PLEIAD_TEST_CHAOS=full: the long forms.
bool LongForm();

// One of the servers.
struct ClusterServer {
  std::string model;  // the checkpoint's folder
  std::vector<std::string> flags;
  std::string log_level = "error";
  std::vector<std::string> launcher = {};  // as ServerProcess
};

// Used by one thread.
class Cluster {
 public:
  // `change`: what is different of server number `server`, at every start; may be empty.
  using Change = std::function<void(size_t server, ClusterServer* own)>;
  explicit Cluster(Change change = nullptr);
  ~Cluster();

  const std::string& model_dir() const { return model_.path(); }
  std::string socket(size_t server) const { return model_ / ("s" + std::to_string(server)); }
  ServerProcess& server(size_t server) { return *servers_[server]; }
  // A new process in the place of one that has ended; waits until it is ready.
  void Restart(size_t server);

  // Clients of the three servers, unless the options name other addresses; opens the sequences and starts the load,
  // which sends steps that fail with what `again` accepts once more.
  void StartLoad(const client::ReplicatedOptions& options, std::function<bool(const absl::Status&)> again = nullptr);
  // With attempts without end, for disturbances that follow each other sooner than a client's budget fills up.
  static client::ReplicatedOptions Options();
  std::vector<std::string> Addresses() const;
  DecodingLoad& load() { return *load_; }
  // A server that steps go to now, from number `from` on; waits until one is seen to work.
  size_t AwaitBusy(size_t from);
  client::ReplicatedClient& client(size_t i) { return *clients_[i]; }
  // Summed over the clients.
  client::ReplicatedCounters Counters() const;
  // Ends the load, and expects that no step failed and that every sequence ended as in a run that nothing disturbed,
  // on server number `calm`.
  void ExpectUndisturbed(size_t calm = 0);

  // Of one disturbance: how long each sequence waited.
  void Record(const std::vector<double>& seconds) { waits_.insert(waits_.end(), seconds.begin(), seconds.end()); }
  // Prints the figures.
  void Report(const std::string& what, int times) const;

 private:
  const Change change_;
  TempDir model_;
  std::array<std::unique_ptr<ServerProcess>, kServers> servers_;
  std::vector<std::unique_ptr<client::ReplicatedClient>> clients_;
  std::vector<client::ReplicatedSequence> sequences_;
  std::unique_ptr<DecodingLoad> load_;
  std::vector<double> waits_;
};

}  // namespace pleiad::testing
