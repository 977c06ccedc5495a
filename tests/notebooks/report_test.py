"""report_test.py PROGRAM Pages|InBrowser[.TEST]: pages of `kvtwin report`, of folders that PROGRAM makes here.

InBrowser opens the pages in a headless Chromium without network. Exit code 77: Chromium is not installed.
"""

import contextlib
import html
import html.parser
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/notebooks")]

import browser
import numpy as np
import synthetic_run
from kvtwin import (
    chart_kinds,
    charts,
    charts_interactive,
    charts_of_plans,
    charts_of_runs,
    charts_of_settings,
    charts_of_sweeps,
    figure_words,
    report_page,
    report_plans,
    report_runs,
    report_settings,
    result_folders,
    run_module,
)

PROGRAM = sys.argv[1]
QUICK = ["experiments/quickstart.toml", "--set", "workload.limit=120"]
HOSTILE = "</script><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>\"'&amp;<b>"
scratch = tempfile.TemporaryDirectory()
unittest.addModuleCleanup(scratch.cleanup)
FOLDERS = Path(scratch.name)


def kvtwin_program(*words, **environment):
    """Returns (exit code, stdout, stderr) of the program."""
    run = subprocess.run(
        [PROGRAM, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "KVTWIN_PROGRESS": "off", "KVTWIN_PYTHON": sys.executable, **environment},
    )
    return run.returncode, run.stdout, run.stderr


def make_folders():
    """One folder of each kind, and hostile ones."""
    commands = {
        "simulated": ["simulate", *QUICK, "--set", "report.bounds=true", "--set", "tiers.disk.tokens=400000"],
        "drawn": [
            "simulate",
            *QUICK,
            "--set",
            "hardware.spread_percent=10",
            "--set",
            "cluster.engines=3",
            "--draws",
            "3",
        ],
        "roles": ["simulate", *QUICK, "--set", "cluster.prefill=1", "--set", "cluster.decode=2"],
        "real": ["run", *QUICK, "--set", "workload.time_scale=0.1", "--device", "host"],
        "compared": [
            "compare",
            QUICK[0],
            "--vary",
            "cache.eviction=lru,slru,tide",
            "--vary",
            "tiers.host.tokens=30000,60000,100000",
            "--goal",
            "ttft_p90_s=1.1",
        ],
        "bars": ["compare", *QUICK, "--vary", "cache.eviction=lru,tide"],
        "seeds": [
            "compare",
            "experiments/quickstart.toml",
            "--set",
            "workload.trace=",
            "--set",
            "workload.generate.duration_s=60",
            "--set",
            "tiers.host.tokens=6000",
            "--vary",
            "cache.eviction=lru,tide",
            "--seeds",
            "3",
        ],
        "engines": [
            "compare",
            *QUICK,
            "--set",
            "report.bounds=false",
            "--set",
            "slo.ttft_s=0.5",
            "--vary",
            "cluster.engines=1,2",
            "--vary",
            "parallel.tp=1,2",
            "--vary",
            "tiers.host.tokens=5000,20000",
            "--goal",
            "good_share=0.9",
        ],
        "swept": ["sweep", *QUICK, "--vary", "cache.eviction=lru,fifo", "--vary", "tiers.host.tokens=5000,20000"],
        "cases": ["sweep", "experiments/layout.toml", "--set", "workload.limit=40"],
        "planned": [
            *"plan --model llama-3.1-8b --hardware h100-sxm --requests-per-second 12 --prompt-tokens 4000".split(),
            *"--output-tokens 100 --turns 4 --think-s 10 --prefix-tokens 500 --set sim.world=events".split(),
            *"--set workload.generate.duration_s=90 --set slo.ttft_s=0.2 --goal ttft_p90_s=1 --goal tpot_p90_s=0.05".split(),
            *"--vary parallel.tp=1,2 --vary cluster.engines=1..8 --vary tiers.host.gib=0,64,128,256".split(),
            *"--vary drives=0,1 --draws 4 --seeds 2".split(),
        ],
    }
    for name, command in commands.items():
        code, _, errors = kvtwin_program(*command, "--out", FOLDERS / name)
        assert code == 0, f"{name}: {errors}"
    (FOLDERS / "planned/report.html").unlink()  # plan makes the page too
    hostile_setting = {
        "settings": {HOSTILE: HOSTILE},
        "figures": {"ttft_p90_s": 1.0, HOSTILE: 2.0},
        "gpus": 8,
        "price_month": 1.0,
        "meets": True,
        "because": HOSTILE,
    }
    write_plan(
        FOLDERS / "hostile_plan",
        title=HOSTILE,
        model=HOSTILE,
        warnings=[HOSTILE],
        reproduce=[HOSTILE],
        alternatives=[hostile_setting],
        tried=[hostile_setting, *the_plan()["tried"]],
        ties=[hostile_setting],
        out=[0],
        follow_ups=[{"name": HOSTILE, "answer": HOSTILE}, {"name": f"GPU {HOSTILE}", "answer": HOSTILE} | hostile_setting],
        assumed=[HOSTILE],
        recommendation=the_plan()["recommendation"] | {"servers": {HOSTILE: {"command": HOSTILE, "notes": [HOSTILE]}}},
        confidence=the_plan()["confidence"] | {"errors_of": HOSTILE, "not_judged": [HOSTILE]},
        binds={"sentence": HOSTILE, "lanes": [{"name": HOSTILE, "busy_fraction": 0.5}]},
    )
    folder = FOLDERS / "<script>window.broken=1;<&script>"  # a name cannot hold a slash
    synthetic_run.write(folder, requests=60)
    change(folder / "report.json", notes=[HOSTILE], model_kv=HOSTILE, world=HOSTILE, git_commit=HOSTILE)
    text = (folder / "lanes.csv").read_text()
    (folder / "lanes.csv").write_text(text.replace("disk.read", HOSTILE.replace('"', "").replace(",", "")))
    (folder / "experiment.resolved.toml").write_text(f"seed = 1  # {HOSTILE}\n")
    return folder


def the_plan():
    return json.loads((FOLDERS / "planned" / "plan.json").read_text())


def write_plan(folder, **members):
    """A copy of the plan with other members."""
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").write_text(json.dumps(the_plan() | members))
    shutil.copy(FOLDERS / "planned" / "recommended.toml", folder)


def change(path, **members):
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


