#include "server/flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "server/flag_values.h"
#include "server/listener.h"

namespace pleiad {
namespace {

constexpr absl::string_view kEnvironmentPrefix = "PLEIAD_";

// Flags as typed, before the values with units are read.
struct RawFlags {
  ServerFlags flags;
  std::string device = "auto";
  std::string table = "auto";
  std::string cache_bytes;
  std::string sequence_ttl = "10m";
  std::string drain_timeout = "30s";
  std::string read_timeout = "5s";
  std::string max_inflight_bytes;
  std::string shm_pinned_bytes;
  std::string spin;
  RawAccessFlags access;
};

void AddOptions(CLI::App& app, RawFlags& raw) {
  ServerFlags& flags = raw.flags;
  app.add_option("--model", flags.model, "Checkpoint folder: config.json and safetensors files")->type_name("DIR");
  app.add_option("--listen", flags.listen, "gRPC listeners, HOST:PORT (port 0: any) or unix:PATH; several allowed")
      ->type_name("ADDR")
      ->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "Prometheus metrics at http://HOST:PORT/metrics (port 0: any)")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--device", raw.device, "auto, cpu or cuda[:N]; auto is cuda:0 where there is such a GPU, else cpu")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--table", raw.table,
                 "auto, resident or cached; auto is resident when the table fits in half of the device's free memory")
      ->type_name("MODE")
      ->capture_default_str();
  app.add_option("--cache-bytes", raw.cache_bytes,
                 "Row cache of --table cached; 0: none [a quarter of the device's free memory]")
      ->type_name("SIZE");
  app.add_option("--max-tokens", flags.max_tokens, "Tokens of one request and of one batch")
      ->type_name("N")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  app.add_option("--max-sequences", flags.max_sequences, "Sequences open at a time; their memory is taken at start")
      ->type_name("N")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  app.add_option("--rollback-tokens", flags.rollback_tokens,
                 "Tokens a sequence can be moved back by, any number of times")
      ->type_name("N")
      ->check(CLI::Range(0u, 1u << 16))
      ->capture_default_str();
  app.add_option("--sequence-ttl", raw.sequence_ttl, "A sequence idle for so long is closed (as 10m, 90s)")
      ->type_name("DURATION")
      ->capture_default_str();
  app.add_option("--drain-timeout", raw.drain_timeout, "Time from SIGTERM until the server stops at the latest")
      ->type_name("DURATION")
      ->capture_default_str();
  app.add_option("--read-timeout", raw.read_timeout, "Longest wait for one row of --table cached")
      ->type_name("DURATION")
      ->capture_default_str();
  app.add_option("--reader", flags.reader,
                 "Reads rows of --table cached: auto, io_uring or pread; auto is io_uring where the system allows it")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "io_uring", "pread"}))
      ->capture_default_str();
  app.add_option("--direct", flags.direct,
                 "O_DIRECT, past the page cache, with io_uring: auto, require or off; auto is on where files allow it")
      ->type_name("MODE")
      ->check(CLI::IsMember({"auto", "require", "off"}))
      ->capture_default_str();
  app.add_option("--state-dir", flags.state_dir,
                 "Folder where open sequences and the ids of cached rows are kept from one run to the next [nowhere]")
      ->type_name("DIR");
  app.add_option("--max-inflight-requests", flags.max_inflight_requests, "Requests in flight; half of them per stream")
      ->type_name("N")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  app.add_option(
         "--max-inflight-bytes", raw.max_inflight_bytes,
         "Bytes of requests in flight, their outputs included; half of them per stream [4 x the largest message: "
         "max-tokens x (4 x channels + 16) + 64 KiB]")
      ->type_name("SIZE");
  app.add_flag("--allow-client-regions", flags.allow_client_regions,
               "Clients of unix: listeners may pass tensors in files of --shm-dir, which all of them can then name");
  app.add_option("--shm-dir", flags.shm_dir, "Folder whose files --allow-client-regions lets clients attach")
      ->type_name("DIR");
  app.add_option("--shm-pinned-bytes", raw.shm_pinned_bytes,
                 "Bytes of those files that a GPU may hold and read by itself, half of them of one client; 0: the CPU "
                 "copies [16GiB]")
      ->type_name("SIZE");
  app.add_flag("--batch-invariant", flags.batch_invariant,
               "Bit-equal results whatever a request is batched with; slower");
  app.add_option("--eos-token-id", flags.eos_token_id, "Token id that ends the hash window [the config's]")
      ->type_name("N");
  app.add_option("--threads", flags.threads, "Threads of the CPU device; 0: all cores")
      ->type_name("N")
      ->check(CLI::Range(0u, 4096u))
      ->capture_default_str();
  app.add_option("--spin", raw.spin,
                 "How long a thread stays awake for the next step of a stream; 0: not at all [250us with a GPU and at "
                 "least four CPUs, else 0]")
      ->type_name("DURATION");
  app.add_flag("--reflection", flags.reflection, "gRPC reflection on every listener, not only loopback and unix:");
  AddAccessOptions(app, &raw.access);
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warning, error or off")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format, "text or json, on standard error")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_flag("--check", flags.check,
               "Verify checkpoint, certificates and tokens, print the memory plan and the files needed, exit");
}

