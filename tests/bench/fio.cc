#include "tests/bench/fio.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pleiad::bench {

absl::StatusOr<FioResult> RunFio(const FioOptions& options) {
  const bool uring = options.engine == "io_uring";
  const std::string command = absl::StrCat(
      "fio --name=floor --readonly --rw=randread --direct=1 --norandommap --randrepeat=0 --gtod_reduce=1 --time_based",
      " --runtime=", static_cast<int>(options.seconds * 1000), "ms --ioengine=", options.engine,
      uring ? " --fixedbufs --registerfiles" : "", " --bs=", options.block_bytes, " --iodepth=", options.depth,
      " --iodepth_batch_submit=", options.batch, " --iodepth_batch_complete_min=", options.batch,
      " --iodepth_batch_complete_max=", options.depth, " --output-format=json --filename='",
      absl::StrJoin(options.files, ":"), "'");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  if (pipe == nullptr) return absl::UnavailableError("fio cannot be started");
  std::string output;
  char part[4096];
  for (size_t got = 0; (got = std::fread(part, 1, sizeof part, pipe.get())) > 0;) output.append(part, got);
  // Warnings may stand before the object.
  const size_t start = output.find('{');
  const nlohmann::json report =
      nlohmann::json::parse(start == std::string::npos ? "" : output.substr(start), nullptr, false);
  if (report.is_discarded()) return absl::UnavailableError(absl::StrCat("fio failed: ", output));
  const nlohmann::json& job = report["jobs"][0];
  FioResult result;
  result.reads_per_second = job["read"]["iops"].get<double>();
  const double cpu_share = (job["usr_cpu"].get<double>() + job["sys_cpu"].get<double>()) / 100;
  result.cpu_us_per_read = cpu_share * 1e6 / result.reads_per_second;
  return result;
}

}  // namespace pleiad::bench
