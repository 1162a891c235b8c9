#!/usr/bin/env python3
"""Takes claims and tests away from a small tree and asks check_cases to notice."""
import pathlib
import tempfile
import unittest

import check_cases

TABLE = "# Faults.\n#\n#   B01 one thing   cases, core/model\n#   B02 another, with a comma   cases\npleiad_test(x)\n"
CASES = "TEST(B01, SaysSo) {\n}\nTEST(B02, SaysSo) {\n"
MODEL = "  TEST_F(HashTest, B01_KnownRows) {\n"


class CheckCasesTest(unittest.TestCase):
    def complaints(self, table=TABLE, cases=CASES, model=MODEL):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in [
                ("tests/cases/CMakeLists.txt", table),
                ("tests/cases/a_test.cc", cases),
                ("tests/core/model/b_test.cc", model),
            ]:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return check_cases.check(root)[1]

    def test_a_kept_promise_is_no_complaint(self):
        self.assertEqual(self.complaints(), [])

    def test_a_claim_without_a_test_is_found(self):
        self.assertEqual(self.complaints(cases="TEST(B01, SaysSo) {\n"), ["B02: no test of that number in tests/cases"])
        self.assertEqual(self.complaints(model=""), ["B01: no test of that number in tests/core/model"])

    def test_a_mention_is_no_test(self):
        self.assertEqual(len(self.complaints(model="// B01\nTEST(HashTest, KnowsOfB01_Too) {\n")), 1)
        self.assertEqual(len(self.complaints(model="// TEST(HashTest, B01_KnownRows)\n")), 1)

    def test_a_test_without_a_claim_is_found(self):
        self.assertEqual(
            self.complaints(model=MODEL + "TEST(HashTest, B77_More) {\n"), ["B77: the table does not name tests/core/model"]
        )

    def test_a_number_listed_twice_is_refused(self):
        with self.assertRaises(ValueError):
            self.complaints(table=TABLE.replace("B02", "B01"))


if __name__ == "__main__":
    unittest.main()
