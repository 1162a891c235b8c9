#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/plan.h"
#include "client/cli/plan_sizes.h"
#include "client/cli/plan_svg.h"

namespace pleiad::cli {

std::string PlanTable(const Plan& plan) {
  std::string table = absl::StrFormat("trace: %d tokens, %d lookups of %d rows\nreader: %s\n", plan.tokens,
                                      plan.lookups, plan.rows, plan.reader);
  for (const DiskRate& rate : plan.disk) {
    absl::StrAppendFormat(&table, "  %3d in flight: %7.0f reads/s, %.1f us each\n", rate.depth, rate.reads_per_second,
                          1e6 * rate.depth / rate.reads_per_second);
  }
  absl::StrAppend(&table, "memory: ", FormatBytes(plan.memory), "; ", FormatBytes(plan.fixed_bytes),
                  " whatever the arena, ", FormatBytes(plan.sequence_bytes), " a sequence\n\n");
  absl::StrAppendFormat(&table, "%20s  %-33s  %-30s\n", "", "hit rate, %", "cold tokens/s");
  absl::StrAppendFormat(&table, "%9s %10s", "arena", "slots");
  for (const PolicyKind kind : kPolicyKinds) absl::StrAppendFormat(&table, " %7s", Name(kind));
  absl::StrAppendFormat(&table, " %7s   ", "best");
  for (const PolicyKind kind : kPolicyKinds) absl::StrAppendFormat(&table, " %9s", Name(kind));
  absl::StrAppendFormat(&table, " %10s\n", "sequences");
  for (const ArenaPlan& arena : plan.arenas) {
    absl::StrAppendFormat(&table, "%9s %10d", FormatBytes(arena.bytes), arena.slots);
    for (const double rate : arena.hit_rate) absl::StrAppendFormat(&table, " %7.2f", 100 * rate);
    absl::StrAppendFormat(&table, " %7.2f   ", 100 * arena.best_hit_rate);
    for (const double tokens : arena.tokens_per_second) absl::StrAppendFormat(&table, " %9.0f", tokens);
    absl::StrAppendFormat(&table, " %10d\n", arena.sequences);
  }
  return table;
}

std::string PlanSvg(const Plan& plan) {
  std::vector<double> bytes;
  std::vector<PlotLine> lines;
  for (const ArenaPlan& arena : plan.arenas) bytes.push_back(static_cast<double>(arena.bytes));
  for (const PolicyKind kind : kPolicyKinds) {
    PlotLine& line = lines.emplace_back();
    line.name = Name(kind);
    for (const ArenaPlan& arena : plan.arenas) line.y.push_back(arena.hit_rate[static_cast<size_t>(kind)]);
  }
  return PlotHitRates(absl::StrCat("Row cache hit rate, ", plan.tokens, " tokens"), bytes, lines);
}

}  // namespace pleiad::cli
