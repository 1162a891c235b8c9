#include "server/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "server/flag_values.h"

namespace pleiad {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<ServerFlags> Parse(std::vector<std::string> args, const std::map<std::string, std::string>& env = {}) {
  args.insert(args.begin(), {"--model", "m"});
  auto line = ParseCommandLine(args, env);
  if (!line.ok()) return line.status();
  return line->flags;
}

std::string Error(const std::vector<std::string>& args, const std::map<std::string, std::string>& env = {}) {
  const auto flags = Parse(args, env);
  if (flags.ok()) return "";
  EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(flags.status().message());
}

std::string WriteConfig(const std::string& text) {
  const std::string path =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
  std::ofstream(path) << text;
  return path;
}

TEST(Flags, DefaultsSuitALaptop) {
  const auto flags = Parse({});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->listen, ElementsAre("127.0.0.1:50051"));
  EXPECT_EQ(flags->metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(flags->max_tokens, 8192u);
  EXPECT_EQ(flags->max_sequences, 1024u);
  EXPECT_EQ(flags->rollback_tokens, 8u);
  EXPECT_EQ(flags->sequence_ttl, absl::Minutes(10));
  EXPECT_EQ(flags->drain_timeout, absl::Seconds(30));
  EXPECT_EQ(flags->max_inflight_requests, 1024u);
  EXPECT_FALSE(flags->max_inflight_bytes.has_value());
  EXPECT_FALSE(flags->eos_token_id.has_value());
}

TEST(Flags, TheModelIsRequired) {
  const auto line = ParseCommandLine({}, {});
  ASSERT_FALSE(line.ok());
  EXPECT_THAT(line.status().message(), HasSubstr("--model"));
}

TEST(Flags, CommandLineBeatsEnvironmentBeatsFile) {
  const std::string config = WriteConfig("max-tokens = 1\nmax-sequences = 1\nrollback-tokens = 1\n");
  const auto flags = Parse({"--config", config, "--max-tokens=3"},
                           {{"PLEIAD_MAX_TOKENS", "2"}, {"PLEIAD_MAX_SEQUENCES", "2"}, {"HOME", "/"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->max_tokens, 3u);
  EXPECT_EQ(flags->max_sequences, 2u);
  EXPECT_EQ(flags->rollback_tokens, 1u);
}

TEST(Flags, ListsAndSwitchesComeFromEverySource) {
  const auto from_env = Parse({}, {{"PLEIAD_LISTEN", "127.0.0.1:1, unix:/tmp/x"}, {"PLEIAD_REFLECTION", "true"}});
  ASSERT_TRUE(from_env.ok()) << from_env.status();
  EXPECT_THAT(from_env->listen, ElementsAre("127.0.0.1:1", "unix:/tmp/x"));
  EXPECT_TRUE(from_env->reflection);
  const auto from_file =
      Parse({"--config", WriteConfig("listen = [\"[::1]:5\", \"unix:y\"]\nbatch-invariant = true\n")});
  ASSERT_TRUE(from_file.ok()) << from_file.status();
  EXPECT_THAT(from_file->listen, ElementsAre("[::1]:5", "unix:y"));
  EXPECT_TRUE(from_file->batch_invariant);
}

TEST(Flags, TheConfigFileCanComeFromTheEnvironment) {
  const auto flags = Parse({}, {{"PLEIAD_CONFIG", WriteConfig("max-tokens = 5\n")}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->max_tokens, 5u);
}

TEST(Flags, UnknownNamesAreRefusedEverywhere) {
  EXPECT_NE(Error({"--max-token", "1"}), "");
  EXPECT_NE(Error({"stray"}), "");
  EXPECT_THAT(Error({"--config", WriteConfig("max-token = 1\n")}), HasSubstr("'max-token' names no flag"));
  EXPECT_THAT(Error({}, {{"PLEIAD_MAX_TOKEN", "1"}}), HasSubstr("PLEIAD_MAX_TOKEN"));
  EXPECT_NE(Error({"--config", "/nonexistent.toml"}), "");
}

TEST(Flags, AnEmptyVariableIsAsUnset) {
  const auto flags = Parse({}, {{"PLEIAD_MAX_TOKENS", ""}, {"PLEIAD_LISTEN", ""}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->max_tokens, 8192u);
  EXPECT_EQ(flags->listen.size(), 1u);
}

TEST(Flags, TheClientsVariablesAreNoFlags) {
  EXPECT_TRUE(Parse({}, {{"PLEIAD_SERVER", "127.0.0.1:1"},
                         {"PLEIAD_TIMEOUT", "5"},
                         {"PLEIAD_TLS_CA", "ca.pem"},
                         {"PLEIAD_TOKEN_FILE", "token"}})
                  .ok());
}

TEST(Flags, KubernetesServiceVariablesAreNoFlags) {
  EXPECT_TRUE(Parse({}, {{"PLEIAD_SERVICE_HOST", "10.0.0.1"},
                         {"PLEIAD_PORT", "tcp://10.0.0.1:1"},
                         {"PLEIAD_PORT_1_TCP_ADDR", "10.0.0.1"}})
                  .ok());
}

TEST(Flags, TheDeviceIsChosen) {
  struct Case {
    const char* value;
    DeviceFlag device;
    uint32_t ordinal;
  };
  for (const Case& c :
       {Case{"auto", DeviceFlag::kAuto, 0}, Case{"cpu", DeviceFlag::kCpu, 0}, Case{"cuda", DeviceFlag::kCuda, 0},
        Case{"cuda:0", DeviceFlag::kCuda, 0}, Case{"cuda:12", DeviceFlag::kCuda, 12}}) {
    const auto flags = Parse({"--device", c.value});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->device, c.device) << c.value;
    EXPECT_EQ(flags->cuda_ordinal, c.ordinal) << c.value;
  }
  EXPECT_EQ(Parse({})->device, DeviceFlag::kAuto);
  for (const char* bad : {"", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda: 1", "cuda:1x", "cuda:4294967296", "cuda1"}) {
    EXPECT_THAT(Error({"--device", bad}), HasSubstr("--device")) << bad;
  }
}

TEST(Flags, TheTableAndItsReaderAreChosen) {
  const auto flags = Parse({"--table", "cached", "--cache-bytes", "1GiB", "--reader", "io_uring", "--direct", "require",
                            "--read-timeout", "250ms", "--state-dir", "/var/lib/pleiad"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->table, TableFlag::kCached);
  EXPECT_EQ(flags->cache_bytes, uint64_t{1} << 30);
  EXPECT_EQ(flags->reader, "io_uring");
  EXPECT_EQ(flags->direct, "require");
  EXPECT_EQ(flags->read_timeout, absl::Milliseconds(250));
  EXPECT_EQ(flags->state_dir, "/var/lib/pleiad");
  EXPECT_THAT(Error({"--reader", "pread", "--direct", "require"}), HasSubstr("--direct require"));
  EXPECT_THAT(Error({"--read-timeout", "0s"}), HasSubstr("--read-timeout"));
  EXPECT_EQ(flags->spin, std::nullopt);
  EXPECT_EQ(Parse({"--spin", "1ms"})->spin, absl::Milliseconds(1));
  EXPECT_EQ(Parse({"--spin", "0"})->spin, absl::ZeroDuration());
  EXPECT_THAT(Error({"--spin", "-1us"}), HasSubstr("--spin"));
  EXPECT_THAT(Error({"--spin", "soon"}), HasSubstr("--spin 'soon'"));
  for (const auto& args : std::vector<std::vector<std::string>>{{"--table", "auto"},
                                                                {"--table", "resident"},
                                                                {"--reader", "pread"},
                                                                {"--direct", "off"},
                                                                {"--direct", "auto"},
                                                                {"--device", "cpu"}}) {
    EXPECT_EQ(Error(args), "");
  }
}

TEST(Flags, RegionsNeedAUnixSocketAndAFolder) {
  const auto parse = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"--model", "m", "--allow-client-regions"});
    return ParseCommandLine(args, {});
  };
  EXPECT_THAT(std::string(parse({"--listen", "unix:s"}).status().message()), HasSubstr("needs a --shm-dir"));
  EXPECT_THAT(std::string(parse({"--shm-dir", "d"}).status().message()), HasSubstr("needs a --listen unix:PATH"));
  const auto line = parse({"--shm-dir", "d", "--listen", "unix:s"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_TRUE(line->flags.allow_client_regions);
  EXPECT_EQ(line->flags.shm_dir, "d");
  EXPECT_EQ(line->flags.shm_pinned_bytes, uint64_t{16} << 30);
  for (const auto& [text, bytes] : {std::pair<const char*, uint64_t>{"0", 0}, {"2GiB", uint64_t{2} << 30}}) {
    const auto sized = parse({"--shm-dir", "d", "--listen", "unix:s", "--shm-pinned-bytes", text});
    ASSERT_TRUE(sized.ok()) << sized.status();
    EXPECT_EQ(sized->flags.shm_pinned_bytes, bytes);
  }
  EXPECT_THAT(
      std::string(parse({"--shm-dir", "d", "--listen", "unix:s", "--shm-pinned-bytes", "many"}).status().message()),
      HasSubstr("--shm-pinned-bytes 'many' is no size"));
}

TEST(Flags, BadValuesAreRefusedByName) {
  for (const auto& args : std::vector<std::vector<std::string>>{{"--device", "tpu"},
                                                                {"--table", "big"},
                                                                {"--reader", "mmap"},
                                                                {"--direct", "on"},
                                                                {"--max-tokens", "0"},
                                                                {"--max-tokens", "-1"},
                                                                {"--max-tokens", "x"},
                                                                {"--max-sequences", "0"},
                                                                {"--eos-token-id", "-1"},
                                                                {"--sequence-ttl", "10"},
                                                                {"--sequence-ttl", "0s"},
                                                                {"--drain-timeout", "-1s"},
                                                                {"--max-inflight-bytes", "4 apples"},
                                                                {"--cache-bytes", "x"},
                                                                {"--log-level", "loud"},
                                                                {"--log-format", "xml"},
                                                                {"--metrics-listen", "unix:/x"}}) {
    EXPECT_THAT(Error(args), HasSubstr(args[0])) << args[1];
  }
  EXPECT_THAT(Error({"--listen", "localhost"}), HasSubstr("HOST:PORT"));
}

TEST(Flags, HelpNamesEveryFlagAndDefault) {
  const auto line = ParseCommandLine({"--help"}, {});
  ASSERT_TRUE(line.ok());
  for (const char* text : {"--model",
                           "--listen",
                           "--metrics-listen",
                           "--device",
                           "--table",
                           "--cache-bytes",
                           "--max-tokens",
                           "--max-sequences",
                           "--rollback-tokens",
                           "--sequence-ttl",
                           "--drain-timeout",
                           "--read-timeout",
                           "--reader",
                           "--direct",
                           "--max-inflight-requests",
                           "--max-inflight-bytes",
                           "--batch-invariant",
                           "--eos-token-id",
                           "--threads",
                           "--reflection",
                           "--log-level",
                           "--log-format",
                           "--check",
                           "--version",
                           "--config",
                           "8192",
                           "1024",
                           "10m",
                           "30s",
                           "5s",
                           "127.0.0.1:50051",
                           "127.0.0.1:9464"}) {
    EXPECT_THAT(*line->text, HasSubstr(text));
  }
  const auto version = ParseCommandLine({"--version"}, {});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(*version->text, HasSubstr(kServerVersion));
}

TEST(Sizes, TakeBinaryAndDecimalUnits) {
  const auto size = [](const char* text) { return ParseSize(text).value_or(0); };
  EXPECT_EQ(size("4GiB"), 4ull << 30);
  EXPECT_EQ(size("512MiB"), 512ull << 20);
  EXPECT_EQ(size("1e9"), 1'000'000'000u);
  EXPECT_EQ(size("1.5KiB"), 1536u);
  EXPECT_EQ(size("2 GB"), 2'000'000'000u);
  EXPECT_EQ(size("7B"), 7u);
  for (const char* bad : {"", "GiB", "0", "-1", "nan", "inf", "1e30", "1XiB", "1GiBs"}) EXPECT_EQ(size(bad), 0u) << bad;
  EXPECT_EQ(FormatSize(999), "999 B");
  EXPECT_EQ(FormatSize(51'200'000'000), "51.2 GB");
}

}  // namespace
}  // namespace pleiad
