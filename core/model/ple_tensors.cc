#include "core/model/ple_tensors.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

constexpr char kTable[] = "ple_embedding.ngram_embedding.";

absl::Status Wrong(absl::string_view tensor, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor, " ", what));
}

std::string Show(absl::Span<const uint64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<FoundTensor> Require(const TensorIndex& index, const std::string& name, DType dtype,
                                    const std::vector<uint64_t>& shape) {
  const auto it = index.tensors.find(name);
  if (it == index.tensors.end()) return Wrong(name, "is missing");
  const TensorInfo& info = it->second.info;
  if (info.dtype != Name(dtype)) return Wrong(name, absl::StrCat("is ", info.dtype, "; it must be ", Name(dtype)));
  if (info.shape != shape) {
    return Wrong(name, absl::StrCat("has shape ", Show(info.shape), "; the config makes it ", Show(shape)));
  }
  return it->second;
}

absl::Status Read(const TensorIndex& index, const FoundTensor& tensor, void* out) {
  const CheckpointFile& file = index.files[tensor.file];
  return ReadExactly(file.fd.get(), tensor.info.offset, out, tensor.info.bytes, file.path);
}

absl::Status CheckBuffer(const TensorIndex& index, const std::string& name, const std::vector<uint64_t>& derived) {
  PLEIAD_ASSIGN_OR_RETURN(const FoundTensor tensor, Require(index, name, DType::kI64, {derived.size()}));
  std::vector<int64_t> stored(derived.size());
  PLEIAD_RETURN_IF_ERROR(Read(index, tensor, stored.data()));
  for (size_t i = 0; i < stored.size(); ++i) {
    if (stored[i] >= 0 && static_cast<uint64_t>(stored[i]) == derived[i]) continue;
    return Wrong(name, absl::StrCat("disagrees with the hash that the config defines at index ", i, ": stored [",
                                    absl::StrJoin(stored, ", "), "], derived [", absl::StrJoin(derived, ", "), "]"));
  }
  return absl::OkStatus();
}

// i of "shard_{i}.weight", decimal without padding.
std::optional<uint32_t> ShardNumber(absl::string_view suffix) {
  constexpr absl::string_view kHead = "shard_";
  constexpr absl::string_view kTail = ".weight";
  if (!absl::StartsWith(suffix, kHead) || !absl::EndsWith(suffix, kTail)) return std::nullopt;
  suffix.remove_prefix(kHead.size());
  if (suffix.size() <= kTail.size()) return std::nullopt;
  suffix.remove_suffix(kTail.size());
  uint32_t number = 0;
  if (!absl::SimpleAtoi(suffix, &number) || absl::StrCat(number) != std::string(suffix)) return std::nullopt;
  return number;
}

// What lies under "ple_embedding.ngram_embedding.".
struct TableTensors {
  std::map<uint32_t, std::string> shards;  // number -> name
  std::optional<std::string> whole;
  std::optional<std::string> scale;
  std::vector<std::string> unknown;
};

TableTensors SortTableTensors(const TensorIndex& index, const std::string& base) {
  TableTensors found;
  for (auto it = index.tensors.lower_bound(base); it != index.tensors.end() && absl::StartsWith(it->first, base);
       ++it) {
    const absl::string_view suffix = absl::string_view(it->first).substr(base.size());
    if (suffix == "weight") {
      found.whole = it->first;
    } else if (suffix == "weight_scale") {
      found.scale = it->first;
    } else if (const auto number = ShardNumber(suffix)) {
      found.shards.emplace(*number, it->first);
    } else {
      found.unknown.push_back(it->first);
    }
  }
  return found;
}

// The tensors that make the table, in row order.
absl::StatusOr<std::vector<std::string>> OrderShards(const TableTensors& found, const std::string& base) {
  if (found.shards.empty() && !found.whole) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no shards found, expected name ", base, "shard_0.weight, or ", base, "weight",
        found.unknown.empty()
            ? ""
            : absl::StrCat("; unknown: ", found.unknown.front(), " and ", found.unknown.size() - 1, " more")));
  }
  if (!found.unknown.empty()) {
    return Wrong(found.unknown.front(),
                 absl::StrCat("is unknown; expected names are ", base,
                              "shard_{i}.weight with i decimal without padding, weight and weight_scale"));
  }
  if (found.whole) {
    if (found.shards.empty()) return std::vector<std::string>{*found.whole};
    return Wrong(*found.whole,
                 absl::StrCat("stands beside ", found.shards.size(), " shards; it must be one or the other"));
  }
  std::vector<std::string> names;
  for (const auto& [number, name] : found.shards) {
    if (number != names.size()) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", names.size(), " is missing: no tensor ", base, "shard_",
                                                     names.size(), ".weight, but ", found.shards.rbegin()->second));
    }
    names.push_back(name);
  }
  return names;
}

