#include "tests/support/certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "tests/support/process/child_process.h"

namespace pleiad::testing {
namespace {

void OpenSsl(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"/usr/bin/openssl"});
  const Finished finished = RunToEnd(arguments);
  if (finished.code == 0) return;
  std::fprintf(stderr, "openssl: %s\n", finished.output.c_str());
  std::abort();
}

const std::vector<std::string> kNewKey{"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"};

std::vector<std::string> Join(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

CertificateAuthority::CertificateAuthority(const std::string& folder, const std::string& name)
    : folder_(folder), cert_(folder + "/" + name + ".pem"), key_(folder + "/" + name + ".key") {
  OpenSsl(Join({"req", "-x509", "-days", "30", "-subj", "/CN=" + name, "-keyout", key_, "-out", cert_}, kNewKey));
}

CertificatePaths CertificateAuthority::Issue(const std::string& name, Validity validity) const {
  const CertificatePaths paths{folder_ + "/" + name + ".pem", folder_ + "/" + name + ".key"};
  const std::string cert = paths.cert + ".new", key = paths.key + ".new", request = paths.cert + ".csr";
  const std::string extensions = folder_ + "/extensions";
  std::ofstream(extensions) << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
  OpenSsl(Join({"req", "-subj", "/CN=" + name, "-keyout", key, "-out", request}, kNewKey));
  OpenSsl({"x509", "-req", "-in", request, "-CA", cert_, "-CAkey", key_, "-CAcreateserial", "-extfile", extensions,
           "-days", validity == Validity::kNow ? "30" : "-1", "-out", cert});
  ::chmod(key.c_str(), 0600);
  std::filesystem::rename(cert, paths.cert);
  std::filesystem::rename(key, paths.key);
  return paths;
}

void ReplaceFile(const std::string& path, const std::string& text, uint32_t mode) {
  std::ofstream(path + ".new") << text;
  ::chmod((path + ".new").c_str(), mode);
  std::filesystem::rename(path + ".new", path);
}

std::string ReadWholeFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace pleiad::testing
