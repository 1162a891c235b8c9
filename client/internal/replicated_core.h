// The machine behind ReplicatedClient. One site (a replica with a stream) holds all sequences; steps that are not
// answered stay in one list, in order, each either out (at the site) or waiting. A mover thread acts on what answers
// tell: it holds steps back, lets those that are out come home, builds the sequences where they shall live, and sends
// the waiting steps on. A second thread takes snapshots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/internal/clock.h"
#include "client/internal/mutex.h"
#include "client/internal/replay_log.h"
#include "client/internal/replica_set.h"
#include "client/replicated_client.h"

namespace pleiad::client::internal {

// What this side knows of one carry. Guarded by the core's mutex; its log is left alone while steps are held back.
struct ReplicatedCarry {
  explicit ReplicatedCarry(const LogShape& shape) : log(shape) {}

  ReplayLog log;
  bool needs_start = false;      // a step failed: the next one must say where it starts
  uint64_t next = 0;             // end of the last step submitted
  uint32_t rewinds_out = 0;      // steps unanswered that start below that
  bool snapshot_wanted = false;  // queued, or being taken
  uint64_t snapshot_at = 0;      // where the last one was wanted
  uint64_t lowest_start = 0;     // of steps that rewind, submitted since one is being taken
};

// Guarded by the core's mutex.
struct ReplicatedRecord {
  OpenOptions options;  // without layers
  bool fresh = true;
  std::map<uint32_t, ReplicatedCarry> carries;  // the keys never change
  std::shared_ptr<Sequence> handle;             // null: released, or on no replica yet
  SequenceId id = kThrowAway;                   // the handle's
  uint64_t site = 0;                            // number of the site that has it
  size_t replica = 0;                           // the site's
  bool gone = false;                            // its replica has forgotten it
  bool released = false;
};

class ReplicatedCore {
 public:
  using RecordPtr = std::shared_ptr<ReplicatedRecord>;
  using Connector = ReplicatedClient::Connector;

  // `clock` outlives this.
  ReplicatedCore(ReplicatedOptions options, Connector connector, Clock* clock);
  // After Stop.
  ~ReplicatedCore() = default;

  // Finds the first site; once, first.
  absl::Status Start();
  // Fails what is unanswered and ends the threads; once.
  void Stop();

  const ModelInfo& model() const { return model_; }
  size_t replica();
  ReplicatedCounters counters();
  uint64_t position(const ReplicatedRecord& record, uint32_t layer_index);

  absl::StatusOr<RecordPtr> Open(const OpenOptions& options);
  absl::StatusOr<SequenceSnapshot> Snapshot(const RecordPtr& record, std::optional<uint32_t> layer_index);
  absl::Status Restore(const RecordPtr& record, const SequenceSnapshot& snapshot);
  absl::StatusOr<bool> Release(const RecordPtr& record);
  void ReleaseLater(const RecordPtr& record);

  void Submit(Step step, std::vector<RecordPtr> records, StepCallback done);
  void Drain();

 private:
  struct Site {
    uint64_t number = 0;
    size_t replica = 0;
    std::shared_ptr<Client> client;
    std::unique_ptr<StepStream> stream;
    // Guarded by the core's mutex.
    uint32_t entered = 0;                   // threads in the stream's Submit
    std::vector<SequenceId> released = {};  // while it drained
  };
  using SitePtr = std::shared_ptr<Site>;

  struct Pending {
    Step step;
    std::vector<RecordPtr> records;  // of its segments
    StepCallback done;
    std::optional<uint32_t> layer;
    std::vector<std::vector<LoggedToken>> tokens;  // of its segments
    std::vector<bool> rewinds;                     // of its segments
    bool out = false;
    uint32_t losses = 0;
    uint32_t forgotten = 0;  // of `losses`, those where the replica had no such sequence

    // The carry of segment `i` that the step moves; null where it moves none.
    ReplicatedCarry* carry(size_t i) const;
  };
  using PendingList = std::list<Pending>;

  enum class Verdict : uint8_t { kFinal, kLost, kForgotten };

  absl::Time Now() const { return clock_->Now(); }
  bool on() const { return options_.failover == Failover::kOn; }

