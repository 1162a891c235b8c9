// What a load sends its requests through.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/replicated_client.h"

namespace pleiad::cli {

enum class Transport : uint8_t {
  kInline,     // tensors in the messages, F32 and HIGHWAY
  kBf16Delta,  // the same, BF16 and DELTA
  kShm,        // as kInline, in memory shared with the server
  kEcho,       // messages of the size of kInline to a server that sends them back: tests/bench/bench_server
  kEcho64,     // the same, of 64 bytes
};

// By its name; InvalidArgument on what is not built too.
absl::StatusOr<Transport> ParseTransport(const std::string& text);
const char* Name(Transport transport);
// Of a tensor's value.
size_t ValueBytes(Transport transport);

constexpr bool IsEcho(Transport transport) { return transport == Transport::kEcho || transport == Transport::kEcho64; }

// Some sequences' request, one in flight.
struct BenchRequest {
  std::optional<uint32_t> layer_index = {};
  uint32_t tokens_per_step = 1;
  std::vector<client::Sequence> sequences = {};             // of one server; none of kEcho
  std::vector<client::ReplicatedSequence> replicated = {};  // of several
  std::vector<uint32_t> token_ids = {};
  absl::Span<std::byte> highway = {};
  std::shared_ptr<const void> owner = {};             // of the highway
  std::shared_ptr<client::SharedRegion> region = {};  // of kShm: the highway, and behind it the output
};

struct BenchAnswer {
  client::StepStats stats = {};  // zeros of kEcho
  uint64_t checksum = 0;         // MarkSum of the output
  std::chrono::steady_clock::time_point arrival = {};
};

// Thread-safe.
class BenchStream {
 public:
  using Callback = std::function<void(absl::StatusOr<BenchAnswer>)>;

  virtual ~BenchStream() = default;  // not inside a callback

  // Opens `count` sequences for `request`; none of kEcho.
  virtual absl::Status Open(BenchRequest* request, uint32_t count) = 0;

  // `request` stays as it is until `done` is called, once; that may send, and must not block.
  virtual void Send(BenchRequest* request, Callback done) = 0;
};

// `address`: the server's, of kEcho.
absl::StatusOr<std::unique_ptr<BenchStream>> OpenBenchStream(client::Client* client, Transport transport,
                                                             const std::string& address);
// Over several servers; `client` outlives it.
std::unique_ptr<BenchStream> OverReplicas(client::ReplicatedClient* client, Transport transport);

}  // namespace pleiad::cli
