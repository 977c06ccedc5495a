"""Tests tools/affected: which tests a changed file can break. Scripts take the place of ninja and ctest."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NINJA = """#!/bin/sh
case "$*" in
*"-t deps") printf '%s\\n' 'a.o: #deps 1, deps mtime 1 (VALID)' '    {root}/policy/a.hpp' '' \\
  'b.o: #deps 1, deps mtime 1 (VALID)' '    {root}/lab/b.hpp' '' 'c.o: #deps 1, deps mtime 1 (STALE)' '    {root}/lab/c.hpp' ;;
*"inputs tests/unit_policy") echo a.o ;;
*"inputs tests/unit_lab") printf 'a.o\\nb.o\\n' ;;
*"inputs tests/unit_new") echo c.o ;;
*"targets all") printf '%s: phony\\n' kvtwin tests/unit_policy tests/unit_lab tests/unit_new ;;
*"inputs kvtwin") echo b.o ;;
esac
"""


def test_entry(name, label, *command):
    return {"name": name, "command": list(command), "properties": [{"name": "LABELS", "value": [label]}]}


class Affected(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.build = Path(scratch.name, "build").resolve()
        tests = [test_entry("unit_policy.0of8", "unit", f"{self.build}/tests/unit_policy"),
                 test_entry("unit_policy.1of8", "unit", f"{self.build}/tests/unit_policy"),
                 test_entry("unit_lab.0of8", "unit", f"{self.build}/tests/unit_lab"),
                 test_entry("report", "notebooks", "sh", "-c", f"{ROOT}/tests/notebooks/report_test.py {self.build}/kvtwin"),
                 test_entry("scripts", "tools", f"{ROOT}/tests/tools/scripts_test.py"),
                 test_entry("rules_packages", "rules", f"{ROOT}/tests/rules/check_packages.py")]
        self.write(tests)

    def write(self, tests):
        for name, text in (("ninja", NINJA.replace("{root}", str(ROOT))),
                           ("ctest", f"#!/bin/sh\ncat <<'END'\n{json.dumps({'tests': tests})}\nEND\n")):
            file = self.build / "bin" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)
        self.tests = tests

    def affected(self, *files):
        environment = {**os.environ, "PATH": f"{self.build}/bin:{os.environ['PATH']}"}
        run = subprocess.run([ROOT / "tools/affected", self.build, *files], env=environment, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = [line.split(" ", 1) for line in run.stdout.splitlines()]
        return [name for kind, name in lines if kind == "test"], [name for kind, name in lines if kind == "target"]

    def test_a_header_affects_the_programs_that_read_it(self):
        self.assertEqual(self.affected("policy/a.hpp"), (["rules_packages", "unit_lab", "unit_policy"],
                                                         ["tests/unit_lab", "tests/unit_policy"]))

    def test_a_test_that_starts_a_program_is_affected_by_its_sources(self):
        self.assertEqual(self.affected("lab/b.hpp"), (["report", "rules_packages", "unit_lab"], ["kvtwin", "tests/unit_lab"]))

    def test_a_program_that_was_never_built_is_affected_by_each_source_and_by_no_page(self):
        self.write([*self.tests, test_entry("unit_new.0of8", "unit")])
        self.assertIn("unit_new", self.affected("policy/a.hpp")[0])
        self.assertNotIn("unit_new", self.affected("docs/start.md")[0])

    def test_a_script_affects_the_tests_of_scripts_and_its_own(self):
        self.assertEqual(self.affected("tools/docs")[0], ["rules_packages", "scripts"])
        self.assertEqual(self.affected("docs/results/tools/import-silicon")[0], ["rules_packages", "scripts"])
        self.assertIn("scripts", self.affected("tests/tools/scripts_test.py")[0])
        self.assertIn("report", self.affected("tests/notebooks/report_test.py")[0])

    def test_a_file_that_no_rule_knows_affects_all(self):
        self.assertEqual(len(self.affected("experiments/quickstart.toml")[0]), 5)


if __name__ == "__main__":
    unittest.main()
