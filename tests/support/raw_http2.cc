#include "tests/support/raw_http2.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

namespace pleiad::testing {
namespace {

std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

uint32_t ReadBigEndian(const std::string& bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
  return value;
}

// HPACK: a literal that is not remembered.
std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
}

UniqueFd ConnectTo(const std::string& address) {
  sockaddr_un local{};
  sockaddr_in inet{};
  const sockaddr* to = nullptr;
  socklen_t size = 0;
  if (address.rfind("unix:", 0) == 0) {
    local.sun_family = AF_UNIX;
    std::strncpy(local.sun_path, address.c_str() + 5, sizeof(local.sun_path) - 1);
    to = reinterpret_cast<const sockaddr*>(&local);
    size = sizeof(local);
  } else {
    inet.sin_family = AF_INET;
    inet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    inet.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to = reinterpret_cast<const sockaddr*>(&inet);
    size = sizeof(inet);
  }
  UniqueFd fd(::socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), to, size) != 0) return UniqueFd();
  return fd;
}

}  // namespace

RawHttp2::RawHttp2(const std::string& address, uint32_t window) : fd_(ConnectTo(address)) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  (void)::send(fd_.get(), preface.data(), preface.size(), MSG_NOSIGNAL);
  (void)Send(kSettings, 0, 0, BigEndian(4, 2) + BigEndian(window, 4));
}

void RawHttp2::Call(uint32_t stream, const std::string& method, const std::string& timeout) {
  std::string headers = Header(":method", "POST") + Header(":scheme", "http") + Header(":path", method) +
                        Header(":authority", "localhost") + Header("te", "trailers") +
                        Header("content-type", "application/grpc");
  if (!timeout.empty()) headers += Header("grpc-timeout", timeout);
  stream_ = stream;
  stream_window_ = initial_window_;
  (void)Send(kHeaders, kEndHeaders, stream, headers);
}

bool RawHttp2::SendPart(uint32_t stream, const std::string& message, size_t count) {
  constexpr size_t kMaxFrame = 16384;
  const std::string prefix = std::string(1, '\0') + BigEndian(message.size(), 4);
  for (size_t at = 0; at < count;) {
    const int64_t window = std::min(connection_window_, stream_window_);
    if (window <= 0) {
      const Frame frame = ReadFrame();
      if (frame.type == kClosed || frame.type == kReset || frame.type == kGoAway) return false;
      if (!Consume(frame) && (frame.flags & kEndStream) != 0) return false;
      continue;
    }
    const size_t end = std::min({count, at + kMaxFrame, at + static_cast<size_t>(window)});
    std::string part = at < 5 ? prefix.substr(at, std::min(end, size_t{5}) - at) : "";
    if (end > 5) part += message.substr(std::max(at, size_t{5}) - 5, end - std::max(at, size_t{5}));
    if (!Send(kData, 0, stream, part)) return false;
    connection_window_ -= static_cast<int64_t>(part.size());
    stream_window_ -= static_cast<int64_t>(part.size());
    at = end;
  }
  return true;
}

void RawHttp2::OpenWindow(uint32_t stream, uint32_t bytes) { (void)Send(kWindow, 0, stream, BigEndian(bytes, 4)); }

void RawHttp2::Ping() { (void)Send(kPing, 0, 0, std::string(8, 'p')); }

RawHttp2::Frame RawHttp2::Read() {
  while (true) {
    Frame frame = ReadFrame();
    if (!Consume(frame)) return frame;
  }
}

RawHttp2::Frame RawHttp2::ReadToEnd(uint32_t stream) {
  while (true) {
    Frame frame = Read();
    if (frame.type == kClosed) return frame;
    if (frame.stream == stream && (frame.type == kReset || (frame.flags & kEndStream) != 0)) return frame;
  }
}

bool RawHttp2::Send(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  const std::string bytes = BigEndian(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
                            BigEndian(stream, 4) + payload;
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = ::send(fd_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

RawHttp2::Frame RawHttp2::ReadFrame() {
  const auto receive = [this](size_t size) {
    std::string bytes(size, '\0');
    for (size_t at = 0; at < size;) {
      const ssize_t got = ::recv(fd_.get(), bytes.data() + at, size - at, 0);
      if (got <= 0) return std::string();
      at += static_cast<size_t>(got);
    }
    return bytes;
  };
  const std::string head = receive(9);
  if (head.empty()) return {};
  Frame frame{.type = static_cast<uint8_t>(head[3]),
              .flags = static_cast<uint8_t>(head[4]),
              .stream = ReadBigEndian(head, 5, 4),
              .payload = ""};
  const uint32_t size = ReadBigEndian(head, 0, 3);
  if (size > 0) frame.payload = receive(size);
  return frame;
}

bool RawHttp2::Consume(const Frame& frame) {
  if (frame.type == kWindow) {
    const uint32_t more = ReadBigEndian(frame.payload, 0, 4);
    if (frame.stream == 0) connection_window_ += more;
    if (frame.stream != 0 && frame.stream == stream_) stream_window_ += more;
    return true;
  }
  if (frame.type == kSettings) {
    if ((frame.flags & kAck) != 0) return true;
    for (size_t at = 0; at + 6 <= frame.payload.size(); at += 6) {
      if (ReadBigEndian(frame.payload, at, 2) != 4) continue;
      const int64_t window = ReadBigEndian(frame.payload, at + 2, 4);
      stream_window_ += window - initial_window_;
      initial_window_ = window;
    }
    (void)Send(kSettings, kAck, 0, "");
    return true;
  }
  if (frame.type != kPing || (frame.flags & kAck) != 0) return false;
  (void)Send(kPing, kAck, 0, frame.payload);
  return true;
}

}  // namespace pleiad::testing
