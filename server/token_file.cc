#include "server/token_file.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace pleiad {
namespace {

constexpr char kFlag[] = "auth-tokens";
constexpr size_t kMaxNameBytes = 64;

bool IsName(absl::string_view text) {
  return text.size() <= kMaxNameBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
         });
}

bool IsToken(absl::string_view text) {
  return text.size() >= TokenFile::kMinTokenBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isgraph(static_cast<unsigned char>(c));
         });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  std::unique_ptr<TokenFile> file(new TokenFile(path));
  MutexLock lock(&file->mutex_);
  file->tried_ = StampOf(path);
  PLEIAD_ASSIGN_OR_RETURN(Entries entries, file->Read());
  file->entries_ = std::make_shared<const Entries>(std::move(entries));
  return file;
}

TokenFile::Digest TokenFile::DigestOf(absl::string_view token) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::StatusOr<TokenFile::Entries> TokenFile::Read() const {
  PLEIAD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(kFlag, path_, Secrecy::kSecret));
  Entries entries;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const auto refuse = [&](absl::string_view rule) {
      return absl::InvalidArgumentError(absl::StrCat("--", kFlag, " ", path_, ": line ", number, ": ", rule));
    };
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
    if (words.size() != 2) return refuse("must be NAME TOKEN");
    if (!IsName(words[0])) return refuse("a name has at most 64 letters, digits, '.', '_' and '-'");
    if (!IsToken(words[1])) return refuse(absl::StrCat("a token has at least ", kMinTokenBytes, " visible characters"));
    const Digest digest = DigestOf(words[1]);
    for (const Entry& entry : entries) {
      if (entry.digest == digest) return refuse("the token of another line");
    }
    entries.push_back({std::string(words[0]), digest});
  }
  if (entries.empty()) return absl::InvalidArgumentError(absl::StrCat("--", kFlag, " ", path_, ": holds no token"));
  return entries;
}

std::shared_ptr<const TokenFile::Entries> TokenFile::Current() {
  MutexLock lock(&mutex_);
  const FileStamp stamp = StampOf(path_);
  if (stamp == tried_) return entries_;
  const bool again = tried_ == FileStamp();
  tried_ = stamp;
  absl::StatusOr<Entries> entries = Read();
  if (entries.ok()) {
    entries_ = std::make_shared<const Entries>(*std::move(entries));
    spdlog::info("--{} {}: read again, {} token(s)", kFlag, path_, entries_->size());
  } else {
    // What is wrong with the machine may be over at the next call.
    if (absl::IsUnavailable(entries.status())) tried_ = FileStamp();
    spdlog::log(again ? spdlog::level::debug : spdlog::level::err, "{}; the tokens from before are in use",
                std::string(entries.status().message()));
  }
  return entries_;
}

std::optional<std::string> TokenFile::NameOf(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return std::nullopt;
  const Digest digest = DigestOf(authorization.substr(kScheme.size()));
  const std::shared_ptr<const Entries> entries = Current();
  const Entry* found = nullptr;
  for (const Entry& entry : *entries) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->name;
}

}  // namespace pleiad
