// Early return on a failed absl::Status or absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PLEIAD_CONCAT_INNER_(a, b) a##b
#define PLEIAD_CONCAT_(a, b) PLEIAD_CONCAT_INNER_(a, b)

#define PLEIAD_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status pleiad_status_ = (expr); !pleiad_status_.ok()) return pleiad_status_; \
  } while (false)

#define PLEIAD_ASSIGN_OR_RETURN(lhs, expr) \
  PLEIAD_ASSIGN_OR_RETURN_IMPL_(PLEIAD_CONCAT_(pleiad_statusor_, __LINE__), lhs, expr)

#define PLEIAD_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return std::move(tmp).status();      \
  lhs = *std::move(tmp)
