#include "core/model/tensor_index.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/model/json.h"

namespace pleiad {
namespace {

using nlohmann::json;

constexpr char kIndexName[] = "model.safetensors.index.json";

absl::StatusOr<CheckpointFile> OpenFile(const std::string& path) {
  // Not blocking, lest a FIFO hold the start.
  CheckpointFile file{path, UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  if (!file.fd.valid()) {
    const std::string why = absl::StrCat(path, ": cannot be opened: ", std::strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(why);
    return absl::InvalidArgumentError(why);
  }
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) {
    return absl::DataLossError(absl::StrCat(path, ": size cannot be read: ", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  file.bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

bool Wanted(absl::string_view name, absl::Span<const std::string> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return absl::StartsWith(name, prefix); });
}

// File name -> wanted tensors in it.
using Wishes = absl::btree_map<std::string, std::vector<std::string>>;

absl::StatusOr<Wishes> ParseIndex(absl::string_view text, const std::string& path,
                                  absl::Span<const std::string> prefixes) {
  PLEIAD_ASSIGN_OR_RETURN(const json root, ParseJson(text, path));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is missing or not an object"));
  }
  Wishes wishes;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name == "." || name == ".." || name.find_first_of("/\0", 0, 2) != name.npos) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map places tensor ", ShowJson(tensor), " in ",
                                                     ShowJson(file), "; it must be a plain file name in the folder"));
    }
    if (Wanted(tensor, prefixes)) wishes[name].push_back(tensor);
  }
  return wishes;
}

absl::StatusOr<TensorIndex> FindByIndex(const std::string& dir, absl::string_view text,
                                        absl::Span<const std::string> prefixes) {
  const std::string index_path = absl::StrCat(dir, "/", kIndexName);
  PLEIAD_ASSIGN_OR_RETURN(const Wishes wishes, ParseIndex(text, index_path, prefixes));
  TensorIndex index;
  std::vector<SafetensorsHeader> headers;
  for (const auto& [name, tensors] : wishes) {
    auto file = OpenFile(absl::StrCat(dir, "/", name));
    if (!file.ok()) {
      return absl::Status(file.status().code(), absl::StrCat(file.status().message(), "; ", kIndexName,
                                                             " places tensor ", tensors.front(), " there"));
    }
    PLEIAD_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(file->fd.get(), file->bytes, file->path));
    for (const std::string& tensor : tensors) {
      const auto found = header.find(tensor);
      if (found == header.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file->path, ": tensor ", tensor, " is not in the file, where ", kIndexName, " places it"));
      }
      index.tensors[tensor] = {static_cast<FileIndex>(index.files.size()), found->second};
    }
    headers.push_back(std::move(header));
    index.files.push_back(*std::move(file));
  }
  for (FileIndex f = 0; f < headers.size(); ++f) {
    for (const auto& [name, info] : headers[f]) {
      const auto placed = index.tensors.find(name);
      if (placed == index.tensors.end() || placed->second.file == f) continue;
      return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " lies in two files: ", index.files[f].path,
                                                     " and ", index.files[placed->second.file].path));
    }
  }
  return index;
}

absl::StatusOr<TensorIndex> FindByScan(const std::string& dir, absl::Span<const std::string> prefixes) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") paths.push_back(it->path().string());
  }
  if (error) return absl::NotFoundError(absl::StrCat(dir, ": cannot be listed: ", error.message()));
  std::sort(paths.begin(), paths.end());

  TensorIndex index;
  for (const std::string& path : paths) {
    PLEIAD_ASSIGN_OR_RETURN(CheckpointFile file, OpenFile(path));
    PLEIAD_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(file.fd.get(), file.bytes, path));
    bool needed = false;
    for (auto& [name, info] : header) {
      if (!Wanted(name, prefixes)) continue;
      needed = true;
      const auto [placed, inserted] =
          index.tensors.try_emplace(name, FoundTensor{static_cast<FileIndex>(index.files.size()), std::move(info)});
      if (!inserted) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor ", name, " lies in two files: ", index.files[placed->second.file].path, " and ", path));
      }
    }
    if (needed) index.files.push_back(std::move(file));
  }
  return index;
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  PLEIAD_ASSIGN_OR_RETURN(const CheckpointFile file, OpenFile(path));
  if (file.bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file has ", file.bytes, " bytes; it must have at most ", max_bytes));
  }
  std::string text(file.bytes, '\0');
  PLEIAD_RETURN_IF_ERROR(ReadExactly(file.fd.get(), 0, text.data(), text.size(), path));
  return text;
}

absl::StatusOr<TensorIndex> FindTensors(const std::string& dir, absl::Span<const std::string> prefixes) {
  const auto text = ReadTextFile(absl::StrCat(dir, "/", kIndexName), kMaxSafetensorsHeaderBytes);
  if (text.ok()) return FindByIndex(dir, *text, prefixes);
  if (absl::IsNotFound(text.status())) return FindByScan(dir, prefixes);
  return text.status();
}

}  // namespace pleiad
