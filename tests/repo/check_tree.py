#!/usr/bin/env python3
"""Checks the source tree against its own rules; prints one line per breach and exits 1 when there is one.

    check_tree.py ROOT

Rules: who may include what, file length, one include guard style, constructs that are kept to one place, and
suppressions that name packaged libraries only.
"""
import pathlib
import re
import sys

# Folder -> folders of ours it may include; its own is always allowed. The longest prefix of a path decides.
MAY_INCLUDE = {
    "core/base": [],
    "core/model": ["core/base"],
    "core/rows": ["core/base", "core/model"],
    "core/device": ["core/base", "core/model"],
    "core/engine": ["core/base", "core/model", "core/rows", "core/device"],
    "proto/wire": ["proto"],
    "server": ["core/base", "core/engine", "proto"],
    "client": ["proto"],
    "client/cli": ["client", "proto", "core/base", "core/model", "core/rows"],
    # The oracle shares no code with what it judges.
    "tests/oracle": [],
    "tests": ["core", "server", "client", "proto", "tests"],
}
# Start-up, where the parts are made and put together: these files may name every layer of core.
ASSEMBLY = {"server/main.cc", "server/check.cc"} | {
    f"server/{name}.{kind}"
    for name in ("checkpoint_loader", "device_choice", "load_reporter", "memory_plan", "model_loader", "warm_start")
    for kind in ("h", "cc")
}

# Packaged headers that belong to some folders alone; core/base is held to std, the system and Abseil.
PACKAGES = {
    "grpc": (r"grpc(pp)?/|google/protobuf/", ["proto/wire", "server", "client", "tests"]),
    "prometheus": (r"prometheus/", ["server", "tests"]),
    "spdlog": (r"spdlog/", ["server", "client/cli", "tests"]),
    "CLI11": (r"CLI/", ["server", "client/cli", "tests"]),
    "nlohmann-json": (r"nlohmann/", ["core/model", "server", "client/cli", "tests"]),
    "zlib": (r"zlib\.h", ["core/rows", "core/model", "core/engine", "server", "client", "tests"]),
    "liburing": (r"liburing", ["core/rows", "tests"]),
    "oneDNN": (r"(oneapi/)?dnnl", ["core/device", "tests"]),
    "CUDA": (r"cuda|cublas|cub/|cooperative_groups|nvtx3/|(driver|library|vector)_types\.h|mma\.h", ["core/device/cuda", "tests/core/device/cuda", "tests/gpu", "tests/bench"]),
}

# (name, pattern, path prefixes it concerns, path prefixes that are free)
CONSTRUCTS = [
    ("CUDA conditional", r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*CUDA", ["core", "proto", "server", "client"], ["core/device"]),
    ("unannotated lock, use core/base/mutex.h", r"\b(std::(mutex|condition_variable|lock_guard|unique_lock)|absl::(Mutex|CondVar))\b",
     ["core", "proto", "server", "client"], ["core/base/mutex.h", "client/internal/mutex.h"]),
    ("exception", r"^\s*throw\b", ["core", "proto", "server", "client"], []),
    ("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep|absl::SleepFor)\b|(?<![\w.:])sleep\(", ["tests"], ["tests/bench", "tests/repo"]),
]

SOURCE = {".h", ".cc", ".cu", ".cuh", ".inc", ".cpp", ".c"}
SCRIPTS = {".py", ".sh", ".mjs"}
MAX_LINES = 400
GENERATED = "pleiad/v1/"
SUPPRESSION = re.compile(
    r"(race|deadlock|mutex|thread|signal|called_from_lib):"
    r"(lib(grpc|gpr|protobuf|absl|dnnl|gomp|prometheus|civetweb|cares|address_sorting|upb|re2|ssl|crypto)[\w+.\-]*"
    r"|/usr/include/absl/status/status\.h)$"
)


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group().count("\n"), text, flags=re.S)


