"""The charts of a comparison."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvtwin.chart_kinds import MAX_LINES, RECOMMENDATION, Point, front_chart, line_chart, recommended_point, row_hover
from kvtwin.charts import BLUE, CASE_STYLES, GREEN, GREY, INK, SKY, Axis, Chart, Series, Table
from kvtwin.figure_words import (
    better_of,
    exact,
    figure_name,
    figure_text,
    finite,
    sentence_case,
    setting_words,
    unit_of_figure,
)
from kvtwin.result_folders import (
    Compared,
    combinations,
    compared_grid,
    label_of,
    left_out_text,
    setting_text,
    tidy_setting,
    tier_name,
    whiskers_of,
)

MAX_CIRCUMSTANCES = 6  # with a chart each
MAX_BARS = 40  # of a chart of settings


def compared_figures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the figures that `kvtwin compare` judges: those with a standing."""
    return [key.removesuffix("_standing") for key in rows[0] if key.endswith("_standing")]


@dataclass
class Choice:
    """The recommendation of a comparison. `row`: None if no setting meets the goal; `nearest` then is the best that there is."""

    row: dict[str, Any] | None
    nearest: dict[str, Any] | None
    key: str  # the figure that decides
    reason: str = ""
    servers: dict[str, Any] = field(default_factory=dict)  # engine: {command, notes}


def choice_of(compared: Compared) -> Choice:
    """As compare.json says; an unfinished or older folder has none."""
    one = compared.plan.get("recommendation") or {}

    def row_of(name: str) -> dict[str, Any] | None:
        number = one.get(name)
        return compared.rows[number] if isinstance(number, int) and number < len(compared.rows) else None

    return Choice(
        row_of("row"), row_of("nearest_row"), one.get("figure", "ttft_mean_s"), one.get("reason", ""), one.get("servers") or {}
    )


def settings_of(compared: Compared, row: dict[str, Any]) -> dict[str, Any]:
    return {axis["name"]: row[axis["name"]] for axis in compared.plan["axes"]}


# The figures of the table of settings and of its details on the pointer, beside the figure of the goal. The folded table
# has all figures.
MAIN_FIGURES = ["hit_ratio", "gap_closed", "ttft_mean_s", "ttft_p90_s", "ttft_p99_s", "tpot_p90_s"]
MAIN_FIGURES += ["good_share", "goodput_per_second", "gpus", "disk_writes_per_day"]


def main_figures(rows: Sequence[dict[str, Any]], goal: dict[str, Any] | None = None) -> list[str]:
    """Returns the main figures that some row has; GPUs only if they vary."""
    wanted = dict.fromkeys([*MAIN_FIGURES, *([goal["figure"]] if goal else [])])
    return [key for key in wanted if some(rows, key) and (key != "gpus" or varies(rows, key))]


