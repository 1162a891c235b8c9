#include <iostream>

#include "client/cli/commands.h"
#include "client/connection.h"

namespace pleiad::cli {
namespace {

int Run(const ServerFlags& server, const std::string& service) {
  // Not Client::Connect: a server that is loading answers this and not that.
  const absl::StatusOr<client::HealthState> health = client::CheckHealth(server.Options(), service);
  if (!health.ok()) return Fail(health.status());
  const bool serving = *health == client::HealthState::kServing;
  std::cout << (serving ? "SERVING" : "NOT_SERVING") << "\n";
  return serving ? kExitOk : kExitDisagrees;
}

}  // namespace

void AddHealth(CLI::App* app, int* exit) {
  auto server = std::make_shared<ServerFlags>();
  auto service = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand("health", "Ask whether the server is ready; exit code 1 when it is not");
  server->AddTo(command);
  command->add_option("--service", *service,
                      "\"\" or pleiad.v1.Ple: ready to serve; pleiad.live: the process works (default \"\")");
  command->callback([server, service, exit] { *exit = Run(*server, *service); });
}

}  // namespace pleiad::cli
