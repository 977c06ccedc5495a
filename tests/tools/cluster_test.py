"""Sweeps in shards: tools/slurm-sweep under a Slurm of one node that the test starts, GNU parallel, and
tools/sweep-job.yaml. Each result must have the bytes of the sweep in one process.

  cluster_test.py SlurmScript|Slurm|SlurmFleet|Parallel|Kubernetes    runs one of them; exit code 77: something that it
                                                                      needs is missing
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVTWIN_PROGRAM", ROOT / "build/kvtwin")).absolute()
os.environ["PATH"] += ":/usr/sbin:/sbin"  # the daemons; not in every user's PATH
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVTWIN_")}
SWEEP = ["sweep", str(ROOT / "experiments/quickstart.toml"), "--set", "workload.limit=40", "--set", "report.bounds=false",
         "--set", "sim.world=events", "--vary", "tiers.host.tokens=30000,60000,100000",
         "--vary", "cache.eviction=lru,fifo"]
# 40 cells of 64 engines each, in both worlds.
FLEET = ["sweep", str(ROOT / "experiments/fleet.toml"), "--set", "cluster.engines=64",
         "--set", "workload.generate.requests=300", "--set", "workload.generate.requests_per_second=320",
         "--set", "report.bounds=false", "--vary", "sim.world=events,simgrid"]
SHARDS = 3
LIMIT_SECONDS = 120


def run(*words, cwd, ok=True, environment=ENVIRONMENT):
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True,
                          timeout=LIMIT_SECONDS)
    if ok and done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def until(succeeds, children=()):
    """Repeats `succeeds` until it returns True. Returns False after the time limit, or if a child has ended."""
    end = time.monotonic() + 30
    while time.monotonic() < end and all(child.poll() is None for child in children):
        if succeeds():
            return True
    return False


class Sharded(unittest.TestCase):
    sweep = SWEEP

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        run(PROGRAM, *self.sweep, "--jobs", "2", "--out", "one", cwd=self.folder)

    def check(self, out):
        for name in ("sweep.csv", "sweep.jsonl"):
            self.assertEqual((self.folder / out / name).read_bytes(), (self.folder / "one" / name).read_bytes(), name)

    def shards(self, out):
        return sorted(path.name for path in (self.folder / out).glob("sweep.shard-*-of-*.jsonl"))

    def names(self, *numbers):
        return [f"sweep.shard-{number}-of-{SHARDS}.jsonl" for number in numbers]


CONFIGURATION = """ClusterName=kvtwin
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP MaxTime=INFINITE
"""


def free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class OneNode:
    """A Slurm with a folder, a key and ports of its own."""

    def __init__(self, folder):
        self.folder, self.children = folder, []
        folder.mkdir()
        for name, mode in (("munge", 0o755), ("state", 0o755), ("spool", 0o755)):
            (folder / name).mkdir()
            (folder / name).chmod(mode)
        key = folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.environment = {**ENVIRONMENT, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, *words):
        with open(self.folder / f"{Path(words[0]).name}.out", "wb") as log:
            child = subprocess.Popen([str(word) for word in words], env=self.environment, stdout=log,
                                     stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.children.append(child)
        return child

    def succeeds(self, *words):
        return subprocess.run(words, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=LIMIT_SECONDS).returncode == 0

    def is_idle(self):
        states = subprocess.run(["sinfo", "--noheader", "--format=%T"], env=self.environment, capture_output=True,
                                text=True, timeout=LIMIT_SECONDS)
        return states.stdout.strip() == "idle"

    def serve(self, cgroup_plugin):
        """Starts the daemons. Returns whether the node takes jobs."""
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, ports=free_ports(2), user=pwd.getpwuid(os.getuid()).pw_name, folder=self.folder,
            cpus=len(os.sched_getaffinity(0))))
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={cgroup_plugin}\n")
        munge = self.folder / "munge"
        munged = self.start("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        if not until(lambda: self.succeeds("munge", "-n", f"--socket={munge}/socket"), [munged]):
            return False
        configuration = self.folder / "slurm.conf"
        daemons = [self.start("slurmctld", "-D", "-f", configuration),
                   self.start("slurmd", "-D", "-f", configuration, "-N", host)]
        return until(self.is_idle, daemons)

    def stop(self):
        while self.children:
            child = self.children.pop()
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def one_node(test, folder):
    """Returns a running Slurm, or skips the test. Which value of CgroupPlugin works depends on the machine."""
    for program in ("munged", "munge", "slurmctld", "slurmd", "sbatch", "sinfo"):
        if shutil.which(program) is None:
            test.skipTest(f"there is no {program}: tools/packages install cluster")
    said = ""
    for plugin in ("autodetect", "cgroup/v1", "disabled"):
        node = OneNode(folder / plugin.replace("/", "-"))
        if node.serve(plugin):
            test.addCleanup(node.stop)
            return node
        node.stop()
        for log in sorted(node.folder.glob("*.out")):
            said += f"\n{log.name}: {log.read_text(errors='replace')[-300:]}"
    return test.skipTest("the daemons of Slurm do not start here:" + said)


class OnOneNode(Sharded):
    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="slurm")
        self.addCleanup(scratch.cleanup)
        Path(scratch.name).chmod(0o755)
        self.node = one_node(self, Path(scratch.name))

    def slurm(self, command, ok=True):
        return run("bash", "-c", command, cwd=self.folder, ok=ok, environment=self.node.environment)

    def write(self, program, out):
        return run(ROOT / "tools/slurm-sweep", SHARDS, f"{out}.sbatch", "--cpus-per-task=1", f"--job-name={out}",
                   "--", program, *self.sweep, "--out", out, cwd=self.folder).stdout


class Slurm(OnOneNode):
    def test_an_array_and_a_merge(self):
        submit = self.write(PROGRAM, "array")
        self.slurm(submit.replace("&& sbatch", "&& sbatch --wait"))
        self.assertEqual(self.shards("array"), self.names(1, 2, 3))
        self.check("array")

    def test_a_failed_shard_runs_again(self):
        flaky = self.folder / "flaky"
        flaky.write_text(f'#!/bin/bash\n[ "$SLURM_ARRAY_TASK_ID" != 2 ] || [ -e repaired ] || exit 3\nexec {PROGRAM} "$@"\n')
        flaky.chmod(0o755)
        self.write(flaky, "again")
        failed = self.slurm(f"sbatch --wait --array=1-{SHARDS} again.sbatch", ok=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertEqual(self.shards("again"), self.names(1, 3))
        (self.folder / "repaired").touch()
        self.slurm("sbatch --wait --array=2 again.sbatch")
        self.assertEqual(self.shards("again"), self.names(1, 2, 3))
        self.slurm("sbatch --wait again.sbatch")
        self.check("again")

    def test_the_merge_runs_what_a_failed_shard_left_out(self):
        flaky = self.folder / "flaky"
        flaky.write_text(f'#!/bin/bash\n[ "$SLURM_ARRAY_TASK_ID" != 2 ] || exit 3\nexec {PROGRAM} "$@"\n')
        flaky.chmod(0o755)
        submit = self.write(flaky, "merged")
        self.slurm(submit.replace("&& sbatch", "&& sbatch --wait"))
        self.assertEqual(self.shards("merged"), self.names(1, 3))
        self.check("merged")


class SlurmFleet(OnOneNode):
    sweep = FLEET

    def test_two_of_three_workers_are_killed_in_the_middle(self):
        mortal = self.folder / "mortal"
        mortal.write_text(f"""#!/bin/bash
