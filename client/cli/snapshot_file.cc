#include "client/cli/snapshot_file.h"

#include <zlib.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/cli/private_file.h"
#include "client/internal/convert.h"
#include "pleiad/v1/ple.pb.h"

namespace pleiad::cli {
namespace {

uint32_t Crc32(const std::string& bytes) {
  return static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

}  // namespace

absl::Status WriteSnapshot(const std::string& path, const client::SequenceSnapshot& snapshot) {
  v1::SnapshotResponse message;
  message.set_model_id(snapshot.model_id);
  for (const client::LayerAux& layer : snapshot.layers) {
    v1::LayerAux* out = message.add_layers();
    client::internal::ToWire(layer, out);
    out->set_crc32(Crc32(layer.aux));
  }
  return WritePrivateFile(path, {message.SerializeAsString()});
}

absl::StatusOr<client::SequenceSnapshot> ReadSnapshot(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  v1::SnapshotResponse message;
  if (!message.ParseFromIstream(&file)) return absl::DataLossError(absl::StrCat(path, " is not a snapshot"));
  client::SequenceSnapshot snapshot{message.model_id(), {}};
  for (v1::LayerAux& layer : *message.mutable_layers()) {
    if (!layer.has_crc32() || layer.crc32() != Crc32(layer.aux())) {
      return absl::DataLossError(absl::StrCat(path, ": the crc32 of layer ", layer.layer_index(), " does not match"));
    }
    snapshot.layers.push_back(client::internal::ToLayerAux(&layer));
  }
  return snapshot;
}

}  // namespace pleiad::cli
