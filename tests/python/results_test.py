"""Tests plans, real runs, pages and intervals of the installed Python package. Run by tools/python-package.

    results_test.py PROGRAM [unittest arguments]   PROGRAM: of build/, with which results are compared
"""

import json
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import kvtwin
import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
BUILT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvtwin"
EXPERIMENT = "experiments/quickstart.toml"
FEW = {"workload.limit": 60}
TRACE = "traces/chat_small.jsonl.zst"
# A small search: one engine of a tiny model, with and without a host tier.
WORK = {"requests_per_second": 4, "prompt_tokens": 500, "output_tokens": 30, "turns": 2, "think_s": 10, "prefix_tokens": 80}
SEARCH = {"model": "tiny", "hardware": "h100-sxm", "set": {"workload.generate.duration_s": 60}, "seeds": 1, "questions": False,
          "vary": {"parallel.tp": [1], "tiers.host.gib": [0, 1], "drives": [0]}, **WORK}  # fmt: skip


class Scratch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        warnings.simplefilter("ignore", kvtwin.Note)


class Plans(Scratch):
    def test_a_plan_is_the_programs(self):
        plan = kvtwin.plan(goal={"ttft_p90_s": 1}, out=self.scratch / "plan", **SEARCH)
        words = "--model tiny --hardware h100-sxm --requests-per-second 4 --prompt-tokens 500 --output-tokens 30 --turns 2 --think-s 10"
        words += " --prefix-tokens 80 --set workload.generate.duration_s=60 --vary parallel.tp=1 --vary tiers.host.gib=0,1 --vary drives=0"
        words += " --seeds 1 --no-questions --goal ttft_p90_s=1"
        subprocess.run([BUILT, "plan", *words.split(), "--out", self.scratch / "built"], cwd=ROOT, check=True, capture_output=True)
        built = kvtwin.Plan(self.scratch / "built")
        for name in ("command", "reproduce", "git_commit"):  # the options stand in another order
            self.assertNotEqual(plan.plan.pop(name) and built.plan.pop(name), "")
        self.assertEqual(plan.plan, built.plan)
        self.assertEqual(plan.recommendation["parts"][0], built.recommendation["parts"][0])
        self.assertTrue((self.scratch / "plan/report.html").exists())

    def test_the_result_is_tables(self):
        plan = kvtwin.plan(goal="ttft_p90_s=1", **SEARCH)
        self.assertIn("1 GPU h100-sxm", repr(plan))
        best = plan.tried[plan.tried["meets"]].sort_values("price_per_month").iloc[0]
        self.assertEqual(best["price_per_month"], plan.recommendation["price_month"])
        self.assertEqual(best["tiers.host.gib"], plan.recommendation["settings"]["tiers.host.gib"])
        self.assertLessEqual(best["ttft_p90_s"], 1)
        self.assertEqual(len(plan.steps), len(plan.plan["margins"]))
        self.assertEqual(len(plan.draw().axes), 1)
        self.assertEqual(len(plan.run.requests), plan.run.report["requests"]["total"])
        what_if = plan.what_if({"cluster.engines": 2})
        self.assertEqual(what_if["figures"]["price_per_month"]["recommended"], plan.recommendation["price_month"])
        self.assertGreater(what_if["figures"]["price_per_month"]["what_if"], plan.recommendation["price_month"])
        folder, run = plan.folder, plan.run
        del plan
        self.assertTrue(folder.exists(), "its run folder is in use")
        del run
        self.assertFalse(folder.exists())

    def test_no_setting_may_meet_the_goals(self):
        plan = kvtwin.plan(goal={"ttft_p90_s": 1e-6}, **{**SEARCH, "vary": {**SEARCH["vary"], "cluster.engines": ["1..2"]}})
        self.assertIsNone(plan.recommendation)
        self.assertFalse(plan.tried["meets"].any())
        self.assertIn("none of", repr(plan))
        with self.assertRaisesRegex(kvtwin.InputError, "no setting meets the goals"):
            plan.run  # noqa: B018

    def test_bad_input_is_the_programs_sentence(self):
        said = subprocess.run([BUILT, "plan", "--goal", "ttft=1"], cwd=ROOT, capture_output=True, text=True).stderr
        with self.assertRaises(kvtwin.InputError) as refused:
            kvtwin.plan(goal={"ttft": 1})
        self.assertEqual(f"kvtwin: {refused.exception}\n", said)
        for goal in (5, [1], {"ttft_p90_s": None}, {"ttft_p90_s": [1]}):
            with self.assertRaises((kvtwin.InputError, TypeError), msg=goal):
                kvtwin.plan(goal=goal)
        with self.assertRaisesRegex(kvtwin.InputError, "is this the folder of a finished run"):
            kvtwin.Plan(self.scratch)


