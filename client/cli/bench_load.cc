#include "client/cli/bench_load.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/internal/mutex.h"

namespace pleiad::cli {
namespace {

using client::Client;
using client::Sequence;
using client::Step;
using client::StepResult;
using client::StepStream;
using client::internal::CondVar;
using client::internal::Mutex;
using client::internal::MutexLock;
using Clock = std::chrono::steady_clock;

// Sequences that share their requests, one request in flight.
struct Actor {
  size_t load = 0;  // index into the report
  uint32_t tokens_per_step = 1;
  StepStream* stream = nullptr;
  std::vector<Sequence> sequences;
  std::vector<std::byte> highway;
  std::mt19937 rng;
  // Touched by its own callbacks, one at a time.
  uint32_t done = 0;  // steps, warm-up included
  Clock::time_point sent;
  std::vector<double> latencies_us;
  Clock::time_point first, last;  // of what is measured
  client::StepStats sum;          // of what is measured
  uint64_t batch_tokens = 0;
};

class Bench {
 public:
  Bench(Client* client, const BenchOptions& options) : client_(client), options_(options) {}

  absl::StatusOr<BenchReport> Run() {
    if (absl::Status s = Open(); !s.ok()) return s;
    {
      MutexLock lock(&mutex_);
      running_ = actors_.size();
      measured_ = static_cast<size_t>(
          std::count_if(actors_.begin(), actors_.end(), [](const auto& actor) { return actor->load == 0; }));
    }
    for (const std::unique_ptr<Actor>& actor : actors_) Send(actor.get());
    {
      MutexLock lock(&mutex_);
      while (running_ > 0) changed_.Wait(&mutex_);
      if (!failed_.ok()) return failed_;
    }
    for (const std::unique_ptr<StepStream>& stream : streams_) stream->Drain();
    return Report();
  }

 private:
  absl::Status Open() {
    for (uint32_t i = 0; i < options_.streams; ++i) streams_.push_back(*client_->OpenStream());
    loads_ = {options_.load};
    loads_.insert(loads_.end(), options_.beside.begin(), options_.beside.end());
    std::mt19937 rng(options_.seed);
    for (size_t load = 0; load < loads_.size(); ++load) {
      for (uint32_t i = 0; i < loads_[load].sequences;) {
        auto actor = std::make_unique<Actor>();
        actor->load = load;
        actor->tokens_per_step = loads_[load].tokens_per_step;
        actor->stream = streams_[actors_.size() % streams_.size()].get();
        actor->rng.seed(rng());
        for (uint32_t n = 0; n < options_.sequences_per_request && i < loads_[load].sequences; ++n, ++i) {
          absl::StatusOr<Sequence> sequence = client_->OpenSequence({.label = "pleiad bench"});
          if (!sequence.ok()) return sequence.status();
          actor->sequences.push_back(*std::move(sequence));
        }
        FillHighway(actor.get());
        actors_.push_back(std::move(actor));
      }
    }
    return absl::OkStatus();
  }

  void FillHighway(Actor* actor) const {
    const size_t values = actor->sequences.size() * actor->tokens_per_step * client_->model().channels;
    const size_t width = options_.delta_bf16 ? 2 : 4;
    actor->highway.resize(values * width);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < values; ++i) {
      const float value = uniform(actor->rng);
      // BF16 is the upper half of F32.
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      std::copy(bytes + 4 - width, bytes + 4, actor->highway.begin() + static_cast<ptrdiff_t>(i * width));
    }
  }

  void Send(Actor* actor) {
    Step step;
    step.layer_index = options_.layer_index;
    for (const Sequence& sequence : actor->sequences) step.segments.push_back({&sequence, actor->tokens_per_step});
    std::uniform_int_distribution<uint32_t> token(0, std::max(1u, client_->model().vocab_size) - 1);
    step.token_ids.resize(actor->sequences.size() * actor->tokens_per_step);
    for (uint32_t& id : step.token_ids) id = token(actor->rng);
    step.highway.data = actor->highway;
    step.highway.dtype = options_.delta_bf16 ? client::DType::kBf16 : client::DType::kF32;
    step.output_kind = options_.delta_bf16 ? client::OutputKind::kDelta : client::OutputKind::kHighway;
    actor->sent = Clock::now();
    actor->stream->Submit(std::move(step),
                          [this, actor](absl::StatusOr<StepResult> result) { OnResult(actor, std::move(result)); });
  }

