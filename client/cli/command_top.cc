#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/scrape.h"
#include "client/cli/top.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace pleiad::cli {
namespace {

// Nobody notifies: this waits for the time alone.
void WaitUntil(absl::Time time) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  while (Clock::Real()->Now() < time) Clock::Real()->WaitUntil(&never, &mutex, time);
}

struct TopFlags {
  TopOptions options;
  bool once = false;
  bool json = false;
};

int Run(TopFlags flags) {
  if (flags.once) flags.options.count = 1;
  if (flags.json) {
    flags.options.format = TopFormat::kJson;
  } else if (!flags.once && ::isatty(STDOUT_FILENO) == 1) {
    flags.options.format = TopFormat::kTerminal;
  }
  const TopDeps deps{ScrapePage, [] { return Clock::Real()->Now(); }, WaitUntil};
  const absl::Status status = Top(flags.options, deps, std::cout);
  return status.ok() ? kExitOk : Fail(status);
}

}  // namespace

void AddTop(CLI::App* app, int* exit) {
  auto flags = std::make_shared<TopFlags>();
  flags->options.addresses = {"127.0.0.1:9464"};
  CLI::App* command = app->add_subcommand(
      "top", "Watch servers by their metrics: sequences, tokens/s, hit rate, times of steps and of row reads");
  command->add_option("--metrics", flags->options.addresses, "HOST:PORT of metrics pages, separated by commas")
      ->delimiter(',')
      ->check(MetricsAddressRule())
      ->capture_default_str();
  const auto check = [](const std::string& text) {
    absl::Duration value;
    return absl::ParseDuration(text, &value) && value >= absl::Milliseconds(100) && value < absl::InfiniteDuration()
               ? ""
               : absl::StrCat("'", text, "': must be a time of at least 100ms, as 1s or 500ms");
  };
  command
      ->add_option_function<std::string>(
          "--interval", [flags](const std::string& text) { absl::ParseDuration(text, &flags->options.interval); },
          "time that each view is of")
      ->type_name("DURATION")
      ->check(CLI::Validator(check, ""))
      ->default_str("1s");
  command->add_flag("--once", flags->once,
                    "one view, after one interval; exit code 3 when a server does not answer within another");
  command->add_flag("--json", flags->json, "a line of JSON for each view; times in seconds");
  command->callback([flags, exit] { *exit = Run(*flags); });
}

}  // namespace pleiad::cli
