"""Where the time of a step goes in a server under load, and what missing rows cost.

First `pleiad bench`: 64 sequences that decode, tensors inline over a Unix socket, and in shared memory. Then steps from
cold to warm: at about 0, 50 and 100 % hits, cached and resident, with the server's own times of each step beside the
round trip.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from pleiad_client import Client, Report, Server, arguments, binary

PHASES = ("queue", "resolve", "device")


def phases(metrics):
    """{phase: (seconds, steps)} of the server so far."""
    key = 'pleiad_step_phase_seconds_{}{{phase="{}"}}'
    return {phase: tuple(metrics.get(key.format(part, phase), 0.0) for part in ("sum", "count")) for phase in PHASES}


def device_counters(metrics):
    """(busy seconds, batches, batches replayed as graphs, graphs that could not be captured)."""
    batches = {key: value for key, value in metrics.items() if key.startswith("pleiad_device_batches_total")}
    return (metrics.get("pleiad_device_busy_seconds_total", 0.0), sum(batches.values()),
            sum(value for key, value in batches.items() if "graph" in key), metrics.get("pleiad_device_capture_failures_total", 0.0))


def bench(server, flags):
    program, environment = binary("pleiad")
    done = subprocess.run([program, "bench", "--server", server.address, "--json", *map(str, flags)], env=environment,
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pleiad bench {flags} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def load_table(report, server, steps):
    """Means per request by the client's figures and the server's histograms; the rest is the wire and the client."""
    report.line("  64 sequences decoding, one token each, inline over a Unix socket; us a request")
    report.line(f"  {'load':<34} {'p50':>7} {'p90':>7} {'p99':>7} {'queue':>7} {'resolve':>8} {'device':>7} {'rest':>7} {'batch':>6} {'tokens/s':>9}")
    for name, flags in (
            ("1 request of 64 sequences, F32", ["--sequences-per-request", 64]),
            ("1 request of 64 sequences, BF16", ["--sequences-per-request", 64, "--bf16"]),
            ("64 requests of 1, 1 stream, F32", []),
            ("64 requests of 1, 4 streams, F32", ["--streams", 4]),
            ("64 requests of 1, 4 streams, BF16", ["--streams", 4, "--bf16"])):
        page = server.metrics()
        before, device_before = phases(page), device_counters(page)
        result = bench(server, ["--sequences", 64, "--tokens-per-step", 1, "--steps", steps, "--warmup", steps // 10 + 1, *flags])
        page = server.metrics()
        after, device_after = phases(page), device_counters(page)
        load = result["loads"][0]
        means = {phase: 1e6 * (after[phase][0] - before[phase][0]) / max(1, after[phase][1] - before[phase][1]) for phase in PHASES}
        latency = load["latency_us"]
        rest = latency["p50"] - sum(load[f"mean_{phase}_us"] for phase in PHASES)
        busy, batches, graphs, failures = (a - b for a, b in zip(device_after, device_before))
        report.figures.setdefault("loads", []).append({"load": name, "bench": load, "server_phase_us": means, "device_busy_s": busy,
                                                       "batches": batches, "graph_batches": graphs})
        report.line(f"  {name:<34} {latency['p50']:>7.0f} {latency['p90']:>7.0f} {latency['p99']:>7.0f} {load['mean_queue_us']:>7.0f} "
                    f"{load['mean_resolve_us']:>8.0f} {load['mean_device_us']:>7.0f} {rest:>7.0f} {load['mean_batch_tokens']:>6.1f} "
                    f"{load['tokens_per_second']:>9.0f}")
        report.check(load["requests"] > 0 and failures == 0 and all(after[phase][1] > before[phase][1] for phase in PHASES),
                     "the server's own means: " + ", ".join(f"{phase} {means[phase]:.0f}" for phase in PHASES) +
                     f"; {batches:.0f} batches, {graphs:.0f} as graphs, {1e6 * busy / max(1, batches):.0f} us of the device each")


REGION_STEPS = ((64, 1), (1, 512), (1, 2048))


def region_table(report, folder, device, steps):
    """The same tensors inline and in files of memory, copied by the CPU and held by the device: the outputs must agree."""
    if shutil.disk_usage("/dev/shm").free < 1 << 30:
        report.line("  skipped: regions, for want of 1 GiB in /dev/shm")
        return
    report.line("  one request at a time, inline and in files of memory; us a request")
    report.line(f"  {'tensors':<22} {'step':<10} {'p50':>8} {'p99':>8} {'queue':>7} {'resolve':>8} {'device':>8}")
    sums = {step: set() for step in REGION_STEPS}
    with tempfile.TemporaryDirectory(prefix="pleiad-load-", dir="/dev/shm") as shm:
        in_files = ["--transport", "shm", "--shm-dir", shm]
        for held, loads in (("0", (("inline", []), ("file, copied", in_files))), ("16GiB", (("file, held", in_files),))):
            with Server(folder, "--device", device, "--table", "resident", "--shm-pinned-bytes", held, "--allow-client-regions",
                        "--shm-dir", shm, "--batch-invariant") as server:
                for sequences, tokens in REGION_STEPS:
                    for name, flags in loads:
                        count = steps if tokens == 1 else max(10, steps // 10)
                        most_held = Peak(server, "pleiad_region_pinned_bytes")
                        with most_held:
                            result = bench(server, ["--sequences", sequences, "--sequences-per-request", sequences, "--tokens-per-step",
                                                    tokens, "--steps", count, "--warmup", 3, *flags])
                        load = result["loads"][0]
                        sums[sequences, tokens].add((result["checksum"], result["input_checksum"]))
                        report.figures.setdefault("regions", []).append(
                            {"tensors": name, "sequences": sequences, "tokens": tokens, "bench": load, "held_bytes": most_held.value})
                        latency = load["latency_us"]
                        report.line(f"  {name:<22} {f'{sequences} x {tokens}':<10} {latency['p50']:>8.0f} {latency['p99']:>8.0f} "
                                    f"{load['mean_queue_us']:>7.0f} {load['mean_resolve_us']:>8.0f} {load['mean_device_us']:>8.0f}")
                        if device == "cuda" or name != "file, held":
                            report.check((most_held.value > 0) == (name == "file, held"), f"{most_held.value:.0f} bytes were held")
                if held != "0":
                    with Attaching(server, shm) as attaching:
                        result = bench(server, ["--sequences", 64, "--sequences-per-request", 64, "--steps", steps, *in_files])
                    load = result["loads"][0]
                    latency = load["latency_us"]
                    report.figures["beside_attaching"] = {"bench": load, "attached": attaching.rounds, "bytes": attaching.BYTES}
                    report.line(f"  {'file, held':<22} {'64 x 1':<10} {latency['p50']:>8.0f} {latency['p99']:>8.0f}   beside a client that "
                                f"attaches and detaches {attaching.BYTES >> 20} MiB, {attaching.rounds} times")
                    report.check(attaching.rounds > 0, "it attached meanwhile")
    for (sequences, tokens), seen in sums.items():
        report.check(len(seen) == 1, f"{sequences} x {tokens}: the same outputs each way")


class Attaching:
    """A client that attaches and detaches a large file as often as it can."""

    BYTES = 512 << 20

    def __init__(self, server, shm):
        self.rounds = 0
        self._client, self._path, self._over = Client(server.address), pathlib.Path(shm) / "large", threading.Event()
        self._thread = threading.Thread(target=self._attach)

    def _attach(self):
        while not self._over.is_set():
            self._client.attach_and_detach(self._path.name, self.BYTES)
            self.rounds += 1

    def __enter__(self):
        with open(self._path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.BYTES)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._client.close()
        self._path.unlink()


class Peak:
    """The highest value that a metric is seen to have inside."""

    def __init__(self, server, metric):
        self.value = 0.0
        self._server, self._metric, self._over = server, metric, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self._over.is_set():
            self.value = max(self.value, self._server.metrics()[self._metric])
            self._over.wait(0.02)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


class Steps:
    """Steps of `width` sequences of `length` tokens, one request each, one after the other."""

    def __init__(self, client, width, length, count, generator):
        self.client, self.length = client, length
        self.sequences = [client.open() for _ in range(width)]
        self.tokens = generator.integers(0, client.model.vocab_size, (count, width, length))
        self.highway = generator.standard_normal((width * length, client.channels), np.float32)

    def run(self, stream, new=0.0, generator=None):
        """Plays the tokens, a share of them new ones, from fresh sequences; medians."""
        width = len(self.sequences)
        rows = []
        for count, tokens in enumerate(self.tokens):
            if new:
                tokens = tokens.copy()
                flat = tokens if width == 1 else tokens.T  # what comes last is new: tokens of one step, or sequences
                flat[..., int(round(flat.shape[-1] * (1 - new))):] = generator.integers(
                    0, self.client.model.vocab_size, flat[..., int(round(flat.shape[-1] * (1 - new))):].shape)
            position = count * self.length
            segments = [(sequence, self.length, None if count == 0 else position, count == 0) for sequence in self.sequences]
            began = time.perf_counter()
            reply = stream.response(stream.send(segments, tokens.reshape(-1), self.highway, delta=True))
            took = (time.perf_counter() - began) * 1e6
            self.client.tensor(reply)
            stats = reply.stats
            rows.append((took, stats.queue_us, stats.resolve_us, stats.device_us, stats.hits / max(1, stats.rows), stats.misses))
        rows = rows[2:]  # the first steps meet cold code
        return [statistics.median(column) for column in zip(*rows)]

    def close(self):
        for sequence in self.sequences:
            self.client.release(sequence)


def cold_to_warm(report, folder, device, cache, steps):
    report.line("  from cold to warm, one request at a time from Python; medians, us")
    report.line(f"  {'table':<9} {'step':<12} {'hits':>6} {'misses':>7} {'round trip':>11} {'queue':>6} {'resolve':>8} {'device':>7}")
    for table in ("cached", "resident"):
        for width, length, count in ((1, 1, steps), (64, 1, steps), (1, 512, max(6, steps // 6))):
            flags = ["--device", device, "--table", table] + (["--cache-bytes", cache] if table == "cached" else [])
            generator = np.random.default_rng(width * 1000 + length)
            with Server(folder, *flags) as server:
                client = Client(server.address)
                work = Steps(client, width, length, count, generator)
                runs = [("0 %", 0.0), ("100 %", 0.0)]
                if width * length > 1:
                    runs.insert(1, ("50 %", 0.5))
                hits = {}
                with client.stream() as stream:
                    for name, new in runs if table == "cached" else runs[-1:]:
                        took, queue, resolve, device_us, hit, misses = work.run(stream, new, generator)
                        hits[name] = hit
                        report.figures.setdefault("cold_to_warm", []).append(
                            {"table": table, "sequences": width, "tokens": length, "hit_rate": hit, "misses": misses, "round_trip_us": took,
                             "queue_us": queue, "resolve_us": resolve, "device_us": device_us})
                        report.line(f"  {table:<9} {f'{width} x {length}':<12} {hit:>6.0%} {misses:>7.0f} {took:>11.0f} {queue:>6.0f} "
                                    f"{resolve:>8.0f} {device_us:>7.0f}")
                work.close()
                client.close()
                if table == "cached":
                    report.check(hits["0 %"] < 0.2 and hits["100 %"] > 0.99 and 0.3 < hits.get("50 %", 0.5) < 0.75, "hit rates as meant")
                else:
                    report.check(hits["100 %"] == 1, "resident: all rows are hits")


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--base", type=int, default=200_003, help="ngram_vocab_size_base: about 16 x so many rows")
    parser.add_argument("--small", action="store_true", help="a small geometry, to try the script")
    args = parser.parse_args()
    report = Report(args)
    shape = ["--hidden", 256, "--embed-dim", 256] if args.small else []
    program, environment = binary("pleiad")
    with tempfile.TemporaryDirectory(prefix="pleiad-load-") as folder:
        folder = str(pathlib.Path(folder) / "model")
        subprocess.run([program, "synth", "--out", folder, "--base", str(args.base), *map(str, shape)], env=environment, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with Server(folder, "--device", args.device, "--table", "resident") as server:
            client = Client(server.address)
            report.line(f"  {client.model.device}, {client.model.layers[0].rows} rows, {client.channels} channels")
            client.close()
            load_table(report, server, args.steps)
        region_table(report, folder, args.device, args.steps)
        cold_to_warm(report, folder, args.device, "1GiB" if not args.small else "256MiB", max(30, args.steps // 5))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