  void OnResult(Actor* actor, absl::StatusOr<StepResult> result) {
    const Clock::time_point now = Clock::now();
    if (result.ok() && ++actor->done > options_.warmup) {
      if (actor->latencies_us.empty()) actor->first = actor->sent;
      actor->last = now;
      actor->latencies_us.push_back(std::chrono::duration<double, std::micro>(now - actor->sent).count());
      actor->sum.rows += result->stats.rows;
      actor->sum.hits += result->stats.hits;
      actor->batch_tokens += result->stats.batch_tokens;
      actor->sum.queue += result->stats.queue;
      actor->sum.resolve += result->stats.resolve;
      actor->sum.device += result->stats.device;
    }
    bool more = false;
    {
      MutexLock lock(&mutex_);
      if (!result.ok() && failed_.ok()) failed_ = result.status();
      if (actor->load == 0 && actor->done == options_.warmup + options_.steps) --measured_;
      const bool enough = actor->load == 0 ? actor->done >= options_.warmup + options_.steps : measured_ == 0;
      more = failed_.ok() && !enough;
      if (!more && --running_ == 0) changed_.NotifyAll();
    }
    if (more) Send(actor);
  }

  BenchReport Report() const {
    BenchReport report;
    for (size_t load = 0; load < loads_.size(); ++load) {
      LoadReport& to = report.loads.emplace_back();
      to.load = loads_[load];
      std::vector<double> latencies;
      client::StepStats sum;
      uint64_t tokens = 0, batch_tokens = 0;
      std::optional<Clock::time_point> first, last;
      for (const std::unique_ptr<Actor>& actor : actors_) {
        if (actor->load != load || actor->latencies_us.empty()) continue;
        latencies.insert(latencies.end(), actor->latencies_us.begin(), actor->latencies_us.end());
        tokens += actor->latencies_us.size() * actor->sequences.size() * actor->tokens_per_step;
        batch_tokens += actor->batch_tokens;
        sum.rows += actor->sum.rows;
        sum.hits += actor->sum.hits;
        sum.queue += actor->sum.queue;
        sum.resolve += actor->sum.resolve;
        sum.device += actor->sum.device;
        first = first.has_value() ? std::min(*first, actor->first) : actor->first;
        last = last.has_value() ? std::max(*last, actor->last) : actor->last;
      }
      if (latencies.empty()) continue;
      std::sort(latencies.begin(), latencies.end());
      const double count = static_cast<double>(latencies.size());
      to.requests = latencies.size();
      to.seconds = std::chrono::duration<double>(*last - *first).count();
      to.tokens_per_second = to.seconds > 0 ? static_cast<double>(tokens) / to.seconds : 0;
      to.p50_us = Percentile(latencies, 50);
      to.p90_us = Percentile(latencies, 90);
      to.p99_us = Percentile(latencies, 99);
      to.max_us = latencies.back();
      to.hit_rate = sum.rows > 0 ? static_cast<double>(sum.hits) / static_cast<double>(sum.rows) : 0;
      to.mean_batch_tokens = static_cast<double>(batch_tokens) / count;
      to.mean_queue_us = absl::ToDoubleMicroseconds(sum.queue) / count;
      to.mean_resolve_us = absl::ToDoubleMicroseconds(sum.resolve) / count;
      to.mean_device_us = absl::ToDoubleMicroseconds(sum.device) / count;
    }
    return report;
  }

  Client* const client_;
  const BenchOptions& options_;
  std::vector<LoadGroup> loads_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<std::unique_ptr<StepStream>> streams_;  // go first, with their callbacks

  Mutex mutex_;
  CondVar changed_;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;   // actors
  size_t measured_ ABSL_GUARDED_BY(mutex_) = 0;  // actors of the load that are not done
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<LoadGroup> ParseLoadGroup(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  LoadGroup group;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &group.sequences) ||
      !absl::SimpleAtoi(parts[1], &group.tokens_per_step) || group.sequences == 0 || group.tokens_per_step == 0) {
    return absl::InvalidArgumentError(absl::StrCat("load \"", text, "\": must be N:T, sequences and tokens per step"));
  }
  return group;
}

absl::Status BenchOptions::Validate() const {
  const std::pair<const char*, uint32_t> positive[] = {{"sequences", load.sequences},
                                                       {"tokens-per-step", load.tokens_per_step},
                                                       {"sequences-per-request", sequences_per_request},
                                                       {"steps", steps},
                                                       {"streams", streams}};
  for (const auto& [name, value] : positive) {
    if (value == 0) return absl::InvalidArgumentError(absl::StrCat(name, " 0: must be positive"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunBench(Client* client, const BenchOptions& options) {
  if (absl::Status s = options.Validate(); !s.ok()) return s;
  return Bench(client, options).Run();
}

double Percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace pleiad::cli
