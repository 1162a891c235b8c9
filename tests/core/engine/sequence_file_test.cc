#include "core/engine/sequence_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using testing::FailsWith;
using testing::IsOk;
using testing::TempDir;

constexpr uint32_t kVocab = 1000;
constexpr size_t kChannels = 3;

SequenceFileHeader Header(uint64_t sequences) {
  SequenceFileHeader header;
  header.model_id = "model-1";
  header.layers = 2;
  header.context_len = 2;
  header.state_len = 3;
  header.rollback_tokens = 2;
  header.channels = kChannels;
  header.sequences = sequences;
  return header;
}

// A carry after steps of these lengths, with rows that differ.
KeptCarry CarryAfter(const std::vector<uint32_t>& lengths, float first) {
  const CarryShape shape = Header(0).shape();
  CarryState state(shape);
  for (const uint32_t length : lengths) {
    state.Commit(*state.At(std::nullopt), std::vector<uint32_t>(length, 100 + length));
  }
  std::vector<float> rows((shape.ring_rows() + shape.state_len) * kChannels);
  for (float& row : rows) row = first++;
  return KeepCarry(state.Image(), rows, shape, kChannels);
}

std::vector<KeptSequence> Sequences() {
  std::vector<KeptSequence> sequences(3);
  sequences[0].id = SequenceId(0xfedcba9876543210);
  sequences[0].epoch = 5;
  sequences[0].idle = absl::Seconds(90) + absl::Nanoseconds(1);
  sequences[0].client_key = "engine-0";
  sequences[0].label = "chat 7";
  sequences[0].owner = "certificate " + std::string(200, 'e');
  sequences[0].carries = {CarryAfter({2, 9}, 0.5f), CarryAfter({}, 0)};
  sequences[1].id = SequenceId(2);
  sequences[1].carries = {CarryAfter({1}, -1), CarryAfter({5, 1, 1}, 1000)};
  sequences[1].carries[1].predecessor_failed = true;
  sequences[2].id = SequenceId(3);
  sequences[2].carries = {CarryAfter({}, 0), CarryAfter({}, 0)};
  return sequences;
}

void ExpectSame(const KeptSequence& a, const KeptSequence& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.idle, b.idle);
  EXPECT_EQ(a.client_key, b.client_key);
  EXPECT_EQ(a.label, b.label);
  EXPECT_EQ(a.owner, b.owner);
  ASSERT_EQ(a.carries.size(), b.carries.size());
  for (size_t i = 0; i < a.carries.size(); ++i) {
    const CarryImage &x = a.carries[i].state, &y = b.carries[i].state;
    EXPECT_EQ(x.position, y.position);
    EXPECT_EQ(x.low, y.low);
    EXPECT_EQ(x.last_step_start, y.last_step_start);
    EXPECT_EQ(x.head, y.head);
    EXPECT_EQ(x.ring.valid, y.ring.valid);
    EXPECT_EQ(x.history, y.history);
    EXPECT_EQ(x.has_undo, y.has_undo);
    EXPECT_EQ(x.undo_valid, y.undo_valid);
    EXPECT_EQ(x.undo_history, y.undo_history);
    EXPECT_EQ(a.carries[i].predecessor_failed, b.carries[i].predecessor_failed);
    EXPECT_EQ(a.carries[i].ring_rows, b.carries[i].ring_rows);
    EXPECT_EQ(a.carries[i].undo_rows, b.carries[i].undo_rows);
  }
}

class SequenceFileTest : public ::testing::Test {
 protected:
  absl::Status Write(const std::vector<KeptSequence>& sequences) {
    absl::StatusOr<std::unique_ptr<SequenceFileWriter>> writer =
        SequenceFileWriter::Create(path_, Header(sequences.size()));
    if (!writer.ok()) return writer.status();
    for (const KeptSequence& sequence : sequences) {
      if (absl::Status status = (*writer)->Add(sequence); !status.ok()) return status;
    }
    const absl::Status status = (*writer)->Commit();
    EXPECT_TRUE(!status.ok() || (*writer)->bytes() == std::filesystem::file_size(path_));
    return status;
  }
  // All or the error that came first.
  absl::StatusOr<std::vector<KeptSequence>> Read(const SequenceFileHeader& expected = Header(0)) {
    absl::StatusOr<std::unique_ptr<SequenceFileReader>> reader = SequenceFileReader::Open(path_, expected, kVocab);
    if (!reader.ok()) return reader.status();
    std::vector<KeptSequence> sequences;
    while (true) {
      absl::StatusOr<std::optional<KeptSequence>> next = (*reader)->Next();
      if (!next.ok()) return next.status();
      if (!next->has_value()) return sequences;
      sequences.push_back(**std::move(next));
    }
  }
  void Put(size_t offset, char byte) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }
  // The checksum of [first, last), written at `last`.
  static void Seal(std::string& bytes, size_t first, size_t last) {
    const auto* const from = reinterpret_cast<const Bytef*>(bytes.data()) + first;
    const auto crc = static_cast<uint32_t>(::crc32_z(0, from, last - first));
    std::memcpy(&bytes[last], &crc, 4);
  }
  // The version and a header checksum that matches.
  void SetVersion(uint32_t version) {
    std::string bytes = testing::ReadFile(path_);
    std::memcpy(&bytes[8], &version, 4);
    Seal(bytes, 0, kHeaderBytes);
    testing::WriteFile(path_, bytes);
  }

  static constexpr size_t kHeaderBytes = 8 + 4 + 4 + 7 + 4 * 4 + 2 * 8;  // before the checksum

  TempDir dir_;
  const std::string path_ = dir_ / "sequences";
};