def some(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def varies(rows: Sequence[dict[str, Any]], key: str) -> bool:
    return len({row.get(key) for row in rows}) > 1


def line_name(compared: Compared, setting: dict[str, Any]) -> str:
    """The values of a setting; with the names of their keys, if several keys vary or the value is a number."""
    varied = [axis["name"] for axis in compared.plan["axes"] if axis["name"] in setting and len(axis["values"]) > 1]
    if len(varied) > 1:
        return setting_text(tidy_setting({name: setting[name] for name in varied}))
    if varied and not isinstance(setting[varied[0]], str):
        return setting_words({varied[0]: setting[varied[0]]})
    return label_of(compared, setting) or compared.plan["eviction"]


def compared_hover(compared: Compared, row: dict[str, Any]) -> str:
    return row_hover(row, compared.plan["axes"], main_figures(compared.rows, compared.plan.get("goal")))


def compare_charts(compared: Compared, choice: Choice) -> list[Chart | None]:
    """One chart per figure, then the GPUs if they vary. If policies and other keys vary, one chart per figure and
    circumstance."""
    goal, figures = compared.plan.get("goal"), compared_figures(compared.rows)
    wanted = ("hit_ratio", goal and goal["figure"], "ttft_p90_s", "good_share", "saved_s")
    shown = dict.fromkeys(key for key in wanted if key in figures and some(compared.rows, key))
    charts = [chart for key in shown for chart in figure_charts(compared, key, choice)]
    meets = (lambda row: row.get("meets_goal")) if goal else (lambda row: None)
    points = [(row, meets(row), compared_hover(compared, row)) for row in compared.rows]
    return charts + gpu_charts(points, compared.plan, goal, choice.row)


def chart_columns(compared: Compared) -> int:
    """Returns how many charts of a figure stand beside each other."""
    circumstances = compared_circumstances(compared)[1]
    return len(circumstances) if len(circumstances) in (2, 3) else 2


def compared_circumstances(compared: Compared) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Returns the capacity of the x axis (None: bars) and the settings with a chart each; [{}] if one chart has all."""
    along, circumstances = compared_grid(compared)
    several = along and len(circumstances) > 1 and len(combinations(compared.axes(choice=True))) > 1
    return along, circumstances[:MAX_CIRCUMSTANCES] if several else [{}]


def figure_charts(compared: Compared, key: str, choice: Choice) -> list[Chart | None]:
    """Returns the charts of one figure: one, or one per circumstance (at most MAX_CIRCUMSTANCES)."""
    along, shown = compared_circumstances(compared)
    if along is None:
        return [bars_of_settings(compared, key, choice)]
    return [lines_of_settings(compared, key, along, circumstance, choice) for circumstance in shown]


def gpu_charts(
    points: Sequence[tuple[dict[str, Any], bool | None, str]],
    plan: dict[str, Any],
    goal: dict[str, Any] | None = None,
    chosen: dict[str, Any] | None = None,
) -> list[Chart | None]:
    """GPUs against the figure of the goal, goodput or TTFT, if the GPUs vary. `points`: [(row, meets the goal, hover)];
    `plan`: compare.json or sweep.json; `chosen`: the row of the recommendation."""
    rows = [row for row, _, _ in points]
    if not varies(rows, "gpus"):
        return []
    wanted = [goal["figure"] if goal else None, "goodput_per_second", "ttft_p90_s", "ttft_mean_s"]
    key = next((key for key in wanted if key and key != "gpus" and some(rows, key)), None)
    if key is None:
        return []
    below, above = whiskers_of(rows, key)
    named = []
    for (row, meets, hover), below_of, above_of in zip(points, below.tolist(), above.tolist()):
        name = setting_words({axis["name"]: row.get(axis["name"]) for axis in plan["axes"]})
        whiskers = (below_of, above_of) if below_of or above_of else None
        named.append(Point(row.get("gpus", math.nan), row.get(key, math.nan), meets, name, hover, whiskers=whiskers))
    star = next((point for point, row in zip(named, rows) if row is chosen), None)
    limit = goal["value"] if goal and goal["figure"] == key else None
    return [front_chart("gpus", "GPUs", key, limit, named, better_of(plan, key), star)]


def limit_of(compared: Compared, key: str) -> float | None:
    """Returns the limit of the goal if the goal is about this figure."""
    goal = compared.plan.get("goal")
    return goal["value"] if goal and goal["figure"] == key else None


def bars_of_settings(compared: Compared, key: str, choice: Choice) -> Chart | None:
    """One bar per setting; None if there are too many. Dashed lines: the goal, the optimum, and LRU in a single cache."""
    rows = compared.rows
    if not some(rows, key) or len(rows) > MAX_BARS:
        return None
    names = [label_of(compared, settings_of(compared, row)) or compared.plan["eviction"] for row in rows]
    good = [row.get(f"{key}_standing") is not None for row in rows]
    below, above = whiskers_of(rows, key)
    kinds = [RECOMMENDATION if row is choice.row else "best" if best else "others" for row, best in zip(rows, good)]
    labels = {"best": "best, or as good as the best, under equal circumstances"}
    series = []
    for kind, colour in ((RECOMMENDATION, GREEN), ("best", BLUE), ("others", SKY)):
        at = [index for index, one in enumerate(kinds) if one == kind]
        if at:
            whiskers = (below[at].tolist(), above[at].tolist()) if np.nansum(below + above) > 0 else None
            hover = [compared_hover(compared, rows[i]) for i in at]
            bars = [rows[i][key] for i in at]
            series.append(Series(labels.get(kind, kind), bars, at, colour, kind="bars", whiskers=whiskers, hover=hover))
    texts = [[name, figure_text(key, row[key], 4)] for name, row in zip(names, rows)]
    limit = limit_of(compared, key)
    lines = [("x", limit, "goal")] if limit is not None else []
    if compared.axes(choice=True):  # otherwise each setting has an optimum of its own
        known = {name: [row[bound] for row in rows if finite(row.get(bound))] for name, bound in bounds_of(key)}
        known.pop("LRU, single cache" if "lru" in names else "", None)
        lines += [("x", max(values), name) for name, values in known.items() if values]
    left_out = [left_out_text(row) for row in rows]
    ticks = [f"{name} ({away})" if away else name for name, away in zip(names, left_out)]
    return Chart(
        sentence_case(figure_name(key)),
        "; ".join(f"{name}: {text}" for name, text in texts),
        Axis(figure_name(key), unit_of_figure(key)),
        [Axis("", ticks=list(enumerate(ticks)))],
        series,
        Table("", ["setting", figure_name(key)], texts),
        height=130 + 30 * len(rows),
        lines=lines,
    )


def bounds_of(key: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("optimal", f"opt_{key}"), ("LRU, single cache", f"lru_{key}")


def style_of(index: int, setting: dict[str, Any]) -> tuple[str, str, str]:
    """Returns colour, marker and dash of a line. LRU, the reference, is grey."""
    if list(setting.values()) == ["lru"]:
        return GREY, "o", "-"
    colour, marker = CASE_STYLES[index % len(CASE_STYLES)]
    return colour, marker, ["-", "--", "-."][index // len(CASE_STYLES) % 3]


def lines_of_settings(
    compared: Compared, key: str, along: dict[str, Any], only: dict[str, Any], choice: Choice
) -> Chart | None:
    """One line per setting over the capacity `along`; only of rows with the setting `only`. Filled markers: the best, or as
    good as the best."""
    choices = combinations(compared.axes(choice=True))
    others = [axis for axis in compared.axes(choice=False) if axis is not along and axis["name"] not in only]
    lines = []
    references: dict[Any, Any] = {}
    coloured = 0
    for circumstance in combinations(others):
        for variant in choices:
            setting = circumstance | variant
            rows = [row for row in compared.select(only | setting) if finite(row.get(key))]
            if not rows:
                continue
            colour, marker, dash = style_of(coloured, setting)
            coloured += colour != GREY
            below, above = whiskers_of(rows, key)
            points = [
                (
                    row[along["name"]],
                    row[key],
                    len(choices) == 1 or row.get(f"{key}_standing") is not None,
                    (float(low), float(high)) if low or high else None,
                    compared_hover(compared, row),
                )
                for row, low, high in zip(rows, below, above)
            ]
            lines.append((line_name(compared, setting), points, colour, marker, dash))
            for name, bound in bounds_of(key):
                for row in rows:
                    if finite(row.get(bound)):
                        at = references.setdefault(name, {})
                        at[row[along["name"]]] = max(row[bound], at.get(row[along["name"]], 0))
    if not lines:
        return None
    if any(colour == GREY for _, _, colour, *_ in lines):
        references.pop("LRU, single cache", None)
    more = goal_marks(compared, key, along, only) + [
        recommended_point(row[along["name"]], row[key], compared_hover(compared, row))
        for row in compared.select(only)
        if row is choice.row and finite(row.get(key))
    ]
    reference = [
        (
            name,
            [
                (x, y, True, None, f"{name}: {figure_text(key, y)}\n{along['name']}={exact(x)}")
                for x, y in at.items()
            ],
            INK if name == "optimal" else GREY,
            "",
            "--" if name == "optimal" else ":",
        )
        for name, at in references.items()
    ]
    words = f" (the first {MAX_LINES} of {len(lines)} lines)" if len(lines) > MAX_LINES else ""
    where = f" · {setting_text(tidy_setting(only))}" if only else ""
    filled = ", filled: best or as good" if len(choices) > 1 else ""
    limit = limit_of(compared, key)
    return line_chart(
        f"{sentence_case(figure_name(key))} by {tier_name(along)}{filled}{words}{where}",
        tier_name(along),
        along["unit"],
        lines[:MAX_LINES],
        key,
        [("y", limit, "goal")] if limit is not None else [],
        reference,
        more,
    )


def goal_marks(compared: Compared, key: str, along: dict[str, Any], only: dict[str, Any]) -> list[Series]:
    """Points at the smallest sizes that meet the goal; and at the smallest sizes at which 97.5 % of the seeds or of the
    hardware variants do."""
    goal = compared.plan.get("goal") or {}
    if goal.get("figure") != key or goal.get("along") != along["name"]:
        return []
    of = f"{compared.plan['draws']} hardware variants" if "draws" in compared.plan else f"{compared.plan['seeds']} seeds"
    several = compared.plan["seeds"] > 1 or "draws" in compared.plan
    marks = []
    for member, name, marker in (("from", "smallest size that meets the goal", "P"), ("surely_from", f"with 97.5 % of {of}", "X")):
        sizes = [line["settings"] | {along["name"]: line[member]} for line in goal["lines"] if line[member] is not None]
        rows = [row for size in sizes for row in compared.select(size | only) if finite(row.get(key))]
        if rows and (member == "from" or several):
            hover = [f"{name}\n{compared_hover(compared, row)}" for row in rows]
            x, y = [[row[where] for row in rows] for where in (along["name"], key)]
            marks.append(Series(name, x, y, INK, kind="points", marker=marker, hover=hover))
    return marks


def goal_charts(compared: Compared) -> list[Chart | None]:
    """The charts of the goal's figure."""
    return figure_charts(compared, compared.plan["goal"]["figure"], choice_of(compared))


def hit_rates_chart(rows: Sequence[dict[str, Any]]) -> Chart:
    """Rows of kvtwin hitrate --json: the hit ratio over the capacity, one line per eviction policy."""
    key = "block_hit_ratio"
    lines: list[Any] = []
    reference: list[Any] = []
    for name in dict.fromkeys(row["eviction"] for row in rows):
        points = [
            (row["capacity_blocks"], row[key], True, None, f"{name}: {figure_text(key, row[key])}")
            for row in rows
            if row["eviction"] == name
        ]
        if name in ("opt", "infinite"):
            reference.append(("optimal" if name == "opt" else name, points, INK, "", "--" if name == "opt" else ":"))
        else:
            coloured = sum(colour != GREY for _, _, colour, *_ in lines)
            lines.append((name, points, *style_of(coloured, {"cache.eviction": name})))
    return line_chart("Blocks hit by capacity", "capacity (blocks)", "", lines, key, (), reference)
