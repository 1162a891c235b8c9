"""A pleiad-server with the arguments of a manifest, and the few calls that need no generated code."""
import contextlib
import os
import re
import signal
import subprocess
import tempfile

import grpc

from live_server import ROOT, end_with

# The limits of stopping in server.h, together: what may come after the drain.
STOP_LIMITS_S = sum(map(int, re.findall(r"k\w+Limit = absl::Seconds\((\d+)\);", (ROOT / "server/server.h").read_text())))
EXTRA_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


def flag(arguments, name):
    """The value of --name=VALUE or --name VALUE."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"--{name}="):
            return argument.split("=", 1)[1]
        if argument == f"--{name}":
            return arguments[index + 1]
    raise KeyError(name)


def seconds(text):
    return float(text.removesuffix("s")) if text.endswith("s") else 60 * float(text.removesuffix("m"))


class ManifestServer:
    """`places`: what stands in the arguments -> what to put there instead; each must occur. FOLDER is one of its own."""

    def __init__(self, binary, arguments, places, environment=None, before_exec=None):
        self._binary, self._arguments, self._places = binary, arguments, places
        self._before_exec = before_exec
        self._environment = environment or {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-"))
            arguments = list(self._arguments)
            for there, here in self._places.items():
                if not any(there in argument for argument in arguments):
                    raise RuntimeError(f"the manifest says nowhere {there}: {arguments}")
                arguments = [argument.replace(there, str(here).replace("FOLDER", folder)) for argument in arguments]
            inherited = {name: os.environ[name] for name in EXTRA_ENVIRONMENT if name in os.environ}
            parent = os.getpid()

            def prepare():
                end_with(parent)
                if self._before_exec:
                    self._before_exec()

            self.process = subprocess.Popen([self._binary, *arguments], stdout=subprocess.PIPE, text=True,
                                            env={**inherited, **self._environment},
                                            preexec_fn=prepare)
            stack.callback(self.process.stdout.close)
            stack.callback(self.process.wait)
            stack.callback(self.process.kill)
            words = self.process.stdout.readline().split()
            if words[:2] != ["pleiad-server", "ready"]:
                raise RuntimeError(f"not ready: {words}")
            port = words[2].rsplit(":", 1)[1]
            self.address = f"127.0.0.1:{port}"
            self.metrics = words[-1]
            self.channel = stack.enter_context(grpc.insecure_channel(self.address))
            self._stack = stack.pop_all()
        return self

    def health(self, service):
        """SERVING, NOT_SERVING, or the name of the status that came instead, as a probe sees it."""
        name = service.encode()
        try:
            reply = self.channel.unary_unary("/grpc.health.v1.Health/Check")(bytes([0x0A, len(name)]) + name)
        except grpc.RpcError as error:
            return error.code().name
        return {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}[reply]

    def open_sequence(self):
        self.channel.unary_unary("/pleiad.v1.Ple/OpenSequence")(b"")

    def watch(self, service):
        """Yields what a probe would see, each time it changes."""
        name = service.encode()
        for reply in self.channel.unary_stream("/grpc.health.v1.Health/Watch")(bytes([0x0A, len(name)]) + name):
            yield {b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}[reply]

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def __exit__(self, *_):
        self._stack.close()
