// Memory that clients share with the server: which files and which device memory they attached, and copies out of files
// and into them. The CPU never reads or writes a client's file through a mapping, so one that is cut short or removed
// is an error and no signal. Device memory, and pages of files that the device holds, are read and written by it alone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/mutex.h"
#include "core/base/random_ids.h"
#include "core/base/unique_fd.h"
#include "core/engine/engine.h"
#include "core/engine/failure.h"
#include "pleiad/v1/ple.pb.h"
#include "server/job_thread.h"
#include "server/pinned_bytes.h"
#include "server/region_copier.h"

namespace pleiad {

// Part of a file of --shm-dir, or of an allocation on the device. Thread-safe; blocks as reads and writes of memory
// files do. What is said of files is of them alone.
class Region {
 public:
  explicit Region(std::shared_ptr<ClientMemory> memory) : memory_(std::move(memory)), bytes_(memory_->bytes()) {}
  Region(UniqueFd fd, dev_t device, ino_t inode, uint64_t file_offset, uint64_t bytes,
         std::shared_ptr<RegionCopier> copier)
      : fd_(std::move(fd)),
        device_(device),
        inode_(inode),
        file_offset_(file_offset),
        bytes_(bytes),
        copier_(std::move(copier)) {}

  uint64_t bytes() const { return bytes_; }
  // Null of a file.
  const std::shared_ptr<ClientMemory>& memory() const { return memory_; }
  // Of a file that the device reads and writes by itself; else null.
  const std::shared_ptr<ClientMemory>& pages() const { return pages_; }
  // Before others see the region.
  void set_pages(std::shared_ptr<ClientMemory> pages) { pages_ = std::move(pages); }
  int fd() const { return fd_.get(); }
  uint64_t file_offset() const { return file_offset_; }
  // The file is as long as [offset, offset + bytes) needs now, which lies in the region. FailedPrecondition.
  absl::Status CheckFile(uint64_t offset, uint64_t bytes) const;
  // Fill `out` from byte `offset` on. FailedPrecondition: the file ends before.
  absl::Status Read(uint64_t offset, absl::Span<std::byte> out) const;
  // FailedPrecondition: the file ends before; it is not made longer, unless it is being cut at the same time.
  // ResourceExhausted: its file system is full. Part of it may be written.
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from) const;
  // Some byte of the one span is one of the other.
  bool Overlaps(uint64_t offset, uint64_t bytes, const Region& other, uint64_t other_offset,
                uint64_t other_bytes) const;

 private:
  absl::Status ReadPart(uint64_t offset, absl::Span<std::byte> out) const;
  absl::Status WritePart(uint64_t offset, absl::Span<const std::byte> from) const;

  const std::shared_ptr<ClientMemory> memory_;
  std::shared_ptr<ClientMemory> pages_;
  const UniqueFd fd_;
  const dev_t device_ = 0;
  const ino_t inode_ = 0;
  const uint64_t file_offset_ = 0;
  const uint64_t bytes_;
  const std::shared_ptr<RegionCopier> copier_;
};

// What may be attached at a time. A region counts with its size, whatever of its file is there, so shares keep a large
// sparse file from being all that fits.
struct RegionLimits {
  // Each region holds a file open; connections, which are files too, keep three quarters of `open_files`.
  static RegionLimits Within(uint64_t open_files, uint64_t pinned_bytes);

  size_t of_stream = 64;
  size_t of_client = 2048;
  size_t regions = 4096;  // all together
  uint64_t stream_bytes = uint64_t{1} << 38;
  uint64_t client_bytes = uint64_t{1} << 39;
  uint64_t bytes = uint64_t{1} << 40;  // all together
  // Of files whose pages the device holds, so that they stay even where a client cuts or removes the file; a client has
  // half of it. Files beyond are copied by the CPU.
  uint64_t pinned_bytes = uint64_t{1} << 34;
};

// All attached regions of the process. Thread-safe.
class RegionTable {
 public:
  // InvalidArgument naming --shm-dir when it is no folder that can be opened.
  static absl::StatusOr<std::unique_ptr<RegionTable>> Open(const std::string& shm_dir, const RegionLimits& limits = {});

  // Until Detach(owner). The outcome is OK, or names the field, its value and the rule, and nothing is attached.
  struct Attached {
    Outcome outcome;
    uint64_t id = 0;
  };
  // Blocks, for seconds where pages of a large file are pinned: device memory is opened, and pages are held, by
  // `engine`; null: there is none. `owner`: its stream, which attaches one at a time; `client`: the name that its share
  // of the limits goes by.
  Attached Attach(const v1::AttachRegionsRequest& request, const void* owner, Engine* engine,
                  const std::string& client = "");
  // Runs `job`, which attaches, on the table's thread.
  void Run(std::function<void()> job) { jobs_.Run(std::move(job)); }
  // Steps that have found them keep them.
  void Detach(const void* owner);

  // Null where no region has this id.
  std::shared_ptr<const Region> Find(uint64_t id) const;

  struct Stats {
    uint64_t regions = 0;
    uint64_t bytes = 0;
    uint64_t pinned_bytes = 0;  // those of them that the device holds
  };
  Stats stats() const;

 private:
  RegionTable(UniqueFd shm_dir, std::string shm_dir_name, const RegionLimits& limits)
      : shm_dir_(std::move(shm_dir)),
        shm_dir_name_(std::move(shm_dir_name)),
        limits_(limits),
        copier_(std::make_shared<RegionCopier>(RegionCopier::ThreadsOf(std::thread::hardware_concurrency()))),
        pinned_(PinnedBytes::Create(limits.pinned_bytes)) {}

  struct Entry {
    std::shared_ptr<const Region> region;
    const void* owner;
    std::string client;
  };

  // The region of a request that names device memory, or why there is none.
  static std::shared_ptr<Region> OpenMemory(const v1::AttachRegionsRequest& request, Engine* engine, Outcome* why);
  // The same of one that names a file.
  std::shared_ptr<Region> OpenFile(const v1::AttachRegionsRequest& request, Outcome* why) const;
  // The pages of a file's region, where the device can hold them and there is room for that.
  std::shared_ptr<ClientMemory> Pin(const Region& region, Engine* engine, const std::string& client);
  // Of one more region; null: of its count alone, before it is opened.
  std::optional<Outcome> CheckRoom(const Region* region, const void* owner, const std::string& client) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd shm_dir_;
  const std::string shm_dir_name_;
  const RegionLimits limits_;
  const std::shared_ptr<RegionCopier> copier_;
  const std::shared_ptr<PinnedBytes> pinned_;
  std::atomic_flag told_unpinned_;

  mutable Mutex mutex_;
  RandomIds ids_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  JobThread jobs_;
};

}  // namespace pleiad
