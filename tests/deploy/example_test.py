"""example_test.py SERVER: deploy/example.py with Debian's Python against a live server."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

from live_server import GOLDEN, ROOT, LiveServer, make_certificate

SERVER = sys.argv.pop()


class Example(unittest.TestCase):
    def run_example(self, *arguments):
        return subprocess.run(["/usr/bin/python3", "-B", ROOT / "deploy/example.py", *arguments], capture_output=True, text=True)

    def test_runs_through(self):
        with LiveServer(SERVER) as server:
            result = self.run_example(server.address)
        self.assertEqual(result.returncode, 0, result.stderr)
        for line in ("step 1: position 3, 6144 bytes", "step 2: position 5, 4096 bytes", "step 3: position 5, 2048 bytes",
                     "snapshot: position 5, 18444 bytes", "released: True"):
            self.assertIn(line, result.stdout)

    def test_shows_its_certificate_and_its_token(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {name: pathlib.Path(folder) / name for name in ("tokens", "token", "other")}
            files["tokens"].write_text("engine-3 token-of-the-example-0123\n")
            files["token"].write_text("token-of-the-example-0123\n")
            files["other"].write_text("another-token-of-the-example\n")
            files["tokens"].chmod(0o600)
            certificate, authority = make_certificate(folder), f"{folder}/cert.pem"
            with LiveServer(SERVER, GOLDEN, "--listen", "127.0.0.1:0", *certificate, "--tls-client-ca", authority,
                            "--auth-tokens", files["tokens"]) as server:
                own = [server.addresses[1], "--tls-ca", authority, *certificate]
                good = self.run_example(*own, "--token-file", files["token"])
                without, wrong = self.run_example(*own), self.run_example(*own, "--token-file", files["other"])
                anonymous = self.run_example(server.addresses[1], "--tls-ca", authority, "--token-file", files["token"])
                plain = self.run_example(server.addresses[1], "--token-file", files["token"])
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("released: True", good.stdout)
        for refused, why in ((without, "must be there once"), (wrong, "no such token"), (anonymous, "UNAVAILABLE"),
                             (plain, "UNAVAILABLE")):
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(why, refused.stderr)

    def test_fails_without_a_server(self):
        self.assertNotEqual(self.run_example("unix:/nonexistent/socket").returncode, 0)


if __name__ == "__main__":
    unittest.main()
