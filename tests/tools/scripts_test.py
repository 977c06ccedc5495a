"""Tests tools/quickstart and tools/test without a package index: they do everything except the figures, and name what
they leave out. Shell scripts take the place of the programs that they build and run. The virtual environment and the
failing pip are real."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KVTWIN = """echo "$@" >>said
"""
CTEST = """case "$*" in
*--show-only*) echo "  Test #1: figures"; echo "  Test #23: measured"; echo; echo "Total Tests: 2" ;;
*notebooks*) echo "100% tests passed, 0 tests failed out of 40" ;;
*release*) echo "100% tests passed, 0 tests failed out of 42" ;;
*) echo "100% tests passed, 0 tests failed out of 7" ;;
esac
"""
PROGRAM = 'printf "[==========] 1 test from 1 test suite ran. (5 ms total)\\n[  PASSED  ] 1 test.\\n"\n'
FAILING = """printf '%s\\n' '[==========] 3 tests from 1 test suite ran. (5 ms total)' '[  PASSED  ] 1 test.' \\
  '[  FAILED  ] 2 tests, listed below:' '[  FAILED  ] Suite.A' '[  FAILED  ] Suite.B'
exit 1
"""
NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_NO_INDEX": "0"}


class Scripts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = Path(scratch.name, "tree")
        for file in ("tools/quickstart", "tools/test", "tools/steps.bash", "notebooks/requirements.txt",
                     "tests/golden/ptx_counts.json"):
            (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, self.tree / file)
        for tool in ("docs", "engine-env", "engine-parity", "engine-storage", "lint", "package", "packages", "python-package",
                     "sglang-shadow"):
            self.program(f"tools/{tool}", "")
        self.program("bin/cmake", "")
        self.program("bin/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"\n')
        self.program("bin/ctest", CTEST)
        self.program("build/kvtwin", KVTWIN)
        for name in ("unit_impl", "unit_capi", "property_impl", "conformance_impl"):
            self.program(f"build-tsan/tests/{name}", PROGRAM)
        for name in ("build/tests/unit_cli", "build/tests/golden_cli", "build-asan/tests/unit_policy",
                     "build-asan/tests/extremes", "build/tests/remote_stores", "build/tests/unit_impl",
                     "build/tests/conformance_impl", "build/tests/unit_capi", "build/tests/crash_cli", "build/tests/unit_models"):
            self.program(name, PROGRAM)
        self.program("home/.cache/kvtwin/engines/remote/valkey-server", "")
        self.program("tests/vllm/server_test.py", "")
        self.program("tests/vllm/watch_groups_test.py", "")
        self.program("tests/sglang/watch_test.py", "")
        self.program("build-asan/tests/trace_fuzz", "echo stat::number_of_executed_units: 5\n")

    def program(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text("#!/bin/sh\n" + text)
        (self.tree / name).chmod(0o755)

    def run_script(self, name, *arguments, **environment):
        environment = {**os.environ, "HOME": f"{self.tree}/home", "PATH": f"{self.tree}/bin:{os.environ['PATH']}", **environment}
        return subprocess.run([self.tree / "tools" / name, *arguments], env=environment, capture_output=True, text=True)

    def made_python(self):
        """Makes a .venv that already has everything."""
        (self.tree / ".venv").mkdir()
        shutil.copy(self.tree / "notebooks/requirements.txt", self.tree / ".venv/requirements.txt")

    def test_quickstart_leaves_out_the_figures_where_pip_fails(self):
        run = self.run_script("quickstart", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("Figures and pages are left out: pip could not install", run.stdout)
        self.assertIn("PIP_INDEX_URL", run.stdout)
        self.assertNotIn("side_by_side.png", run.stdout)
        said = (self.tree / "said").read_text()
        self.assertIn("replay out/quickstart-run", said)
        self.assertNotIn("figures", said)
        self.assertFalse((self.tree / ".venv").exists(), "half an environment is left")

    def test_quickstart_draws_the_figures_where_python_is_there(self):
        self.made_python()
        run = self.run_script("quickstart", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("figures out/quickstart-simulated out/quickstart-run", (self.tree / "said").read_text())
        self.assertIn("side_by_side.png", run.stdout)
        self.assertNotIn("left out", run.stdout)

    def test_quickstart_fails_where_the_work_fails(self):
        self.program("build/kvtwin", '[ "$1" != replay ]\n')
        self.assertEqual(self.run_script("quickstart", **NO_INDEX).returncode, 1)

    def test_test_names_what_it_does_not_run_where_pip_fails(self):
        self.program("tools/docs", '[ "$1" != --site ] || exit 3\n')
        self.program("tools/engine-env", "exit 3\n")
        self.program("tools/engine-parity", "exit 1\n")
        self.program("tools/python-package", "exit 3\n")
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(lines[-1], "51 passed, 0 failed, 12 not run")
        self.assertEqual(lines[-2], "not run, because packages that they need are not installed: "
                         "figures, measured, SGLang, geometry of published models, Python package, kvtwin's storage and policies inside SGLang, "
                         "vLLM, kvtwin's storage inside vLLM, a vLLM server beside kvtwin, remote stores, "
                         "kvtwin's storage on Mooncake Store inside Python, documentation site")

    def test_deep_names_the_packages_that_it_could_not_try(self):
        self.made_python()
        self.program("tools/package", "exit 3\n")
        lines = self.run_script("test", "--deep", "--no-cuda", **NO_INDEX).stdout.splitlines()
        self.assertIn("packages to install", next(line for line in lines if line.startswith("not run, because")))
        self.assertNotIn("failed step: packages to install", lines)
        self.assertFalse([line for line in lines if "the wheel to install" in line], "tried without a wheel")

    def test_test_names_the_cluster_tests_that_ctest_skips(self):
        self.made_python()
        skipped = 'echo "100% tests passed, 0 tests failed out of 42"'
        self.program("bin/ctest", CTEST.replace(skipped, skipped + """
  printf 'The following tests did not run:\\n\\t 41 - cluster_slurm (Skipped)\\n\\t 42 - Trace.Public (Skipped)\\n'"""))
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.splitlines()[-1], "61 passed, 0 failed, 1 not run")
        self.assertEqual(run.stdout.splitlines()[-2],
                         "not run, because packages that they need are not installed: cluster_slurm")

    def test_test_counts_what_ctest_says_and_not_the_output_of_a_failed_test(self):
        self.made_python()
        self.program("bin/ctest", """case "$*" in *--show-only*) exit ;; esac
