// Keeps the ids of cached rows in --state-dir: read back in the background after a start, written at drain.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/engine/engine.h"
#include "core/rows/warm_file.h"

namespace pleiad {

class WarmStart {
 public:
  // `engine` outlives this object and has a cached table; `table_rows` [layers].
  WarmStart(Engine* engine, const std::string& state_dir, std::vector<uint64_t> table_rows);
  // As Stop.
  ~WarmStart();

  // Reads the file and then its rows, few at a time so that steps get most of the disk. Returns at once. A file that is
  // damaged or of another model is ignored with a line in the log.
  void Start();
  // Ends the reading and begins to write the file, with the rows that were still to be read. Without Start: nothing.
  void Save();
  // Ends the reading, without waiting for rows that are under way, and waits for the writing.
  void Stop();

 private:
  // What the reading thread waits for. Rows may arrive after this object is gone.
  struct Waiting {
    Mutex mutex;
    CondVar changed;
    bool stop ABSL_GUARDED_BY(mutex) = false;
    std::optional<Outcome> outcome ABSL_GUARDED_BY(mutex);  // of the rows asked for last
  };

  void Read();
  // Nothing once stopped.
  std::optional<Outcome> ReadBack(LayerOrdinal layer, std::vector<RowId> rows);
  void Write();

  Engine* const engine_;
  const std::string path_;
  const std::vector<uint64_t> table_rows_;
  WarmRows unread_;  // of the reading thread, then of the writing one
  const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
  std::thread thread_;
};

}  // namespace pleiad
