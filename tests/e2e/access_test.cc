// Who is let in by tokens, sockets' modes and the listener of health; certificates that are replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/e2e/access_fixture.h"
#include "tests/e2e/metrics_page.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kGetModel[] = "/pleiad.v1.Ple/GetModel", kHealth[] = "/grpc.health.v1.Health/Check";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr auto kBadOption = absl::StatusCode::kInvalidArgument;

std::vector<std::string> AllMethods() {
  std::vector<std::string> methods{kReflection, "/no.such.Service/Method"};
  const google::protobuf::ServiceDescriptor* service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("pleiad.v1.Ple");
  for (int i = 0; i < service->method_count(); ++i) methods.push_back("/pleiad.v1.Ple/" + service->method(i)->name());
  return methods;
}

TEST(Access, EveryRpcButHealthNeedsAToken) {
  const AccessFixture fixture;
  const auto server = fixture.Start([&](ServerFlags& flags) {
    fixture.UseTls(flags);
    flags.access.auth_tokens = fixture.tokens;
  });
  const Shown shown{.ca = fixture.authority.cert()};
  for (const auto& channel : {server->channel(), ChannelAs(AccessFixture::PortOf(*server), shown)}) {
    for (const std::string& method : AllMethods()) {
      EXPECT_EQ(CodeOf(channel, method), grpc::StatusCode::UNAUTHENTICATED) << method;
      EXPECT_EQ(CodeOf(channel, method, kOtherToken), grpc::StatusCode::UNAUTHENTICATED) << method;
      EXPECT_NE(CodeOf(channel, method, kToken), grpc::StatusCode::UNAUTHENTICATED) << method;
    }
    EXPECT_NE(CodeOf(channel, kHealth), grpc::StatusCode::UNAUTHENTICATED);
  }
  const std::string page = ScrapeMetrics(server->metrics_port());
  EXPECT_EQ(MetricValue(page, "pleiad_rpc_requests_total{rpc=\"Forward\",code=\"UNAUTHENTICATED\"}"), 4);
  const double calls = 2.0 * static_cast<double>(AllMethods().size());
  EXPECT_EQ(MetricValue(page, "pleiad_token_refusals_total{reason=\"missing\"}"), calls);
  EXPECT_EQ(MetricValue(page, "pleiad_token_refusals_total{reason=\"unknown\"}"), calls);
}

TEST(Access, TheClientShowsItsTokenWithEveryCall) {
  const AccessFixture fixture;
  const auto server = fixture.Start([&](ServerFlags& flags) {
    fixture.UseTls(flags);
    flags.access.auth_tokens = fixture.tokens;
  });
  client::ClientOptions options = fixture.OptionsFor(*server);
  EXPECT_THAT(client::Client::Connect(options), FailsWith(absl::StatusCode::kUnauthenticated, "authorization"));
  options.token_file = fixture.token_file;
  auto client = client::Client::Connect(options);
  ASSERT_THAT(client, IsOk());
  auto sequence = client->OpenSequence();
  ASSERT_THAT(sequence, IsOk());
  auto stream = client->OpenStream();
  client::Step step{.segments = {{.sequence = &*sequence, .num_tokens = 1}}, .token_ids = {11}};
  step.highway.zeros = true;
  EXPECT_THAT((*stream)->Run(std::move(step)), IsOk());
  EXPECT_THAT(sequence->Snapshot(), IsOk());
  // Its stream goes on; its calls show the token that is in the file.
  ReplaceFile(fixture.tokens, std::string("engine ") + kOtherToken);
  EXPECT_THAT(client->OpenSequence(), FailsWith(absl::StatusCode::kUnauthenticated, "no such token"));
  ReplaceFile(fixture.token_file, kOtherToken);
  EXPECT_THAT(client->OpenSequence(), IsOk());
}

TEST(Access, NothingSecretIsLogged) {
  std::ostringstream log;
  const auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log);
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink));
  {
    const AccessFixture fixture;
    const auto server = fixture.Start([&](ServerFlags& flags) { flags.access.auth_tokens = fixture.tokens; });
    spdlog::set_level(spdlog::level::trace);
    EXPECT_EQ(CodeOf(server->channel(), kGetModel, kOtherToken), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_NE(CodeOf(server->channel(), kGetModel, kToken), grpc::StatusCode::UNAUTHENTICATED);
    ReplaceFile(fixture.tokens, std::string(kToken) + "\n");
    EXPECT_NE(CodeOf(server->channel(), kGetModel, kToken), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(ScrapeMetrics(server->metrics_port()), Not(HasSubstr(kToken)));
  }
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(), HasSubstr("must be NAME TOKEN"));
  EXPECT_THAT(log.str(), Not(HasSubstr(kToken)));
  EXPECT_THAT(log.str(), Not(HasSubstr(kOtherToken)));
}

