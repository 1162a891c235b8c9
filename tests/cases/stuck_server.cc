// A server with a row cache over a reader that never ends a read and cannot be destroyed either, once it has one.
//   stuck_server MODEL
// Prints its address, then "stuck" with the first read.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "server/checkpoint_loader.h"
#include "server/log.h"
#include "server/server.h"
#include "server/signals.h"

namespace pleiad {
namespace {

class StuckReader : public RowReader {
 public:
  explicit StuckReader(RowReaderInfo info) : info_(std::move(info)) {}
  ~StuckReader() override {
    while (true) ::pause();
  }
  const RowReaderInfo& info() const override { return info_; }
  void Submit(absl::Span<const RowRead>, ResultFn) override {
    std::puts("stuck");
    std::fflush(stdout);
  }

 private:
  const RowReaderInfo info_;
};

int Main(const char* model) {
  BlockSignals();
  ServerFlags flags;
  SetUpLog(flags.log_level, flags.log_format);
  flags.model = model;
  flags.listen = {"127.0.0.1:0"};
  flags.metrics_listen = "127.0.0.1:0";
  flags.device = DeviceFlag::kCpu;
  flags.table = TableFlag::kCached;
  flags.cache_bytes = 0;
  flags.max_tokens = 64;
  flags.max_sequences = 8;
  flags.drain_timeout = absl::ZeroDuration();
  CacheParts parts;
  parts.wrap_reader = [](std::unique_ptr<RowReader> inner) { return std::make_unique<StuckReader>(inner->info()); };
  auto server = Server::Start(flags, {.clock = nullptr,
                                      .loader = std::make_unique<CheckpointLoader>(flags, nullptr, std::move(parts)),
                                      .on_ready =
                                          [](const ReadyInfo& info) {
                                            std::puts(info.addresses.front().ToString().c_str());
                                            std::fflush(stdout);
                                          },
                                      .hard_exit = nullptr});
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return kExitRefused;
  }
  auto signals = SignalThread::Start({.stop = [raw = server->get()] { raw->Terminate(); }, .reload = [] {}});
  if (!signals.ok()) return kExitRefused;
  return (*server)->Wait();
}

}  // namespace
}  // namespace pleiad

int main(int argc, char** argv) { return argc == 2 ? pleiad::Main(argv[1]) : 2; }