class Runs(Scratch):
    def test_a_real_run_records_a_journal(self):
        made = kvtwin.run(EXPERIMENT, set=FEW, device="host", timeline=True, out=self.scratch / "run")
        self.assertEqual(made.report["world"], "real")
        self.assertEqual(len(made.requests), 60)
        self.assertTrue((made.folder / "timeline.json").exists())
        subprocess.run([BUILT, "replay", made.folder], cwd=ROOT, check=True, capture_output=True)
        with self.assertRaisesRegex(kvtwin.InputError, "--force"):
            kvtwin.run(EXPERIMENT, set=FEW, device="host", out=self.scratch / "run")
        kvtwin.run(EXPERIMENT, set={"workload.limit": 5}, device="host", out=self.scratch / "run", force=True)
        self.assertEqual(len(kvtwin.load(self.scratch / "run").requests), 5)

    def test_a_wrong_byte_is_an_exception(self):
        with self.assertRaisesRegex(kvtwin.WorkError, "byte"):
            kvtwin.run(EXPERIMENT, set={"workload.limit": 150, "tiers.device.tokens": 20_000, "faults": "flip(place=host)"}, device="host")

    def test_bad_input_is_refused(self):
        with self.assertRaisesRegex(kvtwin.InputError, 'unknown value "gpu"'):
            kvtwin.run(EXPERIMENT, device="gpu")
        with self.assertRaisesRegex(kvtwin.InputError, "--foo"):
            kvtwin.run(EXPERIMENT, foo=1)

    def test_options_of_the_program_are_arguments(self):
        made = kvtwin.simulate(EXPERIMENT, set=FEW, from_vllm_flags="vllm serve Qwen/Qwen3-32B --max-num-seqs 5")
        self.assertIn("model.name = 'qwen3-32b'", (made.folder / "experiment.resolved.toml").read_text(encoding="utf-8"))

    def test_zero_is_a_value_of_an_option(self):
        free, paid = (
            kvtwin.hitrate(TRACE, 1000, limit=500, host_capacity=2000, **options)["net_saved_cost"][0]
            for options in ({"host_load": 0}, {})
        )
        self.assertGreater(free, paid)
        lengths = kvtwin.traces.generate(self.scratch / "equal.jsonl", "sessions", duration=30, length_spread=0, **WORK)
        self.assertEqual(kvtwin.traces.frame(lengths, block_tokens=64)["output_tokens"].nunique(), 1)


class Pages(Scratch):
    def test_a_page_is_the_programs(self):
        first = kvtwin.simulate(EXPERIMENT, set=FEW, out=self.scratch / "first")
        second = kvtwin.simulate(EXPERIMENT, set={**FEW, "cache.eviction": "lru"}, out=self.scratch / "second")
        page = kvtwin.report([first, second.folder], out=self.scratch / "both.html")
        self.assertEqual(page, self.scratch / "both.html")
        command = [BUILT, "report", first.folder, second.folder, "--out", self.scratch / "built.html"]
        subprocess.run(command, check=True, capture_output=True, env={"KVTWIN_PYTHON": sys.executable})
        self.assertEqual(page.read_bytes(), (self.scratch / "built.html").read_bytes())
        self.assertEqual(kvtwin.report(first), first.folder / "report.html")
        self.assertEqual(kvtwin.report(first, force=True), first.folder / "report.html")

    def test_bad_input_is_refused(self):
        made = kvtwin.simulate(EXPERIMENT, set=FEW)
        for call, text in (
            (lambda: kvtwin.report(made), "the last folder is temporary"),
            (lambda: kvtwin.report([]), "folders is empty"),
            (lambda: kvtwin.report(self.scratch), "holds no plan.json"),
            (lambda: kvtwin.report(made, out=self.scratch), "is a folder"),
        ):
            with self.assertRaisesRegex(kvtwin.InputError, text):
                call()
        (made.folder / "requests.csv").write_text("request\n", encoding="utf-8")
        with self.assertRaisesRegex(kvtwin.InputError, r"^/[^ ]*requests.csv: no column"):
            kvtwin.report(made, out=self.scratch / "page.html")