std::string EnvironmentName(absl::string_view flag) {
  return absl::StrCat(kEnvironmentPrefix, absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}})));
}

// Kubernetes sets these for a service called pleiad-something.
bool IsServiceLink(absl::string_view name) {
  return absl::EndsWith(name, "_SERVICE_HOST") || absl::StrContains(name, "_SERVICE_PORT") ||
         absl::EndsWith(name, "_PORT") || absl::StrContains(name, "_PORT_");
}

bool IsGiven(const std::vector<std::string>& args, absl::string_view flag) {
  return std::any_of(args.begin(), args.end(), [flag](absl::string_view arg) {
    return absl::ConsumePrefix(&arg, "--") && absl::ConsumePrefix(&arg, flag) && (arg.empty() || arg.front() == '=');
  });
}

// Of the `pleiad` command line, which shares the prefix.
bool IsOfTheClient(const std::string& name) {
  return name == "PLEIAD_SERVER" || name == "PLEIAD_TIMEOUT" || name == "PLEIAD_TLS_CA" || name == "PLEIAD_TOKEN_FILE";
}

// Appends `--flag=value` for each flag that only the environment gives.
absl::Status AppendEnvironment(const CLI::App& app, const std::map<std::string, std::string>& environment,
                               std::vector<std::string>& args) {
  std::map<std::string, const CLI::Option*> by_name;
  for (const CLI::Option* option : app.get_options()) {
    const std::string flag = option->get_lnames().empty() ? "" : option->get_lnames().front();
    if (!flag.empty() && flag != "help" && flag != "version") by_name.emplace(EnvironmentName(flag), option);
  }
  std::vector<std::string> added;
  for (const auto& [name, value] : environment) {
    // Empty is as unset.
    if (!absl::StartsWith(name, kEnvironmentPrefix) || value.empty()) continue;
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      if (IsServiceLink(name) || IsOfTheClient(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("environment: ", name, " names no flag (see --help)"));
    }
    const std::string& flag = found->second->get_lnames().front();
    if (IsGiven(args, flag)) continue;
    if (flag == "listen") {
      for (absl::string_view part : absl::StrSplit(value, ',', absl::SkipWhitespace())) {
        added.push_back(absl::StrCat("--listen=", absl::StripAsciiWhitespace(part)));
      }
    } else {
      added.push_back(absl::StrCat("--", flag, "=", value));
    }
  }
  args.insert(args.end(), added.begin(), added.end());
  return absl::OkStatus();
}

absl::Status Unknown(absl::string_view flag, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " '", value, "': must be ", rule));
}

absl::Status ReadDeviceFlag(RawFlags& raw) {
  absl::string_view name = raw.device;
  if (name == "auto") return absl::OkStatus();
  if (name == "cpu") {
    raw.flags.device = DeviceFlag::kCpu;
    return absl::OkStatus();
  }
  raw.flags.device = DeviceFlag::kCuda;
  if (name == "cuda") return absl::OkStatus();
  if (absl::ConsumePrefix(&name, "cuda:") && !name.empty() && absl::ascii_isdigit(name.front()) &&
      absl::SimpleAtoi(name, &raw.flags.cuda_ordinal)) {
    return absl::OkStatus();
  }
  return Unknown("device", raw.device, "auto, cpu or cuda[:N]");
}

absl::StatusOr<uint64_t> ReadSizeOrZero(absl::string_view flag, const std::string& text) {
  if (text == "0") return 0;
  absl::StatusOr<uint64_t> size = ParseSize(text);
  if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", size.status().message()));
  return size;
}

absl::Status ReadTableFlags(const CLI::App& app, RawFlags& raw) {
  ServerFlags& flags = raw.flags;
  if (raw.table == "resident") {
    flags.table = TableFlag::kResident;
  } else if (raw.table == "cached") {
    flags.table = TableFlag::kCached;
  } else if (raw.table != "auto") {
    return Unknown("table", raw.table, "auto, resident or cached");
  }
  if (app.count("--cache-bytes") > 0) {
    PLEIAD_ASSIGN_OR_RETURN(flags.cache_bytes, ReadSizeOrZero("cache-bytes", raw.cache_bytes));
  }
  if (flags.reader == "pread" && flags.direct == "require") {
    return absl::InvalidArgumentError("--direct require: the pread reader is always buffered; use --reader io_uring");
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> ReadDuration(absl::string_view flag, const std::string& text, absl::Duration least) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value) || value < least) {
    return Unknown(flag, text,
                   absl::StrCat("a duration of at least ", absl::FormatDuration(least), ", as 30s, 10m or 1h"));
  }
  return value;
}

