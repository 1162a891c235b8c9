#include "client/cli/synth.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/synth_layout.h"
#include "client/cli/synth_random.h"
#include "core/base/status_macros.h"
#include "core/base/unique_fd.h"

namespace pleiad {
namespace {

namespace fs = std::filesystem;

// Bytes generated and written at once; a multiple of every word and value size.
constexpr size_t kBlockBytes = 4 << 20;

absl::Status SystemError(int error, const std::string& what) {
  const std::string text = absl::StrCat(what, ": ", std::generic_category().message(error));
  return error == EDQUOT ? absl::ResourceExhaustedError(text) : absl::ErrnoToStatus(error, what);
}

class SynthWriter {
 public:
  SynthWriter(const SynthOptions& options, const std::vector<SynthFile>& files,
              const std::function<void(const SynthProgress&)>& on_progress)
      : options_(options), on_progress_(on_progress), block_(kBlockBytes) {
    for (const SynthFile& file : files) progress_.bytes_total += file.data_bytes;
  }

  absl::Status WriteFile(const SynthFile& file) {
    path_ = (fs::path(options_.dir) / file.name).string();
    const std::string header = SafetensorsHeader(file);
    PLEIAD_RETURN_IF_ERROR(Create(header.size() + file.data_bytes));
    PLEIAD_RETURN_IF_ERROR(Write(0, header.data(), header.size()));
    for (const SynthTensor& tensor : file.tensors) {
      PLEIAD_RETURN_IF_ERROR(WriteTensor(tensor, header.size() + tensor.offset));
    }
    return absl::OkStatus();
  }

  absl::Status WriteText(const std::string& name, const std::string& text) {
    path_ = (fs::path(options_.dir) / name).string();
    PLEIAD_RETURN_IF_ERROR(Create(text.size()));
    return Write(0, text.data(), text.size());
  }

 private:
  absl::Status Create(uint64_t bytes) {
    fd_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_.valid()) return SystemError(errno, path_);
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return SystemError(errno, path_);
    return absl::OkStatus();
  }

  absl::Status Write(uint64_t offset, const void* data, size_t count) {
    const char* next = static_cast<const char*>(data);
    while (count > 0) {
      const ssize_t written = ::pwrite(fd_.get(), next, count, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return SystemError(errno, path_);
      next += written;
      offset += static_cast<uint64_t>(written);
      count -= static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }

  absl::Status WriteTensor(const SynthTensor& tensor, uint64_t offset) {
    // Of the name, so that contents do not depend on how tensors are cut into files.
    uint64_t seed = options_.weight_seed;
    for (const char c : tensor.name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;

    const uint64_t total = tensor.bytes();
    const bool written = tensor.content != SynthTensor::Content::kRows || options_.row_fill == RowFill::kRandom;
    for (uint64_t done = 0; done < total;) {
      const size_t count = static_cast<size_t>(std::min<uint64_t>(kBlockBytes, total - done));
      if (written) {
        FillBlock(tensor, seed, done, count);
        PLEIAD_RETURN_IF_ERROR(Write(offset + done, block_.data(), count));
      }
      done += count;
      progress_.bytes_written += count;
      if (on_progress_) on_progress_(progress_);
    }
    return absl::OkStatus();
  }

  // Bytes [first, first + count) of the tensor into the block; a random word may pass the end of them.
  void FillBlock(const SynthTensor& tensor, uint64_t seed, uint64_t first, size_t count) {
    switch (tensor.content) {
      case SynthTensor::Content::kRows:
        FillRandomRows(tensor.dtype, seed, first / 8, absl::MakeSpan(block_.data(), (count + 7) / 8 * 8));
        break;
      case SynthTensor::Content::kUniform:
        FillUniformBf16(tensor.limit, seed, first / 2,
                        absl::MakeSpan(reinterpret_cast<Bf16*>(block_.data()), count / 2));
        break;
      case SynthTensor::Content::kIntegers:
        std::memcpy(block_.data(), tensor.integers.data(), count);
        break;
      case SynthTensor::Content::kScale: {
        const Bf16 scale = FloatToBf16(options_.row_scale);
        std::memcpy(block_.data(), &scale, sizeof(scale));
        break;
      }
    }
  }

  const SynthOptions& options_;
  const std::function<void(const SynthProgress&)>& on_progress_;
  std::vector<std::byte> block_;
  SynthProgress progress_;
  std::string path_;
  UniqueFd fd_;
};

absl::Status PrepareFolder(const std::string& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return SystemError(error.value(), dir);
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == "config.json" || absl::StrContains(name, ".safetensors")) {
      return absl::AlreadyExistsError(
          absl::StrCat(entry->path().string(), ": the folder of a new checkpoint must hold no other"));
    }
  }
  return error ? SystemError(error.value(), dir) : absl::OkStatus();
}

}  // namespace

ModelConfig ReleasedConfig() {
  ModelConfig config;
  config.geometry.hidden_size = 2560;
  config.geometry.embed_dim = 2560;
  config.ple_layers = {LayerIndex(1)};
  config.num_hidden_layers = 48;
  config.vocab_size = 248320;
  config.eos_token_id = 248044;
  return config;
}

absl::Status SynthOptions::Validate() const {
  if (dir.empty()) return absl::InvalidArgumentError("dir: empty, must name a folder");
  PLEIAD_RETURN_IF_ERROR(config.Validate());
  if (row_dtype == DType::kI64) {
    return absl::InvalidArgumentError(absl::StrCat("row_dtype: ", Name(row_dtype), ", must be BF16, F32 or F8_E4M3"));
  }
  const float scale = Bf16ToFloat(FloatToBf16(row_scale));
  if (!std::isfinite(scale) || scale <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("row_scale: ", row_scale, ", must be positive and finite in BF16"));
  }
  const auto in_range = [](const char* field, uint32_t value, uint32_t limit) {
    if (value >= 1 && value <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", must be 1 to ", limit));
  };
  PLEIAD_RETURN_IF_ERROR(in_range("shards", shards, 65536));
  return in_range("files", files, 99999);
}

absl::Status RunSynth(const SynthOptions& options, const std::function<void(const SynthProgress&)>& on_progress) {
  PLEIAD_RETURN_IF_ERROR(options.Validate());
  PLEIAD_RETURN_IF_ERROR(PrepareFolder(options.dir));
  const std::vector<SynthFile> files = PlanSynthFiles(options);
  SynthWriter writer(options, files, on_progress);
  for (const SynthFile& file : files) PLEIAD_RETURN_IF_ERROR(writer.WriteFile(file));
  PLEIAD_RETURN_IF_ERROR(writer.WriteText("model.safetensors.index.json", SynthIndexJson(files)));
  return writer.WriteText("config.json", SynthConfigJson(options));
}

}  // namespace pleiad
