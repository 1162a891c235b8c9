"""haproxy_test.py SERVER: deploy/haproxy/haproxy.cfg by Debian's HAProxy, in front of three servers."""
import contextlib
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

import grpc

from live_server import GOLDEN, ROOT, end_with
from manifest_server import ManifestServer

SERVER = sys.argv.pop()
CONFIG = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
KEYS = [f"rank-{number}" for number in range(30)]


def start(port=0):
    arguments = ["--model=MODEL", f"--listen=127.0.0.1:{port}", "--metrics-listen=127.0.0.1:0"]
    return ManifestServer(SERVER, arguments, {"MODEL": GOLDEN})


def opened(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as reply:
        return int(re.search(rb"^pleiad_sequences_opened_total (\d+)$", reply.read(), re.M).group(1))


class Balancer:
    """The configuration with the servers' addresses, a socket of the test's to listen on, and shorter intervals."""

    def __init__(self, addresses):
        self._config = CONFIG
        for name, address in addresses.items():
            self._replace(f"server {name} {name}:50051", f"server {name} {address}")
        self._replace("inter 2s", "inter 50ms")

    def _replace(self, there, here):
        if there not in self._config:
            raise RuntimeError(f"not in the configuration: {there}")
        self._config = self._config.replace(there, here)

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._replace("bind :50051", f"bind fd@{listener.fileno()}")
            file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".cfg"))
            file.write(self._config)
            file.flush()
            parent = os.getpid()
            self.process = subprocess.Popen(["haproxy", "-f", file.name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                            text=True, pass_fds=[listener.fileno()],
                                            preexec_fn=lambda: end_with(parent))
            stack.callback(self.process.stdout.close)
            stack.callback(self.process.wait)
            stack.callback(self.process.kill)
            self.address = "127.0.0.1:%d" % listener.getsockname()[1]
            self._stack = stack.pop_all()
        return self

    def await_line(self, pattern):
        for line in self.process.stdout:
            if re.search(pattern, line):
                return line
        raise RuntimeError("haproxy ended")

    def __exit__(self, *_):
        self._stack.close()


class HaProxy(unittest.TestCase):
    def setUp(self):
        self.stack = contextlib.ExitStack()
        self.addCleanup(self.stack.close)
        self.servers = {f"pleiad-{number}": self.stack.enter_context(start()) for number in range(3)}
        self.balancer = self.stack.enter_context(
            Balancer({name: server.address for name, server in self.servers.items()}))

    def channel(self):
        return self.stack.enter_context(grpc.insecure_channel(self.balancer.address))

    def open_sequence(self, channel, key):
        """The name of the server that opened it."""
        before = {name: opened(server) for name, server in self.servers.items()}
        channel.unary_unary("/pleiad.v1.Ple/OpenSequence")(b"", metadata=[("x-pleiad-affinity", key)])
        (name,) = [name for name, server in self.servers.items() if opened(server) > before[name]]
        return name

    def homes(self, channel):
        return {key: self.open_sequence(channel, key) for key in KEYS}

    def test_keys_stay_and_only_those_of_a_server_that_went_move(self):
        first = self.homes(self.channel())
        for name in self.servers:
            self.assertGreaterEqual(list(first.values()).count(name), 3)
        self.assertEqual(self.homes(self.channel()), first)

        gone = "pleiad-1"
        dead = self.servers.pop(gone)
        dead.process.kill()
        self.balancer.await_line(rf"Server pleiad/{gone} is DOWN")
        moved = self.homes(self.channel())
        self.assertEqual({key: name for key, name in moved.items() if first[key] != gone},
                         {key: name for key, name in first.items() if name != gone})
        self.assertEqual(set(moved.values()), set(self.servers))

        dead.process.wait()
        self.servers[gone] = self.stack.enter_context(start(dead.address.rsplit(":", 1)[1]))
        self.balancer.await_line(rf"Server pleiad/{gone} is UP")
        self.assertEqual(self.homes(self.channel()), first)

    def test_a_server_that_drains_gets_nobody_new_and_its_streams_go_on(self):
        channel = self.channel()
        key = KEYS[0]
        home = self.open_sequence(channel, key)
        requests, more = [b""], threading.Semaphore(1)

        def send():
            while more.acquire() and requests:
                yield requests[0]

        stream = channel.stream_stream("/pleiad.v1.Ple/ForwardStream")(send(), metadata=[("x-pleiad-affinity", key)])
        first = next(stream)
        self.servers[home].terminate()
        self.balancer.await_line(rf"Server pleiad/{home} is DOWN")
        self.assertNotEqual(self.open_sequence(channel, key), home)
        more.release()
        self.assertGreater(len(next(stream)), len(first))  # it says `draining`
        requests.clear()
        more.release()
        self.assertEqual(list(stream), [])
        self.assertEqual(stream.code(), grpc.StatusCode.OK)

    def test_a_call_without_a_key_is_refused_unless_any_server_will_do(self):
        channel = self.channel()
        for name in ("OpenSequence", "Snapshot", "Release"):
            with self.assertRaises(grpc.RpcError) as refused:
                channel.unary_unary(f"/pleiad.v1.Ple/{name}")(b"")
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertIn("x-pleiad-affinity", refused.exception.details())
        self.assertTrue(channel.unary_unary("/pleiad.v1.Ple/GetModel")(b""))

    def test_a_health_check_of_another_name_would_find_no_server(self):
        wrong = CONFIG.replace("706c656961642e76312e506c65", "706c656961642e76312e506c66")
        self.assertNotEqual(wrong, CONFIG)
        balancer = Balancer({name: server.address for name, server in self.servers.items()})
        balancer._config = balancer._config.replace("706c656961642e76312e506c65", "706c656961642e76312e506c66")
        balancer._config = balancer._config.replace("timeout check 2s", "timeout check 200ms")
        with balancer:
            balancer.await_line("backend pleiad has no server available")


if __name__ == "__main__":
    unittest.main()
