#include "server/regions.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/convert.h"
#include "server/log.h"

namespace pleiad {
namespace {

constexpr size_t kMaxPathBytes = 1024;
// Offsets into files are signed.
constexpr uint64_t kLargestEnd = std::numeric_limits<int64_t>::max();

absl::Status TooShort(uint64_t needed, uint64_t size) {
  return absl::FailedPreconditionError(
      absl::StrCat("the file has ", size, " bytes now and must have ", needed, ": it was cut short"));
}

// Beneath `dir`, through no link of any kind.
UniqueFd OpenBeneath(int dir, const std::string& path) {
  open_how how{};
  // A FIFO or a device is opened without waiting for its other end, and refused afterwards.
  how.flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, dir, path.c_str(), &how, sizeof(how))));
}

Outcome Invalid(const std::string& field, const std::string& value, const std::string& rule) {
  return InvalidField(Reason::kInvalidField, field, value, rule);
}

Outcome Full(const std::string& field, uint64_t value, const std::string& rule) {
  return Failed(absl::StatusCode::kResourceExhausted, absl::StrCat(field, " ", value, ": ", rule),
                MakeDetail(Reason::kInvalidField, field, absl::StrCat(value), rule));
}

constexpr char kFile[] = "REGION_KIND_SHM_FILE";
constexpr char kMemory[] = "REGION_KIND_CUDA_IPC";

// Fields of the other kind are unset; the span is none of nothing and can be counted.
std::optional<Outcome> CheckFields(const v1::AttachRegionsRequest& request) {
  const bool is_file = request.kind() == v1::REGION_KIND_SHM_FILE;
  if (!is_file && request.kind() != v1::REGION_KIND_CUDA_IPC) {
    return Invalid("kind", absl::StrCat(static_cast<int>(request.kind())),
                   absl::StrCat("must be ", kFile, " (1) or ", kMemory, " (2)"));
  }
  struct Field {
    const char* name;
    const std::string* value;
    bool of_files;
  };
  const Field fields[] = {{"path", &request.path(), true},
                          {"memory_handle", &request.memory_handle(), false},
                          {"gpu_uuid", &request.gpu_uuid(), false},
                          {"ready_event", &request.ready_event(), false},
                          {"done_event", &request.done_event(), false}};
  for (const Field& field : fields) {
    if (field.of_files == is_file || field.value->empty()) continue;
    return Invalid(field.name, absl::StrCat(field.value->size(), " bytes"),
                   absl::StrCat("must be unset where kind is ", is_file ? kFile : kMemory));
  }
  if (request.bytes() == 0) return Invalid("bytes", "0", "must be positive");
  if (request.bytes() > kLargestEnd || request.offset() > kLargestEnd - request.bytes()) {
    return Invalid("offset", absl::StrCat(request.offset(), " + bytes ", request.bytes()), "must stay below 2^63");
  }
  const std::string& path = request.path();
  if (is_file && (path.empty() || path.size() > kMaxPathBytes || path.find('\0') != std::string::npos)) {
    return Invalid("path", absl::StrCat(path.size(), " bytes"),
                   absl::StrCat("must have 1 to ", kMaxPathBytes, " bytes, none of them 0"));
  }
  return std::nullopt;
}

// The span is in memory, as far as can be seen, so that holding its pages takes no more of it. (Not hugetlbfs: its
// pages are larger than what is counted, and it has no write.)
bool IsInMemory(int fd, uint64_t offset, uint64_t bytes) {
  struct statfs system {};
  if (::fstatfs(fd, &system) != 0 || static_cast<uint64_t>(system.f_type) != TMPFS_MAGIC) return false;
  const off_t hole = ::lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
  return hole >= 0 && static_cast<uint64_t>(hole) >= offset + bytes;
}

// The field that a refusal of the device begins with.
std::string FirstWord(absl::string_view message) { return std::string(message.substr(0, message.find_first_of(" :"))); }

}  // namespace

