#include "core/rows/row_reader_factory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "core/rows/direct_file.h"
#include "core/rows/uring_system.h"
#include "tests/core/rows/kernel_support.h"
#include "tests/core/rows/row_files.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

int RefuseDirect(const char*, int flags) {
  EXPECT_NE(flags & O_DIRECT, 0);
  errno = EINVAL;
  return -1;
}

class RowReaderFactoryTest : public ::testing::Test {
 protected:
  RowReaderFactoryTest() { files_.push_back(FileOf(bytes_, "table.safetensors")); }

  // Whether the reader reads.
  void ExpectReads(RowReader& reader) {
    std::vector<std::byte> row(320);
    const RowRead read{.id = 9, .file = 0, .offset = 5000, .bytes = 320, .destination = row.data()};
    ResultSink sink;
    reader.Submit(absl::MakeConstSpan(&read, 1), sink.fn());
    EXPECT_TRUE(sink.Await(1)[0].status.ok());
    EXPECT_TRUE(std::equal(row.begin(), row.end(), bytes_.begin() + 5000));
  }

  const std::vector<std::byte> bytes_ = PatternBytes(20000, 3);
  std::vector<CheckpointFile> files_;
  UringSystem system_;
};

TEST_F(RowReaderFactoryTest, AutoReadsAndSaysHow) {
  const auto reader = CreateRowReader(files_, RowReaderOptions());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT((*reader)->info().detail, ::testing::AnyOf(StartsWith("direct, blocks of "), StartsWith("buffered")));
  ExpectReads(**reader);
}

TEST_F(RowReaderFactoryTest, WhereIoUringIsRefusedPreadTakesOverOrTheFlagsAreTold) {
  for (const int error : {ENOSYS, EPERM}) {
    system_.setup = [error](unsigned, io_uring*, io_uring_params*) { return -error; };
    const auto reader = CreateRowReader(files_, RowReaderOptions(), system_);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->info().name, "pread");
    EXPECT_THAT((*reader)->info().detail, AllOf(StartsWith("buffered, 8 threads; io_uring is refused: "),
                                                HasSubstr(std::generic_category().message(error))));
    ExpectReads(**reader);

    const auto forced = CreateRowReader(files_, {.kind = ReaderKind::kIoUring}, system_);
    EXPECT_EQ(forced.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(forced.status().message()), StartsWith("--reader io_uring: io_uring is refused: "));
  }
}

