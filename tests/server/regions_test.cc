#include "server/regions.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/fake_engine.h"
#include "tests/support/fake_ipc.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::HasSubstr;

class RegionTableTest : public ::testing::Test {
 protected:
  RegionTableTest() { std::filesystem::create_directory(shm()); }

  std::string shm() const { return dir_ / "shm"; }
  std::string WriteFile(const std::string& name, const std::string& bytes) {
    const std::string path = shm() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::unique_ptr<RegionTable> Open(const RegionLimits& limits = {}) {
    auto table = RegionTable::Open(shm(), limits);
    EXPECT_TRUE(table.ok()) << table.status();
    return *std::move(table);
  }
  static v1::AttachRegionsRequest File(const std::string& path, uint64_t offset, uint64_t bytes) {
    v1::AttachRegionsRequest request;
    request.set_kind(v1::REGION_KIND_SHM_FILE);
    request.set_path(path);
    request.set_offset(offset);
    request.set_bytes(bytes);
    return request;
  }
  // The region, which `owner` has from then on.
  std::shared_ptr<const Region> Attach(RegionTable& table, const v1::AttachRegionsRequest& request,
                                       const void* owner = nullptr) {
    const RegionTable::Attached attached = table.Attach(request, owner, nullptr);
    EXPECT_TRUE(attached.outcome.ok()) << attached.outcome.message;
    return table.Find(attached.id);
  }
  static void ExpectRefused(RegionTable& table, const v1::AttachRegionsRequest& request, const std::string& field,
                            const std::string& rule, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const RegionTable::Attached attached = table.Attach(request, nullptr, nullptr);
    EXPECT_EQ(attached.outcome.code, code) << attached.outcome.message;
    EXPECT_EQ(attached.id, 0u);
    ASSERT_EQ(attached.outcome.details.size(), 1u);
    EXPECT_EQ(attached.outcome.details[0].field, field);
    EXPECT_THAT(attached.outcome.message, HasSubstr(rule));
    EXPECT_EQ(table.stats().regions, 0u);
    EXPECT_EQ(table.stats().bytes, 0u);
  }
  static std::string Read(const Region& region, uint64_t offset, size_t bytes) {
    std::string out(bytes, '\0');
    EXPECT_TRUE(region.Read(offset, {reinterpret_cast<std::byte*>(out.data()), bytes}).ok());
    return out;
  }
  static absl::Span<const std::byte> Bytes(const std::string& text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
  }

  testing::TempDir dir_;
};

TEST_F(RegionTableTest, ReadsAndWritesItsPartOfTheFileAlone) {
  const std::string path = WriteFile("a", "0123456789");
  const auto table = Open();
  const auto region = Attach(*table, File("a", 2, 6));
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(Read(*region, 1, 4), "3456");
  ASSERT_TRUE(region->Write(2, Bytes("xyz")).ok());
  std::string all;
  std::getline(std::ifstream(path), all);
  EXPECT_EQ(all, "0123xyz789");
}

TEST_F(RegionTableTest, PathsThatLeaveTheFolderAreRefused) {
  std::ofstream(dir_ / "outside") << "secret";
  WriteFile("real", "0123");
  std::filesystem::create_directory(shm() + "/folder");
  std::filesystem::create_symlink(dir_ / "outside", shm() + "/link");
  std::filesystem::create_symlink("real", shm() + "/inner_link");
  std::filesystem::create_directory_symlink(dir_.path(), shm() + "/up");
  WriteFile("folder/deep", "0123");
  std::filesystem::create_directory_symlink("folder", shm() + "/inner_folder");
  const auto table = Open();
  for (const char* path :
       {"../outside", "folder/../../outside", "link", "inner_link", "up/outside", "inner_folder/deep", "absent",
        "/dev/null", "folder/../../shm/real", "/proc/self/fd/0", "folder/", "."}) {
    SCOPED_TRACE(path);
    ExpectRefused(*table, File(path, 0, 4), "path", "must be a");
  }
  ExpectRefused(*table, File(dir_ / "outside", 0, 4), "path", "beneath --shm-dir");
  // The rule is about leaving.
  EXPECT_NE(Attach(*table, File("folder/../real", 0, 4)), nullptr);
}

TEST_F(RegionTableTest, WhatIsNoFileOfOneNameIsRefused) {
  ASSERT_EQ(::mkfifo((shm() + "/fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(shm() + "/folder");
  WriteFile("twice", "0123");
  std::filesystem::create_hard_link(shm() + "/twice", shm() + "/other_name");
  const auto table = Open();
  ExpectRefused(*table, File("fifo", 0, 4), "path", "regular file");
  ExpectRefused(*table, File("folder", 0, 4), "path", "beneath");
  ExpectRefused(*table, File("twice", 0, 4), "path", "must have one name, and has 2");
}

TEST_F(RegionTableTest, FieldsAreChecked) {
  WriteFile("a", "0123");
  const auto table = Open();
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  ExpectRefused(*table, File("a", 0, 0), "bytes", "must be positive");
  ExpectRefused(*table, File("a", 0, 5), "offset", "must lie in the file, which has 4 bytes");
  ExpectRefused(*table, File("a", 4, 1), "offset", "must lie in the file");
  ExpectRefused(*table, File("a", kMost, 2), "offset", "below 2^63");
  ExpectRefused(*table, File("a", 1, kMost), "offset", "below 2^63");
  ExpectRefused(*table, File("a", uint64_t{1} << 63, 1), "offset", "below 2^63");
  ExpectRefused(*table, File("", 0, 4), "path", "1 to 1024 bytes");
  ExpectRefused(*table, File(std::string(1025, 'a'), 0, 4), "path", "1 to 1024 bytes");
  ExpectRefused(*table, File(std::string("a\0b", 3), 0, 4), "path", "none of them 0");
  v1::AttachRegionsRequest request = File("a", 0, 4);
  request.clear_kind();
  ExpectRefused(*table, request, "kind", "REGION_KIND_SHM_FILE");
  request.set_kind(static_cast<v1::RegionKind>(9));
  ExpectRefused(*table, request, "kind", "REGION_KIND_SHM_FILE");
  request.set_kind(v1::REGION_KIND_CUDA_IPC);
  ExpectRefused(*table, request, "path", "must be unset where kind is REGION_KIND_CUDA_IPC");
  for (const auto& [field, set] : std::vector<std::pair<std::string, std::function<void(v1::AttachRegionsRequest&)>>>{
           {"memory_handle", [](v1::AttachRegionsRequest& r) { r.set_memory_handle("x"); }},
           {"gpu_uuid", [](v1::AttachRegionsRequest& r) { r.set_gpu_uuid("x"); }},
           {"ready_event", [](v1::AttachRegionsRequest& r) { r.set_ready_event("x"); }},
           {"done_event", [](v1::AttachRegionsRequest& r) { r.set_done_event("x"); }}}) {
    request = File("a", 0, 4);
    set(request);
    ExpectRefused(*table, request, field, "must be unset");
  }
  EXPECT_NE(Attach(*table, File("a", 0, 4)), nullptr);
}

TEST_F(RegionTableTest, CountsAndBytesAreBounded) {
  WriteFile("a", std::string(100, 'a'));
  const int one = 1, two = 2;
  const auto table = Open({.of_stream = 2, .regions = 3, .bytes = 50});
  Attach(*table, File("a", 0, 10), &one);
  Attach(*table, File("a", 10, 10), &one);
  EXPECT_THAT(table->Attach(File("a", 20, 10), &one, nullptr).outcome.message, HasSubstr("at most 2"));
  EXPECT_THAT(table->Attach(File("a", 20, 31), &two, nullptr).outcome.message, HasSubstr("at most 30 of 50"));
  Attach(*table, File("a", 20, 30), &two);
  EXPECT_EQ(table->Attach(File("a", 50, 1), &two, nullptr).outcome.code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table->stats().regions, 3u);
  EXPECT_EQ(table->stats().bytes, 50u);
  table->Detach(&one);
  EXPECT_EQ(table->stats().bytes, 30u);
  Attach(*table, File("a", 50, 20), &one);
}

TEST_F(RegionTableTest, ALargeSparseFileOfOneStreamLeavesRoomToOthersAndOneClientsStreamsDoToo) {
  std::ofstream(shm() + "/sparse").put('s');
  std::filesystem::resize_file(shm() + "/sparse", uint64_t{1} << 41);
  WriteFile("a", std::string(100, 'a'));
  const int one = 1, two = 2, three = 3;
  const RegionLimits limits;
  const auto table = Open();
  EXPECT_THAT(table->Attach(File("sparse", 0, limits.stream_bytes + 1), &one, nullptr, "greedy").outcome.message,
              HasSubstr("are left to the stream"));
  EXPECT_TRUE(table->Attach(File("sparse", 0, limits.stream_bytes), &one, nullptr, "greedy").outcome.ok());
  EXPECT_THAT(table->Attach(File("a", 0, 1), &one, nullptr, "greedy").outcome.message,
              HasSubstr("are left to the stream"));
  EXPECT_TRUE(table->Attach(File("sparse", 0, limits.stream_bytes), &two, nullptr, "greedy").outcome.ok());
  EXPECT_THAT(table->Attach(File("a", 0, 1), &three, nullptr, "greedy").outcome.message,
              HasSubstr("are left to the client"));
  EXPECT_TRUE(table->Attach(File("a", 0, 100), &three, nullptr, "other").outcome.ok());
}

TEST_F(RegionTableTest, RegionsOfOneClientAreBoundedByCountToo) {
  WriteFile("a", std::string(100, 'a'));
  const int one = 1, two = 2, three = 3;
  const auto table = Open({.of_stream = 2, .of_client = 3});
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(table->Attach(File("a", i, 1), i < 2 ? &one : &two, nullptr, "greedy").outcome.ok());
  }
  EXPECT_THAT(table->Attach(File("a", 3, 1), &two, nullptr, "greedy").outcome.message,
              HasSubstr("at most 3 of the client"));
  EXPECT_TRUE(table->Attach(File("a", 3, 1), &three, nullptr, "other").outcome.ok());
}

TEST(RegionLimitsTest, LeaveThreeQuartersOfTheOpenFilesToConnections) {
  EXPECT_EQ(RegionLimits::Within(1024, 0).regions, 256u);
  EXPECT_EQ(RegionLimits::Within(1024, 0).of_client, 128u);
  EXPECT_EQ(RegionLimits::Within(1 << 20, 0).regions, RegionLimits().regions);
  EXPECT_EQ(RegionLimits::Within(1 << 20, 0).of_client, RegionLimits().of_client);
  EXPECT_EQ(RegionLimits::Within(std::numeric_limits<uint64_t>::max(), 0).regions, RegionLimits().regions);
}

TEST_F(RegionTableTest, OfOneStreamNoneOverlap) {
  WriteFile("a", std::string(100, 'a'));
  WriteFile("b", std::string(100, 'b'));
  const int one = 1, two = 2;
  const auto table = Open();
  Attach(*table, File("a", 10, 10), &one);
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{{10, 10}, {0, 11}, {19, 5}, {12, 2}}) {
    EXPECT_THAT(table->Attach(File("a", offset, bytes), &one, nullptr).outcome.message, HasSubstr("overlaps"))
        << offset;
  }
  Attach(*table, File("a", 0, 10), &one);
  Attach(*table, File("a", 20, 10), &one);
  Attach(*table, File("b", 10, 10), &one);
  Attach(*table, File("a", 10, 10), &two);  // a client that comes back before its old stream is gone
}

TEST_F(RegionTableTest, AFileCutShortIsAnErrorAndIsNotMadeLonger) {
  const std::string path = WriteFile("a", std::string(100, 'a'));
  const auto table = Open();
  const auto region = Attach(*table, File("a", 50, 50));
  ASSERT_EQ(::truncate(path.c_str(), 70), 0);
  std::string out(20, '\0');
  const auto span = absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size());
  EXPECT_TRUE(region->Read(0, span).ok());
  EXPECT_EQ(region->Read(1, span).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(region->CheckFile(0, 50).message()), HasSubstr("has 70 bytes now and must have 100"));
  EXPECT_TRUE(region->Write(0, span).ok());
  EXPECT_EQ(region->Write(1, span).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::filesystem::file_size(path), 70u);
}

TEST_F(RegionTableTest, WhatIsCopiedInPartsIsAllOfIt) {
  constexpr size_t kBytes = (3 << 20) + 77;
  std::string text(kBytes + 5, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  const std::string path = WriteFile("a", text);
  const auto table = Open();
  const auto region = Attach(*table, File("a", 5, kBytes));
  EXPECT_TRUE(Read(*region, 0, kBytes) == text.substr(5));
  EXPECT_TRUE(Read(*region, 1000, kBytes - 1000) == text.substr(1005));
  std::string other = text.substr(5);
  for (char& c : other) c = static_cast<char>(~c);
  EXPECT_TRUE(region->Write(0, Bytes(other)).ok());
  EXPECT_TRUE(Read(*region, 0, kBytes) == other);
  // The span that does not fit is told whole.
  ASSERT_EQ(::truncate(path.c_str(), 2 << 20), 0);
  const auto span = absl::MakeSpan(reinterpret_cast<std::byte*>(other.data()), other.size());
  EXPECT_THAT(std::string(region->Read(0, span).message()),
              HasSubstr(absl::StrCat("has ", 2 << 20, " bytes now and must have ", text.size())));
  EXPECT_EQ(region->Write(0, span).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::filesystem::file_size(path), size_t{2} << 20);
}

TEST_F(RegionTableTest, ARegionOutlivesItsFilesNameAndItsStreamWhileSomebodyHoldsIt) {
  const std::string path = WriteFile("a", "0123");
  const int one = 1;
  const auto table = Open();
  const uint64_t id = table->Attach(File("a", 0, 4), &one, nullptr).id;
  const auto held = table->Find(id);
  std::filesystem::remove(path);
  table->Detach(&one);
  EXPECT_EQ(table->Find(id), nullptr);
  EXPECT_EQ(Read(*held, 0, 4), "0123");
}

class HeldFilesTest : public ::testing::Test {
 protected:
  HeldFilesTest() { engine_.SetImports(imports_); }

  void MakeFile(const std::string& name, uint64_t bytes) const {
    std::ofstream(dir_ / name, std::ios::binary) << std::string(bytes, 'x');
  }
  static v1::AttachRegionsRequest File(const std::string& path, uint64_t bytes) {
    v1::AttachRegionsRequest request;
    request.set_kind(v1::REGION_KIND_SHM_FILE);
    request.set_path(path);
    request.set_bytes(bytes);
    return request;
  }
  std::unique_ptr<RegionTable> Open(uint64_t pinned_bytes) {
    return RegionTable::Open(dir_.path(), RegionLimits::Within(1 << 16, pinned_bytes)).value();
  }
  // Whether the device holds what is attached.
  bool Holds(RegionTable& table, const v1::AttachRegionsRequest& request, const std::string& client = "",
             const void* owner = nullptr) {
    const RegionTable::Attached attached = table.Attach(request, owner, &engine_, client);
    EXPECT_TRUE(attached.outcome.ok()) << attached.outcome.message;
    return table.Find(attached.id)->pages() != nullptr;
  }

  testing::FakeIpcWorld world_;
  const std::shared_ptr<ImportTable> imports_ = ImportTable::Create(world_.Driver());
  testing::TempDir dir_{"/dev/shm"};
  FakeEngine engine_{FakeEngine::Mode::kAnswerAtOnce};
};

TEST_F(HeldFilesTest, WhatIsHeldIsBoundedAndComesBack) {
  const auto table = Open(40'000);
  for (const char* name : {"a", "b", "c", "d"}) MakeFile(name, 12'000);
  const int streams[3] = {};
  EXPECT_TRUE(Holds(*table, File("a", 12'000), "x", &streams[0]));
  EXPECT_EQ(table->stats().pinned_bytes, 12'000u);
  EXPECT_FALSE(Holds(*table, File("b", 12'000), "x", &streams[0])) << "more than half is one client's";
  EXPECT_TRUE(Holds(*table, File("c", 12'000), "y", &streams[1]));
  EXPECT_TRUE(Holds(*table, File("b", 12'000), "z", &streams[2]));
  EXPECT_FALSE(Holds(*table, File("d", 12'000), "w", &streams[2])) << "more than is left";
  EXPECT_EQ(table->stats().pinned_bytes, 36'000u);
  EXPECT_EQ(world_.PinnedBytes(), 36'000u);
  table->Detach(&streams[0]);
  imports_->WaitUntilClosed();
  EXPECT_EQ(table->stats().pinned_bytes, 24'000u);
  EXPECT_TRUE(Holds(*table, File("d", 12'000), "x", &streams[0]));
  for (const int& stream : streams) table->Detach(&stream);
  imports_->WaitUntilClosed();
  EXPECT_EQ(table->stats().pinned_bytes, 0u);
}

TEST_F(HeldFilesTest, WhatIsRefusedIsNotHeldFirst) {
  const auto table = Open(1 << 20);
  MakeFile("a", 12'000);
  EXPECT_TRUE(Holds(*table, File("a", 12'000)));
  const uint64_t pins = world_.PinsBegun();
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(table->Attach(File("a", 12'000), nullptr, &engine_).outcome.message, HasSubstr("overlaps"));
  }
  EXPECT_EQ(world_.PinsBegun(), pins);
}

TEST_F(HeldFilesTest, AStepThatUsesThemCountsThemAfterTheStream) {
  const auto table = Open(40'000);
  MakeFile("a", 12'000);
  const RegionTable::Attached attached = table->Attach(File("a", 12'000), this, &engine_);
  auto used = table->Find(attached.id);
  table->Detach(this);
  EXPECT_EQ(table->stats().pinned_bytes, 12'000u);
  used = nullptr;
  imports_->WaitUntilClosed();
  EXPECT_EQ(table->stats().pinned_bytes, 0u);
}

TEST_F(HeldFilesTest, WhatIsNotAllInMemoryIsCopied) {
  const auto table = Open(1 << 20);
  MakeFile("a", 12'000);
  std::ofstream(dir_ / "sparse").put('s');
  std::filesystem::resize_file(dir_ / "sparse", 100'000);
  EXPECT_FALSE(Holds(*table, File("sparse", 100'000)));
  const UniqueFd beyond(::open((dir_ / "beyond").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(beyond.get(), 12'000), 0);
  ASSERT_EQ(::fallocate(beyond.get(), FALLOC_FL_KEEP_SIZE, 1 << 16, 1 << 16), 0);
  EXPECT_FALSE(Holds(*table, File("beyond", 12'000))) << "it has blocks enough, elsewhere";
  EXPECT_FALSE(Holds(*Open(0), File("a", 12'000))) << "--shm-pinned-bytes 0";
  world_.RefusePins(absl::ResourceExhaustedError("the driver has no more"));
  EXPECT_FALSE(Holds(*table, File("a", 100), "", &world_));
  world_.RefusePins(absl::OkStatus());
  EXPECT_TRUE(Holds(*table, File("a", 100), "", dir_.path().data()));
  EXPECT_EQ(table->stats().pinned_bytes, 100u);
}

TEST_F(RegionTableTest, AFolderThatIsNoneIsNamed) {
  const auto table = RegionTable::Open(dir_ / "absent");
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(table.status().message()), HasSubstr("--shm-dir"));
}

}  // namespace
}  // namespace pleiad
