#include "tests/support/process/server_process.h"

#include <algorithm>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/support/device_choice.h"

namespace pleiad::testing {

ServerProcess::ServerProcess(const std::string& model, const std::string& listen, const std::vector<std::string>& flags,
                             const std::vector<std::string>& launcher)
    : child([&] {
        const auto names = [&flags](const char* flag) {
          return std::find(flags.begin(), flags.end(), flag) != flags.end();
        };
        std::vector<std::string> command = launcher;
        command.insert(command.end(), {PLEIAD_SERVER_BINARY, "--model", model, "--listen", listen});
        command.insert(command.end(), {"--metrics-listen", "127.0.0.1:0"});
        if (!names("--table")) command.insert(command.end(), {"--table", "resident"});
        if (!names("--device")) {
          command.insert(command.end(), {"--device", ChosenTestDevice() == TestDevice::kCuda ? "cuda" : "cpu"});
        }
        command.insert(command.end(), flags.begin(), flags.end());
        return command;
      }()) {}

bool ServerProcess::WaitUntilReady() {
  const std::optional<std::string> line = child.ReadOutputLine();
  if (!line) return false;
  // "pleiad-server ready ADDRESS metrics HOST:PORT"
  const std::vector<std::string> words = absl::StrSplit(*line, ' ');
  if (words.size() != 5 || words[1] != "ready") return false;
  address = words[2];
  uint32_t port = 0;
  if (!absl::SimpleAtoi(words[4].substr(words[4].rfind(':') + 1), &port)) return false;
  metrics_port = static_cast<uint16_t>(port);
  return true;
}

}  // namespace pleiad::testing