class Elements(html.parser.HTMLParser):
    """The start tags of a page, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.silent = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.silent = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.silent = False

    def handle_data(self, data):
        self.text += "" if self.silent else data

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hostile = make_folders()

    def page(self, *folders):
        """Returns the page of folders, by the program."""
        out = FOLDERS / "page.html"
        code, lines, errors = kvtwin_program("report", *folders, "--out", out, "--force")
        self.assertEqual((code, lines, errors), (0, f"{out}\n", ""))
        return out.read_text(encoding="utf-8")

    def refused(self, *words):
        """Checks that the program refuses with one sentence and leaves no file. Returns the sentence."""
        before = sorted(FOLDERS.rglob("*"))
        code, lines, errors = kvtwin_program("report", *words)
        self.assertEqual((code, lines), (2, ""), errors)
        self.assertEqual(len(errors.splitlines()), 1, errors)
        self.assertEqual(sorted(FOLDERS.rglob("*")), before)
        return errors

    def test_every_kind_is_one_page_that_repeats(self):
        figures = {
            "simulated": 4,
            "drawn": 5,
            "roles": 4,
            "real": 4,
            "compared": 3,
            "bars": 3,
            "seeds": 3,
            "engines": 5,
            "swept": 3,
            "cases": 6,
            "planned": 9,
        }
        for name, expected in figures.items():
            with self.subTest(name):
                text = self.page(FOLDERS / name)
                self.assertLess(len(text.encode()), report_page.MAX_PAGE_BYTES)
                self.assertEqual(text, report_page.page([str(FOLDERS / name)]))  # in another process
                elements = Elements(text)
                self.assertEqual(elements.count("figure"), expected)
                self.assertEqual(elements.count("script"), 3)
                self.assertEqual(
                    sum(a.get("class") == "plot" and len(a["aria-label"]) > 20 for _, a in elements.tags), expected
                )
                self.assertEqual(
                    sum("summary" == tag for tag, _ in elements.tags) >= expected,
                    True,
                    "each figure has a table of its numbers",
                )
                for tag, attributes in elements.tags:
                    for key in ("src", "href"):
                        self.assertRegex(attributes.get(key) or "#", r"^(#|data:)", f"{tag} loads something")
                self.assertNotRegex(elements.text.lower(), r"\bnan\b")
                self.assertIn("commit", elements.text)
                self.assertIn(
                    f"kvtwin {'plan' if name == 'planned' else 'run' if name == 'real' else kind_command(name)}",
                    elements.text,
                )

    def test_the_verdict_of_a_run(self):
        text = Elements(self.page(FOLDERS / "simulated")).text
        made = json.loads((FOLDERS / "simulated/report.json").read_text())
        mean, (low, high) = made["ttft_seconds"]["mean"], made["intervals"]["ttft_mean_s"]
        times = [figure_words.seconds(time) for time in (mean, low, high)]
        self.assertIn("TTFT {} ({} to {}) on average".format(*times), text)
        self.assertTrue(made["notes"])
        for note in made["notes"]:
            self.assertIn(note, text)
        self.assertIn("optimal, single cache", text)
        self.assertIn("a day", text)  # the disk tier was written
        self.assertIn("tiers.host.tokens = ", text)

    def test_the_command_of_a_run_repeats_it(self):
        text = Elements(self.page(FOLDERS / "drawn")).text
        command = next(line for line in text.splitlines() if line.startswith("kvtwin simulate "))
        again = FOLDERS / "again"
        code, _, errors = kvtwin_program(*command.replace("out/again", str(again)).split()[1:])
        self.assertEqual(code, 0, errors)
        self.assertEqual((again / "requests.csv").read_bytes(), (FOLDERS / "drawn/requests.csv").read_bytes())
        self.assertEqual(
            json.loads((again / "report.json").read_text())["draws"],
            json.loads((FOLDERS / "drawn/report.json").read_text())["draws"],
        )

    def test_a_comparison_marks_its_best_settings(self):
        elements = Elements(self.page(FOLDERS / "compared"))
        rows = [json.loads(line) for line in (FOLDERS / "compared/compare.jsonl").read_text().splitlines()]
        self.assertEqual(sum(attributes.get("class") == "marked" for _, attributes in elements.tags), 1)
        marks = sum(value == "best" for row in rows for key, value in row.items() if key.endswith("_standing"))
        self.assertEqual(elements.text.count("★") - elements.text.count("★ best"), marks)
        self.assertIn("TTFT p90 at most 1.1 s", elements.text)
        # A value is never rounded onto the other side of the goal.
        for value, limit in ((2.0391, 2), (2.0004, 2), (1.9996, 2), (2, 2), (0.0500001, 0.05)):
            shown = float(figure_words.judged_text("ttft_p90_s", value, limit).removesuffix(" ms").removesuffix(" s"))
            shown = shown / 1000 if shown > 10 else shown
            self.assertEqual(shown <= limit, value <= limit, (value, limit))

    def test_figures_are_described_as_by_the_program(self):
        # The package's list is the program's.
        listed = json.loads(kvtwin_program("presets", "--json")[1])["figures"]
        self.assertEqual(json.loads((ROOT / "python/kvtwin/run_figures.json").read_text()), listed)
        self.assertGreater(len(listed), 50)
        self.assertEqual(set(one["unit"] for one in listed.values()) - set(figure_words.UNITS), set())
        # The files say which direction is better.
        directed = {name: one["better"] for name, one in listed.items() if "better" in one}
        for folder, file in (("compared", "compare.json"), ("swept", "compare.json")):
            self.assertEqual(json.loads((FOLDERS / folder / file).read_text())["better"], directed)
        self.assertEqual(figure_words.limit_words("hand_over_p99_s", 0.05, "less"), "at most 50 ms")
        self.assertEqual(figure_words.limit_words("unknown_s", 2, "more"), "at least 2 s")
        self.assertEqual(figure_words.limit_words("unknown_s", 2, None), "2 s")

    def test_units_are_written_in_one_way(self):
        for key, value, text in (
            ("ttft_p90_s", 0.02, "20 ms"),
            ("ttft_p90_s", 0.9996, "1 s"),
            ("ttft_p90_s", 0, "0 s"),
            ("ttft_p90_s", 4119, "4,119 s"),
            ("hit_ratio", 0.6144, "61.4 %"),
            ("rejected_share", 12.345678, "1,235 %"),
            ("written_host_bytes", 3.2e9, "3.2 GB"),
            ("hand_over_bytes", 512, "512 B"),
            ("power_kw", 12.5, "12.5 kW"),
            ("drive_years", 5.06, "5.06 years"),
            ("prompt_tokens_per_second", 1234567, "1,234,567"),
            ("goodput_per_second", 0.012345, "0.01235"),
        ):
            self.assertEqual(figure_words.figure_text(key, value), text)
        self.assertEqual(figure_words.value_text(3072.0, "GiB"), "3,072 GiB")
        self.assertEqual(figure_words.value_text(1234567.5), "1,234,567.5")
        self.assertEqual(figure_words.setting_words({"tiers.host.gib": 3072.0}), "tiers.host.gib=3072")
        self.assertEqual(figure_words.money(17973.4, "USD"), "USD 17,973")
        # The ticks of an axis have one unit, that of the largest value.
        axis = charts.Axis("time", "seconds")
        series = [charts.Series("a", [0, 1], [0.2, 0.03], "#000000", whiskers=([0.1, 0], [0.1, 0]))]
        table = charts.Table("", [], [])
        chart = charts.Chart("t", "s", charts.Axis(""), [axis], series, table, lines=[("y", 0.1, "goal")])
        drawn = charts_interactive.plotly_figure(chart)
        self.assertEqual(drawn["layout"]["yaxis"]["ticksuffix"], " ms")
        self.assertEqual(drawn["data"][0]["y"], [200, 30])
        self.assertEqual(drawn["data"][0]["error_y"]["array"], [100, 0])
        self.assertEqual(drawn["layout"]["shapes"][0]["y0"], 100)
        series[0].whiskers = ([0, 0], [2.3, 0])  # an interval may need a larger unit than its point
        self.assertEqual(charts_interactive.plotly_figure(chart)["layout"]["yaxis"]["ticksuffix"], " s")
        self.assertIn("200 ms", drawn["data"][0]["text"][0])

    def test_a_comparison_has_one_recommendation(self):
        compared = result_folders.load_compare(FOLDERS / "compared")
        choice = charts_of_settings.choice_of(compared)
        good = [row for row in compared.rows if row["meets_goal"]]
        self.assertEqual((choice.row, choice.reason), (good[0], "only this setting meets the goal"))
        self.assertEqual([row for row in compared.rows if row["recommended"]], good)
        text = Elements(self.page(FOLDERS / "compared")).text
        words = figure_words.setting_words(charts_of_settings.settings_of(compared, choice.row))
        self.assertEqual(text.count(f"Recommendation: {words}: TTFT p90"), 1)
        self.assertIn("Only this setting meets the goal.", text)
        # Its command simulates it, and the commands of the servers are those of the program.
        command = next(line for line in text.splitlines() if line.startswith("kvtwin simulate") and "--set" in line)
        code, flags, errors = kvtwin_program(*command.split()[1:], "--to-sglang-flags")
        self.assertEqual(code, 0, errors)
        self.assertIn(f"python -m sglang.launch_server {flags.splitlines()[0]}", text)
        self.assertIn(choice.servers["vllm"]["command"], text)
        # Every figure marks it.
        for chart in charts_of_settings.compare_charts(compared, choice):
            self.assertIn("recommendation", [series.name for series in chart.series], chart.title)
        bars = result_folders.load_compare(FOLDERS / "bars")
        for chart in charts_of_settings.compare_charts(bars, charts_of_settings.choice_of(bars)):
            self.assertIn("recommendation", [series.name for series in chart.series], chart.title)
        # Without one, the nearest is named, if there is one.
        compared.plan["recommendation"] |= {"row": None, "nearest_row": 3}
        lead = report_settings.compare_section(FOLDERS / "compared", compared).lead
        self.assertRegex(lead, r"^No recommendation: no setting meets the goal, TTFT p90 at most 1.1 s. Nearest: ")
        compared.plan["recommendation"]["nearest_row"] = None
        lead = report_settings.compare_section(FOLDERS / "compared", compared).lead
        self.assertEqual(lead, "No recommendation: no setting meets the goal, TTFT p90 at most 1.1 s.")
        del compared.plan["recommendation"]
        lead = report_settings.compare_section(FOLDERS / "compared", compared).lead
        self.assertEqual(lead, "No recommendation: compare.json has none.")

    def test_a_plan_marks_its_recommendation_in_every_figure(self):
        section = report_plans.plan_section(FOLDERS / "planned", the_plan())
        charts = [chart for chart in section.charts() if chart]
        self.assertEqual(len(charts), 9)
        for chart in charts:
            places = [chart.title, *(series.name for series in chart.series), *(label for *_, label in chart.lines)]
            places += [str(text) for axis in chart.panels for _, text in axis.ticks or []]
            self.assertTrue(any("recommendation" in place for place in places), chart.title)
        # The line of the capacity is at the tokens of all tiers.
        made = json.loads((FOLDERS / "planned/recommended/report.json").read_text())
        size = 64 * sum(tier["capacity_pages"] for tier in made["tiers"])
        hits = next(chart for chart in charts if chart.title.startswith("Hits by capacity"))
        self.assertEqual(hits.lines, [("x", size, "recommendation")])
        # Drives of the recommendation are a bar of their own.
        plan = the_plan()
        plan["recommendation"] = plan["recommendation"] | {"settings": plan["drives"][0]["settings"]}
        bars = charts_of_plans.drives_chart(charts_of_plans.Plan(FOLDERS / "planned", plan))
        self.assertEqual([(series.name, len(series.x)) for series in bars.series], [("recommendation", 1), ("others", 2)])

    def test_intervals_are_drawn(self):
        plan = the_plan()
        low, high = plan["confidence"]["ranges"]["ttft_p90_s"]
        value = plan["recommendation"]["figures"]["ttft_p90_s"]
        chart = charts_of_plans.Plan(FOLDERS / "planned", plan).front("ttft_p90_s", 1.0)
        star = next(series for series in chart.series if series.name == "recommendation")
        np.testing.assert_allclose([end[0] for end in star.whiskers], [value - low, high - value])
        engines = result_folders.load_compare(FOLDERS / "engines")
        for row in engines.rows:
            row["good_share_ci95"] = 0.01
        chart = charts_of_settings.compare_charts(engines, charts_of_settings.choice_of(engines))[-1]
        points = [series for series in chart.series if series.kind == "points"]
        self.assertTrue(all(series.whiskers[0] == [0.01] * len(series.x) for series in points))

    def test_gpus_that_vary_have_a_front(self):
        rows = [json.loads(line) for line in (FOLDERS / "engines/compare.jsonl").read_text().splitlines()]
        compared = result_folders.load_compare(FOLDERS / "engines")
        chart = charts_of_settings.compare_charts(compared, charts_of_settings.Choice(None, None, "good_share"))[-1]
        self.assertEqual(chart.title, "Good requests against GPUs")
        self.assertFalse(chart.panels[0].log)
        points = [point for series in chart.series if series.kind == "points" for point in zip(series.x, series.y)]
        self.assertEqual(sorted(points), sorted((row["gpus"], row["good_share"]) for row in rows))
        self.assertIn("cluster.engines=2", chart.series[-1].hover[-1])
        text = Elements(self.page(FOLDERS / "engines")).text
        self.assertIn("Good requests against GPUs", text)
        self.assertIn("engines 2, tp 1", text)  # the name of a line has the names of the keys that vary

    def test_a_sweep_marks_its_best_cell(self):
        elements = Elements(self.page(FOLDERS / "swept"))
        rows = [json.loads(line) for line in (FOLDERS / "swept/sweep.jsonl").read_text().splitlines()]
        best = [row for row in rows if row["ttft_mean_s"] == min(row["ttft_mean_s"] for row in rows)]
        self.assertEqual(sum(attributes.get("class") == "marked" for _, attributes in elements.tags), len(best))
        self.assertIn(f"cache.eviction={best[0]['cache.eviction']}", elements.text)
        # A cell that rejects most requests is fast, and not the best.
        sweep = result_folders.load_sweep(FOLDERS / "swept")
        sweep.rows[0] |= {"completed": 1, "ttft_mean_s": 1e-6}
        self.assertNotIn(0, charts_of_sweeps.best_cells(sweep, "ttft_mean_s"))
        sweep.rows[1] |= {"ttft_mean_s": None, "failure": "killed by signal 9"}
        self.assertIn("killed by signal 9", str(report_settings.sweep_table(sweep).rows[1]))
        for row in sweep.rows:
            row |= {"completed": 0, "ttft_mean_s": None}
        self.assertEqual(charts_of_sweeps.best_cells(sweep, "ttft_mean_s"), set())

    def test_the_verdict_of_a_plan(self):
        plan = the_plan()
        best = plan["recommendation"]
        text = Elements(self.page(FOLDERS / "planned")).text
        for words in (
            f"Recommendation: {best['gpus']} GPU h100-sxm",
            f"USD {best['price_month']:,.0f} per month",
            "at most 1 s",
            "gpu.h100-sxm",
            "What binds",
            plan["binds"]["sentence"],
            "drives 1 instead of 0",
            f"{plan['drives'][0]['years']:.3g} years",
            f"on {plan['confidence']['draws_meeting']} of 4 drawn machines",
            plan["alternatives"][0]["because"],
            "llama-3.1-8b",
            *plan["reproduce"],
            *plan["warnings"],
        ):
            self.assertIn(words, text)
        words = text.split("Experiment: every key")[0]
        for server in best["servers"].values():  # the flags have all digits of a ratio
            words = words.replace(server["command"], "")
        self.assertNotRegex(words, r"[1-9]\d*\.\d{5}|0\.0*[1-9]\d{5}", "a number with too many digits")
        made = charts_of_plans.Plan(FOLDERS / "planned", plan)
        chart = made.front("ttft_p90_s", 1.0)
        points = {series.name: series for series in chart.series}
        full = [one for one in plan["tried"] if one["stage"] == "full"]
        self.assertEqual(len(points["meets the goals"].x) + len(points["does not"].x), len(full))
        self.assertIn(
            f"cluster.engines={best['settings']['cluster.engines']}", points["recommendation"].hover[0]
        )
        front = list(zip(points["Pareto front"].x, points["Pareto front"].y))
        self.assertGreater(len(front), 3)
        self.assertEqual([y for _, y in front], sorted((y for _, y in front), reverse=True))
        # Of a figure whose larger values are better, the front rises.
        shares = next(s for s in made.front("good_share", None).series if s.name == "Pareto front")
        self.assertEqual(shares.y, sorted(shares.y))

    def test_a_plan_says_how_likely_its_goals_hold(self):
        plan = the_plan()
        sure, best = plan["confidence"], plan["recommendation"]
        section = report_plans.plan_section(FOLDERS / "planned", plan)
        odds = report_plans.odds_text(charts_of_plans.Plan(FOLDERS / "planned", plan))
        self.assertEqual(float(odds.removesuffix("\u00a0%")), float(f"{100 * sure['probability']:.2g}"))
        self.assertTrue(section.lead.endswith(f" The goals hold with a probability of {odds}."), section.lead)
        text = Elements(self.page(FOLDERS / "planned")).text
        self.assertIn(f"by the errors of {sure['errors_of']}.", text)
        self.assertIn("The goals are met with 2 of 2 seeds of the traffic.", text)
        self.assertNotIn("variants", text.split("Experiment: every key")[0])
        # A bar from one end of the interval to the other, in two colours at the limit, and a star at the expected value.
        made = charts_of_plans.Plan(FOLDERS / "planned", plan)
        made.goals = [{"figure": "ttft_p90_s", "limit": 2, "better": "less"}, {"figure": "hit_ratio", "limit": 0.5, "better": "more"}]
        made.confidence = {"ranges": {"ttft_p90_s": [1, 8], "hit_ratio": [0.4, 0.6]}}
        one = {"figures": {"ttft_p90_s": 1.5, "hit_ratio": 0.55}}
        chart = charts_of_plans.interval_chart(made, one)
        bars = {series.name: list(zip(series.y, series.base or [], series.x)) for series in chart.series}
        np.testing.assert_allclose(bars["meets the goal"], [(0, 0.5, 0.5), (1, 1, 0.2)])
        np.testing.assert_allclose(bars["misses the goal"], [(0, 1, 3), (1, 0.8, 0.2)])
        np.testing.assert_allclose(chart.series[-1].x, [0.75, 1.1])
        self.assertEqual((chart.series[-1].name, chart.lines), ("recommendation", [("x", 1, "limit")]))
        self.assertEqual(chart.table.rows[0], ["TTFT p90", "at most 2 s", "1.5 s", "1 s to 8 s"])
        self.assertIsNone(charts_of_plans.interval_chart(charts_of_plans.Plan(FOLDERS / "planned", plan | {"confidence": None}), best))
        # The direction is that of the file.
        self.assertEqual(report_plans.goal_table(made, one).rows[1], ["prompt tokens hit", "at least 50 %", "55 %", "40 % to 60 %", "yes"])
        made.tried = [
            one | {"stage": "full", "price_month": price, "figures": {"ttft_p90_s": value}} for price, value in ((1, 1), (2, 2))
        ]
        made.plan, made.priced = {"front": [0, 1], "goals": made.goals}, True
        for better, names in (("less", ["does not"]), ("more", ["Pareto front", "does not"])):
            made.goals[0]["better"] = better
            self.assertEqual([series.name for series in made.front("ttft_p90_s", 2).series], names)
        # Without a recommendation the odds are those of the nearest setting; without published errors there are none.
        plan |= {"recommendation": None, "reason": "too dear"}
        section = report_plans.plan_section(FOLDERS / "planned", plan)
        self.assertEqual(section.lead, "No recommendation: too dear.")
        self.assertRegex(str(section.verdict), "With the nearest setting, the goals hold with a probability of")
        plan["confidence"] = sure | {"probability": None, "ranges": {}, "not_judged": ["ttft_p90_s"], "seeds": 1}
        words = report_plans.odds_sentences(charts_of_plans.Plan(FOLDERS / "planned", plan))
        self.assertIn("No goal depends on TTFT or TPOT, whose errors are published", words)
        self.assertIn("The probability leaves out TTFT p90: no published run has this figure.", words)
        self.assertIn("One seed of the traffic was simulated.", words)

    def test_a_plan_has_the_commands_of_servers(self):
        plan = the_plan()
        page = self.page(FOLDERS / "planned")
        blocks = [html.unescape(block) for block in re.findall(r'<div class="command"><pre>(.*?)</pre></div>', page)]
        servers = plan["recommendation"]["servers"]
        self.assertEqual(blocks, [servers[engine]["command"] for engine in ("sglang", "vllm")])
        text = Elements(page).text
        for words in ("Command of a server: SGLang", "Command of a server: vLLM", *servers["vllm"]["notes"]):
            self.assertIn(words, text)

    def test_the_questions_that_follow_a_plan(self):
        plan = the_plan()
        self.assertGreater(len(plan["follow_ups"]), 4)
        rows = report_plans.questions_table(charts_of_plans.Plan(FOLDERS / "planned", plan)).rows
        self.assertEqual(len(rows), len(plan["follow_ups"]))
        own = plan["recommendation"]["price_month"]
        for (question, answer, price, difference), one in zip(rows, plan["follow_ups"]):
            self.assertTrue(question.endswith("?"), f"{one['name']} is no question")
            if "price_month" not in one:
                self.assertEqual((answer, price, difference), (one["answer"], "–", "–"))
                continue
            more = one["price_month"] - own
            self.assertAlmostEqual(more, one["more_a_month"])
            self.assertEqual(price, f"USD {one['price_month']:,.0f}")
            self.assertEqual(difference, f"{'+' if more >= 0 else ''}USD {more:,.0f}")
            # The answer has only the settings that change, and leaves the price to its column.
            self.assertNotIn(f"parallel.tp={plan['recommendation']['settings']['parallel.tp']}", answer)
            self.assertNotIn("a month (", answer)
        for name in ("load", "spare", "load x 4", "no tiers", "pool", "mixed chunks", "GPU h200-sxm"):
            self.assertRegex(report_plans.question_text(name), r"^[A-Z].*\?$")
        double = next(row for row in rows if row[0] == "What does 2 x the traffic need?")
        self.assertRegex(double[1], r"requests per second\): cluster\.engines=\d+$")
        text = Elements(self.page(FOLDERS / "planned")).text
        for sentence in plan["assumed"]:
            self.assertIn(sentence, text)
        tie = plan["tried"][0] | {"settings": plan["recommendation"]["settings"] | {"cluster.route": "round_robin"}}
        section = report_plans.plan_section(FOLDERS / "planned", plan | {"ties": [tie]})
        (_, table), = [blocks for heading, blocks in section.verdict if heading == "Ties"]
        self.assertEqual(table.rows[0][0], "cluster.route=round_robin")

    def test_of_many_parts_that_miss_the_nearest_are_listed(self):
        plan = the_plan()
        first = plan["tried"][0]
        others = [
            first | {"settings": {"parallel.tp": n}, "meets": False, "why_not": f"reason {n}", "figures": {"ttft_p90_s": 1 + n, "tpot_p90_s": 0.01}}
            for n in range(31, 0, -1)
        ]
        others[-1]["figures"]["rejected_share"] = 0.5  # fast, because it leaves half of the requests out
        plan |= {"tried": [first, *others], "out": list(range(1, 32))}
        table = report_plans.nearest_table(charts_of_plans.Plan(FOLDERS / "planned", plan))
        self.assertEqual([row[1] for row in table.rows], [str(n) for n in range(2, 12)])
        self.assertEqual([row[-1] for row in table.rows], [f"no: reason {n}" for n in range(2, 12)])
        self.assertIn("The 10 nearest settings; 21 more are in plan.json.", table.note)
        plan["out"] = [3, 1]
        self.assertEqual(len(report_plans.nearest_table(charts_of_plans.Plan(FOLDERS / "planned", plan)).rows), 2)
        plan["out"] = []
        self.assertIsNone(report_plans.nearest_table(charts_of_plans.Plan(FOLDERS / "planned", plan)))

    def test_a_plan_of_many_settings_shows_the_recommendation(self):
        plan = the_plan()
        best = next(one for one in plan["tried"] if one["settings"] == plan["recommendation"]["settings"])
        others = [one for one in plan["tried"] if one["settings"] != best["settings"]]
        plan["tried"] = [*others * (chart_kinds.MAX_ROWS // len(others) + 1), best]
        plan["front"] = plan["out"] = []
        section = report_plans.plan_section(FOLDERS / "planned", plan)
        table = next(blocks[0] for heading, blocks in section.parts if heading == "All settings")
        self.assertEqual((len(table.rows), table.marked), (chart_kinds.MAX_ROWS, {chart_kinds.MAX_ROWS - 1}))
        self.assertEqual(table.rows[-1][0], str(len(plan["tried"])))
        # Bought parts are whole.
        plan["recommendation"]["parts"] = [{"name": "GiB of DRAM", "count": 3071.99, "price_month": 9522.9, "power_w": 80}]
        lead = report_plans.plan_section(FOLDERS / "planned", plan).lead
        self.assertTrue(lead.startswith("Recommendation: 3,072 GiB of DRAM for USD "), lead)

    def test_a_plan_needs_only_its_required_members(self):
        folder = FOLDERS / "bare"
        for absent in the_plan():
            if absent == "schema_version":
                continue
            with self.subTest(absent):
                write_plan(folder)
                plan = json.loads((folder / "plan.json").read_text())
                del plan[absent]
                (folder / "plan.json").write_text(json.dumps(plan))
                self.assertIn("<h1>", report_page.page([str(folder)]))
        (folder / "plan.json").write_text(
            '{"schema_version": 1, "recommendation": null, "reason": "no price is low enough"}'
        )
        self.assertIn("No recommendation: no price is low enough.", Elements(report_page.page([str(folder)])).text)
        write_plan(folder)
        plan = json.loads((folder / "plan.json").read_text())
        for one in [*plan["tried"], plan["recommendation"], *plan["alternatives"], *plan["margins"]]:
            del one["price_month"]
        change(
            folder / "plan.json", **{key: plan[key] for key in ("tried", "recommendation", "alternatives", "margins")}
        )
        self.assertIn("TTFT p90 against GPUs", Elements(report_page.page([str(folder)])).text)

    def test_several_folders(self):
        text = self.page(FOLDERS / "simulated", FOLDERS / "real", FOLDERS / "compared", FOLDERS / "planned")
        elements = Elements(text)
        headings = [attributes["id"] for tag, attributes in elements.tags if tag == "h2"]
        self.assertEqual(headings, [f"section-{n}" for n in range(1, 6)])  # and side by side
        links = [attributes["href"] for tag, attributes in elements.tags if tag == "a"]
        self.assertEqual(links[1:], [f"#{name}" for name in headings])
        self.assertEqual(elements.count("figure"), 4 + 4 + 4 + 3 + 9)
        # A simulation and a real run are not ranked.
        self.assertRegex(elements.text, r"Mean TTFT: simulated [0-9.]+ m?s \(\w+\), real [0-9.]+ m?s \(real\)\.")
        self.assertNotIn("Lowest mean TTFT: simulated", elements.text)
        self.assertNotIn("Lowest mean TTFT: real", elements.text)
        shutil.copytree(FOLDERS / "simulated", FOLDERS / "simulated_again")
        both = Elements(self.page(FOLDERS / "simulated", FOLDERS / "simulated_again")).text
        self.assertIn("Lowest mean TTFT: simulated", both)
        write_plan(FOLDERS / "second_plan", title="second")
        self.assertIn("Lowest price", Elements(self.page(FOLDERS / "planned", FOLDERS / "second_plan")).text)
        self.assertIn("at most 6", self.refused(*[FOLDERS / "simulated"] * 7, "--out", FOLDERS / "seven.html"))

    def test_text_of_files_is_escaped(self):
        for folder in (self.hostile, FOLDERS / "hostile_plan"):
            text = self.page(folder)
            elements = Elements(text)
            self.assertEqual(elements.count("script"), 3)
            self.assertEqual(elements.count("img") + elements.count("b"), 0)
            self.assertFalse([key for _, attributes in elements.tags for key in attributes if key.startswith("on")])
            self.assertIn(HOSTILE, elements.text)  # as text
            data = re.search(r'id="figure-data">(.*?)</script>', text, re.DOTALL)[1]
            self.assertNotRegex(data, "[<>&]")
            self.assertGreater(len(json.loads(data)), 3)

    def test_without_plotly_the_figures_are_static(self):
        absent = {"plotly": None, "plotly.offline": None}
        for name, expected in (
            ("simulated", 4),
            ("drawn", 5),
            ("compared", 3),
            ("seeds", 3),
            ("cases", 6),
            ("planned", 9),
            ("hostile_plan", 8),
        ):
            with self.subTest(name), mock.patch.dict(sys.modules, absent):
                text = report_page.page([str(FOLDERS / name)])
                elements = Elements(text)
                self.assertEqual(
                    (elements.count("img"), elements.count("script"), elements.count("figure")), (expected, 0, expected)
                )
                self.assertIn("The figures are static", elements.text)
                for tag, attributes in elements.tags:
                    if tag == "img":
                        self.assertTrue(attributes["src"].startswith("data:image/svg+xml;base64,"))
                        self.assertGreater(len(attributes["alt"]), 20)
                self.assertEqual(text, report_page.page([str(FOLDERS / name)]))
        with mock.patch.dict(sys.modules, {"jinja2": None}), contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(run_module.main(["report_page", str(FOLDERS / "x.html"), str(FOLDERS / "simulated")]), 2)
        self.assertIn("no package jinja2; run tools/quickstart", errors.getvalue())
        self.assertFalse((FOLDERS / "x.html").exists())

    def test_a_plan_without_packages_is_a_plan_without_a_page(self):
        bare = FOLDERS / "bare/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", FOLDERS / "bare"], check=True)
        code, out, errors = kvtwin_program(
            "plan", "--model", "llama-3.1-8b", "--hardware", "h100-sxm", "--requests-per-second", 1, "--prompt-tokens", 500,
            "--output-tokens", 50, "--turns", 1, "--prefix-tokens", 0, "--goal", "ttft_p90_s=100", "--seeds", 1,
            "--vary", "tiers.host.gib=0", "--no-questions", "--out", FOLDERS / "bare-plan", KVTWIN_PYTHON=bare
        )  # fmt: skip
        self.assertEqual(code, 0, errors)
        self.assertIn("buy  ", out)
        self.assertRegex(errors, r"kvtwin report: .*: no package \w+; run tools/quickstart")
        self.assertIn("report.html is left out", errors)

    def test_bad_input_is_one_sentence(self):
        empty = FOLDERS / "empty"
        empty.mkdir(exist_ok=True)
        self.assertIn("holds no plan.json, compare.json, sweep.json or report.json", self.refused(empty))
        self.assertIn("holds no plan.json", self.refused(FOLDERS / "absent"))
        self.assertIn(
            "no such Python; run tools/quickstart",
            kvtwin_program("report", FOLDERS / "real", KVTWIN_PYTHON="/nowhere/python")[2],
        )
        (FOLDERS / "page.html").write_text("mine")
        self.assertIn(
            "exists; give another name, or --force", self.refused(FOLDERS / "real", "--out", FOLDERS / "page.html")
        )
        self.assertEqual((FOLDERS / "page.html").read_text(), "mine")
        self.assertIn("is a folder", self.refused(FOLDERS / "real", "--out", empty, "--force"))
        self.assertIn("there is no folder", self.refused(FOLDERS / "real", "--out", FOLDERS / "no/page.html"))

        def damaged(kind, name, damage):
            folder = FOLDERS / "damaged"
            subprocess.run(["rm", "-rf", folder], check=True)
            subprocess.run(["cp", "-r", FOLDERS / kind, folder], check=True)
            path = folder / name
            damage(path)
            with (
                contextlib.redirect_stderr(io.StringIO()) as errors,
                contextlib.redirect_stdout(io.StringIO()) as lines,
            ):
                code = report_page.main([str(folder / "report.html"), str(folder)])
            sentence = errors.getvalue()
            self.assertEqual((code, lines.getvalue(), len(sentence.splitlines())), (2, "", 1), sentence)
            self.assertTrue(sentence.startswith("kvtwin report: "), sentence)
            self.assertIn(
                str(path) if name.endswith(("csv", "jsonl")) and "member is absent" not in sentence else str(folder),
                sentence,
            )
            self.assertEqual(sorted(folder.glob("report.html*")), [])

        def cut_half(path):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

        def cut_lines(path):
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))

        for kind, names in (
            ("real", ["report.json", "requests.csv", "lanes.csv"]),
            ("compared", ["compare.json", "compare.jsonl"]),
            ("swept", ["compare.json", "sweep.jsonl"]),
            ("planned", ["plan.json"]),
        ):
            for name in names:
                with self.subTest(f"{kind}/{name}"):
                    damaged(kind, name, lambda path: path.write_text("{"))
                    damaged(kind, name, cut_half) if name != "lanes.csv" else damaged(
                        kind, name, lambda path: path.write_text(path.read_text()[:-20])
                    )
                    if not name.startswith(kind[:4]) or name.endswith("l"):
                        damaged(kind, name, lambda path: path.unlink() or path.mkdir())
        for kind, name in (("real", "requests.csv"), ("compared", "compare.jsonl"), ("swept", "sweep.jsonl")):
            damaged(kind, name, cut_lines)
        damaged("real", "report.json", lambda path: change(path, ttft_seconds=[1]))
        subprocess.run(["cp", "-r", FOLDERS / "real", FOLDERS / "cut"], check=True)
        cut_lines(FOLDERS / "cut/requests.csv")
        self.assertRegex(
            self.refused(FOLDERS / "cut"),
            r"kvtwin report: /[^ ]*/requests.csv: 118 rows where report.json counts 120 requests; is the file cut\?\n$",
        )
        for kind, name, member in (
            ("real", "report.json", "tokens"),
            ("compared", "compare.json", "axes"),
            ("swept", "compare.json", "show"),
            ("planned", "plan.json", "goals"),
        ):
            damaged(kind, name, lambda path, member=member: change(path, **{member: "words"}))
            damaged(kind, name, lambda path: path.write_text("[]"))
            damaged(kind, name, lambda path: change(path, schema_version=9))
            damaged(kind, name, lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()))

    def test_lanes_in_time_bins(self):
        # Two lanes over 120 s: one is busy half of each second, the other idle in one long row, then busy for 1 s.
        rows = [("a", n, 1.0, 0.5) for n in range(120)] + [("b", 0.0, 119.0, 0.0), ("b", 119.0, 1.0, 1.0)]
        lanes = dict(zip(("lane", "window_start_s", "window_s", "busy_fraction"), map(np.array, zip(*rows))))
        mean, p99 = charts_of_runs.lane_bins(lanes, np.ones(len(rows), dtype=bool), 120.0)
        np.testing.assert_allclose(mean, [0.25] * 119 + [0.75])
        np.testing.assert_allclose(p99, [0.5] * 119 + [1.0])
        mean, p99 = charts_of_runs.lane_bins(lanes, lanes["lane"] == "b", 120.0)
        np.testing.assert_allclose([mean, p99], [[0] * 119 + [1.0]] * 2)
        # More windows than bins: one in 50 is busy, which is more than 1 %.
        start = np.arange(12000.0)
        lanes = {
            "lane": np.array(["a"] * start.size),
            "window_start_s": start,
            "window_s": np.ones(start.size),
            "busy_fraction": (start % 50 == 7) * 1.0,
        }
        mean, p99 = charts_of_runs.lane_bins(lanes, np.ones(start.size, dtype=bool), 12000.0)
        np.testing.assert_allclose(mean, 0.02)
        np.testing.assert_allclose(p99, 1.0)
        self.assertEqual(
            [
                charts_of_runs.kind_of(name)
                for name in ("engine12.gpu3.h2d", "gpu0.d2h", "engine1.compute", "dram", "disk.read")
            ],
            ["h2d", "d2h", "compute", "dram", "disk.read"],
        )

    def test_parts_of_the_time_add_up(self):
        run = result_folders.load_run(FOLDERS / "simulated")
        chart = charts_of_runs.parts_chart(run)
        self.assertAlmostEqual(
            sum(series.x[0] for series in chart.series), run.report["ttft_seconds"]["mean"], places=6
        )
        self.assertEqual([text for _, text in chart.panels[0].ticks], ["all requests", "slowest 10 %"])
        # The cumulative share passes the quantiles of the report.
        line = chart_kinds.latency_series("TTFT", run.requests["ttft_s"], "#000")
        for name, share in (("p50", 0.5), ("p90", 0.9)):
            at = next(x for x, y in zip(line.x, line.y) if y >= share)
            self.assertAlmostEqual(at / run.report["ttft_seconds"][name], 1, delta=0.002)

    def test_hand_overs_are_a_part_of_the_time(self):
        run = result_folders.load_run(FOLDERS / "roles")
        self.assertGreater(run.report["ttft_parts_seconds"]["hand_over"], 0)
        chart = charts_of_runs.parts_chart(run)
        self.assertEqual(chart.series[-1].name, "hand-over")
        self.assertAlmostEqual(
            sum(series.x[0] for series in chart.series), run.report["ttft_seconds"]["mean"], places=6
        )
        text = Elements(self.page(FOLDERS / "roles")).text
        self.assertIn("1 prefill and 2 decode engines", text)
        # Beside a run without roles, whose hand-overs take no time.
        parts = result_folders.parts_of(run.report["ttft_parts_seconds"])
        ttfts = [result_folders.load_run(FOLDERS / name).report["ttft_parts_seconds"] for name in ("roles", "simulated")]
        self.assertEqual(result_folders.part_values(parts, ttfts)["hand_over"][1], 0)

    def test_rates_and_bounds_are_of_the_measured_window(self):
        users = ["experiments/quickstart.toml", "--users", "8", "--turns", "3", "--think", "5s", "--new-tokens", "300"]
        settings = ["workload.shrink=1", "workload.generate.requests=300", "tiers.disk.gib=1", "report.bounds=true", "report.warm=true"]
        code, out, err = kvtwin_program(
            "simulate", *users, "--json", *(word for setting in settings for word in ("--set", setting))
        )
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        facts = dict(report_runs.run_facts(mock.Mock(report=found)))
        self.assertIn("in the measured window of ", facts["throughput"])
        tokens = found["warm"]["tokens"]
        hit = sum(value for key, value in tokens.items() if key.startswith("hit_"))
        self.assertEqual(report_runs.bounds_table(found).rows[0][1], f"{hit:,}")
        a_day = next(tier for tier in found["tiers"] if tier["name"] == "disk")["written_bytes_per_day"]
        self.assertEqual(report_runs.wear_table(found).rows[1][1], f"{figure_words.bytes_text(a_day)} a day")
        whole = dict(found, throughput=dict(found["throughput"], window_seconds=found["simulated_seconds"]))
        self.assertNotIn("window", dict(report_runs.run_facts(mock.Mock(report=whole)))["throughput"])
        short = dict(found, slo={"ttft_s": 1, "good": 3, "good_share": 1.0, "goodput_per_second": None})
        short["throughput"] = dict.fromkeys(found["throughput"])
        facts = dict(report_runs.run_facts(mock.Mock(report=short)))
        self.assertNotIn("throughput", facts)
        self.assertIn("– per second", facts["good requests"])

    def test_odd_runs(self):
        one = FOLDERS / "one"
        synthetic_run.write(one, requests=1)
        self.assertIn("1 of 1 completed", Elements(report_page.page([str(one)])).text)
        none = FOLDERS / "none"
        synthetic_run.write(none, requests=1)
        for name, columns in (("requests.csv", result_folders.REQUEST_COLUMNS), ("lanes.csv", result_folders.LANE_COLUMNS)):
            (none / name).write_text(",".join(columns) + "\n")
        made = json.loads((none / "report.json").read_text())
        empty = {key: dict.fromkeys(made[key]) for key in ("ttft_seconds", "ttft_parts_seconds")}
        change(
            none / "report.json",
            tokens=dict.fromkeys(made["tokens"], 0),
            requests=dict(total=1, completed=0, rejected=0, failed=1),
            **empty,
        )
        elements = Elements(report_page.page([str(none)]))
        self.assertIn("No request completed.", elements.text)
        self.assertEqual(elements.count("figure"), 0)
        self.assertIn("No run completed a request.", Elements(report_page.page([str(none), str(none)])).text)

    def test_text_of_figures_is_escaped_for_plotly(self):
        self.assertEqual(charts_interactive.plotly_text("<b>&"), "&lt;b&gt;&amp;")
        chart = charts.Chart(
            "t",
            "s",
            charts.Axis("<i>"),
            [charts.Axis("<i>", ticks=[(0, "<i>")])],
            [charts.Series("<i>", [1.0, float("nan")], [0, 0], "#000", kind="bars")],
            charts.Table("", [], []),
            lines=[("x", 1, "<i>")],
        )
        drawn = json.dumps(charts_interactive.plotly_figure(chart), allow_nan=False)
        self.assertNotIn("<i>", drawn)
        self.assertGreaterEqual(drawn.count("&lt;i&gt;"), 5)


def kind_command(name):
    return "simulate" if name in ("simulated", "drawn", "roles") else "compare"


class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        hostile = make_folders()
        cls.pages = {
            "all": [FOLDERS / name for name in ("simulated", "real", "compared", "planned")],
            "hostile": [hostile],
            "hostile_plan": [FOLDERS / "hostile_plan"],
        }
        cls.pages |= {
            name: [FOLDERS / name]
            for name in ("simulated", "drawn", "real", "compared", "bars", "seeds", "swept", "cases", "planned")
        }
        cls.files = {}
        for name, folders in cls.pages.items():
            cls.files[name] = FOLDERS / f"{name}.html"
            code, _, errors = kvtwin_program("report", *folders, "--out", cls.files[name])
            assert code == 0, errors
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, name, **how):
        self.browser.open(self.files[name], **how)

    def test_pages_draw_their_figures_and_load_nothing(self):
        for name in self.files:
            with self.subTest(name):
                self.open(name)
                figures = self.browser.value("document.querySelectorAll('figure').length")
                self.assertGreater(figures, 0)
                drawn = self.browser.value(
                    "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('.trace, .point')).length"
                )
                self.assertEqual(drawn, figures)
                self.assertEqual(self.browser.value("'broken' in window"), False)
                self.assertEqual(self.browser.faults, [])
                loads = [address for address in self.browser.requests if not address.startswith(("data:", "blob:"))]
                self.assertEqual(loads, [self.files[name].as_uri()])

    def test_the_page_refuses_foreign_scripts_and_loads(self):
        self.open("simulated")
        self.browser.value(
            "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://kvtwin.invalid/x.png\" onerror=\"window.broken=1\">')"
        )
        self.browser.value(
            "(() => { const s = document.createElement('script'); s.textContent = 'window.broken=1'; document.body.append(s); })()"
        )
        self.assertEqual(self.browser.value("new Promise(done => setTimeout(() => done('broken' in window)))"), False)
        self.assertTrue(self.browser.faults, "the content security policy reports the refusals")

    def test_hover_shows_the_setting(self):
        self.open("planned")
        self.browser.value(
            "Plotly.Fx.hover('figure-2', [{pointNumber: 0, "
            "curveNumber: document.getElementById('figure-2').data.findIndex(one => one.name === 'recommendation')}])"
        )
        shown = self.browser.value("document.querySelector('#figure-2 .hoverlayer').textContent")
        engines = the_plan()["recommendation"]["settings"]["cluster.engines"]
        for words in ("ecommendation", f"cluster.engines={engines}", "TTFT p90", "price per month"):
            self.assertIn(words, shown)
        # Text of files in a figure stays text.
        self.open("hostile_plan")
        self.browser.value("Plotly.Fx.hover('figure-2', [{curveNumber: 1, pointNumber: 0}])")
        shown = self.browser.value("document.querySelector('#figure-2 .hoverlayer').textContent")
        self.assertIn(HOSTILE, shown)

    def test_a_button_copies_a_command(self):
        self.open("planned")
        commands = [server["command"] for server in the_plan()["recommendation"]["servers"].values()]
        self.assertEqual(self.browser.value("document.querySelectorAll('.command button').length"), len(commands))
        for place, command in enumerate(commands):
            told = self.browser.value(
                "(button => new Promise(done => {"
                " new MutationObserver(() => done(button.textContent)).observe(button, {childList: true}); button.click(); }))"
                f"(document.querySelectorAll('.command button')[{place}])"
            )
            self.assertIn(told, ("Copied", "Selected"))  # a browser may refuse to copy
            self.assertEqual(self.browser.value("getSelection().toString().trim()"), command)
        self.assertEqual(self.browser.faults, [])

    def test_tab_reaches_everything_in_order(self):
        self.open("all")
        wanted = self.browser.value(
            "[...document.querySelectorAll('a[href], summary')].filter(e => !e.closest('.plot')).map(e => e.textContent)"
        )
        reached = []
        for _ in range(20 * len(wanted)):  # a figure has buttons too
            self.browser.press_tab()
            what = self.browser.value(
                "(e => e.matches('a[href], summary') ? e.textContent : e.tagName)(document.activeElement)"
            )
            if what == "BODY":
                break
            if what == "BUTTON":
                self.assertTrue(
                    self.browser.value(
                        "document.activeElement.ariaLabel || document.activeElement.title || document.activeElement.dataset.title"
                    )
                )
                continue
            visible = self.browser.value(
                "(e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.left >= 0 && r.top >= 0; })(document.activeElement)"
            )
            self.assertTrue(visible, what)
            if what in wanted:
                reached.append(what)
        self.assertEqual(reached, wanted)
        self.assertEqual(wanted[0], "Skip to the content")
        self.assertGreater(len(wanted), 20)
        headings = self.browser.value("[...document.querySelectorAll('h1, h2, h3')].map(e => Number(e.tagName[1]))")
        self.assertEqual(headings[0], 1)
        self.assertEqual(headings.count(1), 1)
        self.assertTrue(all(after - before <= 1 for before, after in itertools.pairwise(headings)))
        for landmark in ("header", "nav", "main", "footer"):
            self.assertEqual(self.browser.value(f"document.querySelectorAll('{landmark}').length"), 1)

    def test_without_javascript_the_verdict_is_there(self):
        for name in ("planned", "simulated"):
            self.open(name, script=False)
            document = self.browser.call("DOM.getDocument")["root"]["nodeId"]
            node = self.browser.call("DOM.querySelector", nodeId=document, selector=".verdict .lead")["nodeId"]
            self.assertRegex(self.browser.call("DOM.getOuterHTML", nodeId=node)["outerHTML"], "Recommendation|TTFT")
            node = self.browser.call("DOM.querySelector", nodeId=document, selector="noscript p")["nodeId"]
            self.assertGreater(node, 0)
            self.assertEqual(self.browser.faults, [])

    def set_media(self, media, scheme):
        """Sets the media, and waits until the page has heard of it and has drawn a frame."""
        dark = "matchMedia('(prefers-color-scheme: dark)')"
        changes = media != "print" and self.browser.value(f"{dark}.matches") != (scheme == "dark")
        if changes:  # behind the page's own listener
            self.browser.value(
                f"void (window.heard = new Promise(done => {dark}.addEventListener('change', () => done(), {{once: true}})))"
            )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.call("Emulation.setEmulatedMedia", media=media, features=features)
        if changes:
            self.browser.value("window.heard")
        self.browser.value("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")

    def test_dark_and_light(self):
        # The lightness (0 to 255) of what is behind and in front: of the page, a table, a warning, a command, and a figure.
        lightness = """(() => {
            const of = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number); return 0.21 * r + 0.72 * g + 0.07 * b; };
            const ink = selector => of(getComputedStyle(document.querySelector(selector)).color);
            const behind = selector => of(getComputedStyle(document.querySelector(selector)).backgroundColor);
            const paint = selector => of(getComputedStyle(document.querySelector(selector)).fill);
            return {paper: ['body', '.verdict', 'pre', '.warnings', 'tr.marked > *'].map(behind)
                        .concat([paint('.plot svg.main-svg rect.bg') || 0, of(document.querySelector('.plot svg.main-svg').style.background)]),
                    ink: ['body', 'h2', 'td', 'dt', 'summary', 'pre', '.note'].map(ink)
                        .concat(['.plot .xtick text', '.plot .g-xtitle text', '.plot .legendtext'].map(paint))};
        })()"""
        self.addCleanup(self.set_media, "", "light")
        for scheme in ("light", "dark"):
            self.set_media("", scheme)
            self.open("all")
            for shown in (scheme, "dark" if scheme == "light" else "light", scheme):  # the system may switch at any time
                self.set_media("", shown)
                found = self.browser.value(lightness)
                for paper in found["paper"]:
                    (self.assertLess if shown == "dark" else self.assertGreater)(paper, 70 if shown == "dark" else 200, found)
                for ink in found["ink"]:
                    (self.assertGreater if shown == "dark" else self.assertLess)(ink, 130, found)
                self.assertEqual(self.browser.faults, [])
        # Paper is light.
        self.set_media("print", "dark")
        self.browser.value("dispatchEvent(new Event('beforeprint'))")
        self.assertTrue(all(paper > 200 for paper in self.browser.value(lightness)["paper"]))
        self.browser.value("dispatchEvent(new Event('afterprint'))")

    def test_a_phone_scrolls_tables_in_their_own_box(self):
        size = {"height": 844, "deviceScaleFactor": 1, "mobile": False}
        self.addCleanup(self.browser.call, "Emulation.setDeviceMetricsOverride", **(size | {"width": 1000, "height": 900}))
        self.browser.call("Emulation.setDeviceMetricsOverride", **(size | {"width": 390}))
        wider = 0
        for name in self.files:
            with self.subTest(name):
                self.open(name)
                self.browser.value("document.querySelectorAll('details').forEach(e => e.open = true)")
                self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 390)
                boxes = self.browser.value(
                    "[...document.querySelectorAll('.table')].map(e => [e.getBoundingClientRect().right, e.scrollWidth, e.clientWidth])"
                )
                self.assertTrue(all(right <= 390 for right, _, _ in boxes))
                wider += sum(inside > box for _, inside, box in boxes)
        self.assertGreater(wider, 0)  # the test has tables that scroll

    def test_paper_and_small_screens_cut_nothing(self):
        outside = """[...document.querySelectorAll('figure, figure svg.main-svg, .plot, p, h2, dl, pre, .table, PRINTED')].filter(e => e.checkVisibility()
            && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 200))"""
        paper = 703  # pixels between the margins of A4
        for name in ("all", "planned", "cases", "seeds"):
            self.open(name)
            before = self.browser.value("document.querySelector('.plot:not(.verdict .plot) svg.main-svg').getBoundingClientRect().width")
            self.assertGreater(before, paper)
            self.browser.call("Emulation.setEmulatedMedia", media="print")
            self.browser.call(
                "Emulation.setDeviceMetricsOverride", width=paper, height=1000, deviceScaleFactor=1, mobile=False
            )
            self.browser.value("dispatchEvent(new Event('beforeprint'))")
            self.assertEqual(self.browser.value(outside.replace("PRINTED", "table")), [])
            self.assertEqual(
                self.browser.value("document.querySelector('.plot:not(.verdict .plot) svg.main-svg').getBoundingClientRect().width"),
                charts.WIDTH,
            )
            self.assertGreater(len(self.browser.paper()), 20_000)
            self.browser.call("Emulation.setEmulatedMedia", media="")
            self.browser.call(
                "Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False
            )
            self.browser.value("dispatchEvent(new Event('afterprint'))")
            self.assertEqual(
                self.browser.value("document.querySelector('.plot:not(.verdict .plot) svg.main-svg').getBoundingClientRect().width"), before
            )
            self.browser.call(
                "Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False
            )
            self.open(name)
            self.assertEqual(self.browser.value(outside.replace("PRINTED", "main")), [])
            self.browser.call(
                "Emulation.setDeviceMetricsOverride", width=1000, height=900, deviceScaleFactor=1, mobile=False
            )
            self.assertEqual(self.browser.faults, [])

    def test_colours_can_be_told_apart(self):
        self.open("all")
        used = set()
        for colours in self.browser.value(
            "[...document.querySelectorAll('.plot')].map(p => p.data.map(t => t.marker?.color ?? t.line?.color))"
        ):
            used |= set(colours)
        okabe_ito = {"#0072B2", "#56B4E9", "#009E73", "#E69F00", "#F0E442", "#CC79A7", "#D55E00"}
        greys = {charts.INK, charts.GREY, "#999999"}
        self.assertLessEqual(used, okabe_ito | greys | {colour for colour, _ in charts.CASE_STYLES})
        self.assertEqual(len({colour for _, _, colour in result_folders.SOURCES}), len(result_folders.SOURCES))


if __name__ == "__main__":
    chosen = sys.argv[2]
    assert re.fullmatch(r"(Pages|InBrowser)(\.\w+)?", chosen), chosen
    if chosen.startswith("InBrowser") and browser.program() is None:
        print("Chromium is not installed (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], chosen])
