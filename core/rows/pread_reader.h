// RowReader over pread(2), buffered, on a fixed number of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model/checkpoint.h"
#include "core/rows/row_reader.h"

namespace pleiad {

// `files` outlive the reader; 0 threads are 1. Short reads are continued, EINTR and (boundedly) EAGAIN retried.
// `why` is added to info().detail.
std::unique_ptr<RowReader> CreatePreadReader(const std::vector<CheckpointFile>& files, uint32_t threads,
                                             std::string why = {});

}  // namespace pleiad