absl::Status Region::CheckFile(uint64_t offset, uint64_t bytes) const {
  struct stat file {};
  if (::fstat(fd_.get(), &file) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  const uint64_t needed = file_offset_ + offset + bytes;
  if (static_cast<uint64_t>(file.st_size) < needed) return TooShort(needed, static_cast<uint64_t>(file.st_size));
  return absl::OkStatus();
}

absl::Status Region::Read(uint64_t offset, absl::Span<std::byte> out) const {
  const absl::Status status = copier_->Copy(out.size(), [&](uint64_t begin, uint64_t end) {
    return ReadPart(offset + begin, out.subspan(begin, end - begin));
  });
  if (status.ok()) return status;
  // What is said is of all of it, not of a part.
  absl::Status whole = CheckFile(offset, out.size());
  return whole.ok() ? status : whole;
}

absl::Status Region::ReadPart(uint64_t offset, absl::Span<std::byte> out) const {
  for (size_t done = 0; done < out.size();) {
    const uint64_t at = file_offset_ + offset + done;
    const ssize_t got = ::pread(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::FailedPreconditionError(std::strerror(errno));
    if (got == 0) return TooShort(file_offset_ + offset + out.size(), at);
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status Region::Write(uint64_t offset, absl::Span<const std::byte> from) const {
  if (absl::Status status = CheckFile(offset, from.size()); !status.ok()) return status;
  return copier_->Copy(from.size(), [&](uint64_t begin, uint64_t end) {
    return WritePart(offset + begin, from.subspan(begin, end - begin));
  });
}

absl::Status Region::WritePart(uint64_t offset, absl::Span<const std::byte> from) const {
  for (size_t done = 0; done < from.size();) {
    const uint64_t at = file_offset_ + offset + done;
    const ssize_t put = ::pwrite(fd_.get(), from.data() + done, from.size() - done, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == ENOSPC || errno == EDQUOT)) return absl::ResourceExhaustedError(std::strerror(errno));
    if (put <= 0) return absl::FailedPreconditionError(std::strerror(put < 0 ? errno : EIO));
    done += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

bool Region::Overlaps(uint64_t offset, uint64_t bytes, const Region& other, uint64_t other_offset,
                      uint64_t other_bytes) const {
  if (memory_ != nullptr || other.memory_ != nullptr) {
    if (memory_ == nullptr || other.memory_ == nullptr) return false;
    const auto at = reinterpret_cast<uintptr_t>(memory_->data()) + offset;
    const auto other_at = reinterpret_cast<uintptr_t>(other.memory_->data()) + other_offset;
    return at < other_at + other_bytes && other_at < at + bytes;
  }
  if (device_ != other.device_ || inode_ != other.inode_) return false;
  const uint64_t begin = file_offset_ + offset, other_begin = other.file_offset_ + other_offset;
  return begin < other_begin + other_bytes && other_begin < begin + bytes;
}

absl::StatusOr<std::unique_ptr<RegionTable>> RegionTable::Open(const std::string& shm_dir, const RegionLimits& limits) {
  UniqueFd fd(::open(shm_dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shm-dir ", shm_dir, ": must be a folder that can be opened: ", std::strerror(errno)));
  }
  return std::unique_ptr<RegionTable>(new RegionTable(std::move(fd), shm_dir, limits));
}

std::shared_ptr<ClientMemory> RegionTable::Pin(const Region& region, Engine* engine, const std::string& client) {
  if (engine == nullptr || !IsInMemory(region.fd(), region.file_offset(), region.bytes())) return nullptr;
  // Whole pages are held, at either end one more at most.
  std::shared_ptr<void> counted = pinned_->Take(client, region.bytes());
  if (counted == nullptr) return nullptr;
  auto pages = engine->ImportFile(region.fd(), region.file_offset(), region.bytes(), std::move(counted));
  if (pages.ok()) return *std::move(pages);
  if (!absl::IsUnimplemented(pages.status()) && !told_unpinned_.test_and_set()) {
    spdlog::warn("regions: the device cannot hold the pages of a client's file, so the CPU copies them (said once): {}",
                 pages.status().ToString());
  }
  return nullptr;
}

std::shared_ptr<Region> RegionTable::OpenFile(const v1::AttachRegionsRequest& request, Outcome* why) const {
  const std::string shown = absl::CHexEscape(request.path());
  UniqueFd fd = OpenBeneath(shm_dir_.get(), request.path());
  if (!fd.valid()) {
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOMEM) {
      *why = Failed(absl::StatusCode::kResourceExhausted, absl::StrCat("path ", shown, ": ", std::strerror(error)),
                    MakeDetail(Reason::kInvalidField, "path", shown, std::strerror(error)));
      return nullptr;
    }
    *why = Invalid("path", shown,
                   absl::StrCat("must be a file beneath --shm-dir ", shm_dir_name_,
                                ", named without links: ", std::strerror(error)));
    return nullptr;
  }
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode)) {
    *why = Invalid("path", shown, "must be a regular file");
    return nullptr;
  }
  if (file.st_nlink > 1) {
    *why = Invalid("path", shown, absl::StrCat("must have one name, and has ", file.st_nlink));
    return nullptr;
  }
  if (static_cast<uint64_t>(file.st_size) < request.offset() + request.bytes()) {
    *why = Invalid("offset", absl::StrCat(request.offset(), " + bytes ", request.bytes()),
                   absl::StrCat("must lie in the file, which has ", file.st_size, " bytes"));
    return nullptr;
  }
  return std::make_shared<Region>(std::move(fd), file.st_dev, file.st_ino, request.offset(), request.bytes(), copier_);
}

std::shared_ptr<Region> RegionTable::OpenMemory(const v1::AttachRegionsRequest& request, Engine* engine, Outcome* why) {
  const auto memory = engine->ImportMemory({.memory = request.memory_handle(),
                                            .gpu_uuid = request.gpu_uuid(),
                                            .ready_event = request.ready_event(),
                                            .done_event = request.done_event(),
                                            .offset = request.offset(),
                                            .bytes = request.bytes()});
  if (memory.ok()) return std::make_shared<Region>(*memory);
  const std::string text(memory.status().message());
  if (absl::IsUnimplemented(memory.status())) {
    *why = Failed(absl::StatusCode::kInvalidArgument, absl::StrCat("kind ", kMemory, ": ", text),
                  MakeDetail(Reason::kNotSupported, "kind", kMemory, text));
  } else {
    *why = Failed(memory.status().code(), text, MakeDetail(Reason::kInvalidField, FirstWord(text), "", text));
  }
  return nullptr;
}

RegionLimits RegionLimits::Within(uint64_t open_files, uint64_t pinned_bytes) {
  RegionLimits limits;
  limits.pinned_bytes = pinned_bytes;
  limits.regions = static_cast<size_t>(std::min<uint64_t>(limits.regions, open_files / 4));
  limits.of_client = std::max<size_t>(1, limits.regions / 2);
  return limits;
}

std::optional<Outcome> RegionTable::CheckRoom(const Region* region, const void* owner,
                                              const std::string& client) const {
  Stats of_stream, of_client;
  for (const auto& [id, entry] : entries_) {
    if (entry.client != client) continue;
    ++of_client.regions;
    of_client.bytes += entry.region->bytes();
    if (entry.owner != owner) continue;
    ++of_stream.regions;
    of_stream.bytes += entry.region->bytes();
    if (region != nullptr && region->Overlaps(0, region->bytes(), *entry.region, 0, entry.region->bytes())) {
      return Invalid("offset", absl::StrCat("with bytes ", region->bytes()), "overlaps a region of the same stream");
    }
  }
  const std::tuple<const char*, Stats, size_t, uint64_t> bounds[] = {
      {"the stream", of_stream, limits_.of_stream, limits_.stream_bytes},
      {"the client", of_client, limits_.of_client, limits_.client_bytes},
      {"all clients", {.regions = entries_.size(), .bytes = bytes_}, limits_.regions, limits_.bytes}};
  for (const auto& [whose, used, regions, bytes] : bounds) {
    if (used.regions >= regions) {
      return Full("regions", used.regions, absl::StrCat("at most ", regions, " of ", whose));
    }
    if (region != nullptr && region->bytes() > bytes - used.bytes) {
      return Full("bytes", region->bytes(),
                  absl::StrCat("at most ", bytes - used.bytes, " of ", bytes, " are left to ", whose));
    }
  }
  return std::nullopt;
}

RegionTable::Attached RegionTable::Attach(const v1::AttachRegionsRequest& request, const void* owner, Engine* engine,
                                          const std::string& client) {
  if (auto bad = CheckFields(request)) return {.outcome = *std::move(bad)};
  const bool is_file = request.kind() == v1::REGION_KIND_SHM_FILE;
  if (!is_file) {
    // Opening costs the GPU's driver more than a file costs.
    MutexLock lock(&mutex_);
    if (auto full = CheckRoom(nullptr, owner, client)) return {.outcome = *std::move(full)};
  }
  Outcome why;
  const std::shared_ptr<Region> region = is_file ? OpenFile(request, &why) : OpenMemory(request, engine, &why);
  if (region == nullptr) return {.outcome = std::move(why)};
  if (is_file) {
    // So does holding pages: not for what will be refused.
    {
      MutexLock lock(&mutex_);
      if (auto full = CheckRoom(region.get(), owner, client)) return {.outcome = *std::move(full)};
    }
    region->set_pages(Pin(*region, engine, client));
  }
  MutexLock lock(&mutex_);
  if (auto full = CheckRoom(region.get(), owner, client)) return {.outcome = *std::move(full)};
  uint64_t id = ids_.Next();
  while (entries_.contains(id)) id = ids_.Next();
  bytes_ += region->bytes();
  entries_.emplace(id, Entry{region, owner, client});
  return {.outcome = {}, .id = id};
}

void RegionTable::Detach(const void* owner) {
  std::vector<std::shared_ptr<const Region>> closed;  // after the lock
  MutexLock lock(&mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->second.owner != owner) {
      ++it;
      continue;
    }
    bytes_ -= it->second.region->bytes();
    closed.push_back(std::move(it->second.region));
    entries_.erase(it++);
  }
}

std::shared_ptr<const Region> RegionTable::Find(uint64_t id) const {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.region;
}

RegionTable::Stats RegionTable::stats() const {
  MutexLock lock(&mutex_);
  return {.regions = entries_.size(), .bytes = bytes_, .pinned_bytes = pinned_->total()};
}

}  // namespace pleiad