if [ -z "${{SLURM_ARRAY_TASK_ID:-}}" ] || [ "$SLURM_ARRAY_TASK_ID" = 3 ]; then exec {PROGRAM} "$@"; fi
setsid {PROGRAM} "$@" &
until [ -s "killed/sweep.shard-$SLURM_ARRAY_TASK_ID-of-{SHARDS}.jsonl" ]; do :; done
kill -KILL -- "-$!" $$
""")
        mortal.chmod(0o755)
        self.write(mortal, "killed")
        failed = self.slurm(f"sbatch --wait --array=1-{SHARDS} killed.sbatch", ok=False)
        self.assertNotEqual(failed.returncode, 0)
        self.assertEqual(self.shards("killed"), self.names(1, 2, 3))
        self.slurm("sbatch --wait killed.sbatch")
        self.check("killed")


class SlurmScript(unittest.TestCase):
    """What needs no Slurm."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)

    def write(self, *words, ok=True):
        return run(ROOT / "tools/slurm-sweep", *words, cwd=self.folder, ok=ok)

    def test_the_script_passes_each_task_its_shard(self):
        program = self.folder / "kv twin"
        program.write_text('#!/bin/bash\nprintf "<%s>" "$@"\n')
        program.chmod(0o755)
        printed = self.write(4, "a b.sbatch", "--time=1:00", "--", "./kv twin", "sweep", "x y.toml", "--out", "it's")
        self.assertEqual(printed.stdout, 'shards=$(sbatch --parsable --array=1-4 a\\ b.sbatch) && '
                                         'sbatch --dependency=afterany:"${shards%%;*}" a\\ b.sbatch\n')
        self.assertIn("#SBATCH --time=1:00\n", (self.folder / "a b.sbatch").read_text())

        def said(**slurm):
            return run(self.folder / "a b.sbatch", cwd="/", environment={**ENVIRONMENT, **slurm}).stdout

        self.assertEqual(said(SLURM_ARRAY_TASK_ID="3", SLURM_CPUS_PER_TASK="96"),
                         "<sweep><x y.toml><--out><it's><--jobs><64><--shard><3/4>")
        self.assertEqual(said(), "<sweep><x y.toml><--out><it's><--jobs><1>")
        self.write(4, "c.sbatch", "--", "./kv twin", "compare", "--jobs=5", "--out=x")
        self.assertEqual(run(self.folder / "c.sbatch", cwd="/").stdout, "<compare><--jobs=5><--out=x>")

    def test_refuses_bad_arguments(self):
        (self.folder / "here").touch()
        command = ("--", "kvtwin", "sweep", "--out", "x")
        for words, text in (((), "needs SHARDS"), ((0, "s", *command), "SHARDS is '0'"),
                            (("4x", "s", *command), "SHARDS is '4x'"), ((4, "here", *command), "here: exists"),
                            ((4, "no/s", *command), "folder does not exist"),
                            ((4, "s", "--array=1-2", *command), "sets the array"),
                            ((4, "s", "kvtwin", *command), "'kvtwin' must be an option"),
                            ((4, "s"), "no command"), ((4, "s", "--"), "no command"),
                            ((4, "s", "--", "kvtwin", "simulate"), "PROGRAM sweep or PROGRAM compare"),
                            ((4, "s", "--", "kvtwin", "sweep"), "no --out"),
                            ((4, "s", *command, "--shard", "1/2"), "--shard"),
                            ((4, "s", *command, "--force"), "--force")):
            done = self.write(*words, ok=False)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
            self.assertFalse((self.folder / "s").exists())


