#include "client/cli/bench_load.h"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/marks.h"
#include "client/cli/scrape.h"
#include "client/internal/mutex.h"

namespace pleiad::cli {
namespace {

using client::Client;
using client::internal::CondVar;
using client::internal::Mutex;
using client::internal::MutexLock;
using Clock = std::chrono::steady_clock;

constexpr char kCpuSeconds[] = "process_cpu_seconds_total";

// Of this process.
double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Sequences that share their requests, one request in flight.
struct Actor {
  size_t load = 0;  // index into the report
  uint32_t sequences = 0;
  BenchStream* stream = nullptr;
  BenchRequest request;
  std::mt19937 rng;
  // Open loads, under the bench's lock: arrivals that wait for the answer to the step before, and whether one is out.
  std::deque<Clock::time_point> waiting;
  bool busy = false;
  // Touched by its own steps, one at a time.
  uint32_t sent_steps = 0;
  uint32_t done = 0;  // steps, warm-up included
  uint64_t checksum = 0, input_checksum = 0;
  Clock::time_point sent;
  std::vector<double> latencies_us;
  Clock::time_point first, last;  // of what is measured
  client::StepStats sum;          // of what is measured
  uint64_t batch_tokens = 0;

  uint64_t tokens() const { return uint64_t{sequences} * request.tokens_per_step; }
};

class Bench {
 public:
  Bench(Client* client, const BenchOptions& options) : client_(client), options_(options) {}

  absl::StatusOr<BenchReport> Run() {
    if (absl::Status s = Open(); !s.ok()) return s;
    std::optional<double> server_cpu;
    if (!options_.metrics.empty()) {
      const absl::StatusOr<double> cpu = ScrapeMetric(options_.metrics, kCpuSeconds);
      if (!cpu.ok()) return cpu.status();
      server_cpu = *cpu;
    }
    const double client_cpu = CpuSeconds();
    RunLoads();
    {
      MutexLock lock(&mutex_);
      if (!failed_.ok()) return failed_;
    }
    BenchReport report = Report();
    report.client_cpu_seconds = CpuSeconds() - client_cpu;
    if (server_cpu.has_value()) {
      const absl::StatusOr<double> cpu = ScrapeMetric(options_.metrics, kCpuSeconds);
      if (!cpu.ok()) return cpu.status();
      report.server_cpu_seconds = *cpu - *server_cpu;
    }
    streams_.clear();
    return report;
  }

 private:
  bool Paced(const Actor& actor) const { return options_.rate > 0 && actor.load == 0; }
  uint32_t StepsOf(const Actor& actor) const { return actor.load == 0 ? options_.warmup + options_.steps : 0; }

  absl::Status Open() {
    for (uint32_t i = 0; i < options_.streams && options_.replicas.empty(); ++i) {
      auto stream = OpenBenchStream(client_, options_.transport, options_.address);
      if (!stream.ok()) return stream.status();
      streams_.push_back(*std::move(stream));
    }
    for (uint32_t i = 0; i < options_.streams && !options_.replicas.empty(); ++i) {
      client::ReplicatedOptions options;
      options.addresses = options_.replicas;
      options.tls = options_.access.tls;
      options.token_file = options_.access.token_file;
      options.affinity_key = options_.streams == 1 ? options_.affinity : absl::StrCat(options_.affinity, "/", i);
      auto client = client::ReplicatedClient::Connect(options);
      if (!client.ok()) return client.status();
      replicated_.push_back(*std::move(client));
      streams_.push_back(OverReplicas(replicated_.back().get(), options_.transport));
    }
    loads_ = {options_.load};
    loads_.insert(loads_.end(), options_.beside.begin(), options_.beside.end());
    std::mt19937 rng(options_.seed);
    for (size_t load = 0; load < loads_.size(); ++load) {
      for (uint32_t i = 0; i < loads_[load].sequences;) {
        auto actor = std::make_unique<Actor>();
        actor->load = load;
        actor->request.layer_index = options_.layer_index;
        actor->request.tokens_per_step = loads_[load].tokens_per_step;
        actor->stream = streams_[actors_.size() % streams_.size()].get();
        actor->rng.seed(rng());
        actor->sequences = std::min(options_.sequences_per_request, loads_[load].sequences - i);
        i += actor->sequences;
        if (absl::Status s = actor->stream->Open(&actor->request, actor->sequences); !s.ok()) return s;
        if (absl::Status s = FillTensors(actor.get()); !s.ok()) return s;
        actors_.push_back(std::move(actor));
      }
    }
    return absl::OkStatus();
  }

  absl::Status FillTensors(Actor* actor) const {
    const size_t width = ValueBytes(options_.transport);
    const bool small = options_.transport == Transport::kEcho64;
    const size_t values = small ? 64 / width : actor->tokens() * client_->model().channels;
    BenchRequest& request = actor->request;
    request.token_ids.resize(actor->tokens());
    if (options_.transport == Transport::kShm) {
      auto region = client_->ShareMemory(options_.shm_dir, 2 * values * width);
      if (!region.ok()) return region.status();
      request.region = *std::move(region);
      request.highway = request.region->data().first(values * width);
    } else {
      auto bytes = std::make_shared<std::vector<std::byte>>(values * width);
      request.highway = absl::MakeSpan(*bytes);
      request.owner = std::move(bytes);
    }
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < values; ++i) {
      const float value = uniform(actor->rng);
      // BF16 is the upper half of F32.
      std::memcpy(request.highway.data() + i * width, reinterpret_cast<const std::byte*>(&value) + 4 - width, width);
    }
    return absl::OkStatus();
  }

