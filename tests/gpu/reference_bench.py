"""The stage in the Transformers library on one GPU: eager, and compiled inside a CUDA graph, for each T alone and once for
all; with the floors beside it.

BF16 highway, the whole table on the GPU where it fits. Weights and activations rotate over copies larger than the L2
cache; data is random. A sample is one replay between two CUDA events, queued without waiting; medians of many. Every
graph's output is compared with the eager one's. Needs torch and transformers; tests/gpu/stage_table.py joins the figures.
"""
import statistics
import sys

import torch

from checkpoint import random_weights
from library_layer import library_config, tensor
from oracle import Geometry, hash_constants
from pleiad_client import Report, arguments
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextPLELayer

L2_BYTES = 60e6
PARAMETERS = ("key_proj", "value_proj", "norm_key", "norm_query", "norm_conv", "conv1d")


def median_us(launches, samples):
    """Median time of one launch, the launches taken in turn: (one between two events, back to back)."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(samples)]
    for i, (begin, end) in enumerate(events):
        begin.record()
        launches[i % len(launches)]()
        end.record()
    torch.cuda.synchronize()
    single = statistics.median(begin.elapsed_time(end) for begin, end in events) * 1e3
    rows = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for i in range(samples // 5):
            launches[i % len(launches)]()
        end.record()
        torch.cuda.synchronize()
        rows.append(begin.elapsed_time(end) * 1e3 / (samples // 5))
    return single, statistics.median(rows)


def graph_of(run):
    """A CUDA graph of run() and its output."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    return graph, output


