"""example_test.py SERVER: deploy/example.py with Debian's Python against a live server."""
import subprocess
import sys
import unittest

from live_server import ROOT, LiveServer

SERVER = sys.argv.pop()


class Example(unittest.TestCase):
    def run_example(self, address):
        return subprocess.run(["/usr/bin/python3", "-B", ROOT / "deploy/example.py", address], capture_output=True, text=True)

    def test_runs_through(self):
        with LiveServer(SERVER) as server:
            result = self.run_example(server.address)
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in ("step 1: position 3, 6144 bytes", "step 2: position 5, 4096 bytes", "step 3: position 5, 2048 bytes",
                     "snapshot: position 5, 18444 bytes", "released: True"):
            self.assertIn(line, result.stdout)

    def test_fails_without_a_server(self):
        self.assertNotEqual(self.run_example("unix:/nonexistent/socket").returncode, 0)


if __name__ == "__main__":
    unittest.main()
