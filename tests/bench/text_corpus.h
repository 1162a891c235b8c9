// Token traces of real text: the files of folders, cut by a plain tokeniser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pleiad::testing {

// Tokens, each a piece of text hashed (FNV-1a) to an id in [0, vocab_size). The pieces: a run of letters, at most 8,
// with the one space before it if there is one; a digit; any other run of white space; any other byte.
std::vector<uint32_t> Tokenise(std::string_view text, uint32_t vocab_size);

struct CorpusOptions {
  std::vector<std::string> folders;
  std::vector<std::string> suffixes;  // of the files that are taken, such as ".h"
  uint64_t min_bytes = 1024;          // files outside these sizes are left out
  uint64_t max_bytes = 128 * 1024;
  uint64_t tokens = 0;  // no more files are taken past this
  uint32_t vocab_size = 0;
  uint64_t seed = 1;  // of the order of the files
};

// Whole files in a random order, one vector of tokens each; links, files that cannot be read and files equal to one
// already taken are left out. The same machine gives the same corpus.
std::vector<std::vector<uint32_t>> ReadCorpus(const CorpusOptions& options);

}  // namespace pleiad::testing
