"""Memory of a server with a cached table far larger than memory: its bound, and no growth after warm-up.

    memory_bench.py SERVER PLEIAD [--folder DIR] [--base N] [--cache-bytes SIZE] [--json FILE]

Makes a sparse checkpoint of the released geometry (about 100 GB that take no disk), starts the server on it, and steps
64 sequences. Fails when the resident memory passes the plan the server logs by more than 200 MB, or grows by more than
4 MiB between the first and the last of the rounds measured.
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MIB = 1 << 20
ALLOWANCE = 200e6
GROWTH = 4 * MIB


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has ended")


def planned(log):
    """Bytes of the plan in the server's log: 'together 3.21 GB'."""
    unit = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    number, name = re.search(r"together ([0-9.]+) ([kMG]?B)", log).groups()
    return float(number) * unit[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server")
    parser.add_argument("pleiad")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--base", type=int, default=20_000_000, help="rows of one head")
    parser.add_argument("--cache-bytes", default="64MiB", help="of the server; the rounds fill the default")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="pleiad-memory-", dir=args.folder))
    server = None
    try:
        subprocess.run([args.pleiad, "synth", "--sparse", "--base", str(args.base), "--out", work / "model"], check=True)
        table = sum(file.stat().st_size for file in (work / "model").glob("*.safetensors"))
        disk = sum(file.stat().st_blocks * 512 for file in (work / "model").glob("*.safetensors"))
        log = open(work / "log", "w+")
        flags = ["--table", "cached", "--cache-bytes", args.cache_bytes, "--max-tokens", "512", "--max-sequences", "64",
                 "--listen", f"unix:{work}/socket", "--metrics-listen", "127.0.0.1:0"]
        server = subprocess.Popen([args.server, "--model", work / "model", *flags], stdout=subprocess.PIPE, stderr=log,
                                  text=True)
        if not server.stdout.readline().startswith("pleiad-server ready"):
            sys.exit((work / "log").read_text())
        plan = planned((work / "log").read_text())
        rounds = []
        # Every round draws other tokens: the arena fills up in the first ones.
        for seed in range(1, 9):
            subprocess.run([args.pleiad, "bench", "--server", f"unix:{work}/socket", "--sequences", "64", "--streams", "4",
                            "--steps", "8" if seed <= 4 else "20", "--warmup", "1", "--sequences-per-request", "16",
                            "--tokens-per-step", "8" if seed <= 4 else "1", "--seed", str(seed)],
                           check=True, stdout=subprocess.DEVNULL)
            rounds.append(resident(server.pid))
        growth = rounds[-1] - rounds[4]
        print(f"table {table / 1e9:.1f} GB, on disk {disk / 1e6:.0f} MB; plan {plan / 1e6:.0f} MB")
        print("resident after each round, MB: " + " ".join(f"{value / 1e6:.1f}" for value in rounds))
        print(f"beyond the plan: {(rounds[-1] - plan) / 1e6:.0f} MB (at most 200); growth over the last rounds: "
              f"{growth / MIB:.1f} MiB (at most 4)")
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(
                {"table_bytes": table, "plan_bytes": plan, "resident_bytes": rounds, "growth_bytes": growth}, indent=2))
        return 0 if rounds[-1] <= plan + ALLOWANCE and growth <= GROWTH else 1
    finally:
        if server is not None:
            server.kill()
            server.wait()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
