// The subcommands of `pleiad`, one file each: command_NAME.cc adds its flags to the app and runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace pleiad::cli {

// Exit codes, the same for every subcommand.
inline constexpr int kExitOk = 0;
inline constexpr int kExitDisagrees = 1;  // a comparison past its bound; a server that is not ready
inline constexpr int kExitBadFlags = 2;
inline constexpr int kExitFailed = 3;  // no server, a refusal, a file

// What all subcommands that talk to a server share.
struct ServerFlags {
  std::string address = "127.0.0.1:50051";
  absl::Duration timeout = absl::Seconds(30);
  bool tls = false;  // also when any member of tls_files is set
  client::TlsOptions tls_files;
  std::string token_file;
  std::string affinity;  // empty: none

  // All of them, of a command that takes several; the first is `address`.
  std::vector<std::string> addresses = {address};

  // Outlives the parsing.
  void AddTo(CLI::App* command);
  // --server may be repeated.
  void AddSeveralTo(CLI::App* command);
  client::ClientOptions Options() const;
  // Prints why when there is none.
  absl::StatusOr<client::Client> Connect() const;

 private:
  void AddSharedTo(CLI::App* command);
};

// For flags that name metrics pages.
CLI::Validator MetricsAddressRule();

// Prints the status, its reasons included, and returns kExitFailed.
int Fail(const absl::Status& status);

// Each leaves the exit code in `exit`, which outlives the app.
void AddInfo(CLI::App* app, int* exit);
void AddHealth(CLI::App* app, int* exit);
void AddRun(CLI::App* app, int* exit);
void AddBench(CLI::App* app, int* exit);
void AddSnapshot(CLI::App* app, int* exit);
void AddRestore(CLI::App* app, int* exit);
void AddSynth(CLI::App* app, int* exit);
void AddPlan(CLI::App* app, int* exit);
void AddWarm(CLI::App* app, int* exit);
void AddTop(CLI::App* app, int* exit);

// Parses and runs a whole command line.
int Main(int argc, const char* const* argv);

}  // namespace pleiad::cli
