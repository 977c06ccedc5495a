"""Draws the figures of synthetic run folders. Checks equal bytes on each run, and error messages for bad folders."""

import contextlib
import csv
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/notebooks")]

import numpy as np
import synthetic_run
from kvtwin import charts_of_runs, charts_of_settings, charts_of_sweeps, figures, result_folders


class Figures(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.run_dir = Path(self.scratch.name, "run")

    def program(self, *arguments):
        """Returns (exit code, stdout, stderr)."""
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            code = figures.main([str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def test_load_run(self):
        synthetic_run.write(self.run_dir)
        run = figures.load_run(self.run_dir)
        self.assertEqual(run.report["requests"]["total"], len(run.requests["request"]))
        self.assertEqual(run.report["tokens"]["hit_host"], int(np.nansum(run.requests["hit_host"])))
        self.assertEqual(sorted(set(run.lanes["lane"]))[0], "compute")

    def test_figures_are_drawn_and_repeat(self):
        synthetic_run.write(self.run_dir)
        code, lines, errors = self.program("figures", self.run_dir)
        self.assertEqual((code, errors), (0, ""))
        paths = [Path(line) for line in lines.splitlines()]
        self.assertEqual([path.name for path in paths], ["ttft.png", "tokens_by_tier.png", "lanes.png"])
        before = [path.read_bytes() for path in paths]
        for drawn in before:
            self.assertEqual(drawn[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater(len(drawn), 10_000)
            for word in (b"tEXt", b"tIME"):  # no version, no date
                self.assertNotIn(word, drawn)
        # Again, in another process.
        command = [sys.executable, "-B", "-m", "kvtwin.figures", "figures", str(self.run_dir)]
        self.assertEqual(subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True, check=True).stdout, lines)
        self.assertEqual([path.read_bytes() for path in paths], before)

    def test_an_idle_stretch_is_one_row(self):
        synthetic_run.write(self.run_dir)
        (self.run_dir / "lanes.csv").write_text(
            "lane,window_start_s,window_s,busy_fraction,bytes\n"
            "compute,0.000,256.000,0.500000,0\ncompute,256.000,999680.000,0.000000,0\ncompute,999936.000,256.000,1.000000,0\n"
            "gpu0.h2d,0.000,1000192.000,0.000000,0\n")
        run = figures.load_run(self.run_dir)
        strips = figures.draw_lanes(run).axes
        self.assertEqual([axes.get_title(loc="left") for axes in strips], ["compute", "h2d"])
        self.assertEqual([axes.get_xlim() for axes in strips], [(0, 1000192)] * 2)
        # The mean weighs each row by its width.
        chart = charts_of_runs.lanes_chart(run)
        self.assertEqual([row[2] for row in chart.table.rows], ["0.0384 %", "0 %"])

    def test_odd_runs_are_drawn(self):
        one, many = self.run_dir / "one", self.run_dir / "many"
        synthetic_run.write(one, requests=1)
        synthetic_run.write(many, requests=50, engines=20)  # more lanes than fit
        none = self.run_dir / "none"
        synthetic_run.write(none, requests=1)
        for name, columns in (("requests.csv", result_folders.REQUEST_COLUMNS), ("lanes.csv", result_folders.LANE_COLUMNS)):
            with open(none / name, "w", newline="") as file:
                csv.writer(file).writerow(columns)
        report = json.loads((none / "report.json").read_text())
        report["tokens"] = dict.fromkeys(report["tokens"], 0)
        report["requests"] = dict(total=1, completed=0, rejected=1, failed=0)
        for key in ("ttft_seconds", "ttft_parts_seconds"):
            report[key] = dict.fromkeys(report[key])
        (none / "report.json").write_text(json.dumps(report))
        for folder in (one, many, none):
            for command in ("figures", "summary"):
                code, _, errors = self.program(command, folder)
                self.assertEqual((code, errors), (0, ""))

    def test_summary(self):
        synthetic_run.write(self.run_dir)
        code, lines, _ = self.program("summary", self.run_dir)
        self.assertEqual(code, 0)
        self.assertRegex(lines, r"594 of 600 completed.*\n.*host memory 18\.3 %.*\n.*p99 1\.24 s")

    def test_several_runs_side_by_side(self):
        folders = [self.run_dir / name for name in ("simulated", "real", "empty")]
        for folder, requests in zip(folders, (200, 300, 1)):
            synthetic_run.write(folder, requests=requests)
        report = json.loads((folders[2] / "report.json").read_text())
        report["tokens"] = dict.fromkeys(report["tokens"], 0)
        for key in ("ttft_seconds", "ttft_parts_seconds"):
            report[key] = dict.fromkeys(report[key])
        (folders[2] / "report.json").write_text(json.dumps(report))
        rows = (folders[2] / "requests.csv").read_text().splitlines()
        (folders[2] / "requests.csv").write_text(rows[0] + "\n")
        *_, parts, sources = figures.draw_side_by_side([figures.load_run(folder) for folder in folders]).axes
        for axes in (parts, sources):
            drawn = {round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches if bar.get_width() > 0}
            self.assertEqual(drawn, {0, 1}, "the run without completed requests has no bar")
        images = []
        for _ in range(2):
            code, lines, errors = self.program("figures", *folders)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual(lines.splitlines()[-1], str(folders[2] / "figures" / "side_by_side.png"))
            images.append((folders[2] / "figures" / "side_by_side.png").read_bytes())
        self.assertEqual(*images)
        self.assertFalse((folders[0] / "figures" / "side_by_side.png").exists())
        code, _, errors = self.program("figures", *[folders[0]] * 7)
        self.assertEqual(code, 2)
        self.assertIn("7 run folders", errors)

    def sweep(self, folder, others, cases):
        """Writes a synthetic sweep. The TTFT of a case falls along the axis; the last case does not depend on the axis."""
        folder.mkdir(parents=True)
        rates = [1, 10, 100]
        axes = [{"name": name, "unit": "", "values": values} for name, values in others.items()]
        axes.append({"name": "hardware.set.disk_read_gbps", "unit": "GB/s", "values": rates})
        rows = []
        for case in cases:
            for setting in result_folders.combinations(axes):
                level = case == cases[-1] and len(cases) > 1
                rate = setting["hardware.set.disk_read_gbps"]
                row = {"cell": len(rows), "case": case} | setting | {"ttft_mean_s": 1 / rate + 0.01 * len(case), "ttft_p99_s": 3 / rate}
                rows.append(row | ({"hardware.set.disk_read_gbps": None, "ttft_mean_s": 0.3} if level else {}))
        plan = dict(
            schema_version=1, title="Made up", along="hardware.set.disk_read_gbps", unit="GB/s", show=["ttft_mean_s", "ttft_p99_s"],
            axes=axes, cases=cases, pairs=[[cases[0], cases[-1]]],
            crossovers=[dict(slower=cases[0], than=cases[-1], settings={}, where="below", at=4.2)],
        )
        (folder / "sweep.json").write_text(json.dumps(plan))
        (folder / "sweep.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def test_sweeps_are_drawn_and_repeat(self):
        small, large = self.run_dir / "small", self.run_dir / "large"
        self.sweep(small, {"seed": [1, 2]}, ["waits", "computes"])
        self.sweep(large, {"hardware.name": ["a", "b", "c"], "seed": [1, 2]}, ["one", "two, three", "four"])
        for folder in (small, large):
            images = []
            for _ in range(2):
                code, lines, errors = self.program("figures", folder)
                self.assertEqual((code, errors, lines), (0, "", f"{folder / 'figures' / 'sweep.png'}\n"))
                images.append((folder / "figures" / "sweep.png").read_bytes())
            self.assertEqual(*images)
        self.assertEqual(len(figures.load_sweep(small).select("computes", seed=1)), 3)
        # Cells without completed requests have no point. A sweep with only such cells is drawn too.
        for name, gone in (("some", 2), ("none", 10**6)):
            self.sweep(self.run_dir / name, {}, ["waits", "stops"])
            rows = [json.loads(line) for line in (self.run_dir / name / "sweep.jsonl").read_text().splitlines()]
            for row in rows[:gone]:
                row.update(ttft_mean_s=None, ttft_p99_s=None)
            (self.run_dir / name / "sweep.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            code, _, errors = self.program("figures", self.run_dir / name)
            self.assertEqual((code, errors), (0, ""))
        first, *_ = charts_of_sweeps.sweep_charts(figures.load_sweep(self.run_dir / "some"))
        self.assertEqual([(series.name, series.x) for series in first.series], [("waits", [100]), ("stops", [1, 100])])
        drawn = figures.draw_sweep(figures.load_sweep(self.run_dir / "none"))
        self.assertIn("no request completed", [text.get_text() for text in drawn.texts])
        # One chart per figure and setting of the other axis; the crossover is a line in the charts of the mean TTFT.
        drawn = charts_of_sweeps.sweep_charts(figures.load_sweep(small))
        self.assertEqual([chart.title.split(" by ")[0] for chart in drawn], ["TTFT mean"] * 2 + ["TTFT p99"] * 2)
        self.assertEqual([chart.title.split(" · ")[1] for chart in drawn], ["seed 1", "seed 2"] * 2)
        words = "below 4.2 GB/s, waits is slower than computes"
        self.assertEqual([chart.lines for chart in drawn], [[("x", 4.2, words)]] * 2 + [[]] * 2)
        (small / "sweep.jsonl").unlink()
        code, _, errors = self.program("figures", small)
        self.assertEqual(code, 2)
        self.assertIn("sweep.jsonl: No such file", errors)

    def comparison(self, folder, axes, seeds=1):
        """Writes a synthetic comparison. Later settings hit more; the optimum hits twice as much. Axes: (name, values,
        is a choice, is a capacity)."""
        folder.mkdir(parents=True)
        keys = ("name", "values", "choice", "capacity")
        axes = [dict(zip(keys, axis)) | {"unit": "tokens" if axis[3] else ""} for axis in axes]
        rows = []
        for number, setting in enumerate(result_folders.combinations(axes)):
            row = setting | {"seeds": seeds}
            for key, scale in (("hit_ratio", 0.02), ("saved_s", 30.0)):
                value = scale * (number + 1)
                row |= {key: value, f"{key}_ci95": value / 4 if seeds > 1 else None, f"{key}_standing": [None, "best", "equal"][number % 3]}
                row |= {f"opt_{key}": 2 * value, f"lru_{key}": value / 2}
            rows.append(row)
        plan = dict(schema_version=1, seeds=seeds, eviction="lru", axes=axes)
        (folder / "compare.json").write_text(json.dumps(plan))
        (folder / "compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def charts(self, compared):
        return charts_of_settings.compare_charts(compared, charts_of_settings.choice_of(compared))

    def test_comparisons_are_drawn_and_repeat(self):
        policies = ("cache.eviction", ["lru", "tide", "slru"], True, False)
        capacities = ("tiers.host.tokens", [1000, 2000, 64000], False, True)
        links = ("hardware.set.host_link_gbps", [float(rate) for rate in range(1, 9)], False, False)
        kinds = {"lines": ([policies, capacities], 1), "bars": ([policies], 5), "one": ([capacities], 5), "bare": ([links], 1)}
        kinds["many"] = ([links, policies, capacities], 1)  # more circumstances than are drawn
        for name, (axes, seeds) in kinds.items():
            self.comparison(self.run_dir / name, axes, seeds)
            images = []
            for _ in range(2 if name == "bars" else 1):
                code, lines, errors = self.program("figures", self.run_dir / name)
                path = self.run_dir / name / "figures" / "compare.png"
                self.assertEqual((code, errors, lines), (0, "", f"{path}\n"))
                images.append(path.read_bytes())
            self.assertEqual(images[0], images[-1])
        # One line per policy, filled where the policy is the best or as good; and the optimum and LRU.
        compared = figures.load_compare(self.run_dir / "lines")
        lines = {series.name: series for series in self.charts(compared)[0].series}
        self.assertEqual(list(lines), ["lru", "tide", "slru", "optimal"])
        self.assertEqual(lines["optimal"].x, [1000, 2000, 64000])
        for value, expected in zip(lines["optimal"].y, (0.28, 0.32, 0.36)):
            self.assertAlmostEqual(value, expected)
        self.assertEqual(sum(not fill for name in ("lru", "tide", "slru") for fill in lines[name].filled), 3)
        one = self.charts(figures.load_compare(self.run_dir / "one"))[0]
        self.assertEqual([series.name for series in one.series], ["lru", "optimal", "LRU, single cache"])
        # Policies and links vary: one chart per link, of at most six links.
        many = self.charts(figures.load_compare(self.run_dir / "many"))
        self.assertEqual(len(many), 2 * 6)
        self.assertRegex(many[1].title, r"^Prompt tokens hit by host tier.* · host_link_gbps 2$")
        self.assertEqual([series.name for series in many[1].series], ["lru", "tide", "slru", "optimal"])
        # Without bounds.
        rows = [json.loads(line) for line in (self.run_dir / "lines/compare.jsonl").read_text().splitlines()]
        for row in rows:
            row.update({key: None for key in row if key.startswith(("opt_", "lru_"))})
        (self.run_dir / "lines/compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.assertEqual(self.program("figures", self.run_dir / "lines")[0], 0)
        # Some or all settings have no completed requests.
        for folder in ("lines", "bars", "bare"):
            for share in (2, 1):
                rows = [json.loads(line) for line in (self.run_dir / folder / "compare.jsonl").read_text().splitlines()]
                for row in rows[::share]:
                    row.update({key: None for key in row if key.startswith(("hit_ratio", "saved_s", "opt_", "lru_"))})
                    row.update(rejected_share=1.0, failed_share=0.0)
                (self.run_dir / folder / "compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
                self.assertEqual(self.program("figures", self.run_dir / folder)[0], 0)
        bars = figures.load_compare(self.run_dir / "bars")
        bars.rows[1] |= dict(hit_ratio=0.5, opt_hit_ratio=0.75, rejected_share=0.0)
        chart, = (chart for chart in self.charts(bars) if chart)
        names = [name for _, name in chart.panels[0].ticks]
        self.assertEqual(names, ["lru (100 % rejected)", "tide", "slru (100 % rejected)"])
        self.assertEqual(chart.lines, [("x", 0.75, "optimal")])
        (self.run_dir / "bars/compare.jsonl").write_text("{")
        code, _, errors = self.program("figures", self.run_dir / "bars")
        self.assertEqual(code, 2)
        self.assertIn("compare.jsonl: a line is not JSON", errors)

    def test_goals_are_drawn(self):
        engines = ("cluster.engines", [1, 2, 3], False, False)
        disks = ("tiers.disk.gib", [0, 1000], False, True)
        capacities = ("tiers.host.gib", [64, 256, 1024], False, True)
        for name, axes in {"one": [capacities], "many": [engines, disks, capacities]}.items():
            folder = self.run_dir / name
            self.comparison(folder, axes)
            compared = figures.load_compare(folder)
            for row in compared.rows:
                for key in ("hit_ratio", "saved_s"):
                    row |= {f"{key}_low": 0.9 * row[key], f"{key}_high": 1.3 * row[key]}
                row |= {key.replace("saved_s", "ttft_p90_s"): value for key, value in row.items() if "saved_s" in key}
            lines = [dict(settings=setting, **{"from": 256, "surely_from": 1024})
                     for setting in result_folders.combinations([axis for axis in compared.plan["axes"] if axis["name"] != "tiers.host.gib"])]
            goal = dict(figure="ttft_p90_s", value=60.0, along="tiers.host.gib", lines=lines)
            (folder / "compare.json").write_text(json.dumps(compared.plan | {"goal": goal, "draws": 10}))
            (folder / "compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in compared.rows))
            code, lines, errors = self.program("figures", folder)
            self.assertEqual((code, errors), (0, ""))
            self.assertEqual([Path(line).name for line in lines.splitlines()], ["compare.png", "goal.png"])
        chart, = charts_of_settings.goal_charts(figures.load_compare(self.run_dir / "many"))
        self.assertEqual(chart.lines, [("y", 60.0, "goal")])
        lines = [series for series in chart.series if series.kind == "line" and series.whiskers]
        self.assertEqual(len(lines), 6, "three numbers of engines, with and without disks")
        marks = {series.name: series.x for series in chart.series if series.kind == "points"}
        self.assertEqual(marks, {"smallest size that meets the goal": [256] * 6, "with 97.5 % of 10 hardware variants": [1024] * 6})
        # Any figure may be a goal. Its name, unit and direction are those of the program.
        for key, value, title in (("good_share", 0.9, "good requests at least 90 %"), ("tpot_p90_s", 0.05, "TPOT p90 at most 50 ms")):
            compared = figures.load_compare(self.run_dir / "one")
            compared.plan["goal"] |= dict(figure=key, value=value)
            for row in compared.rows:
                row[key] = 0.5
            drawn = figures.draw_goal(compared)
            self.assertEqual(drawn.get_suptitle(), f"Tier size needed for {title}")
        # No request completes, so no setting meets the goal.
        plan = json.loads((folder / "compare.json").read_text())
        for line in plan["goal"]["lines"]:
            line.update({"from": None, "surely_from": None})
        (folder / "compare.json").write_text(json.dumps(plan))
        rows = [json.loads(line) for line in (folder / "compare.jsonl").read_text().splitlines()]
        for row in rows:
            row.update({key: None for key in row if key.startswith("ttft")})
        (folder / "compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code, _, errors = self.program("figures", folder)
        self.assertEqual((code, errors), (0, ""))

    def test_validations_are_drawn(self):
        self.run_dir.mkdir()
        cells = []
        for number, error in enumerate((-0.3, 0.02, 0.11, 0.0)):
            spread = None if number == 3 else 0.06
            figure = dict(figure="ttft_mean_s", measured=0.2 * (number + 1), spread=spread, predicted=0.2 * (number + 1) * (1 + error), error=error)
            cells.append(dict(cell=f"configuration {number}", figures=[figure, figure | {"figure": "hit_ratio", "error": None}]))
        (self.run_dir / "validate.json").write_text(json.dumps(dict(schema_version=1, cells=cells)))
        code, lines, errors = self.program("figures", self.run_dir)
        self.assertEqual((code, errors, lines), (0, "", f"{self.run_dir / 'figures' / 'validate.png'}\n"))
        figure = figures.draw_validation(figures.load_validation(self.run_dir))
        self.assertIn("3 of 4 within", figure.legends[0].get_title().get_text())
        (self.run_dir / "validate.json").write_text(json.dumps(dict(schema_version=1, cells=cells[:1])))
        figure = figures.draw_validation(figures.load_validation(self.run_dir))
        figure.draw_without_rendering()
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):  # less than a decade: no power of ten to label
            low, high = axis.get_view_interval()
            ticks = zip(axis.get_ticklocs(minor=True), axis.get_minorticklabels())
            self.assertTrue([label for at, label in ticks if low <= at <= high and label.get_text()])
        (self.run_dir / "validate.json").write_text(json.dumps(dict(schema_version=1, cells=[])))
        code, _, errors = self.program("figures", self.run_dir)
        self.assertEqual(code, 2)
        self.assertIn("no configuration has a mean TTFT", errors)

    def test_bad_folders_are_refused(self):
        def refused(text):
            code, lines, errors = self.program("figures", self.run_dir)
            self.assertEqual((code, lines), (2, ""))
            self.assertIn(text, errors)
            self.assertEqual(errors.count("\n"), 1)

        refused("report.json: No such file")
        synthetic_run.write(self.run_dir, requests=5)
        (self.run_dir / "lanes.csv").write_text("lane,window_start_s\n")
        refused("lanes.csv: no column window_s")
        (self.run_dir / "requests.csv").write_text((self.run_dir / "requests.csv").read_text() + "6,soon\n")
        refused("requests.csv: column arrival_s")
        (self.run_dir / "report.json").write_text('{"schema_version": 2}')
        refused("schema_version 2")
        (self.run_dir / "report.json").write_text("{")
        refused("not JSON")


if __name__ == "__main__":
    unittest.main()