absl::StatusOr<DType> RowDType(const std::string& name, absl::string_view dtype) {
  for (const DType known : {DType::kBf16, DType::kF32, DType::kF8E4M3}) {
    if (dtype == Name(known)) return known;
  }
  return Wrong(name, absl::StrCat("is ", dtype, "; rows must be BF16, F32 or F8_E4M3"));
}

absl::Status AddShard(const std::string& name, const FoundTensor& tensor, TableLayout* table) {
  const std::vector<uint64_t>& shape = tensor.info.shape;
  if (shape.size() != 2 || shape[0] == 0 || shape[1] != table->head_dim) {
    return Wrong(name, absl::StrCat("has shape ", Show(shape), "; it must be [rows, ", table->head_dim,
                                    "]: ple_embed_dim / heads columns and at least one row"));
  }
  table->shards.push_back({tensor.file, tensor.info.offset, table->rows, shape[0]});
  if (__builtin_add_overflow(table->rows, shape[0], &table->rows)) return Wrong(name, "takes the table past 2^64 rows");
  return absl::OkStatus();
}

absl::StatusOr<float> ReadScale(const TensorIndex& index, const std::string& name) {
  const FoundTensor& tensor = index.tensors.at(name);
  const TensorInfo& info = tensor.info;
  if (!info.shape.empty() && info.shape != std::vector<uint64_t>{1}) {
    return Wrong(name, absl::StrCat("has shape ", Show(info.shape), "; it must be [1] or []"));
  }
  float scale = 0;
  if (info.dtype == Name(DType::kBf16)) {
    Bf16 bits = 0;
    PLEIAD_RETURN_IF_ERROR(Read(index, tensor, &bits));
    scale = Bf16ToFloat(bits);
  } else if (info.dtype == Name(DType::kF32)) {
    PLEIAD_RETURN_IF_ERROR(Read(index, tensor, &scale));
  } else {
    return Wrong(name, absl::StrCat("is ", info.dtype, "; it must be BF16 or F32"));
  }
  if (!std::isfinite(scale) || scale == 0) {
    return Wrong(name, absl::StrCat("is ", scale, "; it must be finite and not 0"));
  }
  return scale;
}

}  // namespace

std::vector<std::string> PlePrefixes(LayerIndex layer) {
  return {absl::StrCat("model.language_model.layers.", layer.value(), ".ple."),
          absl::StrCat("model.layers.", layer.value(), ".ple.")};
}

absl::StatusOr<std::string> FindPrefix(const TensorIndex& index, LayerIndex layer) {
  std::vector<std::string> found;
  const std::vector<std::string> prefixes = PlePrefixes(layer);
  for (const std::string& prefix : prefixes) {
    const auto it = index.tensors.lower_bound(prefix);
    if (it != index.tensors.end() && absl::StartsWith(it->first, prefix)) found.push_back(prefix);
  }
  if (found.size() == 1) return found.front();
  return absl::InvalidArgumentError(absl::StrCat(
      "ple_layer_ids names ", layer.value() + 1,
      " (one-based): ", found.empty() ? "no tensor has the prefix " : "its tensors must have one prefix, not both ",
      absl::StrJoin(prefixes, found.empty() ? " or " : " and ")));
}

