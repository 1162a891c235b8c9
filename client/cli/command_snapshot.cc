#include <iostream>

#include "client/cli/commands.h"
#include "client/cli/snapshot_file.h"

namespace pleiad::cli {
namespace {

struct SnapshotFlags {
  ServerFlags server;
  uint64_t sequence = 0;
  std::optional<uint32_t> layer_index;
  std::string out;
};

int Run(const SnapshotFlags& flags) {
  absl::StatusOr<client::Client> client = flags.server.Connect();
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<client::Sequence> sequence = client->Attach(client::SequenceId{flags.sequence});
  if (!sequence.ok()) return Fail(sequence.status());
  const absl::StatusOr<client::SequenceSnapshot> snapshot = sequence->Snapshot(flags.layer_index);
  (void)std::move(*sequence).Detach();  // it stays its owner's
  if (!snapshot.ok()) return Fail(snapshot.status());
  if (absl::Status s = WriteSnapshot(flags.out, *snapshot); !s.ok()) return Fail(s);
  for (const client::LayerAux& layer : snapshot->layers) {
    std::cout << "layer " << layer.layer_index << " at position " << layer.position.value_or(0) << ", "
              << layer.aux.size() << " bytes\n";
  }
  return kExitOk;
}

}  // namespace

void AddSnapshot(CLI::App* app, int* exit) {
  auto flags = std::make_shared<SnapshotFlags>();
  CLI::App* command = app->add_subcommand("snapshot", "Write the carries of a live sequence to a file");
  flags->server.AddTo(command);
  command->add_option("--sequence", flags->sequence, "id of the sequence")->required();
  command->add_option("--layer-index", flags->layer_index, "zero-based decoder layer (default: all, at one position)");
  command->add_option("--out", flags->out, "file to write")->required();
  command->callback([flags, exit] { *exit = Run(*flags); });
}

}  // namespace pleiad::cli
