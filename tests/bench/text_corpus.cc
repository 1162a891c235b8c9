#include "tests/bench/text_corpus.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <unordered_set>

namespace pleiad::testing {
namespace {

namespace fs = std::filesystem;

// Bytes above ASCII count as letters: pieces of UTF-8.
bool IsLetter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte | 0x20u) - 'a' < 26u;
}
bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t PieceAt(std::string_view text, size_t at) {
  constexpr size_t kMaxLetters = 8;
  const size_t first = at + (text[at] == ' ' ? 1 : 0);
  size_t end = first;
  while (end < text.size() && end - first < kMaxLetters && IsLetter(text[end])) ++end;
  if (end > first) return end - at;
  if (!IsSpace(text[at])) return 1;
  for (end = at; end < text.size() && IsSpace(text[end]);) ++end;
  // The last space belongs to the word behind it.
  const bool leaves_space = end < text.size() && end - at > 1 && text[end - 1] == ' ' && IsLetter(text[end]);
  return end - at - (leaves_space ? 1 : 0);
}

uint64_t Fnv1a(std::string_view bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return hash;
}

std::vector<std::string> FindFiles(const CorpusOptions& options) {
  std::vector<std::string> paths;
  for (const std::string& folder : options.folders) {
    std::error_code error;
    fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      std::error_code ignored;
      if (at->is_symlink(ignored) || !at->is_regular_file(ignored)) continue;
      const uint64_t bytes = at->file_size(ignored);
      if (ignored || bytes < options.min_bytes || bytes > options.max_bytes) continue;
      const std::string suffix = at->path().extension().string();
      const std::vector<std::string>& taken = options.suffixes;
      if (std::find(taken.begin(), taken.end(), suffix) != taken.end()) paths.push_back(at->path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::mt19937_64 rng(options.seed);
  for (size_t i = paths.size(); i > 1; --i) std::swap(paths[i - 1], paths[rng() % i]);
  return paths;
}

}  // namespace

std::vector<uint32_t> Tokenise(std::string_view text, uint32_t vocab_size) {
  std::vector<uint32_t> tokens;
  for (size_t at = 0; at < text.size();) {
    const size_t size = PieceAt(text, at);
    tokens.push_back(static_cast<uint32_t>(Fnv1a(text.substr(at, size)) % vocab_size));
    at += size;
  }
  return tokens;
}

std::vector<std::vector<uint32_t>> ReadCorpus(const CorpusOptions& options) {
  std::vector<std::vector<uint32_t>> corpus;
  std::unordered_set<uint64_t> seen;
  uint64_t tokens = 0;
  for (const std::string& path : FindFiles(options)) {
    if (tokens >= options.tokens) break;
    std::ifstream file(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (text.empty() || !seen.insert(Fnv1a(text)).second) continue;
    corpus.push_back(Tokenise(text, options.vocab_size));
    tokens += corpus.back().size();
  }
  return corpus;
}

}  // namespace pleiad::testing
