#include "core/device/import_table.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace pleiad {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view value, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", value, ": ", rule));
}

absl::Status CheckHandle(absl::string_view field, const std::string& handle) {
  if (handle.size() == kIpcHandleBytes) return absl::OkStatus();
  return Bad(field, absl::StrCat(handle.size(), " bytes"), absl::StrCat("must have ", kIpcHandleBytes));
}

absl::Status CheckRange(const ClientMemoryHandles& handles, uint64_t allocated) {
  if (handles.bytes <= allocated && handles.offset <= allocated - handles.bytes) return absl::OkStatus();
  return Bad("offset", absl::StrCat(handles.offset, " + bytes ", handles.bytes),
             absl::StrCat("must lie in the allocation, which has ", allocated, " bytes"));
}

}  // namespace

class ImportTable::Part final : public ClientMemory {
 public:
  Part(std::shared_ptr<ImportTable> table, const ClientMemoryHandles& handles, std::byte* data, void* ready, void* done)
      : table_(std::move(table)),
        handle_(handles.memory),
        data_(data),
        bytes_(handles.bytes),
        ready_(ready),
        done_(done) {}
  ~Part() override {
    table_->CloseLater({.memory = handle_, .ready = ready_, .done = done_, .pages = {}, .until_released = nullptr});
  }

  std::byte* data() const override { return data_; }
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<bool> IsReady() const override { return table_->driver_->IsDone(ready_); }
  void* done_event() const override { return done_; }

 private:
  const std::shared_ptr<ImportTable> table_;
  const std::string handle_;
  std::byte* const data_;
  const uint64_t bytes_;
  void* const ready_;
  void* const done_;
};

// The CPU never touches them: past the end of a file that was cut short that would be a signal.
class ImportTable::FilePages final : public ClientMemory {
 public:
  FilePages(std::shared_ptr<ImportTable> table, absl::Span<std::byte> pages, std::byte* data, uint64_t bytes,
            std::shared_ptr<void> until_released)
      : table_(std::move(table)),
        pages_(pages),
        data_(data),
        bytes_(bytes),
        until_released_(std::move(until_released)) {}
  ~FilePages() override {
    table_->CloseLater({.memory = {},
                        .ready = nullptr,
                        .done = nullptr,
                        .pages = pages_,
                        .until_released = std::move(until_released_)});
  }

  std::byte* data() const override { return data_; }
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<bool> IsReady() const override { return true; }
  void* done_event() const override { return nullptr; }

 private:
  const std::shared_ptr<ImportTable> table_;
  const absl::Span<std::byte> pages_;
  std::byte* const data_;
  const uint64_t bytes_;
  std::shared_ptr<void> until_released_;
};

std::shared_ptr<ImportTable> ImportTable::Create(std::unique_ptr<IpcDriver> driver) {
  return std::shared_ptr<ImportTable>(new ImportTable(std::move(driver)));
}

ImportTable::ImportTable(std::unique_ptr<IpcDriver> driver) : driver_(std::move(driver)) {
  closer_ = std::thread([this] { CloseLoop(); });
}

ImportTable::~ImportTable() {
  {
    MutexLock lock(&mutex_);
    exit_ = true;
    changed_.NotifyAll();
  }
  closer_.join();
}

