// Opens sequences and steps some of them, says so, and waits to be killed.
//   e2e_abandoning_client ADDRESS COUNT
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/client.h"

int main(int argc, char** argv) {
  using pleiad::client::Client;
  using pleiad::client::Sequence;
  uint32_t count = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &count)) return 2;
  absl::StatusOr<Client> client = Client::Connect({.address = argv[1]});
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  const auto stream = *client->OpenStream();
  std::vector<Sequence> sequences;
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<Sequence> sequence = client->OpenSequence();
    if (!sequence.ok()) {
      std::fprintf(stderr, "open %u: %s\n", i, sequence.status().ToString().c_str());
      return 1;
    }
    sequences.push_back(*std::move(sequence));
    if (i % 16 != 0) continue;
    pleiad::client::Step step{.segments = {{.sequence = &sequences.back(), .num_tokens = 3}}, .token_ids = {1, 2, 3}};
    step.highway.zeros = true;
    if (const auto result = stream->Run(std::move(step)); !result.ok()) {
      std::fprintf(stderr, "step %u: %s\n", i, result.status().ToString().c_str());
      return 1;
    }
  }
  std::puts("opened");
  std::fflush(stdout);
  while (true) ::pause();
}
