// The process's log: one line per event that matters, on standard error. Never token ids, sequence ids or client
// keys. What gRPC and Protobuf say goes there in the same format.
#pragma once

#include <string>

#include "spdlog/spdlog.h"

namespace pleiad {

// `level` and `format` as --log-level and --log-format take them. Once, before other threads log.
void SetUpLog(const std::string& level, const std::string& format);

}  // namespace pleiad
