"""readme_test.py SERVER: the tables of README.md against what the server says, in both directions."""
import re
import subprocess
import sys
import unittest
import urllib.request

from live_server import ROOT, LiveServer

SERVER = sys.argv.pop()
README = (ROOT / "README.md").read_text()


def first_cells(heading):
    """The first cell of each row of the first table under a heading."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", README, re.M | re.S).group(1)
    rows = re.findall(r"^\| (.*?) \|", section, re.M)[2:]
    assert rows, heading
    return rows


def names(heading, pattern):
    """What `pattern` finds in the code spans of the first column; a name that comes twice is an error."""
    found = re.findall(pattern, "\n".join(re.findall(r"`([^`]*)`", "\n".join(first_cells(heading)))), re.M)
    assert len(found) == len(set(found)), found
    return set(found)


def scraped_metrics(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as reply:
        return set(re.findall(r"^# TYPE (\S+) ", reply.read().decode(), re.M))


class Readme(unittest.TestCase):
    maxDiff = None

    def test_metrics_are_those_of_a_scrape(self):
        with LiveServer(SERVER) as server:
            scraped = scraped_metrics(server)
        self.assertEqual(names("Metrics", r"^\w+$"), scraped)

    def test_flags_are_those_of_help(self):
        text = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(names("Flags", r"^--[\w-]+"), set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M)))

    def test_defaults_are_those_of_help(self):
        text = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True).stdout
        defaults = {flag: value for flag, value in re.findall(r"^  (--[\w-]+) .*?=\[?([^\]\s]+)", text, re.M)}
        section = re.search(r"^### Flags\n(.*?)^## ", README, re.M | re.S).group(1)
        shown = dict(re.findall(r"^\| `(--[\w-]+)[^|]*` \| `?([^|`]+?)`? \|", section, re.M))
        self.assertGreater(len(defaults), 10)
        self.assertEqual({flag: shown[flag] for flag in defaults}, defaults)

    def test_reasons_are_those_of_the_proto(self):
        proto = (ROOT / "proto/pleiad/v1/ple.proto").read_text()
        reasons = set(re.findall(r"^  REASON_(\w+) = \d+;", proto, re.M)) - {"UNSPECIFIED"}
        self.assertEqual(names("Reasons", r"^[A-Z_]+$"), reasons)

    def test_folders_are_those_of_the_tree(self):
        folders = {path.rstrip("/") for path in names("Folders", r"^[\w/]+$")}
        tree = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "build"))}
        core = {f"core/{path.name}" for path in (ROOT / "core").iterdir() if path.is_dir()}
        self.assertEqual(folders, (tree - {"core"}) | core)


if __name__ == "__main__":
    unittest.main()