  // replicated_core.cc
  static Verdict Judge(const absl::Status& status);
  // Not the service's word on a step: the stream has ended.
  static bool EndsStream(const absl::Status& status);
  void Dispatch(PendingList::iterator pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAnswer(PendingList::iterator pending, Site* site, absl::StatusOr<StepResult> result);
  // Whether the step waits for another try instead of failing, with `status` then.
  bool Keeps(Pending* pending, const Site* site, absl::Status* status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Pending* pending, const absl::StatusOr<StepResult>& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WantSnapshot(const RecordPtr& record, uint32_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the site's own loss, or of a sequence there: holds steps back and wakes the mover.
  void Lose(const Site* site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: the sequence was released, and nobody will build it.
  bool Forget(ReplicatedRecord* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // replicated_calls.cc
  // The site, once steps may go there; asks for a move when there is none.
  absl::StatusOr<SitePtr> AwaitSite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What `call` says of the record's handle; called again where the sequence lives when it was lost meanwhile.
  template <typename Call>
  auto OnSite(const RecordPtr& record, Call call) -> decltype(call(record->handle));
  // Has the mover look after a site that has not answered a call in time. True: it is lost, or was left meanwhile.
  bool IsGone(const SitePtr& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fills in the carries of a sequence that has been opened.
  absl::Status Adopt(ReplicatedRecord* record, Sequence* sequence, const std::vector<LayerAux>& layers) const;
  // Takes snapshots, and ends what may block when it ends.
  void TendLoop();
  void TakeSnapshot(const RecordPtr& record, uint32_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // replicated_watch.cc, on the mover's thread; they block.
  // Loses the site when it gives no sign of life.
  void Probe() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether anything is answered on the site's stream within rpc_timeout. A call says less: behind a balancer another
  // replica may take it.
  bool AnswersOnStream(const SitePtr& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  enum class Readiness : uint8_t { kReady, kNotReady, kUnknown };
  // Asks whether the site that has the sequences is ready to serve.
  Readiness ReadinessOf(const SitePtr& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After a row that could not be read: a site that is not ready to serve is left as one that drains.
  void LeaveUnlessReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // replicated_mover.cc
  void MoveLoop();
  void AwaitWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Until no step is out. False: the site was lost meanwhile, or the client stops.
  bool AwaitHome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the site's stream; no step is out then.
  void Leave(const SitePtr& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MoveAfterLoss() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MoveFromDraining() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // To a replica that comes before the site's in the order, where one is ready.
  void MoveBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From a site that works, between two steps; counts a success in `moves`.
  void MoveTo(size_t replica, uint64_t ReplicatedCounters::*moves) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // When to look next for a replica that comes before the site's.
  absl::Time NextLookBack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<SequenceId> SequencesAt(const Site& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a site that works, and the sequences it had, which its handles may not reach: behind a balancer their calls go
  // to another server, and only the stream is still the old one's.
  void ReleaseOnStream(const SitePtr& left, std::vector<SequenceId> had) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  class LeftSite;
  // Steps go there from now on.
  void UseSite(SitePtr site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Mend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailWaiting(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the waiting steps those that name a sequence which the site has forgotten.
  void FailForgotten(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(PendingList failed, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Discard(std::shared_ptr<void> garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // replicated_build.cc; they block, on the mover's thread or in Start.
  absl::StatusOr<SitePtr> Reach(size_t replica);
  struct Built {
    RecordPtr record;
    std::shared_ptr<Sequence> handle;
  };
  // Builds every sequence that `site` does not have, and all or none of them live there then.
  absl::Status BuildAll(const SitePtr& site);
  class Rebuild;

  const ReplicatedOptions options_;
  const Connector connector_;
  Clock* const clock_;
  ModelInfo model_;  // set by Start, as what follows
  LogShape shape_;

  Mutex mutex_;
  CondVar changed_;                       // a step is home, a move is over
  CondVar work_;                          // for the mover
  CondVar tend_;                          // for the other thread
  SitePtr site_ ABSL_GUARDED_BY(mutex_);  // null: none was found; a step or a call asks again
  size_t last_replica_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_site_ ABSL_GUARDED_BY(mutex_) = 1;
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;  // steps wait
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // What the mover is to do.
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool forgotten_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaves_unreadable_ ABSL_GUARDED_BY(mutex_) = false;  // draining_ is for its table alone
  bool probe_ ABSL_GUARDED_BY(mutex_) = false;
  bool unreadable_ ABSL_GUARDED_BY(mutex_) = false;                     // a step failed for it at the site
  absl::Time drain_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // no sooner
  uint64_t drain_tries_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time back_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // to look for a replica that comes before
  absl::Time lost_at_ ABSL_GUARDED_BY(mutex_);
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);      // of the last answer, or when a first step went out
  absl::Status gave_up_ ABSL_GUARDED_BY(mutex_);  // why there is no site

  PendingList pending_ ABSL_GUARDED_BY(mutex_);  // unanswered
  uint32_t out_ ABSL_GUARDED_BY(mutex_) = 0;     // of them, at the site; and callbacks that run
  std::set<RecordPtr> records_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<RecordPtr, uint32_t>> snapshots_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<void>> garbage_ ABSL_GUARDED_BY(mutex_);
  ReplicatedCounters counters_ ABSL_GUARDED_BY(mutex_);

  ReplicaSet replicas_ ABSL_GUARDED_BY(mutex_);
  RetryBudget budget_ ABSL_GUARDED_BY(mutex_);

  std::thread mover_, tender_;
};

}  // namespace pleiad::client::internal
