"""Ours beside the compiled reference and the floors, from the JSON of cuda_stage_bench and reference_bench.py of one run.

    stage_table.py STAGE.json REFERENCE.json
Prints the ratios and says which targets are met; a target that is missed is no error, since machines differ.
"""
import json
import sys

from pleiad_client import Report, arguments

TARGET_US = {1: 28, 64: 34, 512: 85, 2048: 290, 8192: 1150}
TARGET_RATIO = {1: 1.75, 64: 2.2, 512: 2.75, 2048: 2.75, 8192: 2.75}
FORMER_REFERENCE_US = {1: 49, 64: 76, 512: 234, 2048: 845, 8192: 3213}  # measured elsewhere on one H200


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("stage")
    parser.add_argument("reference")
    args = parser.parse_args()
    report = Report(args)
    with open(args.stage) as mine, open(args.reference) as theirs:
        ours, reference = ({row["tokens"]: row for row in json.load(file)["stage"]} for file in (mine, theirs))
    tokens = sorted(set(ours) & set(reference))
    if not tokens:
        sys.exit(f"no number of tokens is in both: {sorted(ours)} and {sorted(reference)}")
    report.line("  ours F32 highway, the reference BF16; compiled for each T alone, and once for all; us")
    report.line(f"  {'T':>5} {'ours':>8} {'target':>7} {'met':>4} {'BF16':>8} {'compiled':>9} {'(former)':>9} {'ratio':>6} {'target':>7} "
                f"{'met':>4} {'its GEMM':>9} {'ours/GEMM':>10} {'once':>8} {'ratio':>6} {'met':>4}")
    for count in tokens:
        mine, theirs, gemm = ours[count]["us"], reference[count]["compiled_graph_us"], reference[count]["gemm_us"]
        ratio, met = theirs / mine, ("no", "yes")
        target_us, target_ratio = TARGET_US.get(count, 0), TARGET_RATIO.get(count, 0)
        once = reference[count].get("compiled_once_us", 0)
        report.line(f"  {count:>5} {mine:>8.1f} {target_us:>7} {met[mine <= target_us]:>4} {ours[count].get('bf16_us', 0):>8.1f} "
                    f"{theirs:>9.1f} {FORMER_REFERENCE_US.get(count, 0):>9} {ratio:>6.2f} {target_ratio:>7} "
                    f"{met[ratio >= target_ratio]:>4} {gemm:>9.1f} {mine / gemm:>10.2f} "
                    f"{once:>8.1f} {once / mine:>6.2f} {met[once / mine >= target_ratio]:>4}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
