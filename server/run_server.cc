#include "server/run_server.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/freed_memory.h"
#include "server/check.h"
#include "server/file_limit.h"
#include "server/flags.h"
#include "server/log.h"
#include "server/server.h"
#include "server/service_manager.h"
#include "server/signals.h"

namespace pleiad {
namespace {

void PrintReady(const ReadyInfo& info) {
  std::string line = "pleiad-server ready";
  for (const ListenAddress& address : info.addresses) absl::StrAppend(&line, " ", address.ToString());
  if (info.health) absl::StrAppend(&line, " health ", info.health->ToString());
  absl::StrAppend(&line, " metrics ", info.metrics.ToString(), "\n");
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

int Serve(const ServerFlags& flags, ServerParts parts) {
  auto created = ServiceManager::Create(ReadEnvironment(), Clock::Real());
  if (!created.ok()) {
    spdlog::error("refused to start: {}", created.status().ToString());
    return kExitRefused;
  }
  ServiceManager* const manager = created->get();  // null where nobody wants to be told
  spdlog::info("pleiad-server {} starting", kServerVersion);
  auto server = Server::Start(
      flags, {.clock = nullptr,
              .loader = std::make_unique<CheckpointLoader>(flags, nullptr, CacheParts{}, std::move(parts.wrap_device)),
              .on_ready =
                  [manager](const ReadyInfo& info) {
                    PrintReady(info);
                    if (manager != nullptr) manager->Ready();
                  },
              .hard_exit = nullptr,
              .make_generic = std::move(parts.make_generic)});
  if (!server.ok()) {
    spdlog::error("refused to start: {}", server.status().ToString());
    return kExitRefused;
  }
  auto signals = SignalThread::Start(
      {.stop =
           [raw = server->get(), manager] {
             if (manager != nullptr) manager->Stopping();
             raw->Terminate();
           },
       .reload =
           [] { spdlog::info("SIGHUP: nothing to do, certificates and tokens are read again when they change"); }});
  if (!signals.ok()) {
    spdlog::error("signals: {}", signals.status().ToString());
    (*server)->Terminate();
  }
  if (manager != nullptr) {
    manager->Watch([raw = server->get(), timeout = manager->watchdog() / 4] { return raw->CheckLive(timeout); });
  }
  const int exit_code = (*server)->Wait();
  if (manager != nullptr) manager->StopWatching();
  return exit_code;
}

}  // namespace

int RunServer(int argc, char** argv, ServerParts parts) {
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
  LimitArenas();
  KeepFreedMemory();
  if (!line->flags.check) return Serve(line->flags, std::move(parts));
  if (const absl::Status status = Check(line->flags, std::cout); !status.ok()) {
    std::cerr << "pleiad-server: " << status.ToString() << "\n";
    return kExitRefused;
  }
  return 0;
}

}  // namespace pleiad