def make_layer(geometry, seed):
    """The library's layer in BF16 with random weights; the table's rows are made on the GPU."""
    weights = random_weights(Geometry(base=101, seed=geometry.seed), seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            layer = Qwen4ExpTextPLELayer(library_config(geometry), geometry.layer_id - 1, geometry.dense).eval()
    finally:
        torch.set_default_dtype(before)
    layer.requires_grad_(False)
    for name in PARAMETERS:
        values = tensor(weights[name], torch.bfloat16)
        getattr(layer, name).weight.copy_(values.unsqueeze(1) if name == "conv1d" else values)
    return layer  # nn.Embedding fills its rows with normal numbers


def weight_copies(layer, count):
    """Copies of the dense weights; the first is the layer's own, the others are scrambled so that a mix-up shows."""
    copies = [{name: getattr(layer, name).weight.data for name in PARAMETERS}]
    for i in range(1, count):
        copies.append({name: values.roll(i, 0).contiguous() for name, values in copies[0].items()})
    return copies


def use(layer, weights):
    for name in PARAMETERS:
        getattr(layer, name).weight.data = weights[name]


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


class Inputs:
    """Highways, token ids and weights of one T, over which launches rotate."""

    def __init__(self, args, copies, tokens):
        geometry = args.geometry
        generator = torch.Generator("cuda").manual_seed(tokens)
        own = 2 * 2 * geometry.channels * tokens  # highway read and written
        count = max(2, min(args.copies, int(2 * L2_BYTES / (own + 65.5e6)) + 2))
        self.tokens, self.weights = tokens, copies[:count]
        self.highways = [torch.randn(1, tokens, geometry.channels, device="cuda", generator=generator).bfloat16() for _ in range(count)]
        self.ids = [torch.randint(0, geometry.vocab, (1, tokens), device="cuda", generator=generator) for _ in range(count)]
        self.samples = max(30, min(args.samples, int(args.samples * 512 / tokens)))

    def __len__(self):
        return len(self.weights)

    def each(self, layer, run):
        """What run(highway, ids) gives for every copy, with its weights in use."""
        results = []
        for weights, highway, ids in zip(self.weights, self.highways, self.ids):
            use(layer, weights)
            results.append(run(highway, ids))
        return results


def measure_graphs(report, layer, inputs, stage, compiled, what):
    """Time of the compiled stage in CUDA graphs, (one between two events, back to back, worst error)."""
    eager = inputs.each(layer, stage)
    pairs = inputs.each(layer, lambda highway, ids: graph_of(lambda: compiled(highway, ids)))
    single, row = median_us([graph.replay for graph, _ in pairs], inputs.samples)
    # The graphs ran last, each with its own copy of the weights: a graph that had kept another's would differ by far.
    highways = inputs.highways
    errors = [relative(pair[1] - highway, expected - highway) for pair, expected, highway in zip(pairs, eager, highways)]
    others = relative(pairs[0][1] - highways[0], eager[1] - highways[1])
    report.check(max(errors) < 0.05, f"T = {inputs.tokens}: {what} graphs against eager {max(errors):.1e} (another copy: {others:.1e})")
    return single, row, max(errors)


def measure(report, args, layer, copies, tokens, stage):
    geometry = args.geometry
    inputs = Inputs(args, copies, tokens)
    figures = {"tokens": tokens, "copies": len(inputs)}
    run = [lambda i=i: stage(inputs.highways[i], inputs.ids[i]) for i in range(len(inputs))]
    figures["eager_us"], _ = median_us(run, max(20, inputs.samples // 5))
    torch._dynamo.reset()
    compiled = torch.compile(stage, dynamic=False, mode=args.mode)
    figures["compiled_graph_us"], figures["compiled_graph_back_to_back_us"], figures["graph_against_eager"] = measure_graphs(
        report, layer, inputs, stage, compiled, "compiled")

    stacked = [torch.cat([weights["key_proj"], weights["value_proj"]]) for weights in inputs.weights]
    rows = [torch.randn(tokens, geometry.embed, device="cuda").bfloat16() for _ in range(len(inputs))]
    gemms = [graph_of(lambda i=i: torch.mm(rows[i], stacked[i].t())) for i in range(len(inputs))]
    figures["gemm_us"], figures["gemm_back_to_back_us"] = median_us([g.replay for g, _ in gemms], inputs.samples)
    return figures


def copy_bandwidth():
    """Bytes read and written a second by a device copy of 2 GB."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    single, _ = median_us([lambda: target.copy_(source)], 20)
    return 2 * source.numel() / (single * 1e-6)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 512, 2048, 8192])
    parser.add_argument("--base", type=int, default=0, help="ngram_vocab_size_base (default: the released one if it fits)")
    parser.add_argument("--mode", default="default", help="of torch.compile; its own CUDA graphs must be off")
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--samples", type=int, default=400)
    args = parser.parse_args()
    report = Report(args)
    free = torch.cuda.mem_get_info()[0]
    args.geometry = Geometry(base=args.base or (20_000_000 if free > 120e9 else 200_003))
    rows = hash_constants(args.geometry)[3]
    torch.manual_seed(args.seed)
    with torch.no_grad():
        layer = make_layer(args.geometry, args.seed)
        copies = weight_copies(layer, args.copies)
        report.figures = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "mode": args.mode, "rows": rows,
                          "copy_bytes_per_s": copy_bandwidth(), "stage": []}
        report.line(f"  {report.figures['gpu']}, torch {torch.__version__}, table of {rows} rows, torch.compile mode {args.mode}, "
                    f"copy {report.figures['copy_bytes_per_s'] / 1e12:.2f} TB/s")
        def stage(states, token_ids):
            return states + layer(states, token_ids, None)

        report.line(f"  {'T':>5} {'eager us':>9} {'compiled+graph us':>18} {'back to back':>13} {'one GEMM us':>12}")
        for tokens in args.tokens:
            try:
                figures = measure(report, args, layer, copies, tokens, stage)
            except Exception as error:  # a compiler's failure must not hide what was measured before
                report.check(False, f"T = {tokens}: {type(error).__name__}: {str(error)[:300]}")
                continue
            report.figures["stage"].append(figures)
            report.save()
            report.line(f"  {tokens:>5} {figures['eager_us']:>9.1f} {figures['compiled_graph_us']:>18.1f} "
                        f"{figures['compiled_graph_back_to_back_us']:>13.1f} {figures['gemm_us']:>12.1f}")
        # Above, code for each T alone. What torch.compile does unless told: code for any T from the second T on.
        torch._dynamo.reset()
        compiled = torch.compile(stage, mode=args.mode)
        for figures in report.figures["stage"]:
            inputs = Inputs(args, copies, figures["tokens"])
            try:
                figures["compiled_once_us"], _, _ = measure_graphs(report, layer, inputs, stage, compiled, "compiled once")
            except Exception as error:
                report.check(False, f"T = {inputs.tokens}, compiled once: {type(error).__name__}: {str(error)[:300]}")
                continue
            report.save()
        report.line("  compiled once for all T: " + ", ".join(
            f"{figures['tokens']}: {figures['compiled_once_us']:.1f}" for figures in report.figures["stage"] if "compiled_once_us" in figures))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