class Gaps(Scratch):
    def test_hit_rates_have_the_gap_that_each_policy_closes(self):
        rates = kvtwin.hitrate(TRACE, [1000, 3000], ["tide", "lru", "opt"], limit=1000).set_index(["eviction", "capacity_blocks"])
        hits, closed = rates["hit_blocks"], rates["gap_closed"]
        for capacity in (1000, 3000):
            lru, tide, opt = (hits[name, capacity] for name in ("lru", "tide", "opt"))
            self.assertEqual(closed["tide", capacity], (tide - lru) / (opt - lru))
            self.assertEqual((closed["lru", capacity], closed["opt", capacity]), (0, 1))
        self.assertTrue(kvtwin.hitrate(TRACE, 1000, "tide", limit=100)["gap_closed"].isna().all(), "without lru and opt")
        self.assertTrue(kvtwin.hitrate(TRACE, 1000, ["lru", "opt"], limit=1)["gap_closed"].isna().all(), "no gap")

    def test_sweeps_have_the_column_too(self):
        swept = kvtwin.sweep(EXPERIMENT, {"tiers.host.tokens": [20_000]}, set={**FEW, "report.bounds": True})
        made = kvtwin.simulate(EXPERIMENT, set={**FEW, "report.bounds": True, "tiers.host.tokens": 20_000})
        np.testing.assert_equal(json.loads(json.dumps(swept.rows["gap_closed"][0])), made.report["bounds"]["gap_closed"])


def normal(random, mean, deviation):
    return mean + deviation * random.standard_normal()