absl::StatusOr<DenseTensors> FindDenseTensors(const TensorIndex& index, absl::string_view prefix, const Geometry& g) {
  const uint64_t channels = g.channels();
  const auto require = [&](const char* name, const std::vector<uint64_t>& shape) {
    return Require(index, absl::StrCat(prefix, name), DType::kBf16, shape);
  };
  DenseTensors dense;
  PLEIAD_ASSIGN_OR_RETURN(dense.key_proj, require("key_proj.weight", {channels, g.embed_dim}));
  PLEIAD_ASSIGN_OR_RETURN(dense.value_proj, require("value_proj.weight", {g.hidden_size, g.embed_dim}));
  PLEIAD_ASSIGN_OR_RETURN(dense.norm_key, require("norm_key.weight", {channels}));
  PLEIAD_ASSIGN_OR_RETURN(dense.norm_query, require("norm_query.weight", {channels}));
  PLEIAD_ASSIGN_OR_RETURN(dense.norm_conv, require("norm_conv.weight", {channels}));
  PLEIAD_ASSIGN_OR_RETURN(dense.conv, require("conv1d.weight", {channels, 1, g.conv_kernel_size}));
  return dense;
}

absl::Status CheckHashBuffers(const TensorIndex& index, absl::string_view prefix, const HashConstants& derived) {
  const std::string base = absl::StrCat(prefix, "ple_embedding.");
  PLEIAD_RETURN_IF_ERROR(CheckBuffer(index, base + "layer_multipliers", derived.multipliers));
  PLEIAD_RETURN_IF_ERROR(CheckBuffer(index, base + "ngram_heads_vocab_sizes", derived.head_sizes));
  return CheckBuffer(index, base + "ngram_heads_offsets", derived.head_offsets);
}

absl::StatusOr<TableLayout> FindTable(const TensorIndex& index, absl::string_view prefix, uint32_t head_dim,
                                      uint64_t usable_rows) {
  const std::string base = absl::StrCat(prefix, kTable);
  const TableTensors found = SortTableTensors(index, base);
  PLEIAD_ASSIGN_OR_RETURN(const std::vector<std::string> names, OrderShards(found, base));

  TableLayout table;
  table.head_dim = head_dim;
  PLEIAD_ASSIGN_OR_RETURN(table.dtype, RowDType(names.front(), index.tensors.at(names.front()).info.dtype));
  for (const std::string& name : names) {
    const FoundTensor& tensor = index.tensors.at(name);
    PLEIAD_ASSIGN_OR_RETURN(const DType dtype, RowDType(name, tensor.info.dtype));
    if (dtype != table.dtype) {
      return Wrong(name, absl::StrCat("is ", Name(dtype), ", ", names.front(), " is ", Name(table.dtype),
                                      "; all shards must have one dtype"));
    }
    PLEIAD_RETURN_IF_ERROR(AddShard(name, tensor, &table));
  }
  if (table.rows < usable_rows) {
    return absl::InvalidArgumentError(absl::StrCat("the table ", base, "* has ", table.rows, " rows in ", names.size(),
                                                   " tensors; the hash can name ", usable_rows));
  }
  if (table.dtype == DType::kF8E4M3) {
    if (!found.scale) return Wrong(base + "weight_scale", "is missing: F8_E4M3 rows need it");
    PLEIAD_ASSIGN_OR_RETURN(table.scale, ReadScale(index, *found.scale));
  } else if (found.scale) {
    return Wrong(*found.scale,
                 absl::StrCat("stands beside ", Name(table.dtype), " rows; only F8_E4M3 rows have a scale"));
  }
  return table;
}

}  // namespace pleiad