def under(path, prefix):
    return path == prefix or path.startswith(prefix + "/")


def longest(path, prefixes):
    return max((p for p in prefixes if under(path, p)), key=len, default=None)


def check_includes(path, text):
    folder = longest(path, MAY_INCLUDE)
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not match:
            continue
        target = match.group(2)
        here = f"{path}:{number}"
        if target.startswith(GENERATED):
            if "proto" not in MAY_INCLUDE[folder]:
                yield f"{here}: {folder} may not include the wire ({target})"
        elif target.split("/")[0] in ("core", "server", "client", "tests", "proto", "deploy"):
            allowed = MAY_INCLUDE[folder]
            if path in ASSEMBLY:
                allowed = allowed + ["core"]
            if folder == "tests/oracle":
                fine = under(target, "tests/oracle")
            else:
                fine = longest(target, MAY_INCLUDE) == folder or any(under(target, a) for a in allowed)
                # core/x/y is of layer core/x; client/cli is no part of what client/ may include.
                if folder == "client" and under(target, "client/cli"):
                    fine = False
            if not fine:
                yield f"{here}: {folder} may not include {target}"
        else:
            if match.group(1) == '"' and "/" not in target:
                yield f"{here}: includes are relative to the repository root: {target}"
            for package, (pattern, owners) in PACKAGES.items():
                if re.match(pattern, target) and not any(under(path, o) for o in owners):
                    yield f"{here}: {folder} may not include {package} ({target})"
            if folder == "core/base" and "/" in target and not target.startswith(("absl/", "sys/", "linux/")):
                yield f"{here}: core/base includes std and Abseil alone ({target})"
        public = under(path, "client") and path.endswith(".h") and not path.startswith(("client/cli/", "client/internal/"))
        if public and (target.startswith((GENERATED, "proto/")) or re.match(PACKAGES["grpc"][0], target)):
            yield f"{here}: a public header names no generated and no gRPC type ({target})"


def check_file(path, text):
    source = pathlib.PurePath(path).suffix in SOURCE | SCRIPTS
    if source or path.split("/")[0] in ("core", "proto", "server", "client"):
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{path}: {lines} lines, at most {MAX_LINES}"
    if pathlib.PurePath(path).suffix not in SOURCE:
        return
    if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
        yield f"{path}: has no #pragma once"
    code = without_comments(text)
    yield from check_includes(path, code)
    for name, pattern, concerned, free in CONSTRUCTS:
        if any(under(path, p) for p in concerned) and not any(under(path, p) for p in free):
            for match in re.finditer(pattern, code, flags=re.M):
                line = code.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: {name}: {match.group().strip()}"


def check_suppressions(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#") and not SUPPRESSION.match(line):
            yield f"{path}:{number}: not a packaged library: {line}"


def check_first_include(path, text):
    """A source's own header comes first, so that compiling the source shows that the header compiles alone."""
    first = re.search(r'^\s*#\s*include\s*["<]([^">]+)[">]', without_comments(text), flags=re.M)
    header = path.removesuffix(".cc") + ".h"
    if first is None or first.group(1) != header:
        yield f"{path}: {header} is not its first include"


def check_tree(root):
    breaches = []
    checked = 0
    for top in ("core", "proto", "server", "client", "tests"):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            if not file.is_file() or path.startswith("tests/golden/") or {"node_modules", "__pycache__"} & set(file.parts):
                continue
            checked += 1
            text = file.read_bytes().decode("utf-8", "replace")
            breaches += check_file(path, text)
            if top != "tests" and file.suffix == ".cc" and file.with_suffix(".h").exists():
                breaches += check_first_include(path, text)
            if file.suffix == ".supp":
                breaches += check_suppressions(path, text)
    return checked, breaches


def main():
    root = pathlib.Path(sys.argv[1])
    checked, breaches = check_tree(root)
    print("\n".join(breaches + [f"{checked} files, {len(breaches)} breaches"]))
    return 1 if breaches or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
