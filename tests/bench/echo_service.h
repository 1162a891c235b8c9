// The floor of a stream: "/pleiad.bench.Echo/Echo" sends every message back as it came, untouched.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

namespace pleiad::bench {

// Any other method is unimplemented.
class EchoService final : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
};

}  // namespace pleiad::bench
