"""kubernetes_test.py SERVER: what kubectl renders, and the server with the arguments of each manifest, probed as told."""
import re
import subprocess
import sys
import unittest

import yaml

from live_server import GOLDEN, ROOT
from manifest_server import STOP_LIMITS_S, ManifestServer, flag, seconds

SERVER = sys.argv.pop()
FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("overlays/cpu", "overlays/cuda")
STATE_WRITE_S = 30  # what a state of 4 GiB takes on a slow disk


def render(overlay):
    result = subprocess.run(["kubectl", "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=True)
    return {document["kind"]: document for document in yaml.safe_load_all(result.stdout)}


RENDERED = {overlay: render(overlay) for overlay in ("base", *OVERLAYS)}


def pod(overlay):
    return RENDERED[overlay]["StatefulSet"]["spec"]["template"]["spec"]


def container(overlay):
    (only,) = pod(overlay)["containers"]
    return only


def environment(overlay):
    return {entry["name"]: entry["value"] for entry in container(overlay).get("env", [])}


def start(overlay):
    places = {"/srv/pleiad/model": GOLDEN, "/var/lib/pleiad": "FOLDER", ":50051": ":0", ":9464": ":0"}
    given = environment(overlay)
    if given.get("PLEIAD_DEVICE") == "cuda":
        given["PLEIAD_DEVICE"] = "auto"
    if "PLEIAD_CACHE_BYTES" in given:
        given["PLEIAD_CACHE_BYTES"] = "64KiB"
    return ManifestServer(SERVER, container(overlay)["args"], places, given)


class Kubernetes(unittest.TestCase):
    def test_probes_see_what_they_should_over_a_life_of_the_server(self):
        for overlay in RENDERED:
            probes = {name: container(overlay)[f"{name}Probe"]["grpc"] for name in ("startup", "readiness", "liveness")}
            ports = {port["name"]: port["containerPort"] for port in container(overlay)["ports"]}
            for probe in probes.values():
                self.assertEqual(probe["port"], ports["grpc"])
            with start(overlay) as server:
                self.assertEqual({name: server.health(probe["service"]) for name, probe in probes.items()},
                                 {"startup": "SERVING", "readiness": "SERVING", "liveness": "SERVING"})
                self.assertEqual(server.health("pleiad.v1.Plx"), "NOT_FOUND")
                # What stays open keeps the drain from ending.
                server.open_sequence()
                seen = server.watch(probes["readiness"]["service"])
                self.assertEqual(next(seen), "SERVING")
                server.terminate()
                self.assertEqual(next(seen), "NOT_SERVING")
                self.assertEqual(server.health(probes["liveness"]["service"]), "SERVING")
                server.terminate()
                self.assertEqual(server.process.wait(), 0)

    def test_ports_are_those_of_the_arguments(self):
        for overlay in RENDERED:
            arguments = container(overlay)["args"]
            ports = {port["name"]: port["containerPort"] for port in container(overlay)["ports"]}
            self.assertEqual(flag(arguments, "listen"), f"0.0.0.0:{ports['grpc']}")
            self.assertEqual(flag(arguments, "metrics-listen"), f"0.0.0.0:{ports['metrics']}")
            service = RENDERED[overlay]["Service"]["spec"]
            self.assertEqual({port["name"]: port["port"] for port in service["ports"]}, ports)
            annotations = RENDERED[overlay]["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
            self.assertEqual(annotations["prometheus.io/port"], str(ports["metrics"]))
            allowed = [port["port"] for rule in RENDERED[overlay]["NetworkPolicy"]["spec"]["ingress"]
                       for port in rule["ports"]]
            self.assertEqual(sorted(allowed), sorted(ports.values()))

    def test_the_grace_period_covers_pre_stop_drain_and_the_state(self):
        self.assertGreater(STOP_LIMITS_S, 0)
        for overlay in RENDERED:
            pause = float(container(overlay)["lifecycle"]["preStop"]["exec"]["command"][-1])
            drain = seconds(flag(container(overlay)["args"], "drain-timeout"))
            self.assertGreaterEqual(pod(overlay)["terminationGracePeriodSeconds"],
                                    pause + drain + STOP_LIMITS_S + STATE_WRITE_S)

    def test_the_start_has_half_an_hour_and_a_life_more_than_a_hiccup(self):
        for overlay in RENDERED:
            startup, live = container(overlay)["startupProbe"], container(overlay)["livenessProbe"]
            self.assertGreaterEqual(startup["periodSeconds"] * startup["failureThreshold"], 1800)
            self.assertGreaterEqual(live["periodSeconds"] * live["failureThreshold"], 60)

    def test_names_of_servers_stay(self):
        for overlay in RENDERED:
            stateful, service = RENDERED[overlay]["StatefulSet"]["spec"], RENDERED[overlay]["Service"]
            self.assertEqual(stateful["serviceName"], service["metadata"]["name"])
            self.assertEqual(service["spec"]["clusterIP"], "None")
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])
            labels = stateful["template"]["metadata"]["labels"]
            for selector in (stateful["selector"]["matchLabels"], service["spec"]["selector"],
                             RENDERED[overlay]["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
                             RENDERED[overlay]["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]):
                self.assertLessEqual(selector.items(), labels.items())
            self.assertEqual(RENDERED[overlay]["PodDisruptionBudget"]["spec"]["maxUnavailable"], 1)

    def test_nothing_has_more_rights_than_it_needs(self):
        for overlay in RENDERED:
            context, inner = pod(overlay)["securityContext"], container(overlay)["securityContext"]
            self.assertTrue(context["runAsNonRoot"])
            self.assertGreater(context["runAsUser"], 0)
            self.assertEqual(context["seccompProfile"], {"type": "Localhost", "localhostProfile": "profiles/pleiad.json"})
            self.assertEqual(inner, {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                     "capabilities": {"drop": ["ALL"]}})

    def test_volumes_lie_where_the_arguments_say(self):
        for overlay in RENDERED:
            mounts = {mount["name"]: mount for mount in container(overlay)["volumeMounts"]}
            claims = {claim["metadata"]["name"] for claim in RENDERED[overlay]["StatefulSet"]["spec"]["volumeClaimTemplates"]}
            self.assertEqual(claims, set(mounts))
            self.assertEqual(mounts["model"]["mountPath"], flag(container(overlay)["args"], "model"))
            self.assertTrue(mounts["model"]["readOnly"])
            self.assertEqual(mounts["state"]["mountPath"], flag(container(overlay)["args"], "state-dir"))

    def test_overlays_choose_device_image_and_scaling(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay):
                device = overlay.rsplit("/")[-1]
                self.assertEqual(environment(overlay)["PLEIAD_DEVICE"], device)
                self.assertTrue(container(overlay)["image"].endswith(f":{device}"))
                gpus = container(overlay)["resources"]["limits"].get("nvidia.com/gpu")
                self.assertEqual(gpus, "1" if device == "cuda" else None)
                scaler = RENDERED[overlay]["HorizontalPodAutoscaler"]["spec"]
                self.assertEqual(scaler["scaleTargetRef"],
                                 {"apiVersion": "apps/v1", "kind": "StatefulSet",
                                  "name": RENDERED[overlay]["StatefulSet"]["metadata"]["name"]})
                self.assertEqual(scaler["minReplicas"], RENDERED[overlay]["StatefulSet"]["spec"]["replicas"])

    def test_the_page_has_clients_name_every_server_that_there_may_be(self):
        (first, last), = re.findall(r"`pleiad-(\d+)\.pleiad:50051`\s+to `pleiad-(\d+)\.pleiad:50051`",
                                    (ROOT / "README.md").read_text())
        for overlay in OVERLAYS:
            scaler, service = RENDERED[overlay]["HorizontalPodAutoscaler"]["spec"], RENDERED[overlay]["Service"]
            self.assertEqual((int(first), int(last)), (0, scaler["maxReplicas"] - 1))
            self.assertEqual(service["metadata"]["name"], "pleiad")
            # The names of servers that load or drain too: whoever looks for one must not wait for DNS.
            self.assertTrue(service["spec"]["publishNotReadyAddresses"])

    def test_the_metric_that_scales_is_one_of_the_server(self):
        metrics = RENDERED["overlays/cuda"]["HorizontalPodAutoscaler"]["spec"]["metrics"]
        names = {metric["pods"]["metric"]["name"] for metric in metrics}
        self.assertLessEqual(names, set(re.findall(r"`(pleiad_\w+)`", (ROOT / "README.md").read_text())))

    def test_an_unknown_argument_would_be_noticed(self):
        with self.assertRaises(RuntimeError):
            with ManifestServer(SERVER, [*container("base")["args"], "--no-such-flag"],
                                {"/srv/pleiad/model": GOLDEN, "/var/lib/pleiad": "FOLDER", ":50051": ":0", ":9464": ":0"}):
                pass


if __name__ == "__main__":
    unittest.main()