class Parallel(Sharded):
    def test_shards_and_a_merge(self):
        if shutil.which("parallel") is None:
            self.skipTest("there is no GNU parallel: tools/packages install cluster")
        command = [PROGRAM, *SWEEP, "--out", "parallel", "--jobs", "1"]
        run("parallel", "--will-cite", "--jobs", "2", *command, "--shard", f"{{}}/{SHARDS}", ":::",
            *range(1, SHARDS + 1), cwd=self.folder)
        self.assertEqual(self.shards("parallel"), self.names(1, 2, 3))
        run(*command, cwd=self.folder)
        self.check("parallel")


class Kubernetes(Sharded):
    def test_each_pod_of_the_job_has_a_shard(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("there is no Python package yaml")
        job = yaml.safe_load((ROOT / "tools/sweep-job.yaml").read_text())
        self.assertEqual((job["apiVersion"], job["kind"]), ("batch/v1", "Job"))
        spec = job["spec"]
        self.assertEqual(spec["completionMode"], "Indexed")
        pod = spec["template"]["spec"]
        container, = pod["containers"]
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]},
                         {volume["name"] for volume in pod["volumes"]})
        program = self.folder / "build/kvtwin"
        program.parent.mkdir()
        program.write_text('#!/bin/bash\nprintf "%s\\n" "${@: -1}" >>said\n')
        program.chmod(0o755)
        for index in range(spec["completions"]):
            run(*container["command"], *container["args"], cwd=self.folder,
                environment={**ENVIRONMENT, "JOB_COMPLETION_INDEX": str(index)})
        shards = spec["completions"]
        self.assertEqual((self.folder / "said").read_text().split(),
                         [f"{number}/{shards}" for number in range(1, shards + 1)])


if __name__ == "__main__":
    suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:], sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.skipped else 0)
