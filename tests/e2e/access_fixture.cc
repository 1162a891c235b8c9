#include "tests/e2e/access_fixture.h"

#include <filesystem>

#include "grpcpp/generic/generic_stub.h"
#include "tests/support/checkpoint_writer.h"

namespace pleiad::testing {
namespace {

std::string MakeCheckpoint(const std::string& path) {
  std::filesystem::create_directory(path);
  WriteCheckpoint(CheckpointSpec(), path);
  return path;
}

std::string MakeFile(const std::string& path, const std::string& text) {
  ReplaceFile(path, text);
  return path;
}

}  // namespace

std::shared_ptr<grpc::Channel> ChannelAs(const std::string& address, const Shown& shown) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!shown.ca.empty()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadWholeFile(shown.ca);
    if (!shown.own.cert.empty()) {
      options.pem_cert_chain = ReadWholeFile(shown.own.cert);
      options.pem_private_key = ReadWholeFile(shown.own.key);
    }
    credentials = grpc::SslCredentials(options);
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

grpc::StatusCode CodeOf(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& token) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  call->StartCall(nullptr);
  bool ok = next();
  if (ok) {
    call->WriteLast(grpc::ByteBuffer(nullptr, 0), {}, nullptr);
    ok = next();
  }
  grpc::ByteBuffer answer;
  while (ok) {
    call->Read(&answer, nullptr);
    ok = next();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return status.error_code();
}

AccessFixture::AccessFixture()
    : model(MakeCheckpoint(folder / "model")),
      authority(folder.path(), "authority"),
      certificate(authority.Issue("server")),
      tokens(MakeFile(folder / "tokens", std::string("engine ") + kToken + "\n")),
      token_file(MakeFile(folder / "token", std::string(kToken) + "\n")) {}

std::unique_ptr<InProcessServer> AccessFixture::Start(const std::function<void(ServerFlags&)>& change) const {
  return std::make_unique<InProcessServer>(model, [&change](ServerFlags& flags) {
    flags.listen.push_back("127.0.0.1:0");
    flags.max_sequences = 8;
    change(flags);
  });
}

void AccessFixture::UseTls(ServerFlags& flags) const {
  flags.access.tls_cert = certificate.cert;
  flags.access.tls_key = certificate.key;
}

client::ClientOptions AccessFixture::OptionsFor(InProcessServer& server) const {
  client::ClientOptions options;
  options.address = PortOf(server);
  options.tls = client::TlsOptions{.ca_file = authority.cert()};
  return options;
}

}  // namespace pleiad::testing
