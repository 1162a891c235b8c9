#include "core/engine/sequence_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

constexpr absl::string_view kMagic = "PLEIADSQ";
constexpr uint32_t kStepFailed = 1, kHasUndo = 2;
constexpr size_t kMaxNameBytes = 64;

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot ", what, ": ", std::strerror(errno)));
}

uint32_t Checksum(uint32_t before, const void* data, size_t size) {
  if (size == 0) return before;  // zlib begins anew at a null pointer, which an empty vector has
  return static_cast<uint32_t>(::crc32_z(before, static_cast<const Bytef*>(data), size));
}

class Packer {
 public:
  template <typename T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutString(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  void PutIds(const std::vector<uint32_t>& ids) {
    bytes_.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint32_t));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Every call says whether there were enough bytes.
class Unpacker {
 public:
  explicit Unpacker(absl::string_view bytes) : left_(bytes) {}

  template <typename T>
  bool Take(T& value) {
    if (left_.size() < sizeof(T)) return false;
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return true;
  }
  bool Take(Position& position) {
    uint64_t value = 0;
    if (!Take(value)) return false;
    position = Position(value);
    return true;
  }
  bool TakeString(size_t longest, std::string& text) {
    uint32_t size = 0;
    if (!Take(size) || size > longest || size > left_.size()) return false;
    text.assign(left_.data(), size);
    left_.remove_prefix(size);
    return true;
  }
  bool TakeIds(uint64_t count, std::vector<uint32_t>& ids) {
    if (count > left_.size() / sizeof(uint32_t)) return false;
    ids.resize(count);
    if (count > 0) std::memcpy(ids.data(), left_.data(), count * sizeof(uint32_t));
    left_.remove_prefix(count * sizeof(uint32_t));
    return true;
  }
  bool empty() const { return left_.empty(); }

