// A gRPC client of frames and bytes, for what no real client does: it reads when told to, stops inside a message, keeps
// its windows shut.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/unique_fd.h"

namespace pleiad::testing {

class RawHttp2 {
 public:
  struct Frame {
    uint8_t type = 0xff;  // kClosed: the connection has ended
    uint8_t flags = 0;
    uint32_t stream = 0;
    std::string payload;
  };
  static constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7, kWindow = 8;
  static constexpr uint8_t kClosed = 0xff;
  static constexpr uint8_t kAck = 1, kEndStream = 1, kEndHeaders = 4;

  // Connects to "127.0.0.1:PORT" or "unix:PATH" and sends its settings. `window`: what the server may send on each
  // stream unread.
  RawHttp2(const std::string& address, uint32_t window);

  // Begins a call of "/package.Service/Method". `timeout` as gRPC writes it ("1S"); empty: none.
  void Call(uint32_t stream, const std::string& method, const std::string& timeout = "");
  // The first `count` bytes of a message, gRPC's five in front included, of one of `message.size() + 5`. Waits for
  // the server to open its windows. False: the server has ended the stream or the connection.
  bool SendPart(uint32_t stream, const std::string& message, size_t count);
  bool SendWhole(uint32_t stream, const std::string& message) { return SendPart(stream, message, message.size() + 5); }
  // Lets the server send `bytes` more on `stream`.
  void OpenWindow(uint32_t stream, uint32_t bytes);
  void Ping();
  // Blocks for the next frame that is not about settings or windows; pings are acknowledged.
  Frame Read();
  // Reads until the server has ended `stream`: by trailers, a reset or the connection's end.
  Frame ReadToEnd(uint32_t stream);

 private:
  bool Send(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload);
  Frame ReadFrame();
  // Acts on settings, windows and pings. True: it was one of those.
  bool Consume(const Frame& frame);

  UniqueFd fd_;
  int64_t connection_window_ = 65535, stream_window_ = 65535;  // of the last stream that was begun
  int64_t initial_window_ = 65535;
  uint32_t stream_ = 0;
};

}  // namespace pleiad::testing
