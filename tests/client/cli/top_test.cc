// `pleiad top` over pages and a clock of the test's own.
#include "client/cli/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

namespace pleiad::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Page {
  int ready = 1, draining = 0;
  double load_ratio = 1, start_time = 7;
  int tokens = 0, hits = 0, misses = 0, reads = 0, errors = 0;
  int fast = 0, slow = 0;  // steps in the queue: up to 10 ms, up to 20 ms
  double busy = 0;

  std::string Text() const {
    return absl::StrCat(
        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n# HELP pleiad_ready 1 while serving\n# TYPE pleiad_ready "
        "gauge\n"
        "pleiad_ready ",
        ready, "\npleiad_draining ", draining, "\npleiad_load_ratio ", load_ratio,
        "\npleiad_device_info{name=\"cpu\",detail=\"a {brace} and a \\\"quote\\\"\"} 1\npleiad_sequences 3\n"
        "pleiad_sequences_limit 8\npleiad_inflight_requests 2\nprocess_resident_memory_bytes 61112320\n"
        "process_start_time_seconds ",
        start_time, "\npleiad_tokens_total{layer=\"1\"} ", tokens, "\npleiad_tokens_total{layer=\"3\"} ", tokens,
        "\npleiad_row_lookups_total{layer=\"1\",result=\"hit\"} ", hits,
        "\npleiad_row_lookups_total{layer=\"1\",result=\"miss\"} ", misses, "\npleiad_row_read_seconds_count ", reads,
        "\npleiad_row_read_seconds_bucket{le=\"0.001\"} ", reads, "\npleiad_row_read_seconds_bucket{le=\"+Inf\"} ",
        reads, "\npleiad_row_read_errors_total ", errors, "\npleiad_device_busy_seconds_total ", busy,
        "\npleiad_step_phase_seconds_bucket{phase=\"queue\",le=\"0.01\"} ", fast,
        "\npleiad_step_phase_seconds_bucket{phase=\"queue\",le=\"0.02\"} ", fast + slow,
        "\npleiad_step_phase_seconds_bucket{phase=\"queue\",le=\"+Inf\"} ", fast + slow,
        "\npleiad_step_phase_seconds_bucket{phase=\"device\",le=\"+Inf\"} 0\n");
  }
};

// Opens when so many wait at it.
class Gate {
 public:
  explicit Gate(int count) : count_(count) {}

  void Await() {
    MutexLock lock(&mutex_);
    const int round = waited_++ / count_;
    changed_.NotifyAll();
    while (waited_ < (round + 1) * count_) changed_.Wait(&mutex_);
  }

 private:
  const int count_;
  Mutex mutex_;
  CondVar changed_;
  int waited_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<std::string> Refused(absl::Duration patience) {
  return absl::InternalError(absl::StrCat("patience of ", absl::FormatDuration(patience)));
}

// Pages by address, one for each look; the time moves when somebody waits for it, and nobody waits in truth.
class Servers {
 public:
  std::map<std::string, std::deque<absl::StatusOr<std::string>>> pages;
  std::vector<absl::Duration> waits;
  absl::Duration expected_patience = absl::Seconds(1);
  Gate* hold = nullptr;  // of all servers