 private:
  absl::string_view left_;
};

std::string PackHead(const KeptSequence& sequence) {
  Packer head;
  head.Put(sequence.id.value());
  head.Put(sequence.epoch);
  head.Put(int64_t{absl::ToInt64Nanoseconds(sequence.idle)});
  head.PutString(sequence.client_key);
  head.PutString(sequence.label);
  head.PutString(sequence.owner);
  for (const KeptCarry& carry : sequence.carries) {
    const CarryImage& state = carry.state;
    for (const Position position : {state.position, state.low, state.last_step_start, state.head}) {
      head.Put(position.value());
    }
    head.Put((carry.predecessor_failed ? kStepFailed : 0u) | (state.has_undo ? kHasUndo : 0u));
    head.Put(state.ring.valid);
    head.Put(state.undo_valid);
    head.Put(static_cast<uint32_t>(state.history.size()));
    head.PutIds(state.history);
    head.PutIds(state.undo_history);
  }
  return head.bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceFileWriter>> SequenceFileWriter::Create(const std::string& path,
                                                                               const SequenceFileHeader& header) {
  std::unique_ptr<SequenceFileWriter> writer(new SequenceFileWriter(path));
  // One that was left there may have another mode.
  ::unlink(writer->temporary_.c_str());
  writer->fd_ = UniqueFd(::open(writer->temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!writer->fd_.valid()) return Failed("open", writer->temporary_);
  Packer out;
  out.Put(kSequenceFileVersion);
  out.PutString(header.model_id);
  for (const uint32_t value : {header.layers, header.context_len, header.state_len, header.rollback_tokens}) {
    out.Put(value);
  }
  out.Put(header.channels);
  out.Put(header.sequences);
  PLEIAD_RETURN_IF_ERROR(writer->Write(kMagic.data(), kMagic.size()));
  PLEIAD_RETURN_IF_ERROR(writer->Write(out.bytes().data(), out.bytes().size()));
  PLEIAD_RETURN_IF_ERROR(writer->WriteChecksum());
  return writer;
}

SequenceFileWriter::~SequenceFileWriter() {
  if (fd_.valid() && !committed_) ::unlink(temporary_.c_str());
}

absl::Status SequenceFileWriter::Write(const void* data, size_t size) {
  checksum_ = Checksum(checksum_, data, size);
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t written = ::write(fd_.get(), at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write", temporary_);
    at += written;
    size -= static_cast<size_t>(written);
    bytes_ += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status SequenceFileWriter::WriteChecksum() {
  const uint32_t checksum = checksum_;
  PLEIAD_RETURN_IF_ERROR(Write(&checksum, sizeof(checksum)));
  checksum_ = 0;
  return absl::OkStatus();
}

absl::Status SequenceFileWriter::Add(const KeptSequence& sequence) {
  const std::string head = PackHead(sequence);
  const auto size = static_cast<uint32_t>(head.size());
  PLEIAD_RETURN_IF_ERROR(Write(&size, sizeof(size)));
  PLEIAD_RETURN_IF_ERROR(Write(head.data(), head.size()));
  for (const KeptCarry& carry : sequence.carries) {
    for (const std::vector<float>* rows : {&carry.ring_rows, &carry.undo_rows}) {
      PLEIAD_RETURN_IF_ERROR(Write(rows->data(), rows->size() * sizeof(float)));
    }
  }
  return WriteChecksum();
}

absl::Status SequenceFileWriter::Commit() {
  if (::fsync(fd_.get()) != 0) return Failed("sync", temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename to", path_);
  committed_ = true;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const UniqueFd dir(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid() || ::fsync(dir.get()) != 0) return Failed("sync", folder);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SequenceFileReader>> SequenceFileReader::Open(const std::string& path,
                                                                             const SequenceFileHeader& expected,
                                                                             uint32_t vocab_size) {
  std::unique_ptr<SequenceFileReader> reader(new SequenceFileReader(path, vocab_size));
  reader->fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!reader->fd_.valid()) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": there is none"));
    return Failed("open", path);
  }
  struct stat about;
  if (::fstat(reader->fd_.get(), &about) != 0) return Failed("look at", path);
  if (!S_ISREG(about.st_mode)) return absl::DataLossError(absl::StrCat(path, ": is no regular file"));
  reader->bytes_ = reader->left_ = static_cast<uint64_t>(about.st_size);
  PLEIAD_RETURN_IF_ERROR(reader->ReadHeader(expected));
  return reader;
}

absl::Status SequenceFileReader::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(path_, ": ", what));
}

absl::Status SequenceFileReader::Read(void* data, size_t size) {
  if (size > left_) return Damaged("it ends too early");
  char* at = static_cast<char*>(data);
  for (size_t wanted = size; wanted > 0;) {
    const ssize_t got = ::read(fd_.get(), at, wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("read", path_);
    if (got == 0) return Damaged("it ends too early");
    at += got;
    wanted -= static_cast<size_t>(got);
  }
  left_ -= size;
  checksum_ = Checksum(checksum_, data, size);
  return absl::OkStatus();
}

absl::Status SequenceFileReader::ReadString(uint64_t size, std::string& bytes) {
  if (size > left_) return Damaged("it ends too early");
  bytes.resize(size);
  return Read(bytes.data(), size);
}

absl::Status SequenceFileReader::ReadChecksum() {
  const uint32_t expected = checksum_;
  uint32_t found = 0;
  PLEIAD_RETURN_IF_ERROR(Read(&found, sizeof(found)));
  checksum_ = 0;
  return found == expected ? absl::OkStatus() : Damaged("a checksum does not match its bytes");
}

absl::Status SequenceFileReader::ReadHeader(const SequenceFileHeader& expected) {
  char magic[kMagic.size()];
  PLEIAD_RETURN_IF_ERROR(Read(magic, sizeof(magic)));
  if (absl::string_view(magic, sizeof(magic)) != kMagic) return Damaged("it is no file of sequences");
  uint32_t id_length = 0;
  PLEIAD_RETURN_IF_ERROR(Read(&version_, sizeof(version_)));
  if (version_ < kOldestSequenceFileVersion || version_ > kSequenceFileVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": version ", version_, "; this server reads ",
                                                      kOldestSequenceFileVersion, " to ", kSequenceFileVersion));
  }
  PLEIAD_RETURN_IF_ERROR(Read(&id_length, sizeof(id_length)));
  PLEIAD_RETURN_IF_ERROR(ReadString(id_length, header_.model_id));
  for (uint32_t* field : {&header_.layers, &header_.context_len, &header_.state_len, &header_.rollback_tokens}) {
    PLEIAD_RETURN_IF_ERROR(Read(field, sizeof(*field)));
  }
  PLEIAD_RETURN_IF_ERROR(Read(&header_.channels, sizeof(header_.channels)));
  PLEIAD_RETURN_IF_ERROR(Read(&header_.sequences, sizeof(header_.sequences)));
  PLEIAD_RETURN_IF_ERROR(ReadChecksum());
  if (header_.model_id != expected.model_id) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": of model ", header_.model_id, "; this is ", expected.model_id));
  }
  if (header_.layers != expected.layers || header_.context_len != expected.context_len ||
      header_.state_len != expected.state_len || header_.channels != expected.channels) {
    return Damaged("its geometry is not the model's");
  }
  return absl::OkStatus();
}

