"""Tests policies and a trace format, one file each, from a folder outside of policy/ and traces/. A program that was
built with the files of extra/ (first argument: its path) must know and use them. CMake (second argument: its path) must
find such files in -DKVTWIN_EXTRA_POLICIES=FOLDER."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRA = Path(__file__).resolve().parent / "extra"
CMAKE = sys.argv.pop(2)
PROGRAM = Path(sys.argv.pop(1)).resolve()
ADDED = {
    "cache.prefetch_policy": "brief",
    "cache.write_policy": "third_insert",
    "cluster.route": "by_session",
    "scheduler.order": "shortest_prompt",
    "workload.format": "turns",
}


def kvtwin(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)


class Program(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.trace = self.folder / "trace.txt"
        # Two sessions that alternate; each prompt begins with the previous prompt of its session. Then three prompts at
        # nearly the same time, the longest one first.
        turns = [(10_000 * i, 8 + i % 2, 4096 + 512 * (i // 2), 4) for i in range(16)]
        turns += [(200_000 + i, 20 + 2 * i, tokens, 4) for i, tokens in enumerate((8192, 6144, 4096))]
        self.trace.write_text("#turns\n" + "".join(f"{a} {b} {c} {d}\n" for a, b, c, d in turns))

    def simulate(self, *assignments):
        """Returns report.json, and the rows of requests.csv as a dict by request number."""
        settings = ["workload.shrink=1", "workload.limit=0", "workload.time_scale=1", "cache.page_tokens=64",
                    "model.name=llama-3.1-8b", "hardware.name=h100-sxm", "tiers.device.tokens=16384",
                    f"workload.trace={self.trace}", *assignments]
        out = self.folder / "out"
        ran = kvtwin("simulate", ROOT / "experiments/quickstart.toml", "--out", out, "--force",
                     *[part for setting in settings for part in ("--set", setting)])
        self.assertEqual(ran.returncode, 0, ran.stderr)
        lines = [line.split(",") for line in (out / "requests.csv").read_text().splitlines()]
        rows = {int(line[0]): dict(zip(lines[0], line)) for line in lines[1:]}
        return json.loads((out / "report.json").read_text()), rows

    def test_names_them_where_it_names_its_own(self):
        names = json.loads(kvtwin("presets", "--json").stdout)["names"]
        keys = kvtwin("simulate", "--help-keys").stdout
        for key, name in ADDED.items():
            self.assertEqual(names[key][-1], name)
            self.assertRegex(keys, f"(?m)^{key} .*\\[one of .*, {name}\\]; default ")
            refused = kvtwin("simulate", ROOT / "experiments/quickstart.toml", "--set", f"{key}={name}s")
            self.assertEqual(refused.returncode, 2)
            self.assertRegex(refused.stderr, f'did you mean "{name}"\\? Known: .*, {name}\\.')

    def test_tells_the_format_by_the_first_line(self):
        report, _ = self.simulate()
        self.assertEqual(report["requests"]["completed"], 19)
        ran = kvtwin("trace", "info", self.trace, "--json")
        self.assertEqual(json.loads(ran.stdout)["requests"], 19, ran.stdout)
        self.trace.write_text("#turns\n0 1 0 1\n")
        ran = kvtwin("trace", "info", self.trace)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("line 2: must hold four integers", ran.stderr)

    def test_routes(self):
        hits = {}
        for route in ("round_robin", "by_session"):
            # Three engines and two sessions that alternate: with round_robin, the next request of a session never goes
            # to the engine that served the previous one.
            report, _ = self.simulate("cluster.engines=3", f"cluster.route={route}")
            hits[route] = report["tokens"]["hit_device"] + report["tokens"]["hit_host"]
        self.assertGreater(hits["by_session"], hits["round_robin"])

    def test_a_policy_has_parameters(self):
        keys = kvtwin("simulate", "--help-keys").stdout
        self.assertRegex(keys, r"(?m)^  aged\(favoured=\.\.\.\) .*\[at least 1 and at most 1000000\]; default 2$")
        self.assertRegex(keys, r"(?m)^  aged\(deep_first=\.\.\.\) .*\[true or false\]; default false$")
        values = ["aged", "aged(favoured=3)", "aged(favoured=3, deep_first=true)"]
        out = self.folder / "compared"
        ran = kvtwin("compare", ROOT / "experiments/quickstart.toml", "--vary", "cache.eviction=" + ",".join(values),
                     "--set", "workload.limit=40", "--out", out)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        compared = json.loads((out / "compare.json").read_text())
        self.assertEqual(compared["axes"][0]["values"], values)
        for wrong, sentence in (("aged(favoured=0)", "aged: favoured is 0; it must be at least 1"),
                                ("aged(favored=3)", 'aged: unknown parameter "favored": did you mean "favoured"?')):
            refused = kvtwin("simulate", ROOT / "experiments/quickstart.toml", "--set", f"cache.eviction={wrong}")
            self.assertEqual(refused.returncode, 2)
            self.assertIn(sentence, refused.stderr)

    def test_stops_prefetches(self):
        # Eight prompts in rotation. The device holds two of them and the host four, so all are loaded from the disk.
        self.trace.write_text("#turns\n" + "".join(f"{10_000 * i} {i % 8} 8192 4\n" for i in range(24)))
        waits = {}
        for policy in ("brief", "wait_complete", "best_effort"):
            report, rows = self.simulate("tiers.host.tokens=32768", "tiers.disk.gib=100", "hardware.set.disk_read_gbps=0.5",
                                         f"cache.prefetch_policy={policy}")
            self.assertGreater(report["prefetch"]["issued"], 0)
            waits[policy] = max(float(row["prefetch_wait_s"]) for row in rows.values())
        self.assertLess(waits["best_effort"], 0.005)
        self.assertGreaterEqual(waits["brief"], 0.005)
        self.assertGreater(waits["wait_complete"], 2 * waits["brief"])

    def test_writes(self):
        written = {}
        for policy in ("write_through", "write_through_selective", "third_insert"):
            report, _ = self.simulate(f"cache.write_policy={policy}")
            written[policy] = sum(tier["written_bytes"] for tier in report["tiers"] if tier["name"] == "host")
        self.assertGreater(written["write_through"], written["write_through_selective"])
        self.assertGreater(written["write_through_selective"], written["third_insert"])
        self.assertGreater(written["third_insert"], 0)

    def test_orders(self):
        # While one prompt is computed, a longer and a shorter one wait.
        self.trace.write_text("#turns\n0 1 8192 4\n1 2 8192 4\n2 3 4096 4\n")
        for order, first in (("fcfs", 1), ("longest_prefix", 1), ("shortest_prompt", 2)):
            _, rows = self.simulate(f"scheduler.order={order}", "scheduler.max_running=1")
            self.assertEqual(min((1, 2), key=lambda request: float(rows[request]["queue_s"])), first, order)
        _, rows = self.simulate("scheduler.order=shortest_prompt", "scheduler.max_running=1", "scheduler.overtake_limit=0")
        self.assertLess(float(rows[1]["queue_s"]), float(rows[2]["queue_s"]), "nobody may be overtaken")


class Build(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.policies = self.folder / "policies"
        self.policies.mkdir()

    def write(self, *paths):
        for path in paths:
            (self.policies / path).parent.mkdir(exist_ok=True)
            (self.policies / path).write_text("")

    def configure(self, policies):
        """Returns the output of CMake and the tables that it wrote."""
        project = self.folder / "project"
        project.mkdir(exist_ok=True)
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(tables LANGUAGES NONE)\n"
            f'set(PROJECT_SOURCE_DIR "{ROOT}")\ninclude("{ROOT}/cmake/Choices.cmake")\n')
        ran = subprocess.run([CMAKE, "-S", project, "-B", self.folder / "build", f"-DKVTWIN_EXTRA_POLICIES={policies}"],
                             capture_output=True, text=True, check=False)
        tables = {path.stem: path.read_text() for path in self.folder.glob("build/choices/*/*.inc")}
        return ran.returncode, " ".join((ran.stdout + ran.stderr).split()), tables

    def test_finds_the_files_of_a_folder(self):
        code, said, tables = self.configure(EXTRA)
        self.assertEqual(code, 0, said)
        self.assertIn("termination/brief write/third_insert route/by_session order/shortest_prompt trace_format/turns", said)
        self.assertTrue(tables["termination"].endswith("KV_CHOICE(cost_stop)\nKV_CHOICE(brief)\n"), tables)
        self.assertIn("KV_CHOICE(turns)", tables["format"])

    def test_takes_files_beside_the_folders_for_evictions(self):
        self.write("mine.cpp", "eviction/other.cpp")
        code, said, tables = self.configure(self.policies)
        self.assertEqual(code, 0, said)
        self.assertIn("KV_CHOICE(mine)\nKV_CHOICE(mru)", tables["eviction"])
        self.assertIn("KV_CHOICE(lruk)\nKV_CHOICE(marconi)", tables["eviction"])
        self.assertIn("KV_CHOICE(other)", tables["eviction"])

    def test_refuses_a_name_twice_and_names_that_are_none(self):
        for path in ("lru.cpp", "eviction/lru.cpp", "termination/timeout.cpp", "route/round_robin.cpp",
                     "trace_format/qwen.cpp", "write/write_back.cpp", "order/fcfs.cpp", "prefetch_admission/cost.cpp",
                     "load_back_admission/cost.cpp"):
            with self.subTest(path):
                self.write(path)
                code, said, _ = self.configure(self.policies)
                self.assertNotEqual(code, 0)
                self.assertIn(f"{path}: there is a policy of that name already", said)
                (self.policies / path).unlink()
        self.write("route/By-Session.cpp")
        code, said, _ = self.configure(self.policies)
        self.assertNotEqual(code, 0)
        self.assertIn("By-Session.cpp: a policy is called by its file's name", said)

    def test_refuses_a_folder_without_policies(self):
        self.write("router/mine.cpp", "README.md")
        code, said, _ = self.configure(self.policies)
        self.assertNotEqual(code, 0)
        self.assertIn("holds no policy", said)
        self.assertIn("prefetch_admission, load_back_admission, route, order, style, state_points, pool_eviction, trace_format", said)


if __name__ == "__main__":
    unittest.main()