absl::StatusOr<std::shared_ptr<ClientMemory>> ImportTable::Import(const ClientMemoryHandles& handles) {
  PLEIAD_RETURN_IF_ERROR(CheckHandle("memory_handle", handles.memory));
  PLEIAD_RETURN_IF_ERROR(CheckHandle("ready_event", handles.ready_event));
  PLEIAD_RETURN_IF_ERROR(CheckHandle("done_event", handles.done_event));
  if (handles.gpu_uuid != driver_->gpu_uuid()) {
    return Bad("gpu_uuid", absl::CHexEscape(handles.gpu_uuid.substr(0, 64)),
               absl::StrCat("must be the server's GPU, ", driver_->gpu_uuid()));
  }
  if (handles.bytes == 0) return Bad("bytes", "0", "must be positive");
  MutexLock lock(&driver_mutex_);
  PLEIAD_ASSIGN_OR_RETURN(const IpcDriver::Allocation allocation, Open(handles.memory));
  absl::Status status = CheckRange(handles, allocation.bytes);
  void* events[2] = {nullptr, nullptr};
  const std::string* const event_handles[2] = {&handles.ready_event, &handles.done_event};
  for (int i = 0; i < 2 && status.ok(); ++i) {
    const auto use = i == 0 ? IpcDriver::EventUse::kAsked : IpcDriver::EventUse::kRecorded;
    const absl::StatusOr<void*> event = driver_->OpenEvent(*event_handles[i], use);
    if (event.ok()) {
      events[i] = *event;
    } else {
      status = absl::Status(event.status().code(),
                            absl::StrCat(i == 0 ? "ready_event" : "done_event", ": ", event.status().message()));
    }
  }
  if (!status.ok()) {
    if (events[0] != nullptr) driver_->CloseEvent(events[0]);
    Close(handles.memory);
    return status;
  }
  return std::make_shared<Part>(shared_from_this(), handles, allocation.data + handles.offset, events[0], events[1]);
}

absl::StatusOr<std::shared_ptr<ClientMemory>> ImportTable::ImportFile(int fd, uint64_t offset, uint64_t bytes,
                                                                      std::shared_ptr<void> until_released) {
  if (bytes == 0) return Bad("bytes", "0", "must be positive");
  const uint64_t before = offset % static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  void* const begin =
      ::mmap(nullptr, before + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - before));
  if (begin == MAP_FAILED) {
    return absl::FailedPreconditionError(absl::StrCat("the file cannot be mapped: ", std::strerror(errno)));
  }
  const auto pages = absl::MakeSpan(static_cast<std::byte*>(begin), before + bytes);
  MutexLock lock(&driver_mutex_);
  if (absl::Status status = driver_->Pin(pages.data(), pages.size()); !status.ok()) {
    ::munmap(begin, pages.size());
    return status;
  }
  return std::make_shared<FilePages>(shared_from_this(), pages, pages.data() + before, bytes,
                                     std::move(until_released));
}

absl::StatusOr<IpcDriver::Allocation> ImportTable::Open(const std::string& handle) {
  const auto found = opened_.find(handle);
  if (found != opened_.end()) {
    ++found->second.parts;
    return found->second.allocation;
  }
  absl::StatusOr<IpcDriver::Allocation> allocation = driver_->OpenMemory(handle);
  if (!allocation.ok()) {
    return absl::Status(allocation.status().code(), absl::StrCat("memory_handle: ", allocation.status().message()));
  }
  opened_.emplace(handle, Opened{*allocation, 1});
  return *allocation;
}

void ImportTable::Close(const std::string& handle) {
  const auto found = opened_.find(handle);
  if (--found->second.parts > 0) return;
  driver_->CloseMemory(found->second.allocation.data);
  opened_.erase(found);
}

void ImportTable::CloseLater(Closing closing) {
  MutexLock lock(&mutex_);
  closing_.push_back(std::move(closing));
  changed_.NotifyAll();
}

void ImportTable::WaitUntilClosed() {
  MutexLock lock(&mutex_);
  while (closes_ || !closing_.empty()) changed_.Wait(&mutex_);
}

void ImportTable::CloseLoop() {
  while (true) {
    Closing next;
    {
      MutexLock lock(&mutex_);
      closes_ = false;
      changed_.NotifyAll();
      while (!exit_ && closing_.empty()) changed_.Wait(&mutex_);
      if (closing_.empty()) return;
      next = std::move(closing_.front());
      closing_.pop_front();
      closes_ = true;
    }
    MutexLock lock(&driver_mutex_);
    if (!next.pages.empty()) {
      if (driver_->Unpin(next.pages.data())) ::munmap(next.pages.data(), next.pages.size());
      continue;
    }
    driver_->CloseEvent(next.ready);
    driver_->CloseEvent(next.done);
    Close(next.memory);
  }
}

}  // namespace pleiad