class Intervals(Scratch):
    def frame(self, values):
        """One session per value, whose requests all have this value as TTFT and as hits of 100 tokens. `values`: (value,
        requests) of each session. Returns the requests and their sessions."""
        rows = [(value, session) for session, (value, requests) in enumerate(values, 1) for _ in range(requests)]
        frame = pd.DataFrame({"request": range(len(rows)), "prompt_tokens": 100, "ttft_s": [value for value, _ in rows]})
        frame["hit_host"] = frame["ttft_s"] * 100
        return frame, pd.Series([session for _, session in rows], index=frame["request"])

    def test_two_sessions_have_the_interval_of_all_their_samples(self):
        # Samples of the sessions (0, 1) are (0, 0), (0, 1), (1, 0) and (1, 1): the mean is 0, 0.5, 0.5 or 1.
        requests, sessions = self.frame([(0.0, 3), (1.0, 3)])
        found = kvtwin.bootstrap(requests, sessions, figures=["hit_ratio", "ttft_mean_s", "ttft_p50_s"])
        self.assertEqual(found.loc["ttft_mean_s"].tolist(), [0.5, 0, 1])
        self.assertEqual(found.loc["hit_ratio"].tolist(), [0.5, 0, 1])
        self.assertEqual(found.loc["ttft_p50_s"].tolist(), [0, 0, 1])
        half = kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s"], interval=0.4)
        self.assertEqual(half.loc["ttft_mean_s"].tolist(), [0.5, 0.5, 0.5])

    def test_the_width_is_that_of_the_sessions_variance(self):
        # The mean of n sessions with deviation d has the deviation d / sqrt(n), however many requests a session has.
        random = np.random.RandomState(7)
        sessions_count, deviation, width_80 = 400, 0.2, 2 * 1.2816
        for requests_each in (1, 10):
            requests, sessions = self.frame([(normal(random, 5, deviation), requests_each) for _ in range(sessions_count)])
            found = kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s"]).loc["ttft_mean_s"]
            width = found["high"] - found["low"]
            self.assertAlmostEqual(width / (width_80 * deviation / sessions_count**0.5), 1, delta=0.15)
        alone = kvtwin.bootstrap(requests, sessions * 0, figures=["ttft_mean_s"]).loc["ttft_mean_s"]
        self.assertAlmostEqual((alone["high"] - alone["low"]) / width, 1 / 10**0.5, delta=0.05)  # if requests were independent

    def test_four_of_five_intervals_have_the_true_value(self):
        random, inside = np.random.RandomState(11), {"ttft_mean_s": 0, "ttft_p90_s": 0, "hit_ratio": 0}
        true = {"ttft_mean_s": 5, "ttft_p90_s": 5 + 1.2816, "hit_ratio": 5}
        for seed in range(200):
            requests, sessions = self.frame([(normal(random, 5, 1), 1 + session % 3) for session in range(120)])
            found = kvtwin.bootstrap(requests, sessions, figures=list(true), samples=200, seed=seed)
            for name, value in true.items():
                inside[name] += found["low"][name] <= value <= found["high"][name]
        for name, count in inside.items():
            self.assertAlmostEqual(count / 200, 0.8, delta=0.08, msg=name)  # 0.08: three deviations of 200 draws

    def test_sessions_of_a_window_are_drawn_together(self):
        # In each window of 60 s all sessions have one value, so a window is worth one session.
        random = np.random.RandomState(3)
        requests, sessions = self.frame([(value, 2) for value in (normal(random, 5, 1) for _ in range(100)) for _ in range(10)])
        requests["arrival_s"] = requests["request"] * 3.0
        widths = []
        for window_s in (0, 60):
            found = kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s"], window_s=window_s).loc["ttft_mean_s"]
            widths.append(found["high"] - found["low"])
        self.assertAlmostEqual(widths[1] / (2 * 1.2816 / 100**0.5), 1, delta=0.2)
        self.assertAlmostEqual(widths[1] / widths[0], 10**0.5, delta=0.4)
        with self.assertRaisesRegex(kvtwin.InputError, "of 1 windows"):
            kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s"], window_s=1e9)
        with self.assertRaisesRegex(kvtwin.InputError, "window_s is -1"):
            kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s"], window_s=-1)

    def test_queues_and_few_sessions_have_a_note(self):
        requests, sessions = self.frame([(1.0, 1), (2.0, 1)])
        with self.assertWarnsRegex(kvtwin.Note, "there are 2 sessions"):
            kvtwin.bootstrap(requests, sessions)
        requests, sessions = self.frame([(1.0, 1), (2.0, 1)] * 20)
        for queue, said in ((0.01, 0), (0.5, 1)):
            requests["queue_s"] = queue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kvtwin.bootstrap(requests, sessions)
            self.assertEqual(len(caught), said, caught)

    def test_the_values_are_those_of_the_report(self):
        few = {"workload.limit": 400, "tiers.host.gib": 64}
        made = kvtwin.simulate("experiments/chat_hour.toml", set=few)
        found = kvtwin.bootstrap(made, TRACE, samples=50)
        tokens, ttft = made.report["tokens"], made.report["ttft_seconds"]
        self.assertAlmostEqual(found["value"]["hit_ratio"], sum(tokens[name] for name in tokens if name.startswith("hit_")) / tokens["prompt"])
        for part in ("mean", "p50", "p90", "p95", "p99"):
            self.assertAlmostEqual(found["value"][f"ttft_{part}_s"] / ttft[part], 1, delta=0.002)
        self.assertTrue(((found["low"] <= found["value"]) & (found["value"] <= found["high"])).all())
        self.assertTrue(found.equals(kvtwin.bootstrap(made.requests, kvtwin.traces.frame(TRACE)["session"], samples=50)))
        self.assertFalse(found["low"].equals(kvtwin.bootstrap(made, TRACE, samples=50, seed=2)["low"]))

    def test_bad_arguments_are_refused(self):
        requests, sessions = self.frame([(1.0, 2), (2.0, 2)])
        for call, text in (
            (lambda: kvtwin.bootstrap(requests, sessions, figures=["ttft"]), "figure 'ttft' is unknown; give hit_ratio, or"),
            (lambda: kvtwin.bootstrap(requests, sessions, figures=["ttft_p100_s"]), "is unknown"),
            (lambda: kvtwin.bootstrap(requests, sessions[:3]), "request 3 has no session"),
            (lambda: kvtwin.bootstrap(requests[:2], sessions), "of 1 sessions"),
            (lambda: kvtwin.bootstrap(requests[:0], sessions), "of 0 sessions"),
            (lambda: kvtwin.bootstrap(requests, [1, 1, 2, 2]), "neither a trace nor a pandas Series"),
            (lambda: kvtwin.bootstrap(requests, sessions, interval=80), "between 0 and 1"),
        ):
            with self.assertRaisesRegex(kvtwin.InputError, text):
                call()
        with self.assertWarns(kvtwin.Note):
            kvtwin.bootstrap(requests, sessions, figures=["ttft_p99.9_s"])
        requests["ttft_s"] = float("nan")
        self.assertTrue(np.isnan(kvtwin.bootstrap(requests, sessions, figures=["ttft_mean_s", "ttft_p90_s"])).all(axis=None))


if __name__ == "__main__":
    unittest.main()
