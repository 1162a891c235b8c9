"""systemd_test.py SERVER: the unit by systemd's own tools, and the server as it starts it, with a manager that listens."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import grpc

from live_server import GOLDEN, ROOT, end_with, make_certificate
from manifest_server import STOP_LIMITS_S, ManifestServer, flag, seconds

SERVER = sys.argv.pop()
UNIT = ROOT / "deploy/systemd/pleiad-server.service"
DROP_INS = (ROOT / "deploy/systemd/cuda.conf", ROOT / "deploy/systemd/tls.conf")
TLS = DROP_INS[1]
TOKEN = "token-of-the-unit-01234"


def values(file, key):
    return re.findall(rf"^{key}=(.*)$", file.read_text(), re.M)


class Unit(unittest.TestCase):
    def unit_folder(self, folder):
        """The unit with the program that was built, and the drop-in."""
        unit = pathlib.Path(folder) / UNIT.name
        unit.write_text(UNIT.read_text().replace("/usr/bin/pleiad-server", SERVER))
        return unit

    def analyze(self, *args):
        return subprocess.run(["systemd-analyze", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_systemd_takes_every_line(self):
        for drop_in in (None, *DROP_INS):
            with tempfile.TemporaryDirectory() as folder:
                unit = self.unit_folder(folder)
                if drop_in:
                    extra = pathlib.Path(folder) / f"{UNIT.name}.d"
                    extra.mkdir()
                    (extra / drop_in.name).write_text(drop_in.read_text().replace("/usr/bin/pleiad-server", SERVER))
                result = self.analyze("verify", "--man=no", str(unit))
            ours = [line for line in result.stdout.splitlines() if "pleiad" in line]
            self.assertEqual((result.returncode, ours), (0, []), result.stdout)

    def test_systemd_refuses_a_wrong_line(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = self.unit_folder(folder)
            unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=stricter"))
            self.assertIn("Failed to parse protect system value", self.analyze("verify", "--man=no", str(unit)).stdout)

    def test_the_exposure_that_systemd_finds_is_low(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.analyze("security", "--offline=yes", "--threshold=20", str(self.unit_folder(folder)))
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_io_uring_is_in_the_system_calls_allowed(self):
        allowed = self.analyze("syscall-filter", "@system-service").stdout.split()
        denied = re.search(r"^SystemCallFilter=~(.*)$", UNIT.read_text(), re.M).group(1).split()
        self.assertIn("@aio", allowed)
        for group in denied:
            self.assertNotIn("io_uring_setup", self.analyze("syscall-filter", group).stdout.split())

    def test_the_time_to_stop_covers_the_drain(self):
        (command,) = values(UNIT, "ExecStart")
        drain = seconds(flag(command.split(), "drain-timeout"))
        self.assertGreaterEqual(seconds(values(UNIT, "TimeoutStopSec")[0]), drain + STOP_LIMITS_S + 15)

    def test_bad_flags_are_not_tried_again(self):
        self.assertEqual(values(UNIT, "RestartPreventExitStatus"), ["2"])
        result = subprocess.run([SERVER, "--no-such-flag"], capture_output=True)
        self.assertEqual(result.returncode, 2)


class Secrets(unittest.TestCase):
    def test_the_drop_in_changes_the_listener_and_adds_the_files_alone(self):
        (plain,) = values(UNIT, "ExecStart")
        reset, command = values(TLS, "ExecStart")
        self.assertEqual(reset, "")
        added = [word for word in command.split() if word not in plain.split()]
        self.assertEqual(added, ["0.0.0.0:50051", "--tls-cert", "/etc/pleiad/cert.pem", "--tls-key", "/etc/pleiad/key.pem",
                                 "--tls-client-ca", "/etc/pleiad/clients.pem", "--auth-tokens", "/etc/pleiad/tokens"])

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="pleiad-"))
        make_certificate(self.folder)
        os.link(f"{self.folder}/cert.pem", f"{self.folder}/clients.pem")
        pathlib.Path(self.folder, "tokens").write_text(f"engine-3 {TOKEN}\n")
        for name in ("key.pem", "tokens"):
            os.chmod(f"{self.folder}/{name}", 0o640)
        self.command = values(TLS, "ExecStart")[1].split()[1:]
        self.places = {"/etc/pleiad": self.folder, "/srv/pleiad/model": str(GOLDEN), "/var/lib/pleiad": "FOLDER",
                       "0.0.0.0:50051": "127.0.0.1:0", "127.0.0.1:9464": "127.0.0.1:0"}

    def test_the_server_takes_files_that_its_group_alone_can_read(self):
        command = self.command
        for unit_place, place in self.places.items():
            command = [argument.replace(unit_place, place.replace("FOLDER", self.folder)) for argument in command]
        check = lambda: subprocess.run([SERVER, *command, "--check"], capture_output=True, text=True)
        good = check()
        self.assertEqual(good.returncode, 0, good.stderr)
        os.chmod(f"{self.folder}/tokens", 0o644)
        open_to_all = check()
        self.assertNotEqual(open_to_all.returncode, 0)
        self.assertIn("--auth-tokens", open_to_all.stderr)

    def call(self, address, with_certificate, method, request, metadata=()):
        """The reply, or the name of the status that came instead."""
        certificate, key = (pathlib.Path(self.folder, name).read_bytes() for name in ("cert.pem", "key.pem"))
        own = {"private_key": key, "certificate_chain": certificate} if with_certificate else {}
        credentials = grpc.ssl_channel_credentials(root_certificates=certificate, **own)
        with grpc.secure_channel(address, credentials) as channel:
            try:
                return channel.unary_unary(method)(request, metadata=metadata)
            except grpc.RpcError as error:
                return error.code().name

    def test_the_server_as_the_drop_in_starts_it_serves_those_who_show_a_certificate_and_a_token(self):
        with ManifestServer(SERVER, self.command, self.places) as server:
            health = lambda with_certificate: self.call(server.address, with_certificate,
                                                        "/grpc.health.v1.Health/Check", b"")
            self.assertEqual(health(True), b"\x08\x01")
            self.assertEqual(health(False), "UNAVAILABLE")
            self.assertEqual(server.health(""), "UNAVAILABLE")  # plaintext
            opened = lambda *metadata: self.call(server.address, True, "/pleiad.v1.Ple/OpenSequence", b"", metadata)
            self.assertEqual(opened(), "UNAUTHENTICATED")
            self.assertIsInstance(opened(("authorization", f"Bearer {TOKEN}")), bytes)


class Notifications(unittest.TestCase):
    def arguments(self, folder):
        (command,) = values(UNIT, "ExecStart")
        program, *arguments = command.split()
        self.assertEqual(program, "/usr/bin/pleiad-server")
        places = {"/srv/pleiad/model": str(GOLDEN), "/var/lib/pleiad": folder,
                  "127.0.0.1:50051": "127.0.0.1:0", "127.0.0.1:9464": "127.0.0.1:0"}
        for unit_place, place in places.items():
            self.assertIn(unit_place, command)
            arguments = [argument.replace(unit_place, place) for argument in arguments]
        return arguments

    def test_the_server_as_the_unit_starts_it_says_ready_lives_and_stops(self):
        parent = os.getpid()
        with tempfile.TemporaryDirectory(prefix="pleiad-") as folder, \
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(f"{folder}/notify")
            environment = {**os.environ, "NOTIFY_SOCKET": f"{folder}/notify", "WATCHDOG_USEC": "400000"}
            self.assertEqual(values(UNIT, "Type"), ["notify"])
            with subprocess.Popen([SERVER, *self.arguments(folder)], stdout=subprocess.PIPE, env=environment,
                                  preexec_fn=lambda: end_with(parent)) as process:
                try:
                    said = []
                    while said.count("WATCHDOG=1") < 3 or "READY=1" not in said:
                        said.append(manager.recv(64).decode())
                    self.assertEqual(set(said), {"READY=1", "WATCHDOG=1"})
                    self.assertEqual(said.count("READY=1"), 1)
                    self.assertRegex(process.stdout.readline(), rb"^pleiad-server ready 127\.0\.0\.1:\d+ metrics ")
                    process.send_signal(signal.SIGTERM)
                    while said[-1] != "STOPPING=1":
                        said.append(manager.recv(64).decode())
                    self.assertEqual(process.wait(), 0)
                finally:
                    process.kill()

    def test_a_wrong_socket_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run([SERVER, *self.arguments(folder)], capture_output=True, text=True,
                                    env={**os.environ, "NOTIFY_SOCKET": "/nonexistent/socket"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("NOTIFY_SOCKET '/nonexistent/socket'", result.stderr)


if __name__ == "__main__":
    unittest.main()
