"""Tests tools/gpu-check without a GPU: shell scripts take the place of compilers, tests and benchmarks. Tests the time
budget of a step, the results that a stopped step leaves, and the messages about it. Budgets that must not be exceeded
are far longer than needed."""

import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = ["build", "smoke", "correct", "bench", "ttft", "tiers", "calibrate"]
REPORT = '{"tiers": [{"evicted_pages": 1}], "prefetch": {"stopped": 1}}'
TABLE = "kind,direction,bytes,ctas,node,gbps\\ncopy,h2d,4096,0,0,1.5\\n"
HANG = "exec sleep 1000000\n"
# A GPU that knows the properties of a dictionary, in the order in which they are asked for.
NVIDIA_SMI = """case "$*" in *nounits*) ;; *) echo "345 MHz, 700.00 W"; exit ;; esac
for argument; do
  case "$argument" in --query-gpu=*) fields=${argument#--query-gpu=} ;; esac
done
line=
for field in $(echo "$fields" | tr , ' '); do
  value=$(sed -n "s/^$field=//p" FACTS)
  [ -n "$value" ] || { echo "Field \\"$field\\" is not a valid field to query."; exit 2; }
  line="$line${line:+, }$value"
done
echo "$line"
"""
H100 = {
    "name": "NVIDIA H100 80GB HBM3", "driver_version": "580.65.06", "compute_cap": "9.0", "pci.bus_id": "00000000:1B:00.0",
    "pcie.link.gen.current": "1", "pcie.link.gen.max": "5", "pcie.link.width.current": "16", "pcie.link.width.max": "16",
    "clocks.sm": "345", "clocks.max.sm": "1980", "clocks.mem": "2619", "clocks.max.mem": "2619", "power.limit": "700.00",
    "power.max_limit": "[N/A]", "memory.total": "81559",
}  # fmt: skip
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

    def run_script(self, *arguments, container=None, out=True, **seconds):
        """Runs the script. Each step has a budget of one hour, except those given; the whole run has one hour, too. The
        files that say which machine this is are those of the tree."""
        script = self.tree / "tools/gpu-check"
        text = (ROOT / "tools/gpu-check").read_text()
        self.assertIn(" most=15 ", text)
        text = text.replace(" most=15 ", " most=3600 ")
        for place in ("/sys/bus", "/run/.containerenv", "/.dockerenv", "/.singularity.d", "/proc/1/cgroup"):
            self.assertIn(f'"{place}', text)
            text = text.replace(f'"{place}', f'"{self.tree}{place}')
        table = "\n".join(f"{name} {seconds.get(name, 3600)} 3600" for name in self.budgets(text))
        script.write_text(re.sub(r"^budgets='\n.*?'$", f"budgets='\n{table}\n'", text, count=1, flags=re.DOTALL | re.MULTILINE))
        environment = {**os.environ, "PATH": f"{self.tree}/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("container", "KUBERNETES_SERVICE_HOST"):
            environment.pop(name, None)
        if container:
            environment["container"] = container
        options = ["--out", self.results] if out else []
        return subprocess.run([script, *arguments, *options], env=environment, capture_output=True, text=True)

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

    def gpu(self, **changes):
        facts = {**H100, **changes}
        (self.tree / "facts").write_text("".join(f"{name}={value}\n" for name, value in facts.items() if value))
        self.program("bin/nvidia-smi", NVIDIA_SMI.replace("FACTS", str(self.tree / "facts")))

    def machine(self):
        return json.loads((self.results / "machine.json").read_text())

    def test_the_smoke_test_comes_first_and_takes_ten_seconds(self):
        self.assertEqual(self.budgets((ROOT / "tools/gpu-check").read_text())["smoke"][0], 10)
        self.program("build-real/tests/gpu_tests", 'echo "$@" >>gpu-tests-arguments; echo OK\n')
        run = self.run_script()
        self.assertEqual((run.returncode, self.steps()["smoke"]), (0, "passed"), run.stdout)
        first = (self.tree / "gpu-tests-arguments").read_text().splitlines()[0]
        self.assertIn("--small", first)
        self.assertIn("Kernels.LeaveWhatTheirCpuTwinsLeave", first)
        self.assertRegex(self.verdict(), r"a kernel of every path leaves the right bytes +met")
        self.program("build-real/tests/gpu_tests", "exit 1\n")
        run = self.run_script("--only", "smoke")
        self.assertEqual((run.returncode, self.steps()["smoke"]), (1, "failed (1)"), run.stdout)

    def test_the_facts_of_the_machine_are_recorded(self):
        self.gpu()
        device = self.tree / "sys/bus/pci/devices/0000:1b:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text("1\n")
        self.run_script("--only", "bench")
        machine = self.machine()
        expected = {
            "gpu": "NVIDIA H100 80GB HBM3", "driver": "580.65.06", "compute_capability": 9.0, "pci_bus": "0000:1b:00.0",
            "pcie_generation": 1, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16, "numa_node": 1,
            "sm_clock_mhz": 345, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 2619, "memory_clock_max_mhz": 2619,
            "power_limit_w": 700, "power_limit_max_w": None, "gpu_memory_mib": 81559,
        }  # fmt: skip
        self.assertEqual({name: machine[name] for name in expected}, expected)
        self.assertIn("container", machine)

    def test_facts_that_are_not_known_are_null(self):
        self.gpu(**{"power.limit": "", "pcie.link.gen.max": "[Not Supported]"})  # a driver without the field power.limit
        self.run_script("--only", "bench")
        machine = self.machine()
        self.assertEqual((machine["power_limit_w"], machine["pcie_generation_max"], machine["numa_node"]), (None, None, None))
        self.assertEqual((machine["gpu"], machine["pcie_width"]), ("NVIDIA H100 80GB HBM3", 16))
        (self.tree / "bin/nvidia-smi").unlink()
        self.run_script("--only", "bench")
        self.assertEqual((self.machine()["gpu"], self.machine()["pcie_width"]), ("none", None))

    def test_the_container_is_named(self):
        for name, text in [("podman", "run/.containerenv"), ("docker", ".dockerenv"), ("apptainer", ".singularity.d")]:
            file = self.tree / text
            file.parent.mkdir(exist_ok=True)
            file.write_text("")
            self.run_script("--only", "bench", container="")
            self.assertEqual(self.machine()["container"], name)
            file.unlink()
        self.run_script("--only", "bench", container="lxc")
        self.assertEqual(self.machine()["container"], "lxc")
        self.run_script("--only", "bench", container="")
        self.assertEqual(self.machine()["container"], "none")

    def test_the_preset_is_that_of_the_gpu(self):
        self.program("build-real/kvtwin", 'echo "$@" >>kvtwin-arguments\n' + PROGRAMS["build-real/kvtwin"])
        for name, capability, preset in [
            ("NVIDIA H100 80GB HBM3", "9.0", "h100-sxm"),
            ("NVIDIA H100 PCIe", "9.0", "h100-sxm"),
            ("NVIDIA H200", "9.0", "h200-sxm"),
            ("NVIDIA H20", "9.0", "h20"),
            ("NVIDIA B200", "10.0", "b200-sxm"),
            ("NVIDIA B300 SXM6 AC", "10.3", "b300-sxm"),
            ("NVIDIA GB200", "10.0", "gb200"),
            ("NVIDIA GB300", "10.3", "gb300"),
            ("NVIDIA A100-SXM4-80GB", "8.0", "a100-sxm"),
            ("NVIDIA L40S", "8.9", "a100-sxm"),
            ("NVIDIA Unheard-of", "9.0", "h200-sxm"),
            ("NVIDIA Unheard-of", "12.0", "b200-sxm"),
        ]:
            with self.subTest(name):
                self.gpu(name=name, compute_cap=capability)
                (self.tree / "kvtwin-arguments").unlink(missing_ok=True)
                self.run_script("--only", "calibrate", "--quick")
                used = set(re.findall(r"hardware\.name=(\S+)", (self.tree / "kvtwin-arguments").read_text()))
                self.assertEqual(used, {preset})
        presets = {path.stem for path in (ROOT / "models/presets/hardware").iterdir()}
        script = (ROOT / "tools/gpu-check").read_text()
        function = script.split("\nhardware() {")[1].split("  esac\n")[0]
        named = set(re.findall(r"echo (\S+)", function))
        self.assertEqual(named - presets, set())
        self.assertIn("gb200", named)

    def test_tools_of_compute_sanitizer_that_are_not_supported_are_no_failure(self):
        sanitizer = """tool=$2
case $tool in
  racecheck) echo "========= Error: Device not supported. Please refer to the \\"Supported Devices\\" section"; exit 1 ;;
  synccheck) echo "[ RUN      ] Kernels"; echo "========= synccheck is unsupported in this configuration"; echo "[  FAILED  ] Kernels"; exit 9 ;;
  initcheck) echo "[ RUN      ] Kernels"; echo "========= Uninitialized __global__ memory read of size 4 bytes"
    echo "========= ERROR SUMMARY: 1 error"; echo "[       OK ] Kernels"; exit 9 ;;
esac
"""
        self.program("bin/compute-sanitizer", sanitizer)
        run = self.run_script("--only", "correct")
        steps = self.steps()
        self.assertEqual(steps["memcheck"], "passed")
        self.assertRegex(steps["racecheck"], "^not supported: Error: Device not supported")
        self.assertRegex(steps["synccheck"], "^not supported: synccheck is unsupported")
        self.assertEqual(steps["initcheck"], "failed (9)")
        self.assertEqual(run.returncode, 1)
        self.assertRegex(self.verdict(), r"racecheck +not supported +Error: Device not supported")
        self.program("bin/compute-sanitizer", sanitizer.replace("initcheck)", "none)"))
        self.assertEqual(self.run_script("--only", "correct").returncode, 0)

    def build(self, *arguments):
        """Runs gpu-check build, with stand-ins of the tools."""
        self.program("bin/cmake", f"""echo "$@" >>cmake-arguments
for name in kvtwin tests/gpu_tests tests/gpu_bench tests/gpu_ttft; do
  mkdir -p {self.tree}/build-carried/tests && cp {self.tree}/build-real/$name {self.tree}/build-carried/$name
done
""")
        self.program("bin/strip", "exit 0\n")
        self.program("bin/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.1"\n')
        (self.tree / "liburing.so.2").write_text("a library")
        self.program("bin/ldd", f"""printf '\\tlinux-vdso.so.1 (0x1)\\n\\tliburing.so.2 => {self.tree}/liburing.so.2 (0x2)\\n'
printf '\\tlibc.so.6 => /lib/libc.so.6 (0x3)\\n\\t/lib64/ld-linux-x86-64.so.2 (0x4)\\n'
""")
        return self.run_script("build", *arguments, out=False)

    def test_a_build_is_carried_to_another_machine(self):
        carried = self.tree / "carried"
        run = self.build(carried)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        files = sorted(path.relative_to(carried).as_posix() for path in carried.rglob("*") if path.is_file())
        self.assertEqual(files, ["built.txt", "kvtwin", "lib/liburing.so.2", "tests/gpu_bench", "tests/gpu_tests", "tests/gpu_ttft"])
        about = dict(line.split(" ", 1) for line in (carried / "built.txt").read_text().splitlines())
        self.assertEqual((about["architecture"], about["cuda"], about["machine"]), ("90", "13.0", platform.machine()))
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=90-real", (self.tree / "cmake-arguments").read_text())

        # On the other machine there is no compiler, and no other build.
        shutil.rmtree(self.tree / "build-real")
        shutil.rmtree(self.tree / "build-carried")
        self.program("bin/cmake", "exit 7\n")
        self.gpu()
        run = self.run_script("--built", carried)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual(set(self.steps().values()), {"passed"})
        self.assertIn("calibrate-held-out-4-replay", self.steps())

    def test_a_build_for_another_machine_is_refused(self):
        carried = self.tree / "carried"
        self.build(carried)
        self.gpu()
        self.assertEqual(self.build(carried).returncode, 2)  # the folder is there already
        about = (carried / "built.txt").read_text()
        for sentence, old, new in [
            ("is for computers of the kind m68k, and this one is", f"machine {platform.machine()}", "machine m68k"),
            ("needs glibc 99.9 or newer, and this machine has", re.search("glibc .*", about).group(), "glibc 99.9"),
            ("is compiled for compute capability 10.0, and this GPU has 9.0", "architecture 90", "architecture 100"),
        ]:
            (carried / "built.txt").write_text(about.replace(old, new))
            run = self.run_script("--built", carried, "--only", "smoke")
            self.assertEqual(run.returncode, 2, run.stdout)
            self.assertIn(sentence, run.stderr)
        run = self.run_script("--built", self.tree / "tools")
        self.assertEqual(run.returncode, 2)
        self.assertIn("holds no build; tools/gpu-check build DIR makes one", run.stderr)

    def test_a_carried_program_that_does_not_start_fails_the_build(self):
        carried = self.tree / "carried"
        self.build(carried)
        self.gpu()
        (carried / "kvtwin").write_text("#!/bin/sh\nexit 127\n")
        run = self.run_script("--built", carried, "--only", "build")
        self.assertEqual((run.returncode, self.steps()["build"]), (1, "failed (127)"), run.stdout)

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
        for arguments in (["--quick", "--long"], ["--only", "bench,tests"], ["--device", "gpu"], ["--fast"], ["build"], ["build", "a", "b"], ["--built"]):
            run = self.run_script(*arguments)
            self.assertEqual((run.returncode, run.stdout), (2, ""), arguments)
            self.assertTrue(run.stderr.startswith("tools/gpu-check: "), run.stderr)
        self.assertFalse(self.results.exists())


if __name__ == "__main__":
    unittest.main()
