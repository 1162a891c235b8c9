#include "server/check.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/model/checkpoint.h"
#include "server/certificate_files.h"
#include "server/device_choice.h"
#include "server/flag_values.h"
#include "server/limits.h"
#include "server/memory_plan.h"
#include "server/sequence_keeper.h"
#include "server/table_mode.h"
#include "server/token_file.h"

namespace pleiad {

absl::Status Check(const ServerFlags& flags, std::ostream& out) {
  if (!flags.access.tls_cert.empty()) PLEIAD_RETURN_IF_ERROR(CertificateFiles::Open(flags.access).status());
  if (!flags.access.auth_tokens.empty()) PLEIAD_RETURN_IF_ERROR(TokenFile::Open(flags.access.auth_tokens).status());
  if (!flags.state_dir.empty()) PLEIAD_RETURN_IF_ERROR(SequenceKeeper::CheckFolder(flags.state_dir));
  PLEIAD_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                          Checkpoint::Open({.dir = flags.model, .eos_token_id = flags.eos_token_id}));
  std::vector<LayerWeights> weights;
  for (uint32_t i = 0; i < checkpoint->layers().size(); ++i) {
    PLEIAD_ASSIGN_OR_RETURN(LayerWeights layer, checkpoint->LoadWeights(LayerOrdinal(i)));
    weights.push_back(std::move(layer));
  }
  const Geometry& geometry = checkpoint->config().geometry;
  PLEIAD_ASSIGN_OR_RETURN(const ServiceLimits limits, ComputeLimits(flags, geometry.channels()));
  PLEIAD_ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags));
  const absl::StatusOr<MemoryPlan> plan = PlanMemory(*checkpoint, flags, device.memory);

  out << "model " << flags.model << ", id " << checkpoint->ModelId(weights) << "\n";
  for (const PleLayer& layer : checkpoint->layers()) {
    out << "layer " << layer.index.value() << ": " << layer.table.rows << " rows of " << layer.table.head_dim << " "
        << Name(layer.table.dtype) << " in " << layer.table.shards.size() << " shards\n";
  }
  out << "files needed:\n";
  for (const CheckpointFile& file : checkpoint->files()) {
    out << "  " << file.path << "  " << FormatSize(file.bytes) << "\n";
  }
  out << "device: " << device.name << " (" << device.reason << ")\n";
  out << "largest message: " << limits.max_message_bytes << " bytes (--max-tokens " << limits.max_tokens << ")\n";
  PLEIAD_RETURN_IF_ERROR(plan.status());
  out << "memory plan: " << Describe(*plan) << "; available " << FormatSize(device.memory.host);
  if (device.memory.gpu) out << " on the host, " << FormatSize(*device.memory.gpu) << " on the GPU";
  out << "\n"
      << "table: " << (plan->table == TableMode::kResident ? "resident" : "cached") << "\n";
  return absl::OkStatus();
}

}  // namespace pleiad
