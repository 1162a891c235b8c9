"""monitoring_test.py BUILD_DIR: rules, dashboard and operator's page against Debian's Prometheus, scraping real servers."""
import contextlib
import http.server
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
import urllib.request

import yaml

from live_server import GOLDEN, ROOT, LiveServer, end_with, make_certificate

BUILD_DIR = pathlib.Path(sys.argv.pop())
SERVER = BUILD_DIR / "server/pleiad-server"
PLEIAD = BUILD_DIR / "client/cli/pleiad"
RULES = ROOT / "deploy/prometheus/rules.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/pleiad.json").read_text())
NAME = re.compile(r"\b(?:pleiad|process|exposer)_[a-z0-9_]+\b(?!:)")

# Part of an expression -> why no series of a sound server, or of one with a damaged table, has it.
RIGHTLY_EMPTY = {
    'code="INTERNAL"': "a bug answers so, and none is known",
    'code="RESOURCE_EXHAUSTED"': "the test keeps less in flight than there may be",
}


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def dashboard_queries():
    """(title, expression) with the dashboard's variables filled in."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "10m")
            yield panel["title"], expression.replace("$job", ".*").replace("$instance", ".*")


def plain(name):
    return re.sub(r"_(bucket|sum|count)$", "", name)


class Alertmanager:
    """Takes what Prometheus sends: `await_alert` returns once an alert fires."""

    def __enter__(self):
        received = queue.SimpleQueue()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                for alert in json.loads(self.rfile.read(int(self.headers["Content-Length"]))):
                    received.put(alert["labels"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._received, self._seen = received, []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.address = "127.0.0.1:%d" % self._server.server_address[1]
        return self

    def await_alert(self, name, instance):
        while True:
            for labels in self._seen:
                if labels["alertname"] == name and labels["instance"] == instance:
                    return labels
            self._seen.append(self._received.get())

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def listening_port(pid):
    """The one TCP port that a process listens on."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            inodes.add(os.readlink(fd))
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return int(fields[1].rsplit(":", 1)[1], 16)
    raise RuntimeError(f"{pid} listens nowhere")


