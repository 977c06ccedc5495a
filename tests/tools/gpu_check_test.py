"""Tests tools/gpu-check without a GPU: shell scripts take the place of compilers, tests and benchmarks. Tests the time
budget of a step, the results that a stopped step leaves, and the messages about it. Budgets that must not be exceeded
are far longer than needed."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = ["build", "correct", "bench", "ttft", "tiers", "calibrate"]
REPORT = '{"tiers": [{"evicted_pages": 1}], "prefetch": {"stopped": 1}}'
TABLE = "kind,direction,bytes,ctas,node,gbps\\ncopy,h2d,4096,0,0,1.5\\n"
HANG = "exec sleep 1000000\n"
PROGRAMS = {
    "bin/cmake": "",
    "bin/compute-sanitizer": 'while [ "${1#/}" = "$1" ]; do shift; done; exec "$@"\n',
    "build-real/kvtwin": f"""[ "$1" = run ] || exit 0
while [ "$1" != --out ]; do shift; done
mkdir -p "$2" && echo '{REPORT}' >"$2/report.json" && echo journal >"$2/journal.kvj"
""",
    "build-real/tests/gpu_tests": "echo OK\n",
    "build-real/tests/gpu_bench": f"""echo "$@" >>bench-arguments; printf '{TABLE}' >"$2/link.csv"\n""",
    "build-real/tests/gpu_ttft": "",
}


class GpuCheck(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = Path(scratch.name, "tree")
        for file in ("tools/gpu-check", "tools/steps.bash", "notebooks/measured.py"):
            (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.tree / file)
        for name, text in PROGRAMS.items():
            self.program(name, text)
        self.results = self.tree / "results"

    def program(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text("#!/bin/sh\n" + text)
        (self.tree / name).chmod(0o755)

    def budgets(self, text):
        """Returns {step: [seconds, seconds with --long]} from the table at the top of the script."""
        table = re.search(r"^budgets='\n(.*?)'$", text, re.DOTALL | re.MULTILINE).group(1)
        return {line.split()[0]: [int(number) for number in line.split()[1:]] for line in table.splitlines()}

    def run_script(self, *arguments, **seconds):
        """Runs the script. Each step has a budget of one hour, except those given; the whole run has one hour, too."""
        script = self.tree / "tools/gpu-check"
        text = (ROOT / "tools/gpu-check").read_text()
        self.assertIn(" most=15 ", text)
        text = text.replace(" most=15 ", " most=3600 ")
        table = "\n".join(f"{name} {seconds.get(name, 3600)} 3600" for name in self.budgets(text))
        script.write_text(re.sub(r"^budgets='\n.*?'$", f"budgets='\n{table}\n'", text, count=1, flags=re.DOTALL | re.MULTILINE))
        environment = {**os.environ, "PATH": f"{self.tree}/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([script, "--out", self.results, *arguments], env=environment, capture_output=True, text=True)

    def steps(self):
        return dict(line.split(":", 1) for line in (self.results / "steps.txt").read_text().splitlines())

    def verdict(self):
        return (self.results / "verdict.txt").read_text()

    def members(self, group):
        with tarfile.open(self.results / f"{group}.tar.gz") as archive:
            return archive.getnames()

    def test_budgets_fit_into_ten_minutes_and_help_prints_them(self):
        run = subprocess.run([ROOT / "tools/gpu-check", "--help"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        budgets = self.budgets((ROOT / "tools/gpu-check").read_text())
        self.assertEqual(list(budgets), [*STEPS, "packing"])
        self.assertLessEqual(sum(short for short, _ in budgets.values()), 600)
        for name, (short, long) in budgets.items():
            self.assertLess(short, long)
            self.assertRegex(run.stdout, rf"(?m)^{name} +{short} +{long}$")
        self.assertRegex(run.stdout, rf"(?m)^in all +{sum(short for short, _ in budgets.values())} ")

    def test_all_steps_leave_at_most_eight_files_and_a_verdict(self):
        run = self.run_script()
        self.assertEqual(run.returncode, 0, run.stdout)
        names = sorted(path.name for path in self.results.iterdir())
        self.assertEqual(names, ["calibrate.tar.gz", "correct.tar.gz", "log.txt", "machine.json", "steps.txt", "tables.tar.gz", "tiers.tar.gz", "verdict.txt"])
        steps = self.steps()
        self.assertEqual({how for how in steps.values()}, {"passed"})
        runs = {name for name in steps if f"{name}-replay" in steps}
        self.assertEqual(len([name for name in runs if name.startswith("tiers-write_")]), 9)
        for kind in ("fit", "held-out"):
            self.assertEqual(len([name for name in runs if name.startswith(f"calibrate-{kind}-")]), 4)
        self.assertLessEqual({"gpu_tests_graphs", "gpu_tests_kernels", "gpu_tests_big", "memcheck", "racecheck", "synccheck", "initcheck"}, set(steps))
        self.assertIn("tiers/write_back-timeout/journal.kvj", self.members("tiers"))
        self.assertRegex(self.verdict(), r"every step within its budget +met")

    def test_a_step_past_its_budget_is_cut_and_what_it_had_measured_stays(self):
        self.program("build-real/tests/gpu_bench", PROGRAMS["build-real/tests/gpu_bench"] + HANG)
        run = self.run_script(bench=5)
        self.assertEqual(run.returncode, 3, run.stdout)
        steps = self.steps()
        self.assertRegex(steps.pop("bench"), r"^stopped after \d+ s$")
        self.assertEqual(set(steps.values()), {"passed"})  # including the steps after it
        self.assertIn("calibrate-held-out-4-replay", steps)
        self.assertIn("tables/link.csv", self.members("tables"))
        self.assertRegex(self.verdict(), r"every step within its budget +missed +bench stopped after \d+ s")

    def test_a_step_that_ends_in_time_with_less_than_all_is_said_to_be_cut(self):
        self.program("build-real/tests/gpu_ttft", "exit 124\n")
        run = self.run_script("--only", "ttft")
        self.assertEqual(run.returncode, 3, run.stdout)
        self.assertRegex(self.verdict(), r"every step within its budget +missed +ttft stopped after \d+ s")

    def test_a_cut_among_the_steps_of_correctness_is_a_failure(self):
        self.program("build-real/kvtwin", 'case "$*" in *write_through-wait_complete*) exec sleep 1000000 ;; esac\n' + PROGRAMS["build-real/kvtwin"])
        run = self.run_script("--only", "tiers,calibrate", tiers=5)
        self.assertEqual(run.returncode, 1, run.stdout)
        steps = self.steps()
        self.assertRegex(steps["tiers-write_through-wait_complete"], "^stopped")
        self.assertEqual(steps["tiers-write_back-timeout"], "stopped: no time was left")
        self.assertEqual({how for name, how in steps.items() if name.startswith("calibrate")}, {"passed"})
        self.assertRegex(self.verdict(), r"every step within its budget +missed .*; \d+ more\n")

    def test_failures_of_correctness_are_exit_code_1_and_the_rest_goes_on(self):
        self.program("build-real/tests/gpu_tests", 'case "$*" in *Graphs*) exit 1 ;; esac; echo OK\n')
        self.program("build-real/tests/gpu_ttft", "exit 124\n")
        run = self.run_script()
        self.assertEqual(run.returncode, 1, run.stdout)
        steps = self.steps()
        self.assertEqual(steps["gpu_tests_graphs"], "failed (1)")
        self.assertEqual((steps["gpu_tests_kernels"], steps["memcheck"], steps["calibrate-fit-1"]), ("passed",) * 3)
        for name in ("build", "tiers", "calibrate"):
            with self.subTest(name):
                shutil.rmtree(self.tree / "build-real/gpu-check")
                self.program("bin/cmake" if name == "build" else "build-real/kvtwin", "exit 7\n")
                self.assertEqual(self.run_script("--only", name).returncode, 1)

    def test_benchmarks_that_fail_are_noted_only(self):
        self.program("build-real/tests/gpu_bench", "exit 1\n")
        run = self.run_script("--only", "bench")
        self.assertEqual((run.returncode, self.steps()), (0, {"bench": "failed (1)"}), run.stdout)

    def test_long_measures_longer(self):
        for arguments in ([], ["--long"]):
            self.run_script("--only", "bench", *arguments)
        short, long = (self.tree / "bench-arguments").read_text().splitlines()
        self.assertIn(" --seconds ", short)
        self.assertNotIn("--seconds", long)

    def test_wrong_arguments_are_refused(self):
        for arguments in (["--quick", "--long"], ["--only", "bench,tests"], ["--device", "gpu"], ["--fast"]):
            run = self.run_script(*arguments)
            self.assertEqual((run.returncode, run.stdout), (2, ""), arguments)
            self.assertTrue(run.stderr.startswith("tools/gpu-check: "), run.stderr)
        self.assertFalse(self.results.exists())


if __name__ == "__main__":
    unittest.main()
