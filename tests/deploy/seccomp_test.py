"""seccomp_test.py SERVER: the server under deploy/seccomp.json, and under the filter of the systemd unit."""
import json
import re
import subprocess
import sys
import unittest
import urllib.request

import seccomp

from live_server import GOLDEN, ROOT
from manifest_server import ManifestServer

SERVER = sys.argv.pop()
PROFILE = json.loads((ROOT / "deploy/seccomp.json").read_text())
UNIT = (ROOT / "deploy/systemd/pleiad-server.service").read_text()
ACTIONS = {"SCMP_ACT_ALLOW": lambda rule: seccomp.ALLOW, "SCMP_ACT_ERRNO": lambda rule: seccomp.ERRNO(rule["errnoRet"])}
OPERATORS = {"SCMP_CMP_MASKED_EQ": seccomp.MASKED_EQ}
URING = {"io_uring_setup", "io_uring_enter", "io_uring_register"}


def filter_of(profile, without=frozenset()):
    """As a container runtime makes it."""
    made = seccomp.SyscallFilter(seccomp.ERRNO(profile["defaultErrnoRet"]))
    for rule in profile["syscalls"]:
        arguments = [seccomp.Arg(arg["index"], OPERATORS[arg["op"]], arg["value"], arg["valueTwo"])
                     for arg in rule.get("args", [])]
        for name in set(rule["names"]) - without:
            made.add_rule(ACTIONS[rule["action"]](rule), name, *arguments)
    return made


def group(name):
    """System calls of systemd's @group, those of groups within too."""
    if not name.startswith("@"):
        return {name}
    lines = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True,
                           check=True).stdout.splitlines()[1:]
    found = set()
    for line in map(str.strip, lines):
        if line and not line.startswith("#"):
            found |= group(line)
    return found


def filter_of_unit():
    allowed = set()
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT, re.M):
        names = set().union(*(group(name) for name in line.lstrip("~").split()))
        allowed = allowed - names if line.startswith("~") else allowed | names
    made = seccomp.SyscallFilter(seccomp.ERRNO(1))
    for name in allowed:
        if seccomp.resolve_syscall(seccomp.Arch(), name) >= 0:
            made.add_rule(seccomp.ALLOW, name)
    return made


def reader(made):
    """What reads the rows of a server that starts under a filter, answers and ends well."""
    arguments = ["--model=MODEL", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--table=cached",
                 "--cache-bytes=64KiB"]
    with ManifestServer(SERVER, arguments, {"MODEL": GOLDEN}, before_exec=made.load if made else None) as server:
        assert server.health("pleiad.v1.Ple") == "SERVING"
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as reply:
            name = re.search(r'^pleiad_reader_info\{name="(\w+)"', reply.read().decode(), re.M).group(1)
        server.terminate()
        assert server.process.wait() == 0
    return name


class Seccomp(unittest.TestCase):
    def setUp(self):
        if reader(None) != "io_uring":
            self.skipTest("io_uring is refused on this machine without a filter")

    def test_the_profile_lets_the_server_read_by_io_uring(self):
        self.assertEqual(reader(filter_of(PROFILE)), "io_uring")

    def test_without_its_first_rule_the_server_reads_otherwise(self):
        self.assertEqual(set(PROFILE["syscalls"][0]["names"]), URING)
        self.assertEqual(reader(filter_of(PROFILE, URING)), "pread")

    def test_the_filter_of_the_unit_lets_the_server_read_by_io_uring(self):
        self.assertEqual(reader(filter_of_unit()), "io_uring")


class Profile(unittest.TestCase):
    def test_allows_nothing_that_leaves_the_container(self):
        allowed = {name for rule in PROFILE["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and "args" not in rule
                   for name in rule["names"]}
        self.assertEqual(PROFILE["defaultAction"], "SCMP_ACT_ERRNO")
        for forbidden in ("@mount", "@module", "@debug", "@reboot", "@swap", "@raw-io", "@clock", "@keyring", "@obsolete",
                          "bpf", "clone", "clone3", "setns", "unshare", "userfaultfd", "open_by_handle_at"):
            self.assertEqual(allowed & group(forbidden), set(), forbidden)


if __name__ == "__main__":
    unittest.main()
