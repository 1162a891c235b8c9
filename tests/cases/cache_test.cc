// Rows of the row cache as a client sees them: B24, B25, B26.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/rows/row_reader_factory.h"
#include "tests/cases/cached_stack.h"
#include "tests/support/rows/label_table.h"
#include "tests/support/status_matchers.h"

namespace pleiad::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr const char kMisses[] = "pleiad_row_lookups_total{layer=\"1\",result=\"miss\"}";

v1::LookupRequest LookupOf(const std::vector<uint32_t>& tokens) {
  v1::LookupRequest request;
  request.add_segments()->set_num_tokens(static_cast<uint32_t>(tokens.size()));
  request.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  request.set_want_row_ids(true);
  request.set_want_embeddings(true);
  return request;
}

struct Looked {
  grpc::Status status;
  v1::Status detail;
  v1::LookupResponse response;
};

Looked Look(Stack& stack, const std::vector<uint32_t>& tokens) {
  Looked looked;
  grpc::ClientContext context;
  looked.status = stack.stub().Lookup(&context, LookupOf(tokens), &looked.response);
  looked.detail = DetailOf(context);
  return looked;
}

// Cancelled right after it was sent, wherever it is by then.
Looked LookAndCancel(Stack& stack, const std::vector<uint32_t>& tokens) {
  Looked looked;
  grpc::ClientContext context;
  const v1::LookupRequest request = LookupOf(tokens);
  std::promise<grpc::Status> done;
  stack.stub().async()->Lookup(&context, &request, &looked.response,
                               [&done](grpc::Status status) { done.set_value(std::move(status)); });
  context.TryCancel();
  looked.status = done.get_future().get();
  return looked;
}

std::vector<uint32_t> RandomTokens(std::mt19937_64& random, size_t count) {
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<uint32_t>(random() % 1000));
  return tokens;
}

