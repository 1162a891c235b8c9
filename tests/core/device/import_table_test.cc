#include "core/device/import_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "core/base/unique_fd.h"
#include "tests/support/fake_ipc.h"

namespace pleiad {
namespace {

using testing::FakeHandle;
using testing::FakeHandles;
using ::testing::HasSubstr;

class ImportTableTest : public ::testing::Test {
 protected:
  ImportTableTest() : begin_(world_.Allocate("a", 4096)), table_(ImportTable::Create(world_.Driver())) {
    world_.AddEvent("a.ready");
    world_.AddEvent("a.done");
  }

  testing::FakeIpcWorld world_;
  std::byte* const begin_;
  std::shared_ptr<ImportTable> table_;
};

TEST_F(ImportTableTest, PartsOfOneAllocationShareOneOpening) {
  auto first = table_->Import(FakeHandles("a", 0, 1024));
  auto second = table_->Import(FakeHandles("a", 1024, 3072));
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ((*first)->data(), begin_);
  EXPECT_EQ((*second)->data(), begin_ + 1024);
  EXPECT_EQ((*second)->bytes(), 3072u);
  EXPECT_EQ(world_.Opened("a"), 1);
  first->reset();
  table_->WaitUntilClosed();
  EXPECT_EQ(world_.OpenNow("a"), 1) << "the other part uses it";
  EXPECT_EQ(world_.At("a.ready").open, 1);
  second->reset();
  table_->WaitUntilClosed();
  EXPECT_EQ(world_.OpenNow("a"), 0);
  EXPECT_EQ(world_.At("a.ready").open, 0);
  EXPECT_EQ(world_.At("a.done").open, 0);
}

TEST_F(ImportTableTest, ItIsOpenedAgainAfterItWasClosed) {
  for (int round = 1; round < 20; ++round) {
    // Mostly before the last was closed.
    const auto part = table_->Import(FakeHandles("a", 0, 1));
    ASSERT_TRUE(part.ok()) << part.status();
  }
  table_->WaitUntilClosed();
  EXPECT_EQ(world_.OpenNow("a"), 0);
}

TEST_F(ImportTableTest, ThreadsThatOpenAndCloseOneAllocationDoNotCollide) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (uint64_t i = 0; i < 100; ++i) {
        const auto part = table_->Import(FakeHandles("a", i, static_cast<uint64_t>(t) + 1));
        ASSERT_TRUE(part.ok()) << part.status();
        EXPECT_EQ((*part)->data(), begin_ + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  table_->WaitUntilClosed();
  EXPECT_EQ(world_.OpenNow("a"), 0);
  EXPECT_EQ(world_.At("a.done").open, 0);
}

TEST_F(ImportTableTest, WhatWasImportedOutlivesTheTablesOwner) {
  auto part = table_->Import(FakeHandles("a", 0, 4096));
  ASSERT_TRUE(part.ok());
  table_ = nullptr;
  world_.Set("a.ready", false);
  EXPECT_FALSE(*(*part)->IsReady());
  part->reset();  // the last: the table ends with it, and closes first
  EXPECT_EQ(world_.OpenNow("a"), 0);
}

TEST_F(ImportTableTest, TheReadyEventIsAskedAndTheDoneEventRecorded) {
  const auto part = table_->Import(FakeHandles("a", 0, 4096));
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(world_.At("a.ready").recorded, 0u) << "it is the client's to record";
  EXPECT_EQ(world_.At("a.done").recorded, 1u) << "tried once, so that no batch is the first to";
  world_.Set("a.ready", false);
  EXPECT_FALSE(*(*part)->IsReady());
  world_.Set("a.ready", true);
  EXPECT_TRUE(*(*part)->IsReady());
  world_.Break("a.ready");
  EXPECT_EQ((*part)->IsReady().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ImportTableTest, RefusalsNameTheFieldAndLeaveNothingOpen) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const struct {
    std::function<void(ClientMemoryHandles&)> spoil;
    const char* text;
  } refusals[] = {
      {[](ClientMemoryHandles& h) { h.memory.pop_back(); }, "memory_handle 63 bytes: must have 64"},
      {[](ClientMemoryHandles& h) { h.memory.clear(); }, "memory_handle 0 bytes"},
      {[](ClientMemoryHandles& h) { h.ready_event += "x"; }, "ready_event 65 bytes"},
      {[](ClientMemoryHandles& h) { h.done_event.clear(); }, "done_event 0 bytes"},
      {[](ClientMemoryHandles& h) { h.memory = FakeHandle("b"); }, "memory_handle: no such memory"},
      {[](ClientMemoryHandles& h) { h.memory.assign(64, '\0'); }, "memory_handle: no such memory"},
      {[](ClientMemoryHandles& h) { h.ready_event = FakeHandle("b"); }, "ready_event: no such event"},
      {[](ClientMemoryHandles& h) { h.done_event = FakeHandle("b"); }, "done_event: no such event"},
      {[](ClientMemoryHandles& h) { h.gpu_uuid = "GPU-5"; },
       "gpu_uuid GPU-5: must be the server's GPU, GPU-00000000-1111-2222-3333-444444444444"},
      {[](ClientMemoryHandles& h) { h.gpu_uuid.clear(); }, "gpu_uuid : must be the server's GPU"},
      {[](ClientMemoryHandles& h) { h.bytes = 0; }, "bytes 0: must be positive"},
      {[](ClientMemoryHandles& h) { h.bytes = 4097; }, "which has 4096 bytes"},
      {[](ClientMemoryHandles& h) { h.offset = 4096; }, "offset 4096 + bytes 16: must lie in the allocation"},
      {[](ClientMemoryHandles& h) { h.offset = 4081; }, "offset 4081"},
      {[](ClientMemoryHandles& h) { h.offset = kMost; }, "must lie in the allocation"},
      {[](ClientMemoryHandles& h) { h.bytes = kMost; }, "must lie in the allocation"},
  };
  for (const auto& refusal : refusals) {
    ClientMemoryHandles handles = FakeHandles("a", 0, 16);
    refusal.spoil(handles);
    const auto part = table_->Import(handles);
    EXPECT_EQ(part.status().code(), absl::StatusCode::kInvalidArgument) << refusal.text;
    EXPECT_THAT(std::string(part.status().message()), HasSubstr(refusal.text));
    EXPECT_EQ(world_.OpenNow("a"), 0) << refusal.text;
    EXPECT_EQ(world_.At("a.ready").open + world_.At("a.done").open, 0) << refusal.text;
  }
  EXPECT_TRUE(table_->Import(FakeHandles("a", 4080, 16)).ok());
}

class ImportFileTest : public ImportTableTest {
 protected:
  static constexpr uint64_t kFileBytes = 3 * 4096 + 100;  // with pages of 4 KiB

  ImportFileTest() { EXPECT_EQ(::ftruncate(file_.get(), kFileBytes), 0); }

  void Put(uint64_t offset, const std::string& text) {
    EXPECT_EQ(::pwrite(file_.get(), text.data(), text.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(text.size()));
  }

  const UniqueFd file_{::memfd_create("tensors", MFD_CLOEXEC)};
};

TEST_F(ImportFileTest, ItsPagesArePinnedUntilNobodyHasThem) {
  auto whole = table_->ImportFile(file_.get(), 0, kFileBytes, nullptr);
  auto part = table_->ImportFile(file_.get(), 5000, 4000, nullptr);
  ASSERT_TRUE(whole.ok() && part.ok()) << whole.status() << part.status();
  EXPECT_EQ(world_.PinnedBytes(), kFileBytes + (5000 - 4096) + 4000);
  Put(5000, "from the client");
  EXPECT_EQ(std::memcmp((*part)->data(), "from the client", 15), 0);
  EXPECT_EQ(std::memcmp((*whole)->data() + 5000, "from the client", 15), 0);
  std::memcpy((*part)->data() + 3990, "and back", 8);
  char back[8];
  ASSERT_EQ(::pread(file_.get(), back, 8, 8990), 8);
  EXPECT_EQ(std::string(back, 8), "and back");
  EXPECT_EQ((*part)->bytes(), 4000u);
  EXPECT_TRUE(*(*part)->IsReady()) << "there is no event";
  EXPECT_EQ((*part)->done_event(), nullptr);
  whole->reset();
  table_->WaitUntilClosed();
  EXPECT_EQ(world_.PinnedBytes(), 4000u + 5000 - 4096);
  table_ = nullptr;
  part->reset();  // closes first
  EXPECT_EQ(world_.PinnedBytes(), 0u);
}

TEST_F(ImportFileTest, WhatItIsGivenIsLetGoOfAfterThePages) {
  auto token = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = token;
  world_.BeforeUnpins([&] { EXPECT_FALSE(seen.expired()); });
  auto pages = table_->ImportFile(file_.get(), 0, kFileBytes, std::move(token));
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_FALSE(seen.expired());
  pages->reset();
  table_->WaitUntilClosed();
  EXPECT_TRUE(seen.expired());
  EXPECT_EQ(world_.PinnedBytes(), 0u);
}

TEST_F(ImportFileTest, WhatCannotBeMappedOrPinnedIsSaid) {
  EXPECT_THAT(std::string(table_->ImportFile(file_.get(), 0, 0, nullptr).status().message()), HasSubstr("bytes 0"));
  const auto closed = table_->ImportFile(-1, 0, 10, nullptr);
  EXPECT_EQ(closed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(closed.status().message()), HasSubstr("cannot be mapped"));
  world_.RefusePins(absl::ResourceExhaustedError("no more"));
  EXPECT_EQ(table_->ImportFile(file_.get(), 0, 10, nullptr).status().code(), absl::StatusCode::kResourceExhausted);
  world_.RefusePins(absl::OkStatus());
  EXPECT_TRUE(table_->ImportFile(file_.get(), 0, 10, nullptr).ok());
}

}  // namespace
}  // namespace pleiad