absl::StatusOr<ServerFlags> ReadFlags(const CLI::App& app, RawFlags& raw) {
  PLEIAD_RETURN_IF_ERROR(ReadDeviceFlag(raw));
  ServerFlags& flags = raw.flags;
  if (flags.model.empty()) return absl::InvalidArgumentError("--model: the checkpoint folder is required");
  PLEIAD_RETURN_IF_ERROR(ReadTableFlags(app, raw));
  PLEIAD_ASSIGN_OR_RETURN(flags.read_timeout, ReadDuration("read-timeout", raw.read_timeout, absl::Milliseconds(1)));
  PLEIAD_ASSIGN_OR_RETURN(flags.sequence_ttl, ReadDuration("sequence-ttl", raw.sequence_ttl, absl::Milliseconds(1)));
  PLEIAD_ASSIGN_OR_RETURN(flags.drain_timeout, ReadDuration("drain-timeout", raw.drain_timeout, absl::ZeroDuration()));
  if (app.count("--spin") > 0) {
    PLEIAD_ASSIGN_OR_RETURN(flags.spin, ReadDuration("spin", raw.spin, absl::ZeroDuration()));
  }
  if (app.count("--max-inflight-bytes") > 0) {
    auto size = ParseSize(raw.max_inflight_bytes);
    if (!size.ok()) return absl::InvalidArgumentError(absl::StrCat("--max-inflight-bytes ", size.status().message()));
    flags.max_inflight_bytes = *size;
  }
  if (app.count("--shm-pinned-bytes") > 0) {
    PLEIAD_ASSIGN_OR_RETURN(flags.shm_pinned_bytes, ReadSizeOrZero("shm-pinned-bytes", raw.shm_pinned_bytes));
  }
  bool unix_socket = false;
  std::vector<ListenAddress> listen;
  for (const std::string& text : flags.listen) {
    PLEIAD_ASSIGN_OR_RETURN(listen.emplace_back(), ParseListenAddress(text));
    unix_socket |= listen.back().is_unix();
  }
  PLEIAD_ASSIGN_OR_RETURN(flags.access, ReadAccessFlags(raw.access, listen));
  if (flags.allow_client_regions && flags.shm_dir.empty()) {
    return absl::InvalidArgumentError(
        "--allow-client-regions: needs a --shm-dir, whose files any client of a Unix socket can then name");
  }
  if (flags.allow_client_regions && !unix_socket) {
    return absl::InvalidArgumentError(
        "--allow-client-regions: needs a --listen unix:PATH, whose clients alone have them");
  }
  PLEIAD_ASSIGN_OR_RETURN(const ListenAddress metrics, ParseListenAddress(flags.metrics_listen));
  if (metrics.is_unix()) return Unknown("metrics-listen", flags.metrics_listen, "HOST:PORT");
  return flags;
}

}  // namespace

const char* const kServerVersion = PLEIAD_VERSION;

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args,
                                             const std::map<std::string, std::string>& environment) {
  RawFlags raw;
  CLI::App app("Serves the PLE stage of a qwen4_exp model over gRPC.", "pleiad-server");
  AddOptions(app, raw);
  app.set_version_flag("--version", absl::StrCat("pleiad-server ", kServerVersion));
  app.set_config("--config", "", "TOML file of flags, as `max-tokens = 4096`")->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.footer(
      "A flag can also be given as PLEIAD_<FLAG> in the environment (PLEIAD_MAX_TOKENS) or in the file of --config;\n"
      "the command line wins over the environment, the environment over the file. Sizes: 4GiB, 512MiB, 1e9.\n"
      "Exit codes: 0 drained, 1 refused to start, 2 bad flags, 3 device lost, 4 steps unanswered when stopped, 5 open "
      "sequences not kept in --state-dir.");
  std::vector<std::string> all = args;
  try {
    PLEIAD_RETURN_IF_ERROR(AppendEnvironment(app, environment, all));
    std::reverse(all.begin(), all.end());
    app.parse(all);
  } catch (const CLI::CallForVersion&) {
    return CommandLine{.text = absl::StrCat(app.version(), "\n"), .flags = {}};
  } catch (const CLI::CallForHelp&) {
    return CommandLine{.text = app.help(), .flags = {}};
  } catch (const CLI::ConfigError& error) {
    absl::string_view name = error.what();
    const bool unknown = absl::ConsumePrefix(&name, "INI was not able to parse ");
    return absl::InvalidArgumentError(unknown ? absl::StrCat("--config: '", name, "' names no flag (see --help)")
                                              : absl::StrCat("--config: ", name));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  CommandLine line;
  PLEIAD_ASSIGN_OR_RETURN(line.flags, ReadFlags(app, raw));
  return line;
}

std::map<std::string, std::string> ReadEnvironment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    result.insert(parts);
  }
  return result;
}

}  // namespace pleiad