TEST(B24, EveryRowIsItsOwnInAnArenaSmallerThanABatch) {
  constexpr uint32_t kThreads = 4, kBatches = 400;
  StackOptions options;
  options.spec = Labelled(DType::kBf16);
  options.flags = CachedFlags(8);
  ScriptedReader* faults = nullptr;
  options.cache.wrap_reader = [&faults](std::unique_ptr<RowReader> inner) {
    auto scripted = std::make_unique<ScriptedReader>(std::move(inner), [](const RowRead&, size_t ordinal) {
      return ordinal % 301 == 300 ? ReadFault::kError : ReadFault::kNone;
    });
    faults = scripted.get();
    return std::make_unique<LaterReader>(std::move(scripted), 5);
  };
  Stack stack(options);
  ASSERT_NE(faults, nullptr);
  std::atomic<uint32_t> right{0}, failed{0}, cancelled{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      const uint64_t sequence = stack.Open();
      for (uint32_t i = 0; i < kBatches; ++i) {
        const std::vector<uint32_t> tokens = RandomTokens(random, 7);
        if (i % 8 == 0) {  // rows of a batch to come
          v1::ForwardRequest prestage = stack.Request(sequence, stack.MakeStory(RandomTokens(random, 3), 1), 0);
          prestage.set_mode(v1::MODE_PRESTAGE);
          prestage.clear_highway();
          stack.Forward(prestage);
        }
        const Looked looked = i % 16 == 5 ? LookAndCancel(stack, tokens) : Look(stack, tokens);
        if (looked.status.ok()) {
          EXPECT_EQ(looked.response.row_ids_size(), 28);
          ExpectLabels(looked.response, 8, AsBf16);
          ++right;
        } else {
          const grpc::StatusCode code = looked.status.error_code();
          EXPECT_THAT(code, AnyOf(grpc::StatusCode::DATA_LOSS, grpc::StatusCode::CANCELLED));
          ++(code == grpc::StatusCode::CANCELLED ? cancelled : failed);
        }
      }
      EXPECT_TRUE(stack.Release(sequence));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(right, kThreads * kBatches / 2);
  EXPECT_GT(failed, 0u);
  // Nothing stays pinned, whatever way its plan ended.
  for (const char* state : {"held", "arriving"}) {
    while (stack.Metric(absl::StrCat("pleiad_arena_slots{state=\"", state, "\"}")) > 0) std::this_thread::yield();
  }
  EXPECT_GT(stack.Metric("pleiad_row_bypass_total"), 0) << "28 rows at once in an arena of 8";
  EXPECT_GT(stack.Metric("pleiad_row_evictions_total"), 0);
}

TEST(B24, ARowNamedManyTimesIsReadOnceAndFilledEverywhere) {
  CachedStack cached(64, [](const RowRead&, size_t) { return ReadFault::kNone; });
  const Looked once = Look(cached.stack, {11});
  ASSERT_TRUE(once.status.ok());
  EXPECT_EQ(cached.reader->submitted(), 4u);
  cached.AwaitQuiet();
  // After an EOS the window begins anew, so every segment names the same four rows.
  v1::LookupRequest request = LookupOf({22, 22, 22, 22, 22, 22});
  request.clear_segments();
  for (int i = 0; i < 6; ++i) request.add_segments()->set_num_tokens(1);
  v1::LookupResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(cached.stack.stub().Lookup(&context, request, &response).ok());
  const std::set<uint64_t> rows = ExpectLabels(response, 8, AsBf16);
  EXPECT_EQ(response.row_ids_size(), 24);
  EXPECT_EQ(cached.reader->submitted(), 4 + rows.size());
  EXPECT_EQ(cached.stack.Metric(kMisses), 4 + rows.size());
}

TEST(B25, ReadsOfAFailedBatchThatEndDuringTheNextOneFeedNobodyElse) {
  std::atomic<bool> slow{true};
  CachedStack cached(0, [&slow](const RowRead&, size_t ordinal) {
    if (!slow) return ReadFault::kNone;
    return ordinal == 3 ? ReadFault::kError : ReadFault::kHold;
  });
  const std::vector<uint32_t> first = {11, 22, 33, 44};
  const uint32_t second = cached.TokenApartFrom(cached.RowsOf(first));
  Pending<Looked> failing([&] { return Look(cached.stack, first); });
  cached.reader->AwaitHeld(15);
  slow = false;
  for (int round = 0; round < 3; ++round) {
    const Looked other = Look(cached.stack, {second});
    ASSERT_TRUE(other.status.ok()) << other.status.error_message();
    ExpectLabels(other.response, 8, AsBf16);
  }
  cached.reader->Release(ScriptedReader::Order::kReversed);
  const Looked failed = failing.Get();
  EXPECT_EQ(failed.status.error_code(), grpc::StatusCode::DATA_LOSS);
  ASSERT_EQ(failed.detail.details_size(), 1);
  EXPECT_EQ(failed.detail.details(0).reason(), v1::REASON_TABLE_UNREADABLE);
  const Looked again = Look(cached.stack, first);
  ASSERT_TRUE(again.status.ok());
  ExpectLabels(again.response, 8, AsBf16);
  cached.AwaitQuiet();
}

TEST(B25, ShortReadsFailByNameAndLateOnesOutOfOrderAreRight) {
  std::atomic<ReadFault> fault{ReadFault::kShort};
  CachedStack cached(64, [&fault](const RowRead&, size_t) { return fault.load(); });
  const Looked failed = Look(cached.stack, {11, 22});
  EXPECT_EQ(failed.status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(failed.detail.ShortDebugString(), HasSubstr(".safetensors at byte "));
  fault = ReadFault::kHold;
  const size_t before = cached.reader->submitted();
  Pending<Looked> late([&] { return Look(cached.stack, {11, 22}); });
  cached.reader->AwaitHeld(8);
  EXPECT_EQ(cached.reader->submitted(), before + 8) << "a failed row is read again";
  cached.reader->Release(ScriptedReader::Order::kReversed);
  const Looked looked = late.Get();
  ASSERT_TRUE(looked.status.ok());
  ExpectLabels(looked.response, 8, AsBf16);
}

TEST(B25, MoreRowsThanTheRingHasEntriesAreServed) {
  StackOptions options;
  options.spec = Labelled(DType::kBf16);
  options.flags = CachedFlags(0);  // every lookup reads all of its rows, 152 of them at once
  Stack stack(options);
  for (int round = 0; round < 3; ++round) ExpectLabels(stack, AsBf16);
  EXPECT_GE(stack.Metric(kMisses), 3 * 152);
}

// One byte a value: rows of 160 bytes, some of which cross a border of 4096.
CheckpointSpec LongRows() {
  CheckpointSpec spec = Labelled(DType::kF8E4M3);
  spec.geometry.embed_dim = 640;
  return spec;
}

float AsF8(uint64_t row) { return F8E4M3ToFloat(static_cast<uint8_t>(row)); }

TEST(B26, EveryWayToReadGivesTheSameRowsAndSaysWhichItIs) {
  int served = 0;
  for (const char* reader : {"auto", "io_uring", "pread"}) {
    for (const char* direct : {"auto", "require", "off"}) {
      SCOPED_TRACE(absl::StrCat(reader, ", direct ", direct));
      StackOptions options;
      options.spec = LongRows();
      options.flags = CachedFlags(16, 160);
      options.flags.reader = reader;
      options.flags.direct = direct;
      if (std::string(reader) == "pread" && std::string(direct) == "require") {
        EXPECT_THAT(StartRefusal(options), FailsWith(absl::StatusCode::kFailedPrecondition, "--direct"));
        continue;
      }
      // Where the kernel or the file system refuses what is required, the start is refused by name.
      const bool required = std::string(reader) == "io_uring" || std::string(direct) == "require";
      if (required) {
        TempDir dir;
        WriteCheckpoint(options.spec, dir.path());
        auto checkpoint = *Checkpoint::Open({dir.path(), std::nullopt});
        RowReaderOptions wanted;
        if (std::string(reader) == "io_uring") wanted.kind = ReaderKind::kIoUring;
        wanted.direct = std::string(direct) == "auto"      ? DirectMode::kAuto
                        : std::string(direct) == "require" ? DirectMode::kRequire
                                                           : DirectMode::kOff;
        if (const absl::Status refused = CreateRowReader(checkpoint->files(), wanted).status(); !refused.ok()) {
          EXPECT_THAT(StartRefusal(options), FailsWith(absl::StatusCode::kFailedPrecondition, "--"));
          continue;
        }
      }
      Stack stack(options);
      ++served;
      ExpectLabels(stack, AsF8);
      const std::string page = stack.Scrape();
      const size_t at = page.find("pleiad_reader_info{");
      ASSERT_NE(at, std::string::npos);
      const std::string line = page.substr(at, page.find('\n', at) - at);
      EXPECT_THAT(line, AnyOf(HasSubstr("direct"), HasSubstr("buffered")));
      if (std::string(reader) == "pread" || std::string(direct) == "off") {
        EXPECT_THAT(line, HasSubstr("buffered"));
      }
      if (std::string(direct) == "require") {
        EXPECT_THAT(line, HasSubstr("direct"));
      }
    }
  }
  EXPECT_GE(served, 4);
}

TEST(B26, SomeRowsOfTheLongTableCrossABlock) {
  TempDir dir;
  WriteCheckpoint(LongRows(), dir.path());
  const auto checkpoint = *Checkpoint::Open({dir.path(), std::nullopt});
  const TableLayout& table = checkpoint->layers()[0].table;
  uint32_t crossing = 0, last = 0;
  for (uint64_t row = 0; row < 152; ++row) {
    const RowLocation at = table.Locate(RowId(row));
    crossing += at.offset / 4096 != (at.offset + at.bytes - 1) / 4096;
    last += at.offset / 4096 == checkpoint->files()[at.file].bytes / 4096;
  }
  EXPECT_GT(crossing, 0u);
  EXPECT_GT(last, 0u) << "rows in the block at the end of a file";
}

}  // namespace
}  // namespace pleiad::testing
