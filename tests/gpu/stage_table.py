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
OUR_KEYS = ("us", "stage_us", "graph_us", "median_us")


def our_rows(node):
    """{tokens: row} of the first list of figures that has a time of ours for a number of tokens."""
    if isinstance(node, list):
        rows = [row for row in node if isinstance(row, dict) and "tokens" in row and any(key in row for key in OUR_KEYS)]
        if rows:
            return {row["tokens"]: row for row in reversed(rows)}
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return next((found for found in map(our_rows, children) if found), {})


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("stage")
    parser.add_argument("reference")
    args = parser.parse_args()
    report = Report(args)
    ours = our_rows(json.load(open(args.stage)))
    with open(args.reference) as file:
        reference = {row["tokens"]: row for row in json.load(file)["stage"]}
    tokens = sorted(set(ours) & set(reference))
    if not tokens:
        sys.exit(f"no number of tokens is in both: {sorted(ours)} and {sorted(reference)}")
    report.line(f"  {'T':>5} {'ours us':>8} {'target':>7} {'met':>4} {'compiled us':>12} {'(former)':>9} {'ratio':>6} {'target':>7} "
                f"{'met':>4} {'GEMM us':>8} {'ours/GEMM':>10}")
    for count in tokens:
        mine = next(ours[count][key] for key in OUR_KEYS if key in ours[count])
        theirs, gemm = reference[count]["compiled_graph_us"], reference[count]["gemm_us"]
        ratio = theirs / mine

        def met(holds):
            return "yes" if holds else "no"

        report.line(f"  {count:>5} {mine:>8.1f} {TARGET_US.get(count, 0):>7} {met(mine <= TARGET_US.get(count, 0)):>4} {theirs:>12.1f} "
                    f"{FORMER_REFERENCE_US.get(count, 0):>9} {ratio:>6.2f} {TARGET_RATIO.get(count, 0):>7} "
                    f"{met(ratio >= TARGET_RATIO.get(count, 0)):>4} {gemm:>8.1f} {mine / gemm:>10.2f}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
