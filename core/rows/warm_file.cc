#include "core/rows/warm_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

// magic[8] | u32 version | u32 length of the model id | the model id | u32 layers | of each: u64 count, count x u64 row
// | u32 crc32 of all before. Little-endian, as every machine this runs on.
constexpr absl::string_view kMagic = "PLEIADWR";
constexpr uint32_t kVersion = 1;

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

uint32_t Checksum(absl::string_view bytes) {
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot ", what, ": ", std::strerror(errno)));
}

class Parser {
 public:
  explicit Parser(absl::string_view bytes) : left_(bytes) {}

  template <typename T>
  bool Take(T& value) {
    absl::string_view bytes;
    if (!Take(sizeof(T), bytes)) return false;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return true;
  }
  bool Take(size_t count, absl::string_view& bytes) {
    if (left_.size() < count) return false;
    bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return true;
  }
  bool empty() const { return left_.empty(); }

 private:
  absl::string_view left_;
};

}  // namespace

absl::Status SaveWarmRows(const std::string& path, const std::string& model_id, const WarmRows& rows) {
  std::string out(kMagic);
  Append(out, kVersion);
  Append(out, static_cast<uint32_t>(model_id.size()));
  out += model_id;
  Append(out, static_cast<uint32_t>(rows.size()));
  for (const std::vector<RowId>& layer : rows) {
    Append(out, uint64_t{layer.size()});
    for (const RowId row : layer) Append(out, row.value());
  }
  Append(out, Checksum(out));

  const std::string temporary = absl::StrCat(path, ".new");
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return Failed("open", temporary);
  const auto give_up = [&temporary](absl::Status status) {
    ::unlink(temporary.c_str());
    return status;
  };
  for (absl::string_view left = out; !left.empty();) {
    const ssize_t written = ::write(fd.get(), left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return give_up(Failed("write", temporary));
    left.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(fd.get()) != 0) return give_up(Failed("sync", temporary));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up(Failed("rename to", path));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const UniqueFd dir(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid() || ::fsync(dir.get()) != 0) return Failed("sync", folder);
  return absl::OkStatus();
}

absl::StatusOr<WarmRows> LoadWarmRows(const std::string& path, const std::string& model_id,
                                      absl::Span<const uint64_t> table_rows) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto damaged = [&](absl::string_view rule) { return absl::DataLossError(absl::StrCat(path, ": ", rule)); };
  if (bytes.size() < kMagic.size() + 4 * sizeof(uint32_t)) return damaged("too short for its header");
  if (!(absl::string_view(bytes).substr(0, kMagic.size()) == kMagic)) return damaged("is no file of cached rows");
  const absl::string_view checked = absl::string_view(bytes).substr(0, bytes.size() - sizeof(uint32_t));
  uint32_t version = 0, checksum = 0, id_length = 0, layers = 0;
  Parser parser(checked.substr(kMagic.size()));
  std::memcpy(&checksum, bytes.data() + checked.size(), sizeof(checksum));
  if (checksum != Checksum(checked)) return damaged("its checksum does not match its bytes");
  parser.Take(version);
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": version ", version, "; this server reads ", kVersion));
  }
  absl::string_view id;
  if (!parser.Take(id_length) || !parser.Take(id_length, id)) return damaged("ends within the model id");
  if (id != absl::string_view(model_id)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": of model ", id, "; this is ", model_id));
  }
  if (!parser.Take(layers) || layers != table_rows.size()) return damaged("has another number of layers");
  WarmRows rows(layers);
  for (uint32_t layer = 0; layer < layers; ++layer) {
    uint64_t count = 0;
    absl::string_view ids;
    if (!parser.Take(count) || count > bytes.size() / sizeof(uint64_t) || !parser.Take(count * sizeof(uint64_t), ids)) {
      return damaged("ends within its rows");
    }
    rows[layer].resize(count);
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t row = 0;
      std::memcpy(&row, ids.data() + i * sizeof(row), sizeof(row));
      if (row >= table_rows[layer]) return damaged(absl::StrCat("names row ", row, " of ", table_rows[layer]));
      rows[layer][i] = RowId(row);
    }
  }
  if (!parser.empty()) return damaged("has bytes behind its rows");
  return rows;
}

}  // namespace pleiad
