#include "server/log.h"

#include <atomic>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace pleiad {
namespace {

// %J: the message as a JSON string.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string text = "\"";
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') {
        text += '\\';
        text += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        absl::StrAppendFormat(&text, "\\u%04x", static_cast<unsigned>(c));
      } else {
        text += c;
      }
    }
    text += '"';
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessage>(); }
};

// For the threads of libraries, which may outlive spdlog's own registry.
std::atomic<std::shared_ptr<spdlog::logger>*> of_libraries{nullptr};

// Anybody who connects causes failed handshakes, as often as he likes.
void LogOfGrpc(gpr_log_func_args* args) {
  const bool matters =
      args->severity == GPR_LOG_SEVERITY_ERROR && std::strstr(args->file, "ssl_transport_security") == nullptr;
  const auto level = matters ? spdlog::level::warn : spdlog::level::debug;
  (*of_libraries.load())->log(level, "grpc: {}", args->message);
}

// Protobuf complains of what clients send, as often as they send it.
void LogOfProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  (*of_libraries.load())->debug("protobuf: {}", message);
}

}  // namespace

void SetUpLog(const std::string& level, const std::string& format) {
  auto logger = std::make_shared<spdlog::logger>("pleiad", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  if (format == "json") {
    formatter->add_flag<JsonMessage>('J');
    formatter->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":%J})");
  } else {
    formatter->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %l %v");
  }
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  of_libraries.store(new std::shared_ptr<spdlog::logger>(logger));
  gpr_set_log_function(LogOfGrpc);
  google::protobuf::SetLogHandler(LogOfProtobuf);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace pleiad