echo "100% tests passed, 0 tests failed out of 9"
echo "98% tests passed, 1 tests failed out of 42"
exit 8
""")
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertEqual(run.stdout.splitlines()[-1], "61 passed, 1 failed")

    def test_test_counts_the_tests_in_the_parts_of_programs(self):
        self.made_python()
        log = self.tree / "build/Testing/Temporary/LastTest.log"
        log.parent.mkdir(parents=True)
        log.write_text("""Start testing: Nov 28 17:00 UTC
1/42 Test: unit_lab.0of8
[==========] 30 tests from 4 test suites ran. (5 ms total)
[  PASSED  ] 30 tests.
Test Passed.
2/42 Test: unit_lab.1of8
[==========] 12 tests from 2 test suites ran. (5 ms total)
[  PASSED  ] 10 tests.
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] Suite.A
[  FAILED  ] Suite.B
Test Failed.
3/42 Test: unit_lab.2of8
[       OK ] Suite.C
Test Failed.
4/42 Test: scripts
[==========] 900 tests from 2 test suites ran. (5 ms total)
[  PASSED  ] 900 tests.
Test Passed.
""")
        self.program("bin/ctest", """case "$*" in *--show-only*) exit ;; esac
echo "95% tests passed, 2 tests failed out of 42"
exit 8
""")
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        # 42 - 2 failed - 1 part + 30 + 10 of the parts; 20 of the other steps.
        self.assertEqual(run.stdout.splitlines()[-1], "99 passed, 3 failed")

    def test_test_runs_the_parts_that_make_the_whole(self):
        self.made_python()
        counts = []
        for part in ("tests", "sanitizers", "engines"):
            run = self.run_script("test", "--part", part, **NO_INDEX)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            counts.append(int(run.stdout.splitlines()[-1].split()[0]))
        self.assertEqual(counts[0], 42)
        self.assertEqual(sum(counts), 62)
        run = self.run_script("test", "--part", "half", **NO_INDEX)
        self.assertEqual((run.returncode, run.stderr), (2, "tools/test: --part is tests, sanitizers or engines\n"))

    def test_test_of_changed_files_runs_what_they_can_break(self):
        self.made_python()
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", self.tree]
        subprocess.run([*git, "init", "--quiet"], check=True)
        for file in ("cli/a.cpp", "docs/a.md"):
            self.program(file, "")
            subprocess.run([*git, "add", file], check=True)
            subprocess.run([*git, "commit", "--quiet", "--message", file], check=True)
        for tool in ("lint", "docs"):
            self.program(f"tools/{tool}", f'echo "{tool} $@" >>said\n')
        self.program("tools/affected", 'echo "affected $@" >>said; echo "target tests/unit_cli"; echo "test unit_cli"\n')
        self.program("bin/cmake", 'echo "cmake $@" >>said\n')
        self.program("bin/ctest", 'echo "ctest $@" >>said; echo "100% tests passed, 0 tests failed out of 8"\n')
        (self.tree / ".gitignore").write_text("/*\n!/docs/\n!/cli/\n")
        run = self.run_script("test", "--changed", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        said = (self.tree / "said").read_text()
        self.assertIn("lint docs/a.md\n", said)
        self.assertIn("affected build docs/a.md\n", said)
        self.assertIn("--target tests/unit_cli kvtwin\n", said)
        self.assertIn("--tests-regex ^(unit_cli)(\\.|$)\n", said)
        self.assertIn("docs --check\ndocs --run docs/a.md\n", said)
        self.assertEqual(run.stdout.splitlines()[-1], "8 passed, 0 failed")

    def without_nvcc(self, *arguments):
        self.program("bin/nvcc", 'echo "Cuda compilation tools, release 12.4, V12.4.131"\n')  # too old
        self.program("bin/cmake", 'echo "$@" >>configured\n')
        environment = {**os.environ, **NO_INDEX, "PATH": f"{self.tree}/bin:/usr/bin:/bin", "CUDA_PATH": "/nowhere",
                       "HOME": f"{self.tree}/home"}
        environment.pop("CUDACXX", None)
        return subprocess.run([self.tree / "tools/test", *arguments], env=environment, capture_output=True, text=True)

    def test_test_uses_the_nvcc_of_the_machine(self):
        self.made_python()
        self.program("bin/cmake", 'echo "$@" >>configured\n')
        self.program("tools/engine-env", '[ "$1" != cuda ] || exit 3\n')
        run = self.run_script("test", **NO_INDEX, CUDACXX="")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn(f"-DKVTWIN_CUDA=AUTO -DKVTWIN_NVCC={self.tree}/bin/nvcc", (self.tree / "configured").read_text())

    def test_test_installs_nvcc_where_there_is_none(self):
        self.made_python()
        self.program("home/.cache/kvtwin/engines/cuda/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc", "")
        run = self.without_nvcc()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        for preset in ("release", "asan", "tsan"):
            self.assertRegex((self.tree / "configured").read_text(),
                             rf"--preset {preset} -DKVTWIN_WERROR=ON -DKVTWIN_CUDA=PTX -DKVTWIN_NVCC=\S+/cu13/bin/nvcc")

    def test_test_fails_where_nvcc_cannot_be_installed(self):
        self.made_python()
        self.program("tools/engine-env", '[ "$1" != cuda ] || exit 3\n')
        run = self.without_nvcc()
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("failed step: nvcc", run.stdout.splitlines())

    def test_test_without_cuda_counts_the_kernels_that_are_not_executed(self):
        self.made_python()
        self.program("tools/engine-env", '[ "$1" != cuda ] || exit 3\n')
        run = self.without_nvcc("--no-cuda")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"(?m)^[1-9][0-9]+ kernels not executed \(--no-cuda\)$")
        self.assertIn("-DKVTWIN_CUDA=OFF", (self.tree / "configured").read_text())

    def test_test_fails_where_sglang_decides_otherwise(self):
        self.made_python()
        self.program("tools/engine-parity", "exit 1\n")
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1)
        self.assertIn("failed step: the same decisions as SGLang", run.stdout)

    def test_test_fails_where_a_page_is_wrong(self):
        self.made_python()
        self.program("tools/docs", '[ "$1" != --site ] || exit 1\n')
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1)
        self.assertIn("failed step: documentation site", run.stdout)

    def test_test_runs_all_where_python_is_there(self):
        self.made_python()
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(run.stdout.splitlines()[-1], "62 passed, 0 failed")
        self.assertNotIn("not run", run.stdout)

    def test_test_names_what_ctest_skips(self):
        self.made_python()
        skipping = CTEST.replace('out of 42" ;;', """out of 42"; echo; echo "The following tests did not run:"
  printf '\\t 17 - report_in_browser (Skipped)\\n' ;;""")
        self.program("bin/ctest", skipping)
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(lines[-1], "61 passed, 0 failed, 1 not run")
        self.assertEqual(lines[-2], "not run, because packages that they need are not installed: report_in_browser")

    def test_test_fails_where_a_documented_command_fails(self):
        self.made_python()
        self.program("tools/docs", 'case "$*" in "--check --run") exit 1 ;; esac\n')
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("failed step: commands of the documentation", run.stdout.splitlines())

    def test_test_counts_what_fails_and_what_ends_early(self):
        self.made_python()
        self.program("build-asan/tests/unit_policy", FAILING)
        self.program("build-asan/tests/swarm", "echo '[ RUN      ] Swarm.of_bees'\nkill -9 $$\n")
        run = self.run_script("test", **NO_INDEX)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(lines[-1], "62 passed, 3 failed")
        self.assertIn("asan: 1 passed, 3 failed", lines)
        self.assertIn("failed step: tests under asan, ubsan", lines)
        ended = [line for line in lines if "swarm: ended early" in line]
        self.assertTrue(ended and ended[0].endswith("last test begun: Swarm.of_bees"), run.stdout)


if __name__ == "__main__":
    unittest.main()
