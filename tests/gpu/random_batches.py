"""Random batches on the device under test and on a CPU server of the same checkpoint, output against output.

Steps of all lengths, rewinds, resets, releases, and carries that cross over: a Snapshot of either server restored into
both. Positions and lows must be as the rules say, outputs of each batch as the CPU's within rounding; the arenas hold 0,
16 and 4096 rows in turn, and one server is resident. Memory of device and process must stay flat. --break serves the
CPU side one weight off by a percent: the script must then exit with 1.
"""
import subprocess
import sys
import tempfile

import numpy as np

import checkpoint
from oracle import Geometry
from pleiad_client import Client, Report, Server, arguments, to_bf16

POOLED_BOUND = 3e-4
ROLLBACK = 8
IN_FLIGHT = 8


class Carry:
    """What the rules say of one sequence on both servers: position, low, and where an undo would lead."""

    def __init__(self, ids):
        self.ids = ids
        self.reset(0)

    def reset(self, position):
        self.position = self.low = position
        self.start = None  # of the last step, while it can be had back

    def step(self, position, length, fresh):
        if fresh:
            self.reset(0)
        elif position < self.low:  # the start of the last step, by undo
            self.reset(position)
        else:
            self.position = position
        if length:
            self.start = self.position
            self.position += length
            self.low = max(self.low, self.position - ROLLBACK)


class Both:
    """The server under test and the CPU's, driven alike."""

    def __init__(self, clients, geometry, generator):
        self.clients, self.geometry, self.generator = clients, geometry, generator
        self.carries = [self.open() for _ in range(24)]
        self.squares = np.zeros(2)  # of differences and of the CPU's outputs
        self.worst, self.batches, self.tokens, self.wrong = 0.0, 0, 0, []

    def open(self, layers=()):
        return Carry([client.open(layers) for client in self.clients])

    def batch(self, streams):
        """Sends one random batch to both; what is needed to judge it."""
        generator, geometry = self.generator, self.geometry
        chosen = generator.choice(len(self.carries), int(generator.integers(1, 13)), replace=False)
        segments, expected, total = [], [], 0
        for index in chosen:
            carry = self.carries[index]
            length = int(generator.choice([1, 1, 1, 1, 2, 3, 5, 8, 9, 17, 40]))
            kind = generator.random()
            fresh, position = kind < 0.02, carry.position
            if fresh:
                position = None
            elif kind < 0.12:
                position = int(generator.integers(carry.low, carry.position + 1))
            elif kind < 0.16 and carry.start is not None:
                position = carry.start
            elif kind < 0.18:
                length = 0
            carry.step(position, length, fresh)
            segments.append((carry.ids, length, position, fresh))
            expected.append((carry.position, carry.low))
            total += length
        tokens = generator.integers(0, geometry.vocab, total)
        tokens[generator.random(total) < 0.05] = geometry.eos
        highway = generator.standard_normal((total, geometry.channels), np.float32)
        bf16 = generator.random() < 0.25
        if bf16:
            highway = to_bf16(highway).reshape(highway.shape)
        delta = bool(generator.random() < 0.8)
        sent = [stream.send([(ids[side], length, position, fresh) for ids, length, position, fresh in segments], tokens, highway,
                            delta=delta, output_bf16=False) for side, stream in enumerate(streams)]
        return sent, expected, total, delta

    def judge(self, streams, pending):
        sent, expected, total, _ = pending
        replies = [stream.response(request_id) for stream, request_id in zip(streams, sent)]
        self.batches += 1
        self.tokens += total
        for side, reply in enumerate(replies):
            name = ("the device", "the CPU")[side]
            if reply.status.code:
                self.wrong.append(f"batch {self.batches}: {name} refused: {reply.status.message}")
                return
            stands = [(segment.position, segment.low) for segment in reply.segments]
            if stands != expected:
                self.wrong.append(f"batch {self.batches}: {name} stands at {stands}, the rules say {expected}")
        ours, theirs = (client.tensor(reply).astype(np.float64) for client, reply in zip(self.clients, replies))
        if not total:
            return
        self.squares += [((ours - theirs) ** 2).sum(), (theirs**2).sum()]
        error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
        self.worst = max(self.worst, error) if error == error else float("nan")
        # A flipped rounding of k or v shows in a small batch; anything larger is a wrong result.
        if not error < 2e-2:
            self.wrong.append(f"batch {self.batches}, {total} tokens: relative difference {error:.1e}")

    def cross(self):
        """One carry goes by Snapshot, of either server, into both; another sequence ends."""
        index, other = self.generator.choice(len(self.carries), 2, replace=False)
        carry, side = self.carries[index], int(self.generator.integers(2))
        blob = self.clients[side].snapshot(carry.ids[side])
        if blob[0].position != carry.position:
            self.wrong.append(f"snapshot at {blob[0].position}, the rules say {carry.position}")
        for client, sequence in zip(self.clients, carry.ids):
            client.restore(sequence, blob)
        carry.reset(carry.position)
        for client, sequence in zip(self.clients, self.carries[other].ids):
            if not client.release(sequence):
                self.wrong.append("a sequence was gone before its release")
        self.carries[other] = self.open()

    def pooled(self):
        return float(np.sqrt(self.squares[0] / self.squares[1])) if self.squares[1] else float("nan")


