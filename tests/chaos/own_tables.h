// A copy of the table for each server of a cluster, which a test damages and mends while the others serve theirs.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/cluster.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {

// Used by one thread; outlives the cluster.
class OwnTables {
 public:
  // Of the cluster: rows are read as they are needed.
  Cluster::Change Change() {
    return [this](size_t server, ClusterServer* own) {
      const std::string copy = copies_ / std::to_string(server);
      if (std::filesystem::create_directory(copy)) {
        for (const auto& file : std::filesystem::directory_iterator(own->model)) {
          // The folder has the servers' sockets too.
          if (file.is_regular_file()) std::filesystem::copy(file.path(), copy);
        }
      }
      own->model = copy;
      own->log_level = "warning";
      own->flags.insert(own->flags.end(), {"--table", "cached", "--cache-bytes", "0"});
    };
  }

  // Cuts the files of the server's table in half: rows in the half that is left are the right ones; the others fail the
  // steps that need them.
  void Halve(size_t server) {
    for (const auto& file : std::filesystem::directory_iterator(copies_ / std::to_string(server))) {
      if (file.path().extension() != ".safetensors") continue;
      whole_.emplace_back(file.path(), ReadFile(file.path()));
      std::filesystem::resize_file(file.path(), whole_.back().second.size() / 2);
    }
  }
  // What was cut is whole again, in files of those names as a copy makes them.
  void Mend() {
    for (const auto& [path, bytes] : whole_) {
      std::filesystem::remove(path);
      WriteFile(path, bytes);
    }
    whole_.clear();
  }

 private:
  TempDir copies_;
  std::vector<std::pair<std::string, std::string>> whole_;
};

}  // namespace pleiad::testing