class Prometheus:
    """The example configuration and the rules as they are, but for targets and intervals."""

    def __init__(self, targets, alertmanager):
        self._targets, self._alertmanager = targets, alertmanager

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-")))
            config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
            config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
            config["scrape_configs"][0]["static_configs"][0]["targets"] = self._targets
            config["rule_files"] = [str(RULES), str(folder / "events.yml")]
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [self._alertmanager.address]}]}]}
            (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
            events = [{"alert": "Scraped", "expr": "count_over_time(pleiad_ready[1m]) >= 2"},
                      {"alert": "Loaded", "expr": "sum by (instance) (increase(pleiad_tokens_total[10m])) > 0 "
                                                  "and on (instance) instance:pleiad_tokens:rate5m"},
                      # A rate has two samples, and a series of failures begins with the first of them.
                      {"alert": "FailedSteps", "expr": 'max by (instance) (count_over_time('
                                                       'pleiad_forward_items_total{code!="OK"}[10m])) >= 2'}]
            (folder / "events.yml").write_text(yaml.safe_dump({"groups": [{"name": "events", "rules": events}]}))
            parent = os.getpid()
            process = subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 "--web.listen-address=127.0.0.1:0"], stderr=subprocess.PIPE, text=True,
                preexec_fn=lambda: end_with(parent))
            stack.callback(process.stderr.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            for line in process.stderr:
                if "Server is ready to receive web requests" in line:
                    break
            else:
                raise RuntimeError("prometheus ended")
            # Nobody reads on: it must not wait for that.
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            self.url = f"http://127.0.0.1:{listening_port(process.pid)}"
            self._stack = stack.pop_all()
        return self

    def get(self, path, **parameters):
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") as reply:
            return json.load(reply)["data"]

    def query(self, expression):
        return self.get("query", query=expression)["result"]

    def __exit__(self, *_):
        self._stack.close()


def load(server):
    return subprocess.run([PLEIAD, "bench", "--server", server.address, "--sequences", "4", "--steps", "20"],
                          capture_output=True, text=True)


class Monitoring(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        """A sound server and one whose table was cut while it served, both after a load, scraped before and after."""
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        damaged = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model"
        shutil.copytree(GOLDEN, damaged)
        certificate = make_certificate(stack.enter_context(tempfile.TemporaryDirectory()))
        cls.sound = stack.enter_context(LiveServer(SERVER, GOLDEN, "--table", "cached", "--cache-bytes", "64KiB",
                                                   "--listen", "127.0.0.1:0", *certificate))
        cls.damaged = stack.enter_context(LiveServer(SERVER, damaged, "--table", "cached", "--cache-bytes", "0"))
        alertmanager = stack.enter_context(Alertmanager())
        servers = [cls.sound, cls.damaged]
        cls.prometheus = stack.enter_context(Prometheus([server.metrics for server in servers], alertmanager))
        for server in servers:
            alertmanager.await_alert("Scraped", server.metrics)
        assert load(cls.sound).returncode == 0
        for file in damaged.glob("model-*.safetensors"):
            os.truncate(file, 4096)
        cls.failed = load(cls.damaged)
        cls.damage = alertmanager.await_alert("PleiadTableDamaged", cls.damaged.metrics)
        alertmanager.await_alert("FailedSteps", cls.damaged.metrics)
        alertmanager.await_alert("Loaded", cls.sound.metrics)

    def test_the_alert_for_a_damaged_table_fires_for_that_server_alone(self):
        self.assertNotEqual(self.failed.returncode, 0)
        self.assertIn("DATA_LOSS", self.failed.stderr)
        self.assertEqual(self.damage["severity"], "critical")
        firing = [alert["labels"] for alert in self.prometheus.get("alerts")["alerts"]]
        self.assertEqual([labels["instance"] for labels in firing if labels["alertname"] == "PleiadTableDamaged"],
                         [self.damaged.metrics])

    def test_every_rule_is_evaluated(self):
        evaluated = [rule for group in self.prometheus.get("rules")["groups"] for rule in group["rules"]
                     if group["file"] == str(RULES)]
        self.assertEqual({rule["name"]: rule["health"] for rule in evaluated},
                         {rule.get("alert") or rule["record"]: "ok" for rule in rules()})

    def test_every_query_of_the_dashboard_has_series(self):
        queries = list(dashboard_queries())
        self.assertGreater(len(queries), 40)
        for title, expression in queries:
            with self.subTest(panel=title, query=expression):
                self.assertTrue(self.prometheus.query(expression))

    def test_every_selector_of_a_rule_has_series_or_is_rightly_empty(self):
        excused = set()
        for rule in rules():
            for selector in re.findall(r"\b[a-z_]+(?::\w+)*(?:\{[^}]*\})|\b(?:pleiad|process|instance)\w*[_:]\w+(?::\w+)*", rule["expr"]):
                with self.subTest(rule=rule.get("alert") or rule["record"], selector=selector):
                    excuse = next((part for part in RIGHTLY_EMPTY if part in selector), None)
                    excused.add(excuse)
                    self.assertEqual(bool(self.prometheus.query(selector)), excuse is None)
        self.assertEqual(excused - {None}, set(RIGHTLY_EMPTY))

    def test_metrics_are_those_of_scrape_readme_rules_and_dashboard(self):
        with urllib.request.urlopen(f"http://{self.sound.metrics}/metrics") as reply:
            scraped = set(re.findall(r"^# TYPE (\S+) ", reply.read().decode(), re.M))
        readme = set(NAME.findall((ROOT / "README.md").read_text().split("### Metrics\n")[1].split("\n## ")[0]))
        self.assertEqual(readme, scraped)
        self.assertLessEqual({plain(name) for rule in rules() for name in NAME.findall(rule["expr"])}, scraped)
        shown = {plain(name) for _, query in dashboard_queries() for name in NAME.findall(query)}
        # The exposer's own are of no use to an operator.
        self.assertEqual(shown, scraped - {"exposer_transferred_bytes", "exposer_transferred_bytes_total",
                                           "exposer_request_latencies"})

    def test_every_alert_has_a_section_of_the_operators_page_and_a_unit_test(self):
        page = (ROOT / "deploy/OPERATING.md").read_text()
        self.assertEqual(re.findall(r"^### (\w+)$", page, re.M), list(alerts()))
        for name, rule in alerts().items():
            self.assertEqual(rule["annotations"]["runbook_url"], f"deploy/OPERATING.md#{name.lower()}")
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
            self.assertRegex(page, rf"### {name}\n{rule['labels']['severity'].capitalize()}\. ")
        tests = yaml.safe_load((ROOT / "tests/deploy/prometheus/rules_test.yml").read_text())["tests"]
        fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
        self.assertEqual(fired, set(alerts()))

    def top(self, *arguments):
        return subprocess.run([PLEIAD, "top", "--once", "--interval", "1s", "--metrics",
                               f"{self.sound.metrics},{self.damaged.metrics}", *arguments], capture_output=True, text=True)

    def test_pleiad_top_sees_both_servers(self):
        result = self.top("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        seen = {server["server"]: server["state"] for server in json.loads(result.stdout)["servers"]}
        self.assertEqual(seen, {self.sound.metrics: "serving", self.damaged.metrics: "not serving", "all": "serving"})
        text = self.top().stdout
        self.assertEqual(len(text.splitlines()), 4)
        self.assertNotIn("\x1b", text)


class Promtool(unittest.TestCase):
    def promtool(self, *args):
        return subprocess.run(["promtool", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_alerts_fire_when_they_should_and_else_not(self):
        result = self.promtool("test", "rules", ROOT / "tests/deploy/prometheus/rules_test.yml")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_the_example_configuration_is_sound(self):
        result = self.promtool("check", "config", ROOT / "deploy/prometheus/prometheus.yml")
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
