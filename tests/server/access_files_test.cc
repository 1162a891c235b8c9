// Files that access depends on: what is refused, and that they are read again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "absl/time/clock.h"
#include "server/certificate_files.h"
#include "server/token_file.h"
#include "tests/support/certificates.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace pleiad {
namespace {

using pleiad::testing::CertificateAuthority;
using pleiad::testing::CertificatePaths;
using pleiad::testing::FailsWith;
using pleiad::testing::IsOk;
using pleiad::testing::ReadWholeFile;
using pleiad::testing::ReplaceFile;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
const std::string kFirst = "first-token-0123456789", kSecond = "second-token-0123456789";

class TokenFileTest : public ::testing::Test {
 protected:
  absl::Status ErrorOf(const std::string& text, uint32_t mode = 0600) {
    ReplaceFile(path_, text, mode);
    return TokenFile::Open(path_).status();
  }

  pleiad::testing::TempDir folder_;
  const std::string path_ = folder_ / "tokens";
};

TEST_F(TokenFileTest, NamesTheHolderOfAToken) {
  ReplaceFile(path_, "# engines\n\nalice " + kFirst + "\n  bob\t" + kSecond + "  \nbob third-token-0123456789\n");
  const auto file = TokenFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->NameOf("Bearer " + kFirst), Optional(std::string("alice")));
  EXPECT_THAT((*file)->NameOf("bearer " + kSecond), Optional(std::string("bob")));
  EXPECT_THAT((*file)->NameOf("Bearer third-token-0123456789"), Optional(std::string("bob")));
  for (const std::string& wrong : std::vector<std::string>{"", kFirst, "Bearer ", "Bearer", "Basic " + kFirst,
                                                           "Bearer " + kFirst + "x", "Bearer " + kFirst.substr(1),
                                                           "Bearer alice", "Bearer  " + kFirst, "Bearer # engines"}) {
    EXPECT_EQ((*file)->NameOf(wrong), std::nullopt) << wrong;
  }
}

TEST_F(TokenFileTest, RefusesWhatItCannotUseAndNamesTheLineButNoToken) {
  EXPECT_THAT(TokenFile::Open(path_).status(), FailsWith(kRefused, "--auth-tokens " + path_ + ": No such file"));
  EXPECT_THAT(TokenFile::Open(folder_.path()).status(), FailsWith(kRefused, "plain file"));
  EXPECT_THAT(ErrorOf("alice " + kFirst, 0604), FailsWith(kRefused, "others can read"));
  EXPECT_THAT(ErrorOf("# nobody\n"), FailsWith(kRefused, "holds no token"));
  EXPECT_THAT(ErrorOf(kFirst), FailsWith(kRefused, "line 1: must be NAME TOKEN"));
  EXPECT_THAT(ErrorOf("\nalice " + kFirst + " more"), FailsWith(kRefused, "line 2"));
  EXPECT_THAT(ErrorOf("al/ice " + kFirst), FailsWith(kRefused, "a name has"));
  EXPECT_THAT(ErrorOf("alice short"), FailsWith(kRefused, "at least 16"));
  EXPECT_THAT(ErrorOf("alice " + kFirst + "\nbob " + kFirst), FailsWith(kRefused, "line 2: the token of another"));
  for (const std::string& text : {kFirst, "x " + kFirst + " y", "a " + kFirst + "\nb " + kFirst}) {
    EXPECT_THAT(std::string(ErrorOf(text).message()), Not(HasSubstr(kFirst)));
  }
}

TEST_F(TokenFileTest, IsReadAgainAndKeepsWhatItHadWhenTheNewOneIsNoGood) {
  ReplaceFile(path_, "alice " + kFirst);
  const auto file = TokenFile::Open(path_);
  ASSERT_THAT(file, IsOk());
  ReplaceFile(path_, "alice " + kSecond);
  EXPECT_EQ((*file)->NameOf("Bearer " + kFirst), std::nullopt);
  EXPECT_NE((*file)->NameOf("Bearer " + kSecond), std::nullopt);
  ReplaceFile(path_, "alice\n");
  EXPECT_NE((*file)->NameOf("Bearer " + kSecond), std::nullopt);
  ReplaceFile(path_, "alice " + kFirst, 0644);
  EXPECT_EQ((*file)->NameOf("Bearer " + kFirst), std::nullopt) << "others can read it";
  ReplaceFile(path_, "alice " + kFirst);
  EXPECT_NE((*file)->NameOf("Bearer " + kFirst), std::nullopt);
}

