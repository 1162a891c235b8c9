#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/check.h"
#include "server/checkpoint_loader.h"
#include "server/file_limit.h"
#include "server/flags.h"
#include "server/log.h"
#include "server/server.h"
#include "server/signals.h"

namespace pleiad {
namespace {

void PrintReady(const ReadyInfo& info) {
  std::string line = "pleiad-server ready";
  for (const ListenAddress& address : info.addresses) absl::StrAppend(&line, " ", address.ToString());
  absl::StrAppend(&line, " metrics ", info.metrics.ToString(), "\n");
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

int Serve(const ServerFlags& flags) {
  spdlog::info("pleiad-server {} starting", kServerVersion);
  auto server = Server::Start(flags, {.clock = nullptr,
                                      .loader = std::make_unique<CheckpointLoader>(flags, nullptr),
                                      .on_ready = PrintReady,
                                      .hard_exit = nullptr});
  if (!server.ok()) {
    spdlog::error("refused to start: {}", server.status().ToString());
    return kExitRefused;
  }
  auto signals = SignalThread::Start([raw = server->get()] { raw->Terminate(); });
  if (!signals.ok()) {
    spdlog::error("signals: {}", signals.status().ToString());
    (*server)->Terminate();
  }
  return (*server)->Wait();
}

int Main(int argc, char** argv) {
  BlockSignals();
  const auto line = ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc), ReadEnvironment());
  if (!line.ok()) {
    std::cerr << "pleiad-server: " << line.status().message() << "\n";
    return kExitBadFlags;
  }
  if (line->text) {
    std::cout << *line->text;
    return 0;
  }
  SetUpLog(line->flags.log_level, line->flags.log_format);
  RaiseOpenFileLimit();
  if (!line->flags.check) return Serve(line->flags);
  if (const absl::Status status = Check(line->flags, std::cout); !status.ok()) {
    std::cerr << "pleiad-server: " << status.ToString() << "\n";
    return kExitRefused;
  }
  return 0;
}

}  // namespace
}  // namespace pleiad

int main(int argc, char** argv) { return pleiad::Main(argc, argv); }
