"""Loads run folders of kvtwin as tables, and draws figures. Reads only run folders. Needs matplotlib (requirements.txt).

    python -m kvtwin.figures figures RUN_DIR...  writes RUN_DIR/figures/*.png. Equal folders give equal bytes.
    python -m kvtwin.figures summary RUN_DIR...  prints the most important numbers

Figures by kind of folder:
    a run             ttft.png, tokens_by_tier.png, lanes.png
    several runs      also side_by_side.png, in the folder of the last run
    kvtwin compare    compare.png, and goal.png if there is a goal; with [sweep] or --cells: sweep.png
    kvtwin validate   validate.png

In a notebook: run = load_run("out/chat-hour"); draw_ttft(run); run.requests["ttft_s"].mean()
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from kvtwin.charts import BLUE, GREY, INK, RUN_STYLES
from kvtwin.charts_of_plans import Plan
from kvtwin.charts_of_runs import lanes_chart, side_by_side_charts, tokens_chart, ttft_chart
from kvtwin.charts_of_settings import chart_columns, choice_of, compare_charts, goal_charts, hit_rates_chart, some
from kvtwin.charts_of_sweeps import sweep_charts, sweep_settings
from kvtwin.charts_static import STYLE, draw, label_between_decades, save
from kvtwin.errors import InputError
from kvtwin.figure_words import better_of, count, figure_name, limit_words, percent, seconds
from kvtwin.result_folders import (
    SOURCES,
    Compared,
    Run,
    Sweep,
    Validated,
    has_cells,
    is_sweep,
    load_compare,
    load_run,
    load_sweep,
    load_validation,
)
from kvtwin.simulation import load_json

__all__ = [
    "INK",
    "STYLE",
    "draw_compare",
    "draw_goal",
    "draw_hit_rates",
    "draw_lanes",
    "draw_plan",
    "draw_side_by_side",
    "draw_sweep",
    "draw_tokens",
    "draw_ttft",
    "draw_validation",
    "load_compare",
    "load_plan",
    "load_run",
    "load_sweep",
    "load_validation",
    "save",
]


def load_plan(folder: str | os.PathLike[str]) -> Plan:
    """Loads the folder of kvtwin plan."""
    return Plan(folder, load_json(Path(folder) / "plan.json"))


def draw_ttft(run: Run) -> Figure:
    """Draws the cumulative share of the TTFT of all requests."""
    return draw(run.title("Time to first token"), [ttft_chart(run)], empty="no request reached its first token")


def draw_tokens(run: Run) -> Figure:
    """Draws the sources of prompt tokens over time, by the arrival of the requests. The legend has the shares of the run."""
    return draw(run.title("Prompt tokens by source"), [tokens_chart(run)], empty="no prompt tokens")


def draw_lanes(run: Run) -> Figure:
    """Draws the utilisation over time of each kind of lane."""
    return draw(run.title("Lane utilisation over time"), [lanes_chart(run)], empty="no lanes")


def draw_side_by_side(runs: Sequence[Run]) -> Figure:
    """Compares several runs of one experiment, for example simulated and real: TTFT, TPOT, the parts of the mean TTFT, and
    the sources of tokens."""
    named = [(f"{run.folder.name} ({run.report['world']})", run) for run in runs]
    return draw("Side by side: " + ", ".join(run.folder.name for run in runs), side_by_side_charts(named))


def draw_sweep(sweep: Sweep) -> Figure:
    """Draws the shown figures over the x axis, one line per case."""
    charts = sweep_charts(sweep)
    return draw(sweep.plan["title"] or f"Sweep · {sweep.folder.name}", charts, columns=len(sweep_settings(sweep)))


def draw_plan(plan: Plan) -> Figure:
    """Draws the price of all tried settings (GPUs without prices) against each goal's figure, with the recommendation."""
    goals = [plan.front(goal["figure"], goal["limit"]) for goal in plan.goals]
    return draw(str(plan.plan.get("title") or f"Plan · {plan.folder.name}"), goals, empty="no setting was simulated")


def draw_compare(compared: Compared) -> Figure:
    """Draws hits, latencies and saved prefill time over the capacity, one line per policy; or bars, if no capacity varies.
    The optimum is dashed, LRU is grey."""
    charts = compare_charts(compared, choice_of(compared))
    name = compared.folder.name
    what = "Distance to optimal" if some(compared.rows, "opt_hit_ratio") else "Settings compared"
    title = f"{what} · {name if len(name) <= 32 else name[:31] + '…'}"
    return draw(title, charts, columns=chart_columns(compared))


def draw_goal(compared: Compared) -> Figure:
    """Draws the figure of a goal over the capacity, one line per setting, with the sizes that meet the goal."""
    goal = compared.plan["goal"]
    limit = limit_words(goal["figure"], goal["value"], better_of(compared.plan, goal["figure"]))
    title = f"Tier size needed for {figure_name(goal['figure'])} {limit}"
    return draw(title, goal_charts(compared), columns=chart_columns(compared))


