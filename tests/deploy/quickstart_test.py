"""quickstart_test.py BUILD_DIR: deploy/quickstart.sh on what is built there; and that it fails when a number is wrong."""
import json
import os
import pathlib
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from live_server import GOLDEN, ROOT

BUILD_DIR = sys.argv.pop()


def quickstart(*args):
    command = ["bash", ROOT / "deploy/quickstart.sh", "--build-dir", BUILD_DIR, *args]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def flip_sign(file, tensor):
    """Of the largest F32 value of a tensor in a safetensors file: one flip is past the bound of the whole tensor."""
    data = bytearray(file.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8 : 8 + length])[tensor]["data_offsets"]
    values = struct.unpack_from(f"<{(end - begin) // 4}f", data, 8 + length + begin)
    index = max(range(len(values)), key=lambda i: abs(values[i]))
    struct.pack_into("<f", data, 8 + length + begin + 4 * index, -values[index])
    file.write_bytes(data)


class Quickstart(unittest.TestCase):
    def test_all_agree(self):
        result = quickstart()
        self.assertEqual(result.returncode, 0, result.stdout)
        rows = re.findall(r"^(\S.*?) {2,}(\S.*?) +(\d+)  .* (ok|FAILED)$", result.stdout, re.M)
        seen = sorted({(tensor, how) for tensor, how, _, _ in rows})
        self.assertEqual(seen, [("carry, bytes", "Restore"), ("conv_after30", "Snapshot"), ("embeddings", "Lookup"),
                                ("highway_out", "HIGHWAY"), ("ngram_ids", "Lookup"), ("ple_out", "DELTA"),
                                ("ple_out", "HIGHWAY - input")])
        self.assertEqual({verdict for *_, verdict in rows}, {"ok"})
        # Both replays of the 32 and the 61 tokens, each with a draft of 5, and 30 tokens for the conv rows.
        self.assertIn(f'pleiad_tokens_total{{layer="1"}} {2 * (32 + 5) + 2 * (61 + 5) + 30}\n', result.stdout)
        self.assertRegex(result.stdout, r'pleiad_row_lookups_total\{layer="1",result="hit"\} [1-9]')
        self.assertIn("pleiad_step_phase_seconds_count", result.stdout)

    def test_one_flipped_golden_value_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            for tensor in ("run.layer2.ple_out", "layer2.ple_out", "layer2.conv_after30"):
                checkpoint = pathlib.Path(folder) / tensor
                shutil.copytree(GOLDEN, checkpoint)
                flip_sign(checkpoint / "golden.safetensors", tensor)
                result = quickstart("--checkpoint", checkpoint)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertRegex(result.stdout, r"relative L2 .*FAILED\n")

    def test_a_server_that_does_not_start_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            result = quickstart("--checkpoint", folder)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("config.json", result.stdout)

    def test_keep_leaves_the_server_running(self):
        result = quickstart("--keep")
        self.assertEqual(result.returncode, 0, result.stdout)
        *commands, stop = re.findall(r"^  (.*)$", result.stdout.split("Next:\n")[1], re.M)
        pid = int(re.fullmatch(r"kill (\d+)", stop).group(1))
        try:
            self.assertEqual(len(commands), 2)
            for command in commands:
                subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
        finally:
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGTERM)
            select.select([ended], [], [])
            os.close(ended)
            shutil.rmtree(re.search(r"log (\S+)/log\)", result.stdout).group(1))


if __name__ == "__main__":
    unittest.main()