TEST(Access, ReplacedCertificatesAreForNewConnections) {
  const AccessFixture fixture;
  const auto server = fixture.Start([&](ServerFlags& flags) { fixture.UseTls(flags); });
  const std::string address = AccessFixture::PortOf(*server);
  const auto old_channel = ChannelAs(address, {.ca = fixture.authority.cert()});
  EXPECT_EQ(CodeOf(old_channel, kReflection), grpc::StatusCode::OK);

  const auto expiry = [&server] {
    return MetricValue(ScrapeMetrics(server->metrics_port()),
                       "pleiad_tls_certificate_expiry_seconds{file=\"tls-cert\"}");
  };
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), day = 24 * 3600;
  EXPECT_NEAR(expiry(), now + 30 * day, day / 2);
  const CertificateAuthority next(fixture.folder.path(), "next-authority");
  EXPECT_EQ(CodeOf(ChannelAs(address, {.ca = next.cert()}), kReflection), grpc::StatusCode::UNAVAILABLE);
  // Half of a pair changes nothing.
  const std::string first_key = ReadWholeFile(fixture.certificate.key);
  next.Issue("server");
  const std::string next_key = ReadWholeFile(fixture.certificate.key);
  ReplaceFile(fixture.certificate.key, first_key);
  EXPECT_EQ(CodeOf(ChannelAs(address, {.ca = fixture.authority.cert()}), kReflection), grpc::StatusCode::OK);

  ReplaceFile(fixture.certificate.key, next_key);
  EXPECT_EQ(CodeOf(ChannelAs(address, {.ca = next.cert()}), kReflection), grpc::StatusCode::OK);
  EXPECT_EQ(CodeOf(ChannelAs(address, {.ca = fixture.authority.cert()}), kReflection), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CodeOf(old_channel, kReflection), grpc::StatusCode::OK) << "an open connection stays";

  // Seen at the scrape, without a connection.
  next.Issue("server", Validity::kExpired);
  EXPECT_NEAR(expiry(), now - day, day / 2);
}

TEST(Access, BadClientOptionsNameTheMember) {
  const AccessFixture fixture;
  const std::string none = fixture.folder / "none";
  const auto error = [](const std::function<void(client::ClientOptions&)>& change) {
    client::ClientOptions options;
    options.tls.emplace();
    change(options);
    return client::Client::Connect(options).status();
  };
  EXPECT_THAT(error([&](auto& o) { o.tls->ca_file = none; }), FailsWith(kBadOption, "tls.ca_file " + none));
  EXPECT_THAT(error([&](auto& o) { o.tls->cert_file = none; }), FailsWith(kBadOption, "tls.cert_file " + none));
  EXPECT_THAT(error([&](auto& o) { o.tls->key_file = none; }), FailsWith(kBadOption, "tls.key_file " + none));
  EXPECT_THAT(error([&](auto& o) { o.tls->cert_file = o.tls->key_file = none; }),
              FailsWith(kBadOption, "tls.cert_file " + none));
  EXPECT_THAT(error([&](auto& o) {
                o.tls->cert_file = fixture.certificate.cert;
                o.tls->key_file = fixture.authority.cert();
              }),
              FailsWith(kBadOption, "tls.key_file"));
  EXPECT_THAT(error([&](auto& o) { o.tls->reload_interval = absl::Milliseconds(1); }),
              FailsWith(kBadOption, "tls.reload_interval 1ms"));
  EXPECT_THAT(error([&](auto& o) { o.address = "unix:s"; }), FailsWith(kBadOption, "tls"));
  EXPECT_THAT(error([&](auto& o) { o.token_file = none; }), FailsWith(kBadOption, "token_file " + none));
  ReplaceFile(none, kToken, 0644);
  EXPECT_THAT(error([&](auto& o) { o.token_file = none; }), FailsWith(kBadOption, "others can read"));
  ReplaceFile(none, std::string(kToken) + " more");
  EXPECT_THAT(error([&](auto& o) { o.token_file = none; }), FailsWith(kBadOption, "must hold one token"));
  EXPECT_THAT(error([&](auto& o) {
                o.token_file = fixture.token_file;
                o.tls.reset();
                o.address = "10.0.0.1:1";
              }),
              FailsWith(kBadOption, "token_file " + fixture.token_file + ": needs tls"));
}

TEST(Access, SocketsHaveTheModeThatIsAskedFor) {
  const AccessFixture fixture;
  for (const uint32_t mode : {0660u, 0600u, 0666u}) {
    const auto server = fixture.Start([&](ServerFlags& flags) { flags.access.socket_mode = mode; });
    struct stat info {};
    ASSERT_EQ(::stat(server->socket_path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, mode);
  }
  EXPECT_EQ(AccessFlags().socket_mode, 0660u);
}

TEST(Access, TheHealthListenerHasHealthAlone) {
  const AccessFixture fixture;
  const auto server = fixture.Start([&](ServerFlags& flags) {
    fixture.UseTls(flags);
    flags.access.tls_client_ca = fixture.authority.cert();
    flags.access.auth_tokens = fixture.tokens;
    flags.access.health_listen = "127.0.0.1:0";
    flags.reflection = true;
  });
  client::ClientOptions options;
  options.address = server->server().addresses().health->ToString();
  const auto probe = ChannelAs(options.address, {});
  for (const std::string& method : AllMethods()) {
    EXPECT_EQ(CodeOf(probe, method, kToken), grpc::StatusCode::UNIMPLEMENTED) << method;
  }
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(grpc::health::v1::Health::NewStub(probe)->Check(&context, {}, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
}

}  // namespace
}  // namespace pleiad::testing
