"""image_test.py [--from-source] BUILD_DIR: the image of the Dockerfile's target cpu, built by Buildah on a base made by
debootstrap, and run without root. Without --from-source the programs come from BUILD_DIR and the stage that compiles them
is left out. Exits 77, skipped, where such a base cannot be made."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from live_server import GOLDEN, ROOT, end_with

BUILD_DIR = pathlib.Path(sys.argv.pop())
FROM_SOURCE = "--from-source" in sys.argv and not sys.argv.remove("--from-source")
SKIPPED = 77
UID = 10001


def why_not():
    if os.geteuid() != 0:
        return "only root can make a Debian base"
    missing = [program for program in ("buildah", "debootstrap") if not shutil.which(program)]
    if missing:
        return f"not installed: {missing}"
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder], capture_output=True)
    if mounted.returncode:
        return f"this sandbox lets nobody mount: {mounted.stderr}"
    try:
        urllib.request.urlopen(f"{mirror()}/dists/bookworm/Release").close()
    except OSError as error:
        return f"no package archive at {mirror()}: {error}"
    return None


def mirror():
    """The first package archive of this machine."""
    places = [pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]
    for place in places:
        if place.is_file() and place.suffix in (".list", ".sources"):
            found = re.search(r"^(?:URIs:|deb(?: \[.*\])?)\s+(\S*debian\S*)", place.read_text(), re.M)
            if found:
                return found.group(1)
    return "http://deb.debian.org/debian"


class Store:
    """Buildah with images of its own."""

    def __init__(self, folder):
        self._base = ["buildah", "--root", f"{folder}/images", "--runroot", f"{folder}/run"]

    def __call__(self, *args):
        result = subprocess.run([*self._base, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            raise RuntimeError(f"buildah {args}: {result.stderr[-4000:]}\n{result.stdout[-4000:]}")
        return result.stdout.strip()

    def command(self, *args):
        return [*self._base, *map(str, args)]

    @contextlib.contextmanager
    def commit(self, tag):
        """An image of what the block puts into the folder."""
        container = self("from", "scratch")
        yield pathlib.Path(self("mount", container))
        self("umount", container)
        self("commit", "--quiet", container, tag)
        self("rm", container)


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-image-"))
        cls.buildah = store = Store(folder)
        stack.callback(lambda: store("rm", "--all"))
        with store.commit("localhost/debian") as root:
            made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", root, mirror()], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if made.returncode:
                raise RuntimeError(made.stdout[-4000:])
        recipe = (ROOT / "Dockerfile").read_text()
        if not FROM_SOURCE:
            with store.commit("localhost/programs") as root:
                (root / "usr/bin").mkdir(parents=True)
                for program in ("server/pleiad-server", "client/cli/pleiad"):
                    shutil.copy(BUILD_DIR / program, root / "usr/bin")
            there = "COPY --from=build /"
            assert there in recipe
            recipe = recipe.replace(there, "COPY --from=localhost/programs /")
        dockerfile = pathlib.Path(folder) / "Dockerfile"
        dockerfile.write_text(recipe)
        store("bud", "--isolation", "chroot", "--format", "docker", "--target", "cpu", "--build-arg",
              "DEBIAN=localhost/debian", "--file", dockerfile, "--tag", "localhost/pleiad:cpu", ROOT)
        cls.container = store("from", "localhost/pleiad:cpu")
        cls.config = json.loads(store("inspect", cls.container))["Docker"]["config"]
        # The server as the image starts it, with its Unix socket in a folder of the host.
        cls.sockets = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-")))
        os.chown(cls.sockets, UID, UID)
        cls.server = stack.enter_context(cls.run_in_image(
            *cls.config["Entrypoint"], "--listen", "unix:/run/pleiad/socket", "--metrics-listen", "127.0.0.1:0",
            stdout=subprocess.PIPE, text=True))
        stack.callback(cls.server.kill)
        line = cls.server.stdout.readline()
        if not line.startswith("pleiad-server ready"):
            raise RuntimeError(f"not ready: {line!r}")

    @classmethod
    def run_in_image(cls, *command, **how):
        parent = os.getpid()
        return subprocess.Popen(
            cls.buildah.command("run", "--isolation", "chroot", "--env", "PLEIAD_SERVER=unix:/run/pleiad/socket",
                                "--volume", f"{GOLDEN}:/srv/pleiad/model:ro", "--volume", f"{cls.sockets}:/run/pleiad",
                                cls.container, "--", *command),
            preexec_fn=lambda: end_with(parent), **how)

    def output(self, *command):
        """(exit code, output) of a program in the image."""
        with self.run_in_image(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            text, _ = process.communicate()
        return process.returncode, text

    def test_1_answers_health_by_the_health_check_of_the_image(self):
        kind, *command = self.config["Healthcheck"]["Test"]
        self.assertEqual(kind, "CMD")
        self.assertEqual(self.output(*command), (0, "SERVING\n"))

    def test_1_serves_the_golden_trace(self):
        code, text = self.output("/usr/bin/pleiad", "run", "--trace", "/srv/pleiad/model/golden.safetensors", "--prefix",
                                 "run.layer2", "--disturb")
        self.assertEqual(code, 0, text)
        self.assertIn(" ok\n", text)
        self.assertNotIn("FAILED", text)

    def test_1_runs_without_root(self):
        self.assertEqual(self.config["User"], f"{UID}:{UID}")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{self.sockets}/socket")
            pid, uid, gid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.assertEqual((uid, gid), (UID, UID))
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        self.assertRegex(status, rf"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n")
        self.assertRegex(status, r"CapEff:\t0+\n")
        self.assertEqual(self.output("/bin/sh", "-c", "id -u; touch /usr/bin/x 2>&1; touch /var/lib/pleiad/x && rm /var/lib/pleiad/x"),
                         (0, f"{UID}\ntouch: cannot touch '/usr/bin/x': Permission denied\n"))

    def test_1_holds_no_compiler_and_no_sources(self):
        code, text = self.output("/bin/sh", "-c", "ls -d /src /usr/bin/g++ /usr/bin/cmake /usr/include/c++; ls -A /root /tmp")
        self.assertNotRegex(text, r"(?m)^/(src|usr)")
        self.assertEqual({line.split("=")[0] for line in self.config["Env"]}, {"PATH", "PLEIAD_MODEL", "PLEIAD_DEVICE"})

    def test_2_drains_on_the_signal_that_ends_containers_and_health_says_so(self):
        self.assertIn(self.config.get("StopSignal", "SIGTERM"), ("", "SIGTERM"))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{self.sockets}/socket")
            pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(self.server.wait(), 0)
        code, _ = self.output(*self.config["Healthcheck"]["Test"][1:])
        self.assertEqual(code, 3)


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main()
