#include "server/sequence_keeper.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/status_macros.h"
#include "core/engine/sequence_file.h"
#include "server/log.h"

namespace pleiad {
namespace {

SequenceFileHeader HeaderOf(const Engine& engine) {
  const ModelConfig& config = engine.model().config;
  SequenceFileHeader header;
  header.model_id = engine.model().model_id;
  header.layers = static_cast<uint32_t>(config.ple_layers.size());
  header.context_len = config.geometry.context_len();
  header.state_len = config.geometry.state_len();
  header.rollback_tokens = engine.options().rollback_tokens;
  header.channels = config.geometry.channels();
  return header;
}

absl::Status Failed(const char* what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

SequenceKeeper::SequenceKeeper(const std::string& state_dir, UniqueFd folder)
    : path_(absl::StrCat(state_dir, "/sequences")), folder_(std::move(folder)) {}

absl::Status SequenceKeeper::CheckFolder(const std::string& state_dir) {
  const UniqueFd folder(::open(state_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid() && ::access(state_dir.c_str(), R_OK | W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--state-dir ", state_dir, ": must be a folder to write to: ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<SequenceKeeper>> SequenceKeeper::Open(const std::string& state_dir) {
  PLEIAD_RETURN_IF_ERROR(CheckFolder(state_dir));
  UniqueFd folder(::open(state_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--state-dir ", state_dir, ": must be of one server alone; another one has it"));
  }
  return std::unique_ptr<SequenceKeeper>(new SequenceKeeper(state_dir, std::move(folder)));
}

absl::Status SequenceKeeper::TakeBack(Engine& engine, const std::function<void(KeptSequence&)>& on_taken,
                                      const std::function<bool()>& cancelled) {
  // What a run that was killed had begun to write.
  ::unlink(SequenceFileWriter::TemporaryName(path_).c_str());
  const absl::Time begun = Clock::Real()->Now();
  const ModelConfig& config = engine.model().config;
  absl::StatusOr<std::unique_ptr<SequenceFileReader>> opened =
      SequenceFileReader::Open(path_, HeaderOf(engine), config.vocab_size);
  absl::StatusOr<uint64_t> taken = uint64_t{0};
  if (!opened.ok()) {
    taken = opened.status();
  } else {
    SequenceFileReader& file = **opened;
    if (const uint32_t most = engine.options().max_sequences; file.header().sequences > most) {
      return absl::FailedPreconditionError(absl::StrCat("--max-sequences ", most, ": must be at least ",
                                                        file.header().sequences, ", the sequences in ", path_,
                                                        "; start with so many, or remove the file and lose them"));
    }
    taken = engine.TakeSequences([&]() -> absl::StatusOr<std::optional<KeptSequence>> {
      if (cancelled()) return absl::CancelledError("stopping");
      absl::StatusOr<std::optional<KeptSequence>> next = file.Next();
      if (next.ok() && next->has_value()) on_taken(**next);
      return next;
    });
  }
  if (absl::IsNotFound(taken.status())) {
    taken_back_ = true;
    return absl::OkStatus();
  }
  if (absl::IsDataLoss(taken.status()) || absl::IsFailedPrecondition(taken.status())) {
    PLEIAD_RETURN_IF_ERROR(SetAside(taken.status()));
    taken_back_ = true;
    return absl::OkStatus();
  }
  PLEIAD_RETURN_IF_ERROR(taken.status());
  if (::unlink(path_.c_str()) != 0) return Failed("remove what was taken back", path_);
  PLEIAD_RETURN_IF_ERROR(SyncFolder());
  taken_back_ = true;
  sequences_taken_back_ += *taken;
  spdlog::info("{} open sequence(s) of the last run are back: {} bytes in {}", *taken, (*opened)->bytes(),
               absl::FormatDuration(Clock::Real()->Now() - begun));
  return absl::OkStatus();
}

absl::Status SequenceKeeper::SetAside(const absl::Status& why) {
  std::string name;
  for (uint64_t number = 1; name.empty() || ::access(name.c_str(), F_OK) == 0; ++number) {
    name = absl::StrCat(path_, ".bad-", number);
  }
  if (::rename(path_.c_str(), name.c_str()) != 0) return Failed("set aside", path_);
  ++files_set_aside_;
  PLEIAD_RETURN_IF_ERROR(SyncFolder());
  spdlog::error("the open sequences of the last run are not taken back: {}; the file is now {}", why.ToString(), name);
  return absl::OkStatus();
}

absl::Status SequenceKeeper::SyncFolder() {
  return ::fsync(folder_.get()) == 0 ? absl::OkStatus() : Failed("sync the folder of", path_);
}

void SequenceKeeper::Abandon() const { ::unlink(SequenceFileWriter::TemporaryName(path_).c_str()); }

absl::Status SequenceKeeper::Keep(Engine& engine) {
  if (!taken_back_) return absl::OkStatus();
  const absl::Time begun = Clock::Real()->Now();
  SequenceFileHeader header = HeaderOf(engine);
  header.sequences = engine.stats().sequences;
  if (header.sequences == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<SequenceFileWriter>> file = SequenceFileWriter::Create(path_, header);
  absl::Status status = file.status();
  if (status.ok()) status = engine.GiveSequences([&file](const KeptSequence& kept) { return (*file)->Add(kept); });
  if (status.ok()) status = (*file)->Commit();
  if (!status.ok()) {
    spdlog::error("{} open sequence(s) are lost: {}", header.sequences, status.ToString());
    return status;
  }
  spdlog::info("{} open sequence(s) are in {} for the next start: {} bytes in {}", header.sequences, path_,
               (*file)->bytes(), absl::FormatDuration(Clock::Real()->Now() - begun));
  return absl::OkStatus();
}

}  // namespace pleiad