  absl::Status Run(TopOptions options, std::string* shown) {
    for (const auto& [address, unused] : pages) options.addresses.push_back(address);
    std::ostringstream out;
    const TopDeps deps{.scrape =
                           [this](const std::string& address, absl::Duration patience) {
                             if (hold != nullptr) hold->Await();
                             if (patience != expected_patience) return Refused(patience);
                             auto& left = pages.at(address);
                             absl::StatusOr<std::string> page = left.front();
                             left.pop_front();
                             return page;
                           },
                       .now = [this] { return now_; },
                       .wait_until =
                           [this](absl::Time time) {
                             waits.push_back(time - now_);
                             now_ = time;
                           }};
    const absl::Status status = Top(options, deps, out);
    *shown = out.str();
    return status;
  }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

nlohmann::json ServersOf(const std::string& line) { return nlohmann::json::parse(line)["servers"]; }

TEST(TopHistogram, QuantilesAreThoseOfPrometheus) {
  const TopHistogram histogram{{{0.1, 10}, {0.2, 10}, {0.4, 30}, {kInf, 40}}};
  EXPECT_DOUBLE_EQ(*histogram.Quantile(0.125), 0.05);
  EXPECT_DOUBLE_EQ(*histogram.Quantile(0.5), 0.3);
  EXPECT_DOUBLE_EQ(*histogram.Quantile(0.99), 0.4) << "past the last finite bound";
  EXPECT_EQ((TopHistogram{{{0.1, 0}, {kInf, 0}}}).Quantile(0.5), std::nullopt);
  EXPECT_EQ(TopHistogram().Quantile(0.5), std::nullopt);
}

TEST(Top, ShowsWhatHappenedBetweenTwoLooks) {
  Servers servers;
  servers.expected_patience = absl::Seconds(2);
  Page first, second;
  first.tokens = 1000;
  first.hits = first.misses = 500;
  first.fast = 100;
  second = first;
  second.tokens += 300;
  second.hits += 90;
  second.misses += 10;
  second.reads = 20;
  second.errors = 1;
  second.slow = 100;
  second.busy = 1;
  servers.pages["a:1"] = {first.Text(), second.Text()};
  std::string shown;
  ASSERT_TRUE(
      servers.Run({.addresses = {}, .interval = absl::Seconds(2), .format = TopFormat::kJson, .count = 1}, &shown)
          .ok());
  EXPECT_THAT(servers.waits, ElementsAre(absl::Seconds(2)));
  const nlohmann::json server = ServersOf(shown)[0];
  EXPECT_EQ(server["state"], "serving");
  EXPECT_EQ(server["seconds"], 2);
  EXPECT_EQ(server["tokens_per_second"], 300) << "of both layers";
  EXPECT_EQ(server["hit_rate"], 0.9);
  EXPECT_EQ(server["reads_per_second"], 10);
  EXPECT_EQ(server["read_errors"], 1);
  EXPECT_EQ(server["busy"], 0.5);
  EXPECT_DOUBLE_EQ(server["queue_seconds"]["p50"].get<double>(), 0.015) << "the steps before are no part of it";
  EXPECT_TRUE(server["device_seconds"]["p99"].is_null());
  EXPECT_EQ(server["sequences"], 3);
  EXPECT_EQ(server["resident_bytes"], 61112320);
}

TEST(Top, AServerThatStartedAnewIsShownFromItsStart) {
  Servers servers;
  Page first, second;
  first.tokens = 1000;
  second.tokens = 40;
  second.start_time = 8;
  servers.pages["a:1"] = {first.Text(), second.Text()};
  std::string shown;
  ASSERT_TRUE(servers.Run({.addresses = {}, .format = TopFormat::kJson, .count = 1}, &shown).ok());
  EXPECT_EQ(ServersOf(shown)[0]["tokens_per_second"], 80);
}

TEST(Top, AServerThatIsDownIsNamedAndTheOthersAreSummed) {
  Servers servers;
  Page idle, busy;
  busy.tokens = 50;
  servers.pages["a:1"] = {idle.Text(), busy.Text(), busy.Text()};
  servers.pages["b:2"] = {absl::UnavailableError("nothing answers"), idle.Text(), busy.Text()};
  servers.pages["c:3"] = {idle.Text(), std::string("HTTP/1.1 404 Not Found\r\n\r\n"),
                          absl::UnavailableError("gone again")};
  std::string shown;
  const absl::Status status = servers.Run({.addresses = {}, .format = TopFormat::kJson, .count = 2}, &shown);
  EXPECT_EQ(status, absl::UnavailableError("gone again"));
  std::istringstream lines(shown);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  nlohmann::json seen = ServersOf(line);
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen[0]["tokens_per_second"], 100);
  EXPECT_EQ(seen[1]["tokens_per_second"], 0) << "seen for the first time";
  EXPECT_EQ(seen[2]["state"], "down");
  EXPECT_THAT(seen[2]["error"].get<std::string>(), HasSubstr("not of a pleiad-server"));
  EXPECT_EQ(seen[3]["server"], "all");
  EXPECT_EQ(seen[3]["tokens_per_second"], 100);
  EXPECT_EQ(seen[3]["sequences"], 6);
  ASSERT_TRUE(std::getline(lines, line));
  seen = ServersOf(line);
  EXPECT_EQ(seen[0]["tokens_per_second"], 0);
  EXPECT_EQ(seen[1]["tokens_per_second"], 100);
  EXPECT_EQ(seen[2]["error"], "gone again");
}

TEST(Top, StatesAreNamed) {
  const auto state = [](const Page& page) {
    Servers servers;
    servers.pages["a:1"] = {page.Text(), page.Text()};
    std::string shown;
    EXPECT_TRUE(servers.Run({.addresses = {}, .format = TopFormat::kJson, .count = 1}, &shown).ok());
    return ServersOf(shown)[0]["state"].get<std::string>();
  };
  EXPECT_EQ(state({}), "serving");
  EXPECT_EQ(state({.ready = 0, .load_ratio = 0.5}), "loading");
  EXPECT_EQ(state({.ready = 0, .draining = 1}), "draining");
  EXPECT_EQ(state({.ready = 0}), "not serving");
}

TEST(Top, ATerminalIsRedrawnAndTextGoesOn) {
  for (const TopFormat format : {TopFormat::kTerminal, TopFormat::kText}) {
    Servers servers;
    Page second;
    second.hits = 9;
    second.misses = 1;
    second.fast = 10;
    servers.pages["127.0.0.1:9464"] = {Page().Text(), second.Text(), second.Text()};
    std::string shown;
    ASSERT_TRUE(servers.Run({.addresses = {}, .format = format, .count = 2}, &shown).ok());
    EXPECT_THAT(shown, HasSubstr("90.0%"));
    EXPECT_THAT(shown, HasSubstr("5000us/9900us"));
    EXPECT_THAT(shown, HasSubstr("3/8"));
    EXPECT_THAT(shown, HasSubstr("61.1MB"));
    EXPECT_THAT(shown, Not(HasSubstr("all ")));
    const size_t clears = std::count(shown.begin(), shown.end(), '\x1b');
    EXPECT_EQ(clears, format == TopFormat::kTerminal ? 4u : 0u);
  }
}

TEST(Top, AViewComesAfterEachInterval) {
  Servers servers;
  servers.expected_patience = absl::Seconds(3);
  servers.pages["a:1"] = {Page().Text(), Page().Text(), Page().Text(), Page().Text()};
  std::string shown;
  ASSERT_TRUE(servers.Run({.addresses = {}, .interval = absl::Seconds(3), .count = 3}, &shown).ok());
  EXPECT_THAT(servers.waits, ElementsAre(absl::Seconds(3), absl::Seconds(3), absl::Seconds(3)));
}

TEST(Top, AllServersAreAskedAtTheSameTimeAndNoneForLongerThanFiveSeconds) {
  Gate gate(3);
  Servers servers;
  servers.hold = &gate;
  servers.expected_patience = absl::Seconds(5);
  for (const char* address : {"a:1", "b:2", "c:3"}) servers.pages[address] = {Page().Text(), Page().Text()};
  std::string shown;
  EXPECT_TRUE(servers.Run({.addresses = {}, .interval = absl::Minutes(1), .count = 1}, &shown).ok());
}

TEST(Top, AServerThatHangsIsShownAsSuch) {
  Servers servers;
  const absl::Status late = absl::DeadlineExceededError("metrics at b:2: no answer within 1s");
  servers.pages["a:1"] = {Page().Text(), Page().Text()};
  servers.pages["b:2"] = {late, late};
  std::string shown;
  EXPECT_EQ(servers.Run({.addresses = {}, .count = 1}, &shown), late);
  EXPECT_THAT(shown, HasSubstr("a:1    serving "));
  EXPECT_THAT(shown, HasSubstr("b:2    no answer   metrics at b:2: no answer within 1s\n"));
}

}  // namespace
}  // namespace pleiad::cli
