// Opening and releasing a sequence in process, and the host's share of a step: the engine over a tiny model.
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/bench/report.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/local_engine.h"
#include "tests/support/temp_dir.h"

namespace pleiad::testing {
namespace {

using bench::Median;
using bench::Microseconds;

constexpr int kRounds = 101, kOpens = 10000, kResets = 20001, kSteps = 5001;

int Main(const std::string& json) {
  TempDir dir;
  WriteCheckpoint(CheckpointSpec{}, dir.path());
  LocalEngineOptions options;
  options.max_sequences = 1024;
  LocalEngine local(dir.path(), options);
  Engine& engine = local.engine();

  std::vector<double> open_release;
  for (int round = 0; round < kRounds; ++round) {
    open_release.push_back(Microseconds([&] {
                             for (int i = 0; i < kOpens; ++i) {
                               SequenceId id;
                               engine.Open({}, [&id](const OpenResult& result) { id = result.sequence; });
                               engine.Release(id, 0, [](const ReleaseResult&) {});
                             }
                           }) /
                           kOpens);
  }

  // A reset touches no row and no device: what is left is the wire-free cost of a request and its answer.
  const SequenceId sequence = local.Open();
  std::vector<double> reset, step;
  StepRequest request = OneSegment(sequence, local.config().ple_layers[0], {});
  request.segments[0].fresh = true;
  bool ok = true, done = false;
  for (int i = 0; i < kResets; ++i) {
    done = false;
    reset.push_back(Microseconds([&] { engine.Submit(request, [&done](const StepResult&) { done = true; }); }));
    ok = ok && done;
  }
  const std::vector<float> highway(local.config().geometry.channels(), 0.5f);
  for (int i = 0; i < kSteps; ++i) {
    step.push_back(Microseconds(
        [&] { ok = local.Step(sequence, local.config().ple_layers[0], {11}, highway).result.outcome.ok() && ok; }));
  }
  if (!ok) {
    std::fprintf(stderr, "a step failed, or a reset was not answered in its call\n");
    return 1;
  }
  nlohmann::json report = bench::StartReport(
      bench::Machine(),
      {{"model", "tiny"}, {"rounds", kRounds}, {"opens", kOpens}, {"resets", kResets}, {"steps", kSteps}});
  std::printf("%-44s %10s %10s\n", "medians", "us", "target us");
  const auto row = [&report](const char* name, const char* key, double us, const char* target) {
    std::printf("%-44s %10.3f %10s\n", name, us, target);
    report["us"][key] = us;
  };
  row("open + release of a sequence", "open_release", Median(open_release), "2");
  row("reset of a sequence, answered in the call", "reset", Median(reset), "-");
  row("step of one token, three threads, round trip", "step", Median(step), "-");
  return bench::WriteReport(report, json) ? 0 : 1;
}

}  // namespace
}  // namespace pleiad::testing

int main(int argc, char** argv) {
  std::string json;
  CLI::App app("Sequences and steps through the engine, in process");
  app.add_option("--json", json, "file for the result");
  CLI11_PARSE(app, argc, argv);
  return pleiad::testing::Main(json);
}
