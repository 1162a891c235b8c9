#include "core/rows/row_reader_factory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/rows/direct_file.h"
#include "core/rows/pread_reader.h"
#include "core/rows/uring_reader.h"
#include "core/rows/uring_system.h"

namespace pleiad {
namespace {

constexpr uint32_t kMaxThreads = 64;
constexpr uint32_t kMaxDepth = 4096;
constexpr uint32_t kDefaultPreadThreads = 8;

absl::Status Validate(const RowReaderOptions& options) {
  if (options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads ", options.threads, ": at most ", kMaxThreads));
  }
  if (options.depth == 0 || options.depth > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("depth ", options.depth, ": 1 to ", kMaxDepth));
  }
  if (options.kind == ReaderKind::kPread && options.direct == DirectMode::kRequire) {
    return absl::FailedPreconditionError("--direct require with --reader pread: the pread reader is buffered");
  }
  return absl::OkStatus();
}

// All files with O_DIRECT or none of them.
absl::StatusOr<std::vector<UringFile>> DirectFiles(const std::vector<CheckpointFile>& files,
                                                   const UringSystem& system) {
  std::vector<UringFile> result;
  for (const CheckpointFile& file : files) {
    PLEIAD_ASSIGN_OR_RETURN(DirectFile direct, OpenDirect(file, system));
    const int fd = direct.fd.get();
    result.push_back(
        {.about = {.path = file.path, .alignment = direct.alignment}, .fd = fd, .owned = std::move(direct.fd)});
  }
  return result;
}

std::vector<UringFile> BufferedFiles(const std::vector<CheckpointFile>& files) {
  std::vector<UringFile> result;
  for (const CheckpointFile& file : files) {
    result.push_back({.about = {.path = file.path, .alignment = 1}, .fd = file.fd.get(), .owned = UniqueFd()});
  }
  return result;
}

std::string DirectDetail(const std::vector<UringFile>& files) {
  uint32_t least = files.empty() ? 1 : files.front().about.alignment;
  uint32_t most = least;
  for (const UringFile& file : files) {
    least = std::min(least, file.about.alignment);
    most = std::max(most, file.about.alignment);
  }
  if (least == most) return absl::StrCat("direct, blocks of ", most, " bytes");
  return absl::StrCat("direct, blocks of ", least, " to ", most, " bytes");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowReader>> CreateRowReader(const std::vector<CheckpointFile>& files,
                                                           const RowReaderOptions& options, const UringSystem& system) {
  PLEIAD_RETURN_IF_ERROR(Validate(options));
  const uint32_t pread_threads = options.threads == 0 ? kDefaultPreadThreads : options.threads;
  if (options.kind == ReaderKind::kPread) return CreatePreadReader(files, pread_threads, "as --reader asks");

  std::vector<UringFile> uring_files;
  UringReaderOptions uring{.rings = std::max(options.threads, 1u), .depth = options.depth, .how = {}};
  if (options.direct == DirectMode::kOff) {
    uring_files = BufferedFiles(files);
    uring.how = "buffered as --direct asks";
  } else if (absl::StatusOr<std::vector<UringFile>> direct = DirectFiles(files, system); direct.ok()) {
    uring_files = *std::move(direct);
    uring.how = DirectDetail(uring_files);
  } else if (options.direct == DirectMode::kRequire) {
    return absl::FailedPreconditionError(absl::StrCat("--direct require: ", direct.status().message()));
  } else {
    uring_files = BufferedFiles(files);
    uring.how = absl::StrCat("buffered (", direct.status().message(), ")");
  }

  absl::StatusOr<std::unique_ptr<RowReader>> reader = CreateUringReader(std::move(uring_files), uring, system);
  if (reader.ok()) return reader;
  if (options.kind == ReaderKind::kIoUring) {
    return absl::FailedPreconditionError(absl::StrCat("--reader io_uring: ", reader.status().message()));
  }
  if (options.direct == DirectMode::kRequire) {
    return absl::FailedPreconditionError(
        absl::StrCat("--direct require: ", reader.status().message(), ", and the pread reader is buffered"));
  }
  return CreatePreadReader(files, pread_threads, std::string(reader.status().message()));
}

absl::StatusOr<std::unique_ptr<RowReader>> CreateRowReader(const std::vector<CheckpointFile>& files,
                                                           const RowReaderOptions& options) {
  static const UringSystem* const kSystem = new UringSystem();
  return CreateRowReader(files, options, *kSystem);
}

}  // namespace pleiad