def draw_hit_rates(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draws rows of kvtwin hitrate --json: the hit ratio over the capacity, one line per eviction policy. The optimum is
    dashed, LRU is grey."""
    return draw("Distance to optimal · sequential replay", [hit_rates_chart(rows)])


def draw_validation(validated: Validated) -> Figure:
    """Draws predicted over measured mean TTFT; and the errors, next to twice the spread of the measured runs."""
    points = sorted(validated.figures("ttft_mean_s"), key=lambda point: point[1]["error"])
    if not points:
        raise InputError(f"{validated.folder}: no configuration has a mean TTFT on both sides")
    names = [name for name, _ in points]
    measured, predicted, error = (np.array([figure[key] for _, figure in points]) for key in ("measured", "predicted", "error"))
    spread = np.array([figure["spread"] or 0 for _, figure in points])
    inside = np.abs(error) <= np.maximum(0.05, 2 * spread)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 1.4 + max(2.6, 0.24 * len(points))), layout="constrained")
        figure.suptitle(f"Predicted and measured mean TTFT · {validated.folder.name}", x=0.01, ha="left")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
        low, high = 0.8 * min(measured.min(), predicted.min()), 1.25 * max(measured.max(), predicted.max())
        left.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
        left.fill_between([low, high], [0.95 * low, 0.95 * high], [1.05 * low, 1.05 * high], color=GREY, alpha=0.2, linewidth=0)
        left.errorbar(measured, predicted, xerr=2 * spread * measured, color=GREY, linestyle="none", elinewidth=1, zorder=2)
        for chosen, face in ((inside, BLUE), (~inside, "white")):
            left.plot(measured[chosen], predicted[chosen], "o", color=BLUE, markersize=5, markerfacecolor=face, zorder=3)
        left.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), xlabel="measured mean TTFT", ylabel="predicted mean TTFT")
        for axis in (left.xaxis, left.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
            label_between_decades(axis, seconds)
        places = np.arange(len(points))
        right.barh(places, 4 * spread, left=-2 * spread, height=0.8, color=GREY, alpha=0.3, label="± 2 × spread of the measured runs")
        right.axvline(0, color=GREY, linewidth=1, zorder=1)
        for chosen, face in ((inside, BLUE), (~inside, "white")):
            right.plot(error[chosen], places[chosen], "o", color=BLUE, markersize=5, markerfacecolor=face, zorder=3)
        right.set_yticks(places, names, fontsize=7.5)
        right.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        right.set_xlabel("error of the predicted mean TTFT")
        right.grid(visible=False, axis="y")
        note = f"{inside.sum()} of {len(points)} within 5 % or 2 × the spread (filled)"
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", title=note, title_fontsize=8)
    return figure


FIGURES = {"ttft.png": draw_ttft, "tokens_by_tier.png": draw_tokens, "lanes.png": draw_lanes}


def write_figures(folder: str) -> list[Path]:
    """Draws all figures of the folder into folder/figures. Returns the paths."""
    target = Path(folder) / "figures"
    if is_sweep(folder):
        figures = {}
        if (Path(folder) / "validate.json").exists():
            figures["validate.png"] = draw_validation(load_validation(folder))
        if (Path(folder) / "compare.json").exists() and not has_cells(folder):
            compared = load_compare(folder)
            figures["compare.png"] = draw_compare(compared)
            if compared.plan.get("goal", {}).get("along"):
                figures["goal.png"] = draw_goal(compared)
        if has_cells(folder):
            figures["sweep.png"] = draw_sweep(load_sweep(folder))
        target.mkdir(exist_ok=True)
        return [save(figure, target / name) for name, figure in figures.items()]
    run = load_run(folder)
    target.mkdir(exist_ok=True)
    paths = []
    for name, drawing in FIGURES.items():
        paths.append(save(drawing(run), target / name))
    return paths


def write_all_figures(folders: Sequence[str]) -> list[Path]:
    """Draws the figures of each folder; for several runs also side_by_side.png, in the last folder."""
    if len(folders) > len(RUN_STYLES):
        raise InputError(f"{len(folders)} run folders; at most {len(RUN_STYLES)} can be drawn side by side")
    paths = [path for folder in folders for path in write_figures(folder)]
    runs = [folder for folder in folders if not is_sweep(folder)]
    if len(runs) > 1:
        figure = draw_side_by_side([load_run(folder) for folder in runs])
        paths.append(save(figure, Path(runs[-1]) / "figures" / "side_by_side.png"))
    return paths


def summary(folder: str) -> list[str]:
    """Returns the most important numbers, as lines of text."""
    report = load_run(folder).report
    requests, tokens, ttft = report["requests"], report["tokens"], report["ttft_seconds"]
    total = sum(tokens.get(key, 0) for key, _, _ in SOURCES)
    shares = ", ".join(f"{label} {percent(tokens[key] / total)}" for key, label, _ in SOURCES if total and tokens.get(key))
    return [
        f"{folder} ({report['world']} world)",
        f"requests       {requests['completed']} of {requests['total']} completed, {requests['rejected']} rejected, "
        f"{requests['failed']} failed, in {seconds(report.get('simulated_seconds'))}",
        f"prompt tokens  {count(tokens['prompt'])}: {shares}",
        "TTFT           " + ", ".join(f"{name} {seconds(ttft.get(name))}" for name in ("mean", "p50", "p99")),
    ]


def main(arguments: list[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in ("figures", "summary"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        if arguments[0] == "figures":
            lines = [str(path) for path in write_all_figures(arguments[1:])]
        else:
            lines = [line for folder in arguments[1:] for line in summary(folder)]
        for line in lines:
            print(line)
    except InputError as error:
        print(f"kvtwin figures: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kvtwin figures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
