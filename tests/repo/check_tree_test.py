#!/usr/bin/env python3
"""Plants breaches in a temporary tree and asks check_tree for exactly those."""
import pathlib
import tempfile
import unittest

import check_tree

HEADER = "#pragma once\n"


class CheckTreeTest(unittest.TestCase):
    def breaches(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            checked, breaches = check_tree.check_tree(root)
            self.assertEqual(checked, len(files))
            return breaches

    def assert_clean(self, path, text):
        self.assertEqual(self.breaches({path: text}), [])

    def assert_breach(self, path, text, part):
        found = self.breaches({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])
        self.assertTrue(found[0].startswith(path), found[0])

    def test_a_source_includes_its_own_header_first(self):
        other = "core/base/b.h"
        own = {"core/base/a.h": HEADER, other: HEADER}
        for text, breaches in [
            ('// a\n#include "core/base/a.h"\n\n#include <vector>\n', 0),
            ('#include <vector>\n\n#include "core/base/a.h"\n', 1),
            (f'#include "{other}"\n#include "core/base/a.h"\n', 1),
            ('// #include "core/base/a.h"\n#include <vector>\n', 1),
            ("", 1),
        ]:
            found = self.breaches({**own, "core/base/a.cc": text})
            self.assertEqual(len(found), breaches, found)
            if breaches:
                self.assertIn("core/base/a.h is not its first include", found[0])
        self.assert_clean("core/base/a.cc", "#include <vector>\n")

    def test_each_layer_may_include_itself_and_those_below(self):
        for path, target in [
            ("core/base/a.cc", "core/base/b.h"),
            ("core/model/a.cc", "core/base/b.h"),
            ("core/rows/a.cc", "core/model/b.h"),
            ("core/device/cpu/a.cc", "core/device/device.h"),
            ("core/device/device.cc", "core/device/cpu/b.h"),
            ("core/engine/a.cc", "core/device/b.h"),
            ("server/a.cc", "core/engine/engine.h"),
            ("server/main.cc", "core/model/checkpoint.h"),
            ("server/a.cc", "pleiad/v1/ple.pb.h"),
            ("client/a.cc", "pleiad/v1/ple.grpc.pb.h"),
            ("proto/wire/a.cc", "pleiad/v1/ple.pb.h"),
            ("proto/wire/a.cc", "grpcpp/grpcpp.h"),
            ("server/a.cc", "proto/wire/b.h"),
            ("client/a.cc", "proto/wire/b.h"),
            ("client/cli/a.cc", "client/client.h"),
            ("client/cli/a.cc", "core/rows/b.h"),
            ("tests/core/a.cc", "tests/oracle/b.h"),
            ("tests/server/a.cc", "server/b.h"),
        ]:
            self.assert_clean(path, f'#include "{target}"\n')

    def test_each_forbidden_include_is_found(self):
        for path, target in [
            ("core/base/a.cc", "core/model/b.h"),
            ("core/model/a.cc", "core/rows/b.h"),
            ("core/model/a.cc", "core/engine/b.h"),
            ("core/rows/a.cc", "core/device/b.h"),
            ("core/device/cpu/a.cc", "core/rows/b.h"),
            ("core/engine/a.cc", "server/b.h"),
            ("core/engine/a.cc", "pleiad/v1/ple.pb.h"),
            ("core/engine/a.cc", "proto/wire/b.h"),
            ("proto/wire/a.cc", "core/base/b.h"),
            ("proto/wire/a.cc", "client/b.h"),
            ("server/a.cc", "core/model/b.h"),
            ("server/a.cc", "client/b.h"),
            ("client/a.cc", "core/base/b.h"),
            ("client/a.cc", "client/cli/b.h"),
            ("client/cli/a.cc", "core/engine/b.h"),
            ("client/cli/a.cc", "server/b.h"),
            ("server/a.cc", "tests/support/b.h"),
            ("core/device/cuda/a.cu", "core/rows/b.h"),
            ("tests/oracle/a.cc", "core/model/b.h"),
            ("tests/oracle/a.cc", "tests/support/b.h"),
        ]:
            with self.subTest(path=path, target=target):
                self.assert_breach(path, f'// one\n#include "{target}"\n', ":2: ")

    def test_packages_belong_to_their_folders(self):
        for path, target in [
            ("core/engine/a.cc", "grpcpp/grpcpp.h"),
            ("core/engine/a.cc", "google/protobuf/message.h"),
            ("core/model/a.cc", "prometheus/registry.h"),
            ("core/rows/a.cc", "cuda_runtime.h"),
            ("server/a.cc", "cuda_runtime.h"),
            ("core/device/cpu/a.cc", "cuda_runtime.h"),
            ("core/device/device.cc", "cublasLt.h"),
            ("core/engine/a.cc", "cooperative_groups.h"),
            ("server/a.cc", "library_types.h"),
            ("tests/core/device/a.cc", "cuda_runtime.h"),
            ("core/model/a.cc", "liburing.h"),
            ("core/base/a.cc", "nlohmann/json.hpp"),
        ]:
            with self.subTest(path=path, target=target):
                self.assertNotEqual(self.breaches({path: f"#include <{target}>\n"}), [])
        self.assert_clean("core/device/cuda/a.cu", "#include <cuda_runtime.h>\n#include <cub/cub.cuh>\n")
        self.assert_clean("core/device/cuda/a.cuh", HEADER + '#include <cuda_bf16.h>\n#include "core/base/plan.h"\n')
        self.assert_clean("tests/bench/a.cu", "#include <cuda_runtime.h>\n")
        self.assert_clean("core/rows/a.cc", "#include <liburing.h>\n")
        self.assert_clean("core/base/a.h", HEADER + '#include <sys/mman.h>\n#include "absl/time/time.h"\n')

    def test_public_client_headers_name_no_wire_type(self):
        self.assert_breach("client/a.h", HEADER + '#include "pleiad/v1/ple.pb.h"\n', "public header")
        self.assert_breach("client/a.h", HEADER + '#include "proto/wire/b.h"\n', "public header")
        self.assert_breach("client/a.h", HEADER + "#include <grpcpp/channel.h>\n", "public header")
        self.assert_clean("client/internal/a.h", HEADER + '#include "pleiad/v1/ple.pb.h"\n')

    def test_a_commented_include_is_none(self):
        self.assert_clean("core/base/a.cc", '// #include "server/b.h"\n/*\n#include "server/b.h"\n*/\n')

    def test_long_files_are_found(self):
        self.assert_clean("core/base/a.cc", "\n" * 400)
        self.assert_breach("core/base/a.cc", "\n" * 401, "401 lines")
        self.assert_breach("server/CMakeLists.txt", "\n" * 401, "401 lines")
        self.assert_breach("tests/a.cc", "\n" * 401, "401 lines")
        self.assert_breach("core/device/cuda/a.cu", "\n" * 401, "401 lines")
        self.assert_clean("tests/package-lock.json", "\n" * 401)

    def test_constructs_kept_to_one_place(self):
        self.assert_breach("server/a.cc", "#ifdef PLEIAD_CUDA\n#endif\n", "CUDA conditional")
        self.assert_breach("core/rows/a.cc", "#if defined(WITH_CUDA)\n#endif\n", "CUDA conditional")
        self.assert_clean("core/device/device.cc", "#ifdef PLEIAD_CUDA\n#endif\n")
        self.assert_breach("core/rows/a.cc", "std::mutex m;\n", "unannotated lock")
        self.assert_breach("server/a.cc", "absl::Mutex m;\n", "unannotated lock")
        self.assert_clean("core/base/mutex.h", HEADER + "std::mutex m;\n")
        self.assert_breach("core/rows/a.cc", "void f() {\n  throw 1;\n}\n", ":2: exception")
        self.assert_breach("tests/core/a.cc", "std::this_thread::sleep_for(x);\n", "sleep")
        self.assert_clean("tests/bench/a.cc", "std::this_thread::sleep_for(x);\n")

    def test_a_header_without_a_guard_is_found(self):
        self.assert_breach("core/base/a.h", "int f();\n", "#pragma once")
        self.assert_breach("core/device/cuda/a.cuh", "int f();\n", "#pragma once")

    def test_suppressions_name_packaged_libraries(self):
        self.assert_clean("tests/tsan.supp", "# why\nrace:libgrpc++.so.1.51\nrace:libabsl_\nrace:/usr/include/absl/status/status.h\n")
        self.assert_breach("tests/tsan.supp", "race:pleiad::Engine\n", "not a packaged library")
        self.assert_breach("tests/tsan.supp", "race:/usr/include/absl/\n", "not a packaged library")
        self.assert_breach("tests/tsan.supp", "race:*\n", "not a packaged library")


if __name__ == "__main__":
    unittest.main()
