#include "client/cli/commands.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/strings/ascii.h"
#include "client/error_info.h"

namespace pleiad::cli {
namespace {

// CLI11 lets the file win over the environment; this drops what the environment sets from the file.
class EnvironmentFirst : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> found = CLI::ConfigTOML::from_config(in);
    const auto of_environment = [](const CLI::ConfigItem& item) {
      std::string name = "PLEIAD_" + absl::AsciiStrToUpper(item.name);
      std::replace(name.begin(), name.end(), '-', '_');
      return std::getenv(name.c_str()) != nullptr;
    };
    found.erase(std::remove_if(found.begin(), found.end(), of_environment), found.end());
    return found;
  }
};

}  // namespace

void ServerFlags::AddTo(CLI::App* command) {
  command->add_option("--server", address, "HOST:PORT or unix:PATH of the server")
      ->envname("PLEIAD_SERVER")
      ->capture_default_str();
  command->add_option("--timeout", timeout_seconds, "seconds to wait for the server, and for each call")
      ->envname("PLEIAD_TIMEOUT")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

absl::StatusOr<client::Client> ServerFlags::Connect() const {
  client::ClientOptions options;
  options.address = address;
  options.connect_timeout = absl::Seconds(timeout_seconds);
  options.rpc_timeout = absl::Seconds(timeout_seconds);
  return client::Client::Connect(options);
}

int Fail(const absl::Status& status) {
  std::cerr << "pleiad: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  for (const client::ErrorDetail& detail : client::ErrorDetails(status)) {
    std::cerr << "  " << client::ReasonName(detail.reason);
    if (detail.segment.has_value()) std::cerr << " segment " << *detail.segment;
    if (!detail.field.empty()) std::cerr << " " << detail.field;
    if (!detail.value.empty()) std::cerr << " = " << detail.value;
    if (!detail.limit.empty()) std::cerr << ", limit " << detail.limit;
    if (detail.position.has_value()) std::cerr << ", position " << *detail.position;
    if (detail.low.has_value()) std::cerr << ", low " << *detail.low;
    std::cerr << "\n";
  }
  return kExitFailed;
}

int Main(int argc, const char* const* argv) {
  CLI::App app("Client of pleiad-server, the PLE stage of qwen4_exp models as a service", "pleiad");
  app.require_subcommand(1);
  app.set_config("--config", "", "TOML file of flags, a section for each subcommand");
  app.config_formatter(std::make_shared<EnvironmentFirst>());
  app.allow_config_extras(false);
  app.footer(
      "Flags go before PLEIAD_SERVER and PLEIAD_TIMEOUT, those before the file.\n"
      "Exit codes: 0 done and all agreed; 1 a comparison past its bound, or a server that is not ready;\n"
      "2 bad flags; 3 no server, a refusal, or a file that cannot be read or written.");
  int exit = kExitOk;
  AddInfo(&app, &exit);
  AddHealth(&app, &exit);
  AddRun(&app, &exit);
  AddBench(&app, &exit);
  AddSnapshot(&app, &exit);
  AddRestore(&app, &exit);
  AddSynth(&app, &exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitBadFlags;
  }
  return exit;
}

}  // namespace pleiad::cli
