#!/usr/bin/env python3
"""Each fault case that is claimed has a test named by its number, and each numbered test is of a claimed case.

The claims are the table at the top of tests/cases/CMakeLists.txt: number, what it is about, folders under tests/ that
hold its tests ("cases" or e.g. "core/model"). Every folder named must hold one.
    check_cases.py ROOT
"""
import pathlib
import re
import sys

CLAIM = re.compile(r"\b(B\d\d) ([^|]*?)  +([a-z/, ]+?)(?=  |$)")
TEST = re.compile(r"^\s*TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)


def claims(text):
    """{number: [folder]} of the table in the comment at the top."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        for number, _, folders in CLAIM.findall(line):
            if number in found:
                raise ValueError(f"{number} is listed twice")
            found[number] = [folder.strip() for folder in folders.split(",")]
    return found


def tests(root):
    """{number: {folder}} of tests whose suite or name begins with the number."""
    found = {}
    folder_root = root / "tests"
    for path in sorted(folder_root.rglob("*.cc")):
        for suite, name in TEST.findall(path.read_text()):
            number = re.match(r"B\d\d(?=_|$)", suite) or re.match(r"B\d\d(?=_)", name)
            if number:
                found.setdefault(number.group(), set()).add(path.parent.relative_to(folder_root).as_posix())
    return found


def check(root):
    """(claims, complaints)"""
    claimed = claims((root / "tests/cases/CMakeLists.txt").read_text())
    tested = tests(root)
    complaints = []
    for number, folders in sorted(claimed.items()):
        for folder in folders:
            if folder not in tested.get(number, set()):
                complaints.append(f"{number}: no test of that number in tests/{folder}")
    for number, folders in sorted(tested.items()):
        for folder in sorted(folders - set(claimed.get(number, []))):
            complaints.append(f"{number}: the table does not name tests/{folder}")
    return claimed, complaints


def main():
    claimed, complaints = check(pathlib.Path(sys.argv[1]))
    for complaint in complaints:
        print(complaint)
    print(f"{len(claimed)} cases, {len(complaints)} complaints")
    return 1 if complaints or not claimed else 0


if __name__ == "__main__":
    sys.exit(main())
