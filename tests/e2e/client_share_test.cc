// Sequences of one client, and who is one client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/e2e/access_fixture.h"
#include "tests/e2e/metrics_page.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

constexpr auto kOver = absl::StatusCode::kResourceExhausted;

client::Client ConnectWith(const client::ClientOptions& options) { return *client::Client::Connect(options); }

TEST(ClientShare, IsOfEachToken) {
  const AccessFixture fixture;
  ReplaceFile(fixture.tokens,
              std::string("alice ") + kToken + "\nalice second-token-of-alice\nbob " + kOtherToken + "\n");
  const auto server = fixture.Start([&](ServerFlags& flags) {
    flags.access.auth_tokens = fixture.tokens;
    flags.access.client_max_sequences = 2;
  });
  const auto connect = [&](const std::string& name, const std::string& token) {
    const std::string file = fixture.folder / name;
    ReplaceFile(file, token);
    client::ClientOptions options;
    options.address = server->address();
    options.token_file = file;
    return ConnectWith(options);
  };
  client::Client alice = connect("a", kToken), also_alice = connect("b", "second-token-of-alice"),
                 bob = connect("c", kOtherToken);
  auto first = alice.OpenSequence({.client_key = "first"});
  ASSERT_THAT(first, IsOk());
  auto second = also_alice.OpenSequence();
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(alice.OpenSequence(),
              FailsWith(kOver, "token alice: 2 sequences: at most 2 sequences (--client-max-sequences)"));
  auto same = alice.OpenSequence({.client_key = "first"});
  ASSERT_THAT(same, IsOk()) << "one that it has";
  (void)std::move(*same).Detach();
  EXPECT_THAT(bob.OpenSequence(), IsOk());
  ASSERT_THAT(second->Release(), IsOk());
  EXPECT_THAT(alice.OpenSequence(), IsOk());
  const auto refused = [&server](const std::string& bound) {
    return MetricValue(ScrapeMetrics(server->metrics_port()),
                       "pleiad_sequences_refused_total{bound=\"" + bound + "\"}");
  };
  EXPECT_EQ(refused("client"), 1);
  EXPECT_EQ(refused("sequences"), 0);
}

TEST(ClientShare, WhatTheServerItselfHasNoRoomForIsCountedApart) {
  const AccessFixture fixture;
  const auto server = fixture.Start([](ServerFlags& flags) {
    flags.max_sequences = 1;
    flags.access.client_max_sequences = 2;
  });
  client::ClientOptions options;
  options.address = server->address();
  client::Client client = ConnectWith(options);
  const auto kept = client.OpenSequence();
  EXPECT_THAT(kept, IsOk());
  EXPECT_THAT(client.OpenSequence(), FailsWith(kOver, "--max-sequences"));
  const std::string page = ScrapeMetrics(server->metrics_port());
  EXPECT_EQ(MetricValue(page, "pleiad_sequences_refused_total{bound=\"sequences\"}"), 1);
  EXPECT_EQ(MetricValue(page, "pleiad_sequences_refused_total{bound=\"client\"}"), 0);
}

TEST(ClientShare, WithoutTokensIsOfCertificatesHostsAndSockets) {
  const AccessFixture fixture;
  const auto error = [](const client::ClientOptions& options) {
    client::Client client = ConnectWith(options);
    const auto kept = client.OpenSequence();
    EXPECT_THAT(kept, IsOk());
    return client.OpenSequence().status();
  };
  {
    const auto server = fixture.Start([](ServerFlags& flags) { flags.access.client_max_sequences = 1; });
    client::ClientOptions options;
    options.address = server->address();
    EXPECT_THAT(error(options), FailsWith(kOver, "peer unix: 1 sequences"));
    options.address = AccessFixture::PortOf(*server);
    EXPECT_THAT(error(options), FailsWith(kOver, "peer ipv4:127.0.0.1: 1 sequences"));
  }
  const auto server = fixture.Start([&](ServerFlags& flags) {
    fixture.UseTls(flags);
    flags.access.tls_client_ca = fixture.authority.cert();
    flags.access.client_max_sequences = 1;
  });
  for (const std::string name : {"engine-1", "engine-2"}) {
    client::ClientOptions options = fixture.OptionsFor(*server);
    const CertificatePaths own = fixture.authority.Issue(name);
    options.tls->cert_file = own.cert;
    options.tls->key_file = own.key;
    EXPECT_THAT(error(options), FailsWith(kOver, "certificate " + name + ": 1 sequences"));
  }
}

}  // namespace
}  // namespace pleiad::testing
