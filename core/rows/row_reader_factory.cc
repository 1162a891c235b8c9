#include "core/rows/row_reader_factory.h"

#include "core/rows/pread_reader.h"

namespace pleiad {

absl::StatusOr<std::unique_ptr<RowReader>> CreateRowReader(const std::vector<CheckpointFile>& files,
                                                           const RowReaderOptions& options) {
  if (options.kind == ReaderKind::kIoUring) {
    return absl::FailedPreconditionError("--reader io_uring: this build has no io_uring reader");
  }
  if (options.direct == DirectMode::kRequire) {
    return absl::FailedPreconditionError("--direct require: the pread reader is buffered");
  }
  return CreatePreadReader(files, options.threads == 0 ? 8 : options.threads);
}

}  // namespace pleiad
