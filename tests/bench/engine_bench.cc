// Opening and releasing a sequence in process, and the host's share of a step: the engine over a tiny model.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

using SteadyClock = std::chrono::steady_clock;

double MicrosecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::micro>(SteadyClock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int Main() {
  TempDir dir;
  WriteCheckpoint(CheckpointSpec{}, dir.path());
  LocalEngineOptions options;
  options.max_sequences = 1024;
  LocalEngine local(dir.path(), options);
  Engine& engine = local.engine();

  std::vector<double> open_release;
  for (int round = 0; round < 101; ++round) {
    const SteadyClock::time_point start = SteadyClock::now();
    for (int i = 0; i < 10000; ++i) {
      SequenceId id;
      engine.Open({}, [&id](OpenResult result) { id = result.sequence; });
      engine.Release(id, 0, [](Outcome, bool) {});
    }
    open_release.push_back(MicrosecondsSince(start) / 10000);
  }

  // A reset touches no row and no device: what is left is the wire-free cost of a request and its answer.
  const SequenceId sequence = local.Open();
  std::vector<double> reset, step;
  StepRequest request = OneSegment(sequence, local.config().ple_layers[0], {});
  request.segments[0].fresh = true;
  for (int i = 0; i < 20001; ++i) {
    const SteadyClock::time_point start = SteadyClock::now();
    bool done = false;
    engine.Submit(request, [&done](StepResult) { done = true; });
    if (!done) return 1;
    reset.push_back(MicrosecondsSince(start));
  }
  const std::vector<float> highway(local.config().geometry.channels(), 0.5f);
  for (int i = 0; i < 5001; ++i) {
    const SteadyClock::time_point start = SteadyClock::now();
    if (!local.Step(sequence, local.config().ple_layers[0], {11}, highway).result.outcome.ok()) return 1;
    step.push_back(MicrosecondsSince(start));
  }
  std::printf("cores %u, commit %s, tiny model, medians\n", std::thread::hardware_concurrency(), PLEIAD_COMMIT);
  std::printf("%-44s %10s %10s\n", "", "us", "target us");
  std::printf("%-44s %10.3f %10s\n", "open + release of a sequence", Median(open_release), "2");
  std::printf("%-44s %10.3f %10s\n", "reset of a sequence, answered in the call", Median(reset), "-");
  std::printf("%-44s %10.3f %10s\n", "step of one token, three threads, round trip", Median(step), "-");
  return 0;
}

}  // namespace
}  // namespace pleiad::testing

int main() { return pleiad::testing::Main(); }
