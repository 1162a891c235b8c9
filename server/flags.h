// Command line of pleiad-server: flags, then PLEIAD_* environment, then the TOML file of --config.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/access_flags.h"

namespace pleiad {

enum class DeviceFlag : uint8_t { kAuto, kCpu, kCuda };
enum class TableFlag : uint8_t { kAuto, kResident, kCached };

struct ServerFlags {
  std::string model;                                   // checkpoint folder
  std::vector<std::string> listen{"127.0.0.1:50051"};  // HOST:PORT or unix:PATH
  std::string metrics_listen = "127.0.0.1:9464";       // HOST:PORT
  DeviceFlag device = DeviceFlag::kAuto;
  uint32_t cuda_ordinal = 0;  // of kCuda
  TableFlag table = TableFlag::kAuto;
  std::optional<uint64_t> cache_bytes;  // arena of a cached table; absent: a quarter of the device's free memory
  std::string reader = "auto";          // auto, io_uring or pread
  std::string direct = "auto";          // auto, require or off
  absl::Duration read_timeout = absl::Seconds(5);
  std::string state_dir;       // what a next start finds; empty: nothing is kept
  uint32_t max_tokens = 8192;  // of one request and one batch
  uint32_t max_sequences = 1024;
  uint32_t rollback_tokens = 8;
  absl::Duration sequence_ttl = absl::Minutes(10);
  absl::Duration drain_timeout = absl::Seconds(30);
  bool allow_client_regions = false;               // on listeners of Unix sockets
  std::string shm_dir;                             // whose files may be regions
  uint64_t shm_pinned_bytes = uint64_t{16} << 30;  // of such files, whose pages the device may hold
  uint32_t max_inflight_requests = 1024;
  std::optional<uint64_t> max_inflight_bytes;  // absent: 4 x max_message_bytes
  bool batch_invariant = false;
  std::optional<uint32_t> eos_token_id;  // absent: the config's
  uint32_t threads = 0;                  // 0: all cores
  std::optional<absl::Duration> spin;    // absent: as SpinFor says
  bool reflection = false;               // also on listeners that are not local
  AccessFlags access;
  std::string log_level = "info";
  std::string log_format = "text";  // text or json
  bool check = false;
};

struct CommandLine {
  // Set by --help and --version: print it and exit with 0.
  std::optional<std::string> text;
  ServerFlags flags;
};

// `args` without the program's name. `environment` is searched for PLEIAD_<FLAG> (dashes as underscores; lists are
// separated by commas); unknown PLEIAD_ names are refused, those that Kubernetes sets for a service of that name aside.
// InvalidArgument naming the flag, its value and the rule.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& args,
                                             const std::map<std::string, std::string>& environment);

// The process's environment.
std::map<std::string, std::string> ReadEnvironment();

extern const char* const kServerVersion;

}  // namespace pleiad
