// Sequences in a file, for the next run of the same model. All numbers are little-endian, as every machine this runs
// on.
//
//   header   "PLEIADSQ" | u32 version | u32 length of the model id | the model id
//            | u32 layers | u32 context_len | u32 state_len | u32 rollback_tokens | u64 channels | u64 sequences
//            | u32 crc32 of all before
//   then, for every sequence
//            u32 length of what comes before the rows:
//              u64 id | u64 epoch | i64 idle nanoseconds | u32 length, client_key | u32 length, label
//              | u32 length, owner (since version 2)
//              | for every layer: u64 position | u64 low | u64 last_step_start | u64 head
//                | u32 flags (1: a step failed, 2: undo) | u32 ring rows | u32 undo rows
//                | u32 ids before head | the ids, u32 each | with undo: context_len ids, u32 each
//            | for every layer: ring rows, then undo rows, [C] F32 each, oldest first
//            | u32 crc32 of this sequence, its first length included
//
// Behind the last sequence the file ends. A change of the layout raises the version, and the reader goes on to read the
// version before it. Whoever holds the file can continue its sequences: ids and client keys are secrets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"
#include "core/engine/kept_sequence.h"

namespace pleiad {

inline constexpr uint32_t kSequenceFileVersion = 2;
inline constexpr uint32_t kOldestSequenceFileVersion = 1;

struct SequenceFileHeader {
  std::string model_id;
  uint32_t layers = 0;
  uint32_t context_len = 0;
  uint32_t state_len = 0;
  uint32_t rollback_tokens = 0;
  uint64_t channels = 0;
  uint64_t sequences = 0;

  CarryShape shape() const { return {context_len, state_len, rollback_tokens, 0}; }
};

// Writes beside the final name, with mode 0600; not thread-safe. Every error is Unavailable and names the path and the
// reason. Blocks.
class SequenceFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceFileWriter>> Create(const std::string& path,
                                                                    const SequenceFileHeader& header);
  // Removes what was written unless Commit has succeeded.
  ~SequenceFileWriter();

  // `header.sequences` times.
  absl::Status Add(const KeptSequence& sequence);
  // Syncs the file, gives it its name, in place of another that has it, and syncs the folder.
  absl::Status Commit();

  uint64_t bytes() const { return bytes_; }

  static std::string TemporaryName(const std::string& path) { return path + ".new"; }

 private:
  explicit SequenceFileWriter(const std::string& path) : path_(path), temporary_(TemporaryName(path)) {}

  // Adds to the checksum.
  absl::Status Write(const void* data, size_t size);
  // Writes the checksum and begins another.
  absl::Status WriteChecksum();

  const std::string path_;
  const std::string temporary_;
  UniqueFd fd_;
  uint32_t checksum_ = 0;
  uint64_t bytes_ = 0;
  bool committed_ = false;
};

// Reads one sequence at a time and trusts nothing before its checksum has matched. Not thread-safe. Blocks. Returns
//   NotFound            there is no such file
//   FailedPrecondition  it is of another model, or of a version that this reader does not know
//   DataLoss            it is torn, damaged or contradicts itself
//   Unavailable         it cannot be read
class SequenceFileReader {
 public:
  // `expected`: of this model; its rollback_tokens and sequences are not compared.
  static absl::StatusOr<std::unique_ptr<SequenceFileReader>> Open(const std::string& path,
                                                                  const SequenceFileHeader& expected,
                                                                  uint32_t vocab_size);

  // What the file says.
  const SequenceFileHeader& header() const { return header_; }
  uint64_t bytes() const { return bytes_; }

  // The next sequence, or nothing behind the last one, where the file ends.
  absl::StatusOr<std::optional<KeptSequence>> Next();

 private:
  SequenceFileReader(const std::string& path, uint32_t vocab_size) : path_(path), vocab_size_(vocab_size) {}

  absl::Status ReadHeader(const SequenceFileHeader& expected);
  absl::StatusOr<KeptSequence> ReadSequence();
  // What comes before the rows, which are given the size they will have.
  absl::Status ParseHead(const std::string& head, KeptSequence& sequence) const;

  absl::Status Damaged(const std::string& what) const;
  // Adds to the checksum. DataLoss when the file ends before.
  absl::Status Read(void* data, size_t size);
  absl::Status ReadString(uint64_t size, std::string& bytes);
  // Compares with what was read since the last one.
  absl::Status ReadChecksum();

  const std::string path_;
  const uint32_t vocab_size_;
  UniqueFd fd_;
  uint32_t version_ = 0;
  SequenceFileHeader header_;
  uint32_t checksum_ = 0;
  uint64_t bytes_ = 0;
  uint64_t left_ = 0;  // bytes of the file
  uint64_t read_ = 0;  // sequences
};

}  // namespace pleiad
