"""run_sh_test.py: what tests/run.sh makes of skipped tests, by a copy of it over a build of this test's own."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

RUN_SH = pathlib.Path(__file__).resolve().parents[1] / "run.sh"
TESTS = {"deploy.image": 77, "soak.image": 77, "Shapes/Core.NeedsAGpu/1": 77, "Shapes/Core.NeedsAGpu/2": 77, "core.fine": 0,
         "core.broken": 1}


class Skips(unittest.TestCase):
    def run_sh(self, tests, *arguments):
        """(exit code, what stands below the heading of the end)"""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for made in ("tests", "build/release", "bin"):
                (root / made).mkdir(parents=True)
            shutil.copy(RUN_SH, root / "tests/run.sh")
            (root / "bin/cmake").write_text("#!/bin/sh\n")  # all is built
            (root / "bin/cmake").chmod(0o755)
            lines = []
            for name, code in tests.items():
                label = "soak" if name.startswith("soak") else "none"
                lines.append(f'add_test({name} /bin/sh -c "exit {code}")\n'
                             f'set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77 LABELS {label})\n')
            (root / "build/release/CTestTestfile.cmake").write_text("".join(lines))
            result = subprocess.run(["bash", root / "tests/run.sh", "--no-install", "--only", "release", *arguments],
                                    stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"})
        return result.returncode, result.stdout.rpartition("] done\n")[2].splitlines()

    def test_they_are_counted_and_named(self):
        tests = {name: code for name, code in TESTS.items() if code != 1}
        self.assertEqual(self.run_sh(tests),
                         (0, ["skipped: release: Core.NeedsAGpu (2)", "skipped: release: deploy.image (1)",
                              "1 passed, 0 failed, 3 skipped"]))

    def test_in_full_what_is_shipped_must_have_been_tested(self):
        self.assertEqual(self.run_sh(TESTS, "--full"),
                         (1, ["skipped: release: Core.NeedsAGpu (2)", "failed: release: core.broken",
                              "failed: release: deploy.image (skipped)", "failed: release: soak.image (skipped)",
                              "1 passed, 3 failed, 2 skipped"]))


if __name__ == "__main__":
    unittest.main()
