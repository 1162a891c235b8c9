#include "server/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "grpc/support/log.h"
#include "nlohmann/json.hpp"
#include "pleiad/v1/ple.pb.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

// What is logged at `level` by a library error, and by a request whose text is not UTF-8.
std::vector<std::string> LinesOfLibraries(const std::string& level) {
  ::testing::internal::CaptureStderr();
  SetUpLog(level, "json");
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // as starting gRPC does
  gpr_log(GPR_ERROR, "Failed \"accept4\"");
  gpr_log("src/core/tsi/ssl_transport_security.cc", 1, GPR_LOG_SEVERITY_ERROR, "Handshake failed");
  v1::OpenSequenceRequest request;
  EXPECT_FALSE(request.ParseFromString("\x0a\x02\xff\xfe"));
  return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
}

TEST(Log, TheLibrariesWriteItsFormatToo) {
  const std::vector<std::string> lines = LinesOfLibraries("debug");
  ASSERT_EQ(lines.size(), 3u);
  const nlohmann::json grpc = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(grpc["level"], "warning");
  EXPECT_EQ(grpc["message"], "grpc: Failed \"accept4\"");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["level"], "debug") << "a failed handshake";
  EXPECT_THAT(nlohmann::json::parse(lines[2])["message"], HasSubstr("label"));
}

TEST(Log, AClientsBadBytesAreNoNews) {
  const std::vector<std::string> lines = LinesOfLibraries("info");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("accept4"));
}

}  // namespace
}  // namespace pleiad
