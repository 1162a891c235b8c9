#include "client/cli/commands.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/scrape.h"
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
      const char* value = std::getenv(name.c_str());
      return value != nullptr && *value != '\0';  // CLI11 takes an empty one for none
    };
    found.erase(std::remove_if(found.begin(), found.end(), of_environment), found.end());
    return found;
  }
};

// A number is one of seconds.
std::optional<absl::Duration> ParseTimeout(const std::string& text) {
  absl::Duration value;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    value = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &value)) {
    return std::nullopt;
  }
  if (!(value > absl::ZeroDuration()) || value == absl::InfiniteDuration()) return std::nullopt;
  return value;
}

}  // namespace

void ServerFlags::AddTo(CLI::App* command) {
  command->add_option("--server", address, "HOST:PORT or unix:PATH of the server")
      ->envname("PLEIAD_SERVER")
      ->capture_default_str();
  AddSharedTo(command);
}

void ServerFlags::AddSeveralTo(CLI::App* command) {
  const auto set = [this](const std::vector<std::string>& given) {
    addresses = given;
    address = given.front();
  };
  command
      ->add_option_function<std::vector<std::string>>(
          "--server", set,
          "HOST:PORT or unix:PATH of the server; repeatable: several servers of one model, each stream on one of them "
          "and moved to another when that goes")
      ->envname("PLEIAD_SERVER")
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->default_str(address);
  AddSharedTo(command);
}

void ServerFlags::AddSharedTo(CLI::App* command) {
  const auto set_timeout = [this](const std::string& text) { timeout = *ParseTimeout(text); };
  const auto check = [](const std::string& text) {
    return ParseTimeout(text).has_value()
               ? ""
               : absl::StrCat("'", text, "': must be a time above 0, as 30s, 500ms or 2 (seconds)");
  };
  command
      ->add_option_function<std::string>("--timeout", set_timeout, "how long to wait for the server, and for each call")
      ->envname("PLEIAD_TIMEOUT")
      ->type_name("DURATION")
      ->check(CLI::Validator(check, ""))
      ->default_str(absl::FormatDuration(timeout));
  command->add_flag("--tls", tls, "TLS, with the system's authorities; given by --tls-ca and the like too");
  command->add_option("--tls-ca", tls_files.ca_file, "PEM authorities of the server")
      ->envname("PLEIAD_TLS_CA")
      ->type_name("FILE");
  command->add_option("--tls-cert", tls_files.cert_file, "PEM certificate to show")->type_name("FILE");
  command->add_option("--tls-key", tls_files.key_file, "PEM key of --tls-cert")->type_name("FILE");
  command
      ->add_option("--tls-server-name", tls_files.server_name,
                   "name that the server's certificate must have (default: the host of --server)")
      ->type_name("NAME");
  command
      ->add_option("--token-file", token_file, "file with the token to show and nothing else, which others cannot read")
      ->envname("PLEIAD_TOKEN_FILE")
      ->type_name("FILE");
  const auto check_affinity = [](const std::string& key) {
    const auto printable = [](char c) { return c >= ' ' && c <= '~'; };
    return !key.empty() && key.size() <= 128 && std::all_of(key.begin(), key.end(), printable)
               ? ""
               : absl::StrCat("'", absl::CHexEscape(key), "': must be 1 to 128 characters of printable ASCII");
  };
  command
      ->add_option("--affinity", affinity,
                   "key by which a balancer chooses the server; the same for all calls about a sequence")
      ->envname("PLEIAD_AFFINITY")
      ->type_name("KEY")
      ->check(CLI::Validator(check_affinity, ""));
}

client::ClientOptions ServerFlags::Options() const {
  client::ClientOptions options;
  options.address = address;
  options.connect_timeout = timeout;
  options.rpc_timeout = timeout;
  if (tls || !tls_files.ca_file.empty() || !tls_files.cert_file.empty() || !tls_files.key_file.empty() ||
      !tls_files.server_name.empty()) {
    options.tls = tls_files;
  }
  options.token_file = token_file;
  options.affinity_key = affinity;
  return options;
}

absl::StatusOr<client::Client> ServerFlags::Connect() const { return client::Client::Connect(Options()); }

CLI::Validator MetricsAddressRule() {
  const auto check = [](const std::string& text) {
    return IsMetricsAddress(text) ? "" : absl::StrCat("'", text, "': must be HOST:PORT, as 127.0.0.1:9464");
  };
  return CLI::Validator(check, "");
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
      "Flags go before PLEIAD_SERVER, PLEIAD_TIMEOUT, PLEIAD_TLS_CA, PLEIAD_TOKEN_FILE and PLEIAD_AFFINITY, those\n"
      "before the file.\n"
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
  AddPlan(&app, &exit);
  AddWarm(&app, &exit);
  AddTop(&app, &exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitBadFlags;
  }
  return exit;
}

}  // namespace pleiad::cli