def device_mib():
    """Memory in use on the GPU, MiB; 0 without one."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], check=True,
                              capture_output=True, text=True).stdout
        return int(text.split()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return 0


def run(report, folder, cpu_folder, args, geometry, name, flags, batches):
    flags = ["--max-tokens", 512, "--max-sequences", 64, "--rollback-tokens", ROLLBACK, *flags]
    common = ["--device", "cpu", "--threads", 2, *flags[:6], "--table", "resident"]
    with Server(folder, "--device", args.device, *flags) as server, Server(cpu_folder, *common) as cpu:
        clients = [Client(server.address), Client(cpu.address)]
        both = Both(clients, geometry, np.random.default_rng(args.seed + batches + len(name)))
        marks = []
        while both.batches < batches and len(both.wrong) < 10:
            with clients[0].stream() as first, clients[1].stream() as second:
                streams, pending = (first, second), []
                for i in range(min(100, batches - both.batches)):
                    pending.append(both.batch(streams))
                    if len(pending) >= IN_FLIGHT:
                        both.judge(streams, pending.pop(0))
                while pending:
                    both.judge(streams, pending.pop(0))
            both.cross()
            marks.append((both.batches, device_mib() if len(marks) % 5 == 0 else marks[-1][1], server.resident_kib()))
        for carry in both.carries:
            for client, sequence in zip(clients, carry.ids):
                client.release(sequence)
        metrics = server.metrics()
        rows = {result: sum(value for key, value in metrics.items()
                            if key.startswith("pleiad_row_lookups_total") and f'result="{result}"' in key) for result in ("hit", "miss", "join")}
        slots = sum(value for key, value in metrics.items() if key.startswith("pleiad_arena_slots"))
        for client in clients:
            client.close()
    early = next(mark for mark in marks if mark[0] >= batches // 4 or mark is marks[-1])
    late = marks[-1]
    for text in both.wrong[:10]:
        report.line(f"    {text}")
    report.figures[name] = {"batches": both.batches, "tokens": both.tokens, "relative_l2": both.pooled(), "worst_batch": both.worst,
                            "device_mib": [early[1], late[1]], "resident_kib": [early[2], late[2]], "rows": rows}
    report.check(not both.wrong and both.batches == batches and both.pooled() <= POOLED_BOUND,
                 f"{name}, {slots:.0f} slots: {both.batches} batches, {both.tokens} tokens, difference {both.pooled():.1e} (bound "
                 f"{POOLED_BOUND:.0e}), worst batch {both.worst:.1e}; hits {rows['hit']:.0f} misses {rows['miss']:.0f} joins {rows['join']:.0f}")
    report.check(args.device == "cpu" or late[1] > 0, "    nvidia-smi says how much memory of the GPU is in use")
    report.check(late[1] - early[1] <= 4 and late[2] - early[2] <= 8 << 10,
                 f"    memory from batch {early[0]} to {late[0]}: device {early[1]} to {late[1]} MiB, process {early[2]} to {late[2]} KiB")


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--break", dest="break_weight", action="store_true", help="another weight on the CPU side")
    args = parser.parse_args()
    report = Report(args)
    geometry = Geometry(hidden=256, embed=128, base=1009, vocab=4000, eos=3999)
    weights = checkpoint.random_weights(geometry, args.seed)
    row = geometry.head_dim * 2
    with tempfile.TemporaryDirectory(prefix="pleiad-random-") as folder:
        checkpoint.write(f"{folder}/a", geometry, weights)
        checkpoint.write(f"{folder}/b", geometry, checkpoint.broken(weights) if args.break_weight else weights)
        cpu = f"{folder}/b"
        kinds = [("resident", ["--table", "resident"])]
        kinds += [(f"arena of {rows} rows", ["--table", "cached", "--cache-bytes", rows * row]) for rows in (0, 16, 4096)]
        for name, flags in kinds:
            run(report, f"{folder}/a", cpu, args, geometry, name, flags, args.batches // len(kinds))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