  void RunLoads() {
    {
      MutexLock lock(&mutex_);
      running_ = actors_.size();
      measured_ = static_cast<size_t>(
          std::count_if(actors_.begin(), actors_.end(), [](const auto& actor) { return actor->load == 0; }));
    }
    for (const std::unique_ptr<Actor>& actor : actors_) {
      if (!Paced(*actor)) Send(actor.get(), Clock::now());
    }
    std::thread pacer;
    if (options_.rate > 0) pacer = std::thread([this] { Pace(); });
    {
      MutexLock lock(&mutex_);
      while (running_ > 0) changed_.Wait(&mutex_);
    }
    if (pacer.joinable()) pacer.join();
  }

  // Arrivals of the open load, until there were enough or a step has failed.
  void Pace() {
    ::prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps end when they should
    std::vector<Actor*> paced;
    for (const std::unique_ptr<Actor>& actor : actors_) {
      if (Paced(*actor)) paced.push_back(actor.get());
    }
    const double mean = options_.sequences_per_request / options_.rate;
    std::mt19937 rng(options_.seed);
    std::exponential_distribution<double> gap(1 / mean);
    Clock::time_point arrival = Clock::now();
    const size_t arrivals = paced.size() * (options_.warmup + options_.steps);
    for (size_t i = 0; i < arrivals; ++i) {
      const double seconds = options_.arrivals == Arrivals::kFixed ? mean : gap(rng);
      arrival += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
      Actor* const actor = paced[i % paced.size()];
      {
        MutexLock lock(&mutex_);
        while (failed_.ok() && Clock::now() < arrival) changed_.WaitUntil(&mutex_, arrival);
        if (!failed_.ok()) {
          // Those without a step out end here, the others with its answer.
          for (const Actor* other : paced) running_ -= !other->busy && other->done < StepsOf(*other);
          changed_.NotifyAll();
          return;
        }
        if (actor->busy) {
          actor->waiting.push_back(arrival);
          continue;
        }
        actor->busy = true;
      }
      Send(actor, arrival);
    }
  }

  // Makes each step's highway its own, with a mark in every block.
  void Stamp(Actor* actor) const {
    const float value = static_cast<float>(actor->sent_steps++ % 128) / 128;
    const size_t width = ValueBytes(options_.transport);
    const absl::Span<std::byte> highway = actor->request.highway;
    for (size_t at = 0; at + width <= highway.size(); at += kBlock) {
      std::memcpy(highway.data() + at, reinterpret_cast<const std::byte*>(&value) + 4 - width, width);
    }
    MarkSum sum;
    sum.Add(highway);
    actor->input_checksum += sum.value();
  }

  void Send(Actor* actor, Clock::time_point arrival) {
    std::uniform_int_distribution<uint32_t> token(0, std::max(1u, client_->model().vocab_size) - 1);
    for (uint32_t& id : actor->request.token_ids) id = token(actor->rng);
    Stamp(actor);
    actor->sent = Paced(*actor) ? arrival : Clock::now();
    actor->stream->Send(&actor->request,
                        [this, actor](const absl::StatusOr<BenchAnswer>& answer) { OnAnswer(actor, answer); });
  }

  void OnAnswer(Actor* actor, const absl::StatusOr<BenchAnswer>& answer) {
    if (answer.ok()) actor->checksum += answer->checksum;
    if (answer.ok() && ++actor->done > options_.warmup) {
      if (actor->latencies_us.empty()) actor->first = actor->sent;
      actor->last = answer->arrival;
      actor->latencies_us.push_back(std::chrono::duration<double, std::micro>(answer->arrival - actor->sent).count());
      actor->sum.rows += answer->stats.rows;
      actor->sum.hits += answer->stats.hits;
      actor->batch_tokens += answer->stats.batch_tokens;
      actor->sum.queue += answer->stats.queue;
      actor->sum.resolve += answer->stats.resolve;
      actor->sum.device += answer->stats.device;
    }
    std::optional<Clock::time_point> next;
    {
      MutexLock lock(&mutex_);
      if (!answer.ok() && failed_.ok()) failed_ = answer.status();
      if (actor->load == 0 && actor->done == StepsOf(*actor)) --measured_;
      const bool enough = actor->load == 0 ? actor->done >= StepsOf(*actor) : measured_ == 0;
      if (!failed_.ok() || enough) {
        if (--running_ == 0 || !failed_.ok()) changed_.NotifyAll();
      } else if (!Paced(*actor)) {
        next = Clock::now();
      } else if (!actor->waiting.empty()) {
        next = actor->waiting.front();
        actor->waiting.pop_front();
      } else {
        actor->busy = false;
      }
    }
    if (next.has_value()) Send(actor, *next);
  }

  BenchReport Report() const {
    BenchReport report;
    for (const std::unique_ptr<Actor>& actor : actors_) {
      report.tokens += uint64_t{actor->done} * actor->tokens();
      report.checksum += actor->checksum;
      report.input_checksum += actor->input_checksum;
    }
    for (const auto& client : replicated_) {
      const client::ReplicatedCounters counters = client->counters();
      report.moves += counters.moves + counters.drain_moves + counters.moves_back;
    }
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
        tokens += actor->latencies_us.size() * actor->tokens();
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
  std::vector<std::unique_ptr<client::ReplicatedClient>> replicated_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::vector<std::unique_ptr<BenchStream>> streams_;  // go first, with their callbacks

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
  if (!replicas.empty() && (transport == Transport::kShm || IsEcho(transport))) {
    return absl::InvalidArgumentError(absl::StrCat("transport ", Name(transport), ": not over several servers"));
  }
  if (!(rate >= 0) || !std::isfinite(rate)) {
    return absl::InvalidArgumentError(absl::StrCat("rate ", rate, ": must be finite and not negative"));
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