TEST_F(SequenceFileTest, GivesBackWhatWasWritten) {
  const std::vector<KeptSequence> written = Sequences();
  ASSERT_THAT(Write(written), IsOk());
  const auto read = Read();
  ASSERT_THAT(read, IsOk());
  ASSERT_EQ(read->size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) ExpectSame((*read)[i], written[i]);
}

TEST_F(SequenceFileTest, ReadsTheVersionBeforeWhichNamesNoOwners) {
  testing::WriteFile(path_, testing::ReadFile(PLEIAD_SOURCE_DIR "/tests/golden/sequences-v1"));
  const auto read = Read();
  ASSERT_THAT(read, IsOk());
  std::vector<KeptSequence> expected = Sequences();
  ASSERT_EQ(read->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i].owner.clear();
    ExpectSame((*read)[i], expected[i]);
  }
  // Whoever wrote the version counts: its sequences have no owners to read.
  SetVersion(kSequenceFileVersion);
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kDataLoss, "malformed"));
}

TEST_F(SequenceFileTest, IsItsOwnersAloneAndLeavesNothingBesideIt) {
  testing::WriteFile(SequenceFileWriter::TemporaryName(path_), "left there");
  testing::WriteFile(path_, "an older one");
  ASSERT_THAT(Write(Sequences()), IsOk());
  struct stat about;
  ASSERT_EQ(::stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(SequenceFileWriter::TemporaryName(path_)));
  EXPECT_THAT(Read(), IsOk());
}

TEST_F(SequenceFileTest, WhatIsNoFileIsDamagedAndKeepsNobodyWaiting) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kDataLoss, "no regular file"));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kDataLoss, "no regular file"));
}

TEST_F(SequenceFileTest, CutAtAnyLengthItIsDamaged) {
  ASSERT_THAT(Write(Sequences()), IsOk());
  const std::string whole = testing::ReadFile(path_);
  for (size_t length = whole.size(); length-- > 0;) {
    std::filesystem::resize_file(path_, length);
    ASSERT_EQ(Read().status().code(), absl::StatusCode::kDataLoss) << length << " of " << whole.size();
  }
  testing::WriteFile(path_, whole + '\0');
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kDataLoss, "behind the last"));
}

TEST_F(SequenceFileTest, WithAnyByteFlippedItIsRefused) {
  ASSERT_THAT(Write(Sequences()), IsOk());
  const std::string whole = testing::ReadFile(path_);
  for (size_t i = 0; i < whole.size(); ++i) {
    Put(i, static_cast<char>(whole[i] ^ (1 << i % 8)));
    const absl::Status status = Read().status();
    Put(i, whole[i]);
    // The version is not covered by a checksum that a reader of this one could know of.
    ASSERT_TRUE(absl::IsDataLoss(status) || (i >= 8 && i < 12 && absl::IsFailedPrecondition(status)))
        << "byte " << i << ": " << status;
  }
}

// As a writer with a fault would leave it: checksums match, but what they cover does not hold together.
TEST_F(SequenceFileTest, ContentsAreCheckedThoughTheirChecksumMatches) {
  ASSERT_THAT(Write({Sequences()[0]}), IsOk());
  const std::string whole = testing::ReadFile(path_);
  const size_t first = kHeaderBytes + 4, last = whole.size() - 4;
  uint32_t head = 0;
  std::memcpy(&head, &whole[first], 4);
  int refused = 0;
  for (size_t i = first; i < first + 4 + head; ++i) {
    for (const char value : {'\0', '\1', '\x7f', '\xff'}) {
      std::string bytes = whole;
      bytes[i] = value;
      Seal(bytes, first, last);
      testing::WriteFile(path_, bytes);
      const absl::Status status = Read().status();
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << "byte " << i << ": " << status;
      if (!status.ok()) ++refused;
    }
  }
  EXPECT_GT(refused, 300);
}

TEST_F(SequenceFileTest, OtherVersionsAndModelsAreToldFromDamage) {
  ASSERT_THAT(Write(Sequences()), IsOk());
  SetVersion(kSequenceFileVersion);
  EXPECT_THAT(Read(), IsOk());
  for (const uint32_t version : {kOldestSequenceFileVersion - 1, kSequenceFileVersion + 1}) {
    SetVersion(version);
    EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kFailedPrecondition, "version"));
  }
  SetVersion(kSequenceFileVersion);
  SequenceFileHeader other = Header(0);
  other.model_id = "model-2";
  EXPECT_THAT(Read(other), FailsWith(absl::StatusCode::kFailedPrecondition, "of model model-1; this is model-2"));
  other = Header(0);
  other.state_len = 4;
  EXPECT_THAT(Read(other), FailsWith(absl::StatusCode::kDataLoss, "geometry"));
  std::filesystem::remove(path_);
  EXPECT_THAT(Read(), FailsWith(absl::StatusCode::kNotFound, path_));
}

TEST_F(SequenceFileTest, AFullDiskLeavesTheOldFileAndNoPartOfTheNewOne) {
  ASSERT_THAT(Write({Sequences()[2]}), IsOk());
  const std::string old_file = testing::ReadFile(path_);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{200, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const absl::Status status = Write(Sequences());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, "sequences.new: cannot write: File too large"));
  EXPECT_EQ(testing::ReadFile(path_), old_file);
  EXPECT_FALSE(std::filesystem::exists(SequenceFileWriter::TemporaryName(path_)));
  EXPECT_THAT(Write(Sequences()), IsOk()) << "with room again";
}

TEST_F(SequenceFileTest, WithoutAFolderNothingIsWritten) {
  const auto writer = SequenceFileWriter::Create(dir_ / "none/sequences", Header(0));
  EXPECT_THAT(writer, FailsWith(absl::StatusCode::kUnavailable, "none/sequences.new: cannot open"));
}

}  // namespace
}  // namespace pleiad
