#include <iostream>

#include "absl/strings/str_join.h"
#include "client/cli/commands.h"

namespace pleiad::cli {
namespace {

int Run(const ServerFlags& server) {
  const absl::StatusOr<client::Client> client = server.Connect();
  if (!client.ok()) return Fail(client.status());
  const client::ModelInfo& model = client->model();
  std::cout << "server         " << model.server_version << " on " << model.device << ", table " << model.table_mode
            << "\n"
            << "capabilities   " << absl::StrJoin(model.capabilities, " ") << "\n"
            << "model          " << model.model_id << "\n"
            << "geometry       hidden " << model.hidden_size << ", streams " << model.hc_count << ", channels "
            << model.channels << ", embedding " << model.ple_embed_dim << ", conv kernel " << model.ple_conv_kernel_size
            << ", ngram " << model.ngram_size << ", heads " << model.heads() << " of " << model.head_dim << "\n"
            << "tokens         vocabulary " << model.vocab_size << ", EOS " << model.eos_token_id;
  if (model.image_token_id.has_value()) std::cout << ", image " << *model.image_token_id;
  if (model.video_token_id.has_value()) std::cout << ", video " << *model.video_token_id;
  std::cout << "\n";
  for (const client::LayerInfo& layer : model.layers) {
    std::cout << "layer " << layer.layer_index << "        " << layer.rows << " rows of " << layer.row_dtype
              << ", snapshot of " << layer.aux_bytes << " bytes\n";
  }
  std::cout << "limits         " << model.max_tokens << " tokens a request, " << model.max_sequences << " sequences, "
            << model.rollback_tokens << " rollback tokens, " << model.max_message_bytes << " bytes a message\n";
  return kExitOk;
}

}  // namespace

void AddInfo(CLI::App* app, int* exit) {
  auto server = std::make_shared<ServerFlags>();
  CLI::App* command = app->add_subcommand("info", "Print what the server serves, and its limits");
  server->AddTo(command);
  command->callback([server, exit] { *exit = Run(*server); });
}

}  // namespace pleiad::cli
