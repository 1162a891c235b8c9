#include <iostream>

#include "client/cli/commands.h"
#include "client/cli/snapshot_file.h"

namespace pleiad::cli {
namespace {

struct RestoreFlags {
  ServerFlags server;
  std::string in;
  std::optional<uint64_t> sequence;
  std::string label = "pleiad restore";
};

int Run(const RestoreFlags& flags) {
  const absl::StatusOr<client::SequenceSnapshot> snapshot = ReadSnapshot(flags.in);
  if (!snapshot.ok()) return Fail(snapshot.status());
  absl::StatusOr<client::Client> client = flags.server.Connect();
  if (!client.ok()) return Fail(client.status());
  client::OpenOptions open;
  open.label = flags.label;
  open.model_id = snapshot->model_id;
  open.layers = snapshot->layers;
  absl::StatusOr<client::Sequence> sequence =
      flags.sequence.has_value() ? client->Attach(client::SequenceId{*flags.sequence}) : client->OpenSequence(open);
  if (!sequence.ok()) return Fail(sequence.status());
  const absl::Status restored = flags.sequence.has_value() ? sequence->Restore(*snapshot) : absl::OkStatus();
  const client::SequenceId id = std::move(*sequence).Detach();
  if (!restored.ok()) return Fail(restored);
  std::cout << static_cast<uint64_t>(id) << "\n";
  return kExitOk;
}

}  // namespace

void AddRestore(CLI::App* app, int* exit) {
  auto flags = std::make_shared<RestoreFlags>();
  CLI::App* command = app->add_subcommand(
      "restore", "Read carries from a file into a new or a live sequence, and print its id; it is not released");
  flags->server.AddTo(command);
  command->add_option("--in", flags->in, "file that snapshot wrote")->required();
  command->add_option("--sequence", flags->sequence, "id of a live sequence to overwrite (default: open a new one)");
  command->add_option("--label", flags->label, "of a new sequence, for the server's log")->capture_default_str();
  command->callback([flags, exit] { *exit = Run(*flags); });
}

}  // namespace pleiad::cli
