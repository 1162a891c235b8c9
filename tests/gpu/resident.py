"""A resident table of the released size: whether it loads at the disk's speed, and whether what was loaded is right.

`pleiad synth` writes the checkpoint in --row-dtype, with fewer rows where the folder has no room, which is said. Its files
are dropped from the page cache, and the disk is read by itself, past that cache, before and after the server loads. Then a
CPU server that reads the same files row by row must look up the same embeddings, bit by bit, and a step must agree with
its.
"""
import concurrent.futures
import datetime
import mmap
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from pleiad_client import Client, Report, Server, arguments, binary, relative_l2

CHUNK = 4 << 20
ROW_BYTES = {"F8_E4M3": 160, "BF16": 320}  # of the released geometry
HEADS = 16
WEIGHTS = 100_000_000  # and headers, generously
BOUND = 2.3e-3  # of a step, against the CPU device
SHARE = 0.9  # of the disk's own rate


def disk_rate(files, threads, total):
    """Bytes a second of O_DIRECT reads, `threads` at a time, of about `total` bytes spread over the files."""
    share = max(CHUNK, total // len(files) // CHUNK * CHUNK)
    chunks = [(file, at) for file in files for at in range(0, min(share, file.stat().st_size // CHUNK * CHUNK), CHUNK)]

    def read(part):
        buffer = mmap.mmap(-1, CHUNK)  # aligned to a page
        done, handles = 0, {}
        for file, at in part:
            if file not in handles:
                handles[file] = os.open(file, os.O_RDONLY | os.O_DIRECT)
            done += os.preadv(handles[file], [buffer], at)
        for handle in handles.values():
            os.close(handle)
        return done

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(read, [chunks[i::threads] for i in range(threads)]))
    return done / (time.perf_counter() - began)


def drop_cached(files):
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # of clean pages: after a sync
        os.close(handle)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--row-dtype", choices=ROW_BYTES, default="F8_E4M3")
    parser.add_argument("--base", type=int, default=20_000_000, help="ngram_vocab_size_base, the released one by default")
    parser.add_argument("--folder", help="where the checkpoint goes (default: the temporary folder)")
    parser.add_argument("--threads", type=int, default=16, help="that read the disk by itself")
    parser.add_argument("--break", dest="damage", action="store_true", help="damages rows of what the CPU server reads")
    args = parser.parse_args()
    report = Report(args)
    with tempfile.TemporaryDirectory(prefix="pleiad-resident-", dir=args.folder) as folder:
        room = shutil.disk_usage(folder).free - WEIGHTS - (2 << 30)
        base = min(args.base, room // (HEADS * ROW_BYTES[args.row_dtype]))
        model = pathlib.Path(folder) / "model"
        program, environment = binary("pleiad")
        began = time.perf_counter()
        subprocess.run([program, "synth", "--out", str(model), "--base", str(base), "--row-dtype", args.row_dtype],
                       env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.sync()
        files = sorted(model.glob("*.safetensors"))
        drop_cached(files)
        size = sum(file.stat().st_size for file in files)
        report.line(f"  {size / 1e9:.1f} GB of {args.row_dtype} rows, base {base}"
                    f"{'' if base == args.base else ': no room for more'}, written in {time.perf_counter() - began:.0f} s")
        measure(report, args, model, files, size)
    return report.finish()


def load_rate(log):
    """Bytes a second between the first and the last word of the log on the table."""
    words = re.findall(r"^(\S+)Z \S+ table: ([\d.]+) GB of ", log, re.MULTILINE)
    if len(words) < 2:
        return 0
    times = [datetime.datetime.fromisoformat(time) for time, _ in (words[0], words[-1])]
    return (float(words[-1][1]) - float(words[0][1])) * 1e9 / (times[1] - times[0]).total_seconds()


def measure(report, args, model, files, size):
    before = disk_rate(files, args.threads, size // 4)
    began = time.perf_counter()
    with Server(model, "--device", args.device, "--table", "resident") as server:
        took = time.perf_counter() - began
        rate, disk = load_rate(server.log()), (before + disk_rate(files, args.threads, size // 4)) / 2
        report.figures.update({"bytes": size, "load_s": took, "load_bytes_per_s": rate, "disk_bytes_per_s": disk})
        report.line(f"  ready {took:.1f} s after its start; loads {rate / 1e9:.2f} GB/s; the disk by itself {disk / 1e9:.2f} GB/s, "
                    f"{args.threads} reads of 4 MiB at a time")
        for line in server.log().splitlines():
            if re.search(r"table: .* read", line):
                report.line(f"  {line[-100:]}")
        share = f"loads at {rate / disk:.0%} of the disk's rate"
        if args.device == "cpu" or args.damage:
            report.line(f"  {share}; not judged")  # a CPU device's table is memory that the system commits as it loads
        else:
            report.check(rate >= SHARE * disk, f"{share}, at least {SHARE:.0%}")
        client = Client(server.address)
        compare(report, args, model, files, client)
        client.close()


def compare(report, args, model, files, client):
    if args.damage:
        for file in files:
            with open(file, "r+b") as handle:  # what is in memory by now is whole
                handle.seek(file.stat().st_size // 2)
                handle.write(os.urandom(file.stat().st_size // 8))
    generator = np.random.default_rng(args.seed)
    tokens = generator.integers(0, client.model.vocab_size, 512)
    with Server(model, "--device", "cpu", "--table", "cached", "--cache-bytes", "256MiB") as server:
        slow = Client(server.address)
        (ids, rows), (slow_ids, slow_rows) = (one.lookup([(len(tokens), [])], tokens) for one in (client, slow))
        spread = np.unique(ids // max(1, client.model.layers[0].rows // 64)).size
        report.check(np.array_equal(ids, slow_ids) and np.array_equal(rows, slow_rows) and np.any(rows != 0) and spread >= 60,
                     f"{ids.size} rows from all over the table are those of the files, bit by bit")
        highway = generator.standard_normal((64, client.channels), np.float32)
        outputs = [one.forward([(one.open(), 64, None, True)], tokens[:64], highway, delta=True) for one in (client, slow)]
        error = relative_l2(*outputs)
        report.check(error <= BOUND, f"a step of 64 tokens against the CPU device: {error:.2e}, at most {BOUND:.1e}")
        slow.close()


if __name__ == "__main__":
    sys.exit(main())
