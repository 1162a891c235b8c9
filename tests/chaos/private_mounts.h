// File systems that only the calling thread, and the processes it starts, can see.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <string>
#include <vector>

namespace pleiad::testing {

class PrivateMounts {
 public:
  PrivateMounts() = default;
  ~PrivateMounts() {
    for (const std::string& folder : folders_) ::umount2(folder.c_str(), MNT_DETACH);
  }
  PrivateMounts(const PrivateMounts&) = delete;
  PrivateMounts& operator=(const PrivateMounts&) = delete;

  // False, with errno, where this user may not.
  bool Tmpfs(const std::string& folder, const std::string& size) {
    if (folders_.empty()) {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        return false;
    }
    if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) return false;
    folders_.push_back(folder);
    return true;
  }

 private:
  std::vector<std::string> folders_;
};

}  // namespace pleiad::testing