TEST_F(RowReaderFactoryTest, WhereODirectIsRefusedReadsAreBufferedOrTheFlagIsTold) {
  if (!KernelHasUring()) GTEST_SKIP() << "this kernel refuses io_uring";
  system_.open = RefuseDirect;
  const auto reader = CreateRowReader(files_, RowReaderOptions(), system_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->info().name, "io_uring");
  EXPECT_THAT((*reader)->info().detail,
              StartsWith("buffered (table.safetensors: open with O_DIRECT: Invalid argument), 1 ring of depth 128"));
  ExpectReads(**reader);

  for (const ReaderKind kind : {ReaderKind::kAuto, ReaderKind::kIoUring}) {
    const auto required = CreateRowReader(files_, {.kind = kind, .direct = DirectMode::kRequire}, system_);
    EXPECT_EQ(required.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(required.status().message(), "--direct require: table.safetensors: open with O_DIRECT: Invalid argument");
  }
}

TEST_F(RowReaderFactoryTest, DirectReadsCannotBeRequiredOfPread) {
  const auto asked = CreateRowReader(files_, {.kind = ReaderKind::kPread, .direct = DirectMode::kRequire});
  EXPECT_EQ(asked.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(asked.status().message()), HasSubstr("--direct require with --reader pread"));

  if (!OpenDirect(files_[0], system_).ok()) GTEST_SKIP() << "the temporary folder refuses O_DIRECT";
  system_.setup = [](unsigned, io_uring*, io_uring_params*) { return -EPERM; };
  const auto left = CreateRowReader(files_, {.direct = DirectMode::kRequire}, system_);
  EXPECT_EQ(left.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(left.status().message()),
              AllOf(StartsWith("--direct require: io_uring is refused"), HasSubstr("the pread reader is buffered")));
}

TEST_F(RowReaderFactoryTest, FlagsChooseAndAreNamedInTheDetail) {
  const auto pread = CreateRowReader(files_, {.kind = ReaderKind::kPread, .threads = 2});
  ASSERT_TRUE(pread.ok());
  EXPECT_EQ((*pread)->info().detail, "buffered, 2 threads; as --reader asks");
  if (!KernelHasUring()) GTEST_SKIP() << "this kernel refuses io_uring";
  const auto buffered =
      CreateRowReader(files_, {.kind = ReaderKind::kIoUring, .direct = DirectMode::kOff, .threads = 2, .depth = 16});
  ASSERT_TRUE(buffered.ok());
  EXPECT_THAT((*buffered)->info().detail, StartsWith("buffered as --direct asks, 2 rings of depth 16"));
  ExpectReads(**buffered);
}

TEST_F(RowReaderFactoryTest, AKernelWithoutTheNewerRingFlagsIsAskedWithoutThem) {
  if (!KernelHasUring()) GTEST_SKIP() << "this kernel refuses io_uring";
  system_.setup = [](unsigned entries, io_uring* ring, io_uring_params* params) {
    if ((params->flags & IORING_SETUP_DEFER_TASKRUN) != 0) return -EINVAL;
    return ::io_uring_queue_init_params(entries, ring, params);
  };
  const auto reader = CreateRowReader(files_, {.kind = ReaderKind::kIoUring}, system_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ExpectReads(**reader);
}

TEST_F(RowReaderFactoryTest, OptionsOutOfRangeAreNamed) {
  for (const auto& [threads, depth] : {std::pair(65u, 128u), std::pair(1u, 0u), std::pair(1u, 4097u)}) {
    const auto reader = CreateRowReader(files_, {.threads = threads, .depth = depth});
    EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << threads << " " << depth;
  }
}

// Direct files of the temporary folder, which must allow O_DIRECT.
class DirectFileTest : public RowReaderFactoryTest {
 protected:
  void SetUp() override {
    if (!OpenDirect(files_[0], system_).ok()) GTEST_SKIP() << "the temporary folder refuses O_DIRECT";
  }
};

TEST_F(DirectFileTest, TheAlignmentIsTheOneToldOrWhereNoneIsToldOneThatWorks) {
  for (const uint32_t told : {4096u, 8192u}) {
    system_.statx = [told](int, unsigned, struct statx* out) {
      out->stx_mask = STATX_DIOALIGN;
      out->stx_dio_mem_align = 4;
      out->stx_dio_offset_align = told;
      return 0;
    };
    EXPECT_EQ(OpenDirect(files_[0], system_)->alignment, told);
    if (KernelHasUring()) ExpectReads(**CreateRowReader(files_, {.direct = DirectMode::kRequire}, system_));
  }
  system_.statx = [](int, unsigned, struct statx*) {
    errno = ENOSYS;
    return -1;
  };
  const auto probed = OpenDirect(files_[0], system_);
  ASSERT_TRUE(probed.ok()) << probed.status();
  EXPECT_GE(probed->alignment, 512u);
  if (KernelHasUring()) ExpectReads(**CreateRowReader(files_, {.direct = DirectMode::kRequire}, system_));
}

TEST_F(DirectFileTest, AFileThatTellsOfNoDirectReadsIsRefused) {
  for (const uint32_t told : {0u, 2 * kMaxDirectAlignment}) {
    system_.statx = [told](int, unsigned, struct statx* out) {
      out->stx_mask = STATX_DIOALIGN;
      out->stx_dio_offset_align = told;
      return 0;
    };
    const auto refused = OpenDirect(files_[0], system_);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.status().message()), StartsWith("table.safetensors: direct reads"));
  }
}

TEST_F(DirectFileTest, AnotherFileUnderThePathIsNeverTaken) {
  const testing::TempDir dir;
  const std::string path = dir / "table.safetensors";
  const auto write = [&path](char fill) { std::ofstream(path) << std::string(8192, fill); };
  write('a');
  CheckpointFile file;
  file.path = path;
  file.fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  // Without /proc the path itself is opened.
  system_.open = [](const char* name, int flags) {
    if (std::string(name).rfind("/proc", 0) != 0) return ::open(name, flags);
    errno = ENOENT;
    return -1;
  };
  EXPECT_TRUE(OpenDirect(file, system_).ok());
  ASSERT_EQ(std::rename(path.c_str(), (path + ".old").c_str()), 0);
  write('b');
  const auto replaced = OpenDirect(file, system_);
  EXPECT_EQ(replaced.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(replaced.status().message()), HasSubstr("another file"));

  const auto same = OpenDirect(file, UringSystem());
  ASSERT_TRUE(same.ok()) << same.status();
  alignas(4096) static char block[4096];
  ASSERT_EQ(::pread(same->fd.get(), block, sizeof block, 0), 4096);
  EXPECT_EQ(block[0], 'a');
}

}  // namespace
}  // namespace pleiad
