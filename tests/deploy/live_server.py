"""A pleiad-server of a test's own, on the golden checkpoint."""
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/tiny-n3h8"


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with(parent):
    """For preexec_fn: the child is killed when its parent ends, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def make_certificate(folder):
    """Flags of a server with a certificate for localhost, FOLDER/cert.pem, that is its own authority."""
    command = ["openssl", "req", "-x509", "-days", "30", "-subj", "/CN=localhost", "-addext",
               "subjectAltName=DNS:localhost,IP:127.0.0.1", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run(command, check=True, capture_output=True)
    return ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]


class LiveServer:
    """`with LiveServer(binary) as server:` ready when entered; its exit code, checked to be 0, when left."""

    def __init__(self, binary, model=GOLDEN, *flags):
        self._binary, self._model, self._flags = binary, model, flags
        self.address = self.metrics = None
        self.addresses = []  # all it listens on, its own Unix socket first

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-"))
            self.address = f"unix:{folder}/socket"
            command = [self._binary, "--model", self._model, "--listen", self.address, "--metrics-listen", "127.0.0.1:0",
                       *self._flags]
            parent = os.getpid()
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                             preexec_fn=lambda: end_with(parent))
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            line = self._process.stdout.readline()
            if not line.startswith("pleiad-server ready"):
                raise RuntimeError(f"not ready: {line!r}")
            self.metrics = line.split()[-1]
            self.addresses = line.split()[2:-2]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_):
        with self._stack:
            self._process.terminate()
            code = self._process.wait()
            self._process.stdout.close()
        if kind is None and code != 0:
            raise RuntimeError(f"the server ended with {code}")
