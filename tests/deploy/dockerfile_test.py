"""dockerfile_test.py: the Dockerfile by instruction, its CUDA target too, which is built on no machine of the tests."""
import re
import subprocess
import unittest

from live_server import ROOT

TEXT = (ROOT / "Dockerfile").read_text()
KNOWN = {"FROM", "ARG", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "EXPOSE", "USER", "HEALTHCHECK", "ENTRYPOINT"}


def instructions(text):
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def stages(text):
    """Name -> (what it starts from, its instructions), with the defaults of ARGs filled in."""
    defaults, found, current = {}, {}, None
    for name, rest in instructions(text):
        if name == "ARG" and current is None:
            defaults.update([rest.split("=", 1)])
        elif name == "FROM":
            base, keyword, current = rest.split()
            assert keyword == "AS", rest
            found[current] = (re.sub(r"\$\{(\w+)\}", lambda match: defaults[match.group(1)], base), [])
        else:
            found[current][1].append((name, rest))
    return found


STAGES = stages(TEXT)


def line_of(stage):
    """The instructions from the first base to a stage."""
    base, own = STAGES[stage]
    return (line_of(base) if base in STAGES else []) + own


def last(stage, instruction):
    return [rest for name, rest in line_of(stage) if name == instruction][-1]


class Dockerfile(unittest.TestCase):
    def test_every_instruction_is_known(self):
        self.assertLessEqual({name for name, _ in instructions(TEXT)}, KNOWN)

    def test_every_command_is_one_that_a_shell_takes(self):
        commands = [rest for name, rest in instructions(TEXT) if name == "RUN"]
        self.assertGreater(len(commands), 4)
        for command in commands:
            checked = subprocess.run(["sh", "-n", "-c", command], capture_output=True, text=True)
            self.assertEqual(checked.stderr, "")

    def test_stages_start_from_and_copy_from_stages_before_them(self):
        seen = []
        for stage, (base, own) in STAGES.items():
            self.assertTrue(base in seen or "/" in base, base)
            for name, rest in own:
                if name == "COPY" and rest.startswith("--from="):
                    self.assertIn(rest.split()[0].removeprefix("--from="), seen)
                elif name == "COPY" and not rest.startswith("."):
                    self.assertTrue((ROOT / rest.split()[0]).exists(), rest)
            seen.append(stage)

    def test_both_targets_run_the_server_without_root_and_have_a_health_check(self):
        for target in ("cpu", "cuda"):
            self.assertEqual(last(target, "USER"), "10001:10001")
            self.assertEqual(last(target, "ENTRYPOINT"), '["/usr/bin/pleiad-server"]')
            self.assertIn('"/usr/bin/pleiad", "health"', last(target, "HEALTHCHECK"))
            self.assertIn("/usr/bin/pleiad-server /usr/bin/pleiad /usr/bin/", last(target, "COPY"))

    def test_the_cuda_target_has_what_the_server_looks_for_at_start(self):
        commands = [rest for name, rest in line_of("cuda") if name == "RUN"]
        self.assertTrue(any("libcublas-13-0" in command for command in commands))
        self.assertTrue(last("cuda", "COPY").startswith("--from=build-cuda "))
        self.assertTrue(last("cpu", "COPY").startswith("--from=build "))
        self.assertTrue(any("-DPLEIAD_CUDA=ON" in rest for _, rest in STAGES["build-cuda"][1]))
        self.assertTrue(any("-DPLEIAD_CUDA=OFF" in rest for _, rest in STAGES["build"][1]))
        self.assertIn("compute", last("cuda", "ENV"))

    def test_runtimes_bring_no_compiler(self):
        for target in ("cpu", "cuda"):
            for name, rest in line_of(target):
                self.assertFalse(name == "RUN" and re.search(r"install-deps|cmake|g\+\+|nvcc|-dev\b", rest), rest)

    def test_nothing_secret_is_asked_for(self):
        for name, rest in instructions(TEXT):
            self.assertFalse(name in ("ARG", "ENV") and re.search(r"SECRET|TOKEN|PASSWORD|KEY", rest, re.I), rest)

    def test_mistakes_are_noticed(self):
        with self.assertRaises(KeyError):
            stages("FROM ${UNKNOWN} AS x\n")
        self.assertNotIn("MAINTANER", KNOWN)
        self.assertEqual(instructions("RUN a \\\n  b\n"), [("RUN", "a    b")])


if __name__ == "__main__":
    unittest.main()
