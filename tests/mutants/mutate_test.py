"""Tests the parts of mutate.py that need no build: the drawn bugs, the lists and the report. Also checks that both
lists fit the tree."""

import contextlib
import io
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutate

CODE = '''#include "policy/x.hpp"
// if (a < b) return 1;
int f(int a, int b) {
  const char* text = "a < b";  // 1 + 2
  KV_CHECK(a < b, "one below the other");
  if (a < b && !b) ++a;
  call(a,
       b);
  forget(a);
  return 7;
}
void Index::check_invariants() const {
  if (a < 1) return;
}
'''


class Sites(unittest.TestCase):
    def drawn(self, code=CODE, file="policy/x.cpp"):
        return {(site.line + 1, site.after.strip()) for sites in mutate.sites_in(file, code) for site in sites}

    def test_are_those_of_code_alone(self):
        self.assertEqual(
            self.drawn(),
            {
                (6, "if (a <= b && !b) ++a;"),
                (6, "if (a < b || !b) ++a;"),
                (6, "if (a < b && b) ++a;"),
                (6, "if (a < b && !b) --a;"),
                (6, "if (false) ++a;"),
                (6, "if (true) ++a;"),
                (9, ";"),
                (10, "return 8;"),
            },
        )

    def test_of_numbers_and_loops(self):
        self.assertEqual(self.drawn("  while (next(0x10, 1.5, 0)) {\n"), {(1, "while (next(0x10, 1.5, 1)) {"),
                                                                          (1, "while (false) {")})

    def test_leave_first_values_in_headers_alone(self):
        line = "  Pages used_ = 0, most_ = 0;\n"
        self.assertEqual(self.drawn(line, "policy/x.hpp"), set())
        self.assertNotEqual(self.drawn(line), set())

    def test_keep_the_number_of_lines_and_differ_from_the_tree(self):
        for site in mutate.draw(mutate.ROOT, ["policy/storage", "impl/remote"], 3):
            self.assertNotIn("\n", site.after)
            self.assertNotEqual(site.before, site.after)
            self.assertEqual((mutate.ROOT / site.file).read_text().split("\n")[site.line], site.before)

    def test_are_drawn_by_the_seed(self):
        draws = [mutate.draw(mutate.ROOT, ["policy/storage"], seed) for seed in (1, 1, 2)]
        self.assertEqual(draws[0], draws[1])
        self.assertNotEqual(draws[0], draws[2])


class Suites(unittest.TestCase):
    def test_are_those_of_the_folder(self):
        for folder in mutate.FOLDERS:
            programs = {suite.split()[0] for suite in mutate.suites_of(folder + "/x.cpp")}
            self.assertTrue(programs, folder)
        self.assertIn("unit_capi", mutate.suites_of("capi/store.cpp"))
        self.assertNotEqual(mutate.suites_of("lab/plan/x.cpp"), mutate.suites_of("lab/report/x.cpp"))

    def test_of_other_folders_are_not_known(self):
        with self.assertRaisesRegex(mutate.BadInput, "No suites are known for lab/run/x.cpp; they are known below policy"):
            mutate.suites_of("lab/run/x.cpp")

    def test_have_programs_in_the_tree(self):
        for suites in mutate.SUITES.values():
            for suite in suites:
                kind, _, module = suite.split()[0].partition("_")
                folder = "mutants" if module == "of_mutants" else f"{kind}/{module}"
                self.assertTrue((mutate.ROOT / "tests" / folder).is_dir(), suite)


class Lists(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        (self.root / "policy").mkdir()
        (self.root / "policy/x.cpp").write_text(CODE)
        (self.root / "tests/unit/policy").mkdir(parents=True)
        (self.root / "tests/unit/policy/x_test.cpp").write_text("TEST(X, finds_it) {}\n")
        self.write("planted.txt", "# a comment\n\n# it forgets nothing\npolicy/x.cpp\n- forget(a);\n+\n"
                                  "killed by: unit_policy X.finds_it\n")
        self.write("survivors.txt", "policy/x.cpp\n- return 7;\n+ return 8;\nopen: nobody looks\n")

    def write(self, name, text):
        (self.root / name).write_text(text)

    def refused(self, sentence):
        with self.assertRaisesRegex(mutate.BadInput, sentence):
            mutate.check(self.root, self.root)

    def test_that_fit(self):
        self.assertEqual(mutate.check(self.root, self.root), (1, 1))
        bug = mutate.read_list(self.root / "planted.txt")[0]
        self.assertEqual(mutate.planted_text(self.root, bug), CODE.replace("  forget(a);", ""))

    def test_whose_line_has_gone(self):
        self.write("survivors.txt", "policy/x.cpp\n- return 9;\n+ return 8;\nopen: nobody looks\n")
        self.refused("these lines are there 0 times")

    def test_whose_line_is_there_twice(self):
        (self.root / "policy/x.cpp").write_text(CODE + CODE)
        self.refused("these lines are there 2 times")

    def test_whose_file_has_gone(self):
        (self.root / "policy/x.cpp").unlink()
        self.refused("There is no policy/x.cpp")

    def test_whose_test_has_gone(self):
        (self.root / "tests/unit/policy/x_test.cpp").write_text("TEST(X, finds_more) {}\n")
        self.refused("there is no test X.finds_it")

    def test_without_a_verdict_or_a_reason(self):
        self.write("survivors.txt", "policy/x.cpp\n- return 7;\n+ return 8;\n")
        self.refused("needs lines that begin with '-' and a verdict")
        self.write("survivors.txt", "policy/x.cpp\n- return 7;\n+ return 8;\nequivalent:\n")
        self.refused("should be 'equivalent: REASON'")

    def test_of_the_tree_fit_it(self):
        planted, _ = mutate.check()
        self.assertGreaterEqual(planted, 12)


class Report(unittest.TestCase):
    def report(self, killed, survived, equivalent):
        """Returns exit code and text. `equivalent` of the survivors are known to be equivalent."""
        sites = [mutate.Site("policy/x.cpp", i, f"line {i};", f"other {i};") for i in range(killed + survived)]
        verdicts = ["killed"] * killed + ["survived"] * survived
        known = {("policy/x.cpp", site.before, site.after): mutate.Bug("", [], [], "equivalent: so it is", "")
                 for site in sites[killed : killed + equivalent]}
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()) as said:
            arguments = types.SimpleNamespace(seed=1, out=Path(out))
            results = [(site, verdict, "") for site, verdict in zip(sites, verdicts)]
            code = mutate.report(arguments, ["policy"], results, known)
            return code, said.getvalue(), (Path(out) / "survivors.txt").read_text()

    def test_fails_below_85_in_a_hundred(self):
        self.assertEqual(self.report(85, 15, 0)[0], 0)
        code, said, survivors = self.report(84, 16, 0)
        self.assertEqual(code, 1)
        self.assertIn("84 of 100 bugs killed (84.0 %", said)
        self.assertEqual(survivors.count("open: not looked at yet"), 16)
        self.assertIn("policy/x.cpp\n- line 84;\n+ other 84;\n", survivors)

    def test_leaves_equivalent_ones_out(self):
        code, said, survivors = self.report(17, 4, 1)
        self.assertEqual(code, 0)
        self.assertIn("17 of 20 bugs killed (85.0 %", said)
        self.assertEqual(survivors.count("equivalent: so it is"), 1)

    def test_fails_without_a_bug(self):
        self.assertEqual(self.report(0, 0, 0)[0], 1)


if __name__ == "__main__":
    unittest.main()