class CertificateFilesTest : public ::testing::Test {
 protected:
  static AccessFlags Flags(const std::string& cert, const std::string& key, const std::string& ca = "") {
    AccessFlags flags;
    flags.tls_cert = cert;
    flags.tls_key = key;
    flags.tls_client_ca = ca;
    return flags;
  }

  pleiad::testing::TempDir folder_;
  const CertificateAuthority ca_{folder_.path(), "ca"};
  const CertificatePaths paths_ = ca_.Issue("server");
};

TEST_F(CertificateFilesTest, RefusesFilesThatAreNoGoodAndNamesTheFlag) {
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, paths_.key, ca_.cert())), IsOk());
  const std::string none = folder_ / "none", garbage = folder_ / "garbage";
  ReplaceFile(garbage, "-----BEGIN CERTIFICATE-----\nxxxx\n-----END CERTIFICATE-----\n");
  EXPECT_THAT(CertificateFiles::Open(Flags(none, paths_.key)), FailsWith(kRefused, "--tls-cert " + none));
  EXPECT_THAT(CertificateFiles::Open(Flags(garbage, paths_.key)), FailsWith(kRefused, "--tls-cert " + garbage));
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, none)), FailsWith(kRefused, "--tls-key " + none));
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, garbage)), FailsWith(kRefused, "--tls-key " + garbage));
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, ca_.Issue("other").key)),
              FailsWith(kRefused, "is not the key of the first certificate in --tls-cert " + paths_.cert));
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, paths_.key, garbage)), FailsWith(kRefused, "--tls-client-ca"));
  ASSERT_EQ(::chmod(paths_.key.c_str(), 0644), 0);
  EXPECT_THAT(CertificateFiles::Open(Flags(paths_.cert, paths_.key)), FailsWith(kRefused, "others can read"));
}

TEST_F(CertificateFilesTest, AreReadAgainOnceTheyHoldTogether) {
  const auto files = CertificateFiles::Open(Flags(paths_.cert, paths_.key));
  ASSERT_THAT(files, IsOk());
  const std::string first = (*files)->Current().certificate->chain;
  EXPECT_EQ((*files)->Current().number, 1u);
  const CertificatePaths next = ca_.Issue("next");
  ReplaceFile(paths_.cert, ReadWholeFile(next.cert));
  EXPECT_EQ((*files)->Current().certificate->chain, first) << "its key is not there yet";
  ReplaceFile(paths_.key, ReadWholeFile(next.key));
  EXPECT_EQ((*files)->Current().certificate->chain, ReadWholeFile(next.cert));
  EXPECT_EQ((*files)->Current().number, 2u);
}

TEST_F(CertificateFilesTest, SayWhenTheFirstOfTheChainAndTheLastOfTheAuthoritiesExpires) {
  const absl::Time before = absl::Now() - absl::Seconds(1);
  const CertificatePaths next = ca_.Issue("server"), late = ca_.Issue("late", pleiad::testing::Validity::kExpired);
  const absl::Time after = absl::Now();
  const auto expires = [&](const std::string& cert, const std::string& ca) {
    const auto files = CertificateFiles::Open(Flags(cert, next.key, ca));
    EXPECT_THAT(files, IsOk());
    return (*files)->Current().certificate;
  };
  const auto in_days = [&](int days) {
    return ::testing::AllOf(::testing::Ge(before + absl::Hours(24 * days)),
                            ::testing::Le(after + absl::Hours(24 * days)));
  };
  EXPECT_THAT(expires(next.cert, "")->chain_expiry, in_days(30));
  EXPECT_THAT(expires(next.cert, late.cert)->client_ca_expiry, in_days(-1));
  const std::string chain = folder_ / "chain", authorities = folder_ / "authorities";
  ReplaceFile(chain, ReadWholeFile(next.cert) + ReadWholeFile(late.cert));
  ReplaceFile(authorities, ReadWholeFile(late.cert) + ReadWholeFile(next.cert));
  EXPECT_THAT(expires(chain, authorities)->chain_expiry, in_days(-1));
  EXPECT_THAT(expires(chain, authorities)->client_ca_expiry, in_days(30));
}

}  // namespace
}  // namespace pleiad