absl::Status SequenceFileReader::ParseHead(const std::string& head, KeptSequence& sequence) const {
  Unpacker in(head);
  uint64_t id = 0;
  int64_t idle = 0;
  if (!in.Take(id) || !in.Take(sequence.epoch) || !in.Take(idle) || idle < 0 ||
      !in.TakeString(kMaxNameBytes, sequence.client_key) || !in.TakeString(kMaxNameBytes, sequence.label) ||
      (version_ >= 2 && !in.TakeString(head.size(), sequence.owner))) {
    return Damaged("the head of a sequence is malformed");
  }
  sequence.id = SequenceId(id);
  sequence.idle = absl::Nanoseconds(idle);
  sequence.carries.resize(header_.layers);
  const CarryShape shape = header_.shape();
  for (KeptCarry& carry : sequence.carries) {
    CarryImage& state = carry.state;
    uint32_t flags = 0, ids = 0;
    if (!in.Take(state.position) || !in.Take(state.low) || !in.Take(state.last_step_start) || !in.Take(state.head) ||
        !in.Take(flags) || !in.Take(state.ring.valid) || !in.Take(state.undo_valid) || !in.Take(ids) ||
        !in.TakeIds(ids, state.history)) {
      return Damaged("the head of a carry is malformed");
    }
    carry.predecessor_failed = (flags & kStepFailed) != 0;
    state.has_undo = (flags & kHasUndo) != 0;
    if (state.has_undo && !in.TakeIds(shape.context_len, state.undo_history)) {
      return Damaged("the head of a carry is malformed");
    }
    // Checked before room is made for them.
    const uint64_t rows = uint64_t{state.ring.valid} + state.undo_valid;
    if (rows > left_ / sizeof(float) / header_.channels) return Damaged("it ends too early");
    carry.ring_rows.resize(state.ring.valid * header_.channels);
    carry.undo_rows.resize(state.undo_valid * header_.channels);
  }
  if (!in.empty()) return Damaged("the head of a sequence is too long");
  return absl::OkStatus();
}

absl::StatusOr<KeptSequence> SequenceFileReader::ReadSequence() {
  uint32_t head_size = 0;
  PLEIAD_RETURN_IF_ERROR(Read(&head_size, sizeof(head_size)));
  std::string head;
  PLEIAD_RETURN_IF_ERROR(ReadString(head_size, head));
  KeptSequence sequence;
  PLEIAD_RETURN_IF_ERROR(ParseHead(head, sequence));
  for (KeptCarry& carry : sequence.carries) {
    for (std::vector<float>* rows : {&carry.ring_rows, &carry.undo_rows}) {
      PLEIAD_RETURN_IF_ERROR(Read(rows->data(), rows->size() * sizeof(float)));
    }
  }
  PLEIAD_RETURN_IF_ERROR(ReadChecksum());
  for (const KeptCarry& carry : sequence.carries) {
    const absl::Status status = CheckKept(carry, header_.shape(), header_.channels, vocab_size_);
    if (!status.ok()) return Damaged(std::string(status.message()));
  }
  return sequence;
}

absl::StatusOr<std::optional<KeptSequence>> SequenceFileReader::Next() {
  if (read_ == header_.sequences) {
    if (left_ > 0) return Damaged("there are bytes behind the last sequence");
    return std::nullopt;
  }
  PLEIAD_ASSIGN_OR_RETURN(KeptSequence sequence, ReadSequence());
  ++read_;
  return sequence;
}

}  // namespace pleiad
