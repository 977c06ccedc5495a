"""The charts of a comparison."""

from dataclasses import dataclass, field

import numpy as np

from kvtwin.chart_kinds import MAX_LINES, MAX_ROWS, RECOMMENDATION, Point, front_chart, line_chart, recommended_point, row_hover
from kvtwin.charts import BLUE, CASE_STYLES, GREEN, GREY, INK, Axis, Chart, Series, Table
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
    combinations,
    compared_grid,
    label_of,
    setting_text,
    tidy_setting,
    tier_label,
    whiskers_of,
)



def compared_figures(rows):
    """Returns the figures that `kvtwin compare` judges: those with a standing."""
    return [key.removesuffix("_standing") for key in rows[0] if key.endswith("_standing")]


@dataclass
class Choice:
    """The recommendation of a comparison. `row`: None if no setting meets the goal; `nearest` then is the best that there is."""

    row: dict | None
    nearest: dict | None
    key: str  # the figure that decides
    reason: str = ""
    servers: dict = field(default_factory=dict)  # engine: {command, notes}


def choice_of(compared):
    """As compare.json says; an unfinished or older folder has none."""
    one = compared.plan.get("recommendation") or {}

    def row_of(name):
        number = one.get(name)
        return compared.rows[number] if isinstance(number, int) and number < len(compared.rows) else None

    return Choice(
        row_of("row"), row_of("nearest_row"), one.get("figure", "ttft_mean_s"), one.get("reason", ""), one.get("servers") or {}
    )


def settings_of(compared, row):
    return {axis["name"]: row[axis["name"]] for axis in compared.plan["axes"]}


# The figures of the table of settings and of its details on the pointer, beside the figure of the goal. The folded table
# has all figures.
MAIN_FIGURES = ["hit_ratio", "gap_closed", "ttft_mean_s", "ttft_p90_s", "ttft_p99_s", "tpot_p90_s"]
MAIN_FIGURES += ["good_share", "goodput_per_second", "gpus", "disk_writes_per_day"]


def main_figures(rows, goal=None):
    """Returns the main figures that some row has; GPUs only if they vary."""
    wanted = dict.fromkeys([*MAIN_FIGURES, *([goal["figure"]] if goal else [])])
    return [key for key in wanted if some(rows, key) and (key != "gpus" or varies(rows, key))]


def some(rows, key):
    return any(row.get(key) is not None for row in rows)


def varies(rows, key):
    return len({row.get(key) for row in rows}) > 1


def line_name(compared, setting):
    """The values of a setting; with the names of their keys, if several keys vary or the value is a number."""
    varied = [axis["name"] for axis in compared.plan["axes"] if axis["name"] in setting and len(axis["values"]) > 1]
    if len(varied) > 1:
        return setting_text(tidy_setting({name: setting[name] for name in varied}))
    if varied and not isinstance(setting[varied[0]], str):
        return setting_words({varied[0]: setting[varied[0]]})
    return label_of(compared, setting) or compared.plan["eviction"]


def compared_hover(compared, row):
    return row_hover(row, compared.plan["axes"], main_figures(compared.rows, compared.plan.get("goal")))


def compare_charts(compared, choice):
    along, circumstances = compared_grid(compared)
    goal, figures = compared.plan.get("goal"), compared_figures(compared.rows)
    wanted = ("hit_ratio", goal and goal["figure"], "ttft_p90_s", "good_share", "saved_s")
    shown = dict.fromkeys(key for key in wanted if key in figures and some(compared.rows, key))
    charts = [compare_chart(compared, key, along, circumstances, choice) for key in shown]
    meets = (lambda row: row.get("meets_goal")) if goal else (lambda row: None)
    points = [(row, meets(row), compared_hover(compared, row)) for row in compared.rows]
    return charts + gpu_charts(points, compared.plan, goal, choice.row)


def gpu_charts(points, plan, goal=None, chosen=None):
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
    for (row, meets, hover), *ends in zip(points, below.tolist(), above.tolist()):
        name = setting_words({axis["name"]: row.get(axis["name"]) for axis in plan["axes"]})
        whiskers = tuple(ends) if any(ends) else None
        named.append(Point(row.get("gpus"), row.get(key), meets, name, hover, whiskers=whiskers))
    star = next((point for point, row in zip(named, rows) if row is chosen), None)
    limit = goal["value"] if goal and goal["figure"] == key else None
    return [front_chart("gpus", "GPUs", key, limit, named, better_of(plan, key), star)]


def compare_chart(compared, key, along, circumstances, choice):
    goal = compared.plan.get("goal")
    limit = goal["value"] if goal and goal["figure"] == key else None
    title = sentence_case(figure_name(key))
    if along is None:
        rows = [row for row in compared.rows if finite(row[key])][:MAX_ROWS]
        if not rows or len(rows) > 40:
            return None
        names = [
            label_of(compared, {axis["name"]: row[axis["name"]] for axis in compared.plan["axes"]})
            or compared.plan["eviction"]
            for row in rows
        ]
        best = [row.get(f"{key}_standing") == "best" for row in rows]
        series = []
        below, above = whiskers_of(rows, key)
        kinds = [RECOMMENDATION if row is choice.row else "best" if good else "others" for row, good in zip(rows, best)]
        labels = {"best": "best under equal circumstances"}
        for kind, colour in ((RECOMMENDATION, GREEN), ("best", BLUE), ("others", "#56B4E9")):
            at = [index for index, one in enumerate(kinds) if one == kind]
            if at:
                whiskers = (below[at].tolist(), above[at].tolist()) if np.nansum(below + above) > 0 else None
                series.append(
                    Series(
                        labels.get(kind, kind),
                        [rows[i][key] for i in at],
                        at,
                        colour,
                        kind="bars",
                        whiskers=whiskers,
                        hover=[compared_hover(compared, rows[i]) for i in at],
                    )
                )
        texts = [[name, figure_text(key, row[key], 4)] for name, row in zip(names, rows)]
        lines = [("x", limit, "goal")] if limit is not None else []
        return Chart(
            title,
            "; ".join(f"{name}: {text}" for name, text in texts),
            Axis(figure_name(key), unit_of_figure(key)),
            [Axis("", ticks=list(enumerate(names)))],
            series,
            Table("", ["setting", figure_name(key)], texts),
            height=130 + 30 * len(rows),
            lines=lines,
        )
    lines, references = [], {}
    choices = combinations(compared.axes(choice=True))
    coloured = 0
    for circumstance in circumstances:
        for variant in choices:
            setting = circumstance | variant
            rows = [row for row in compared.select(setting) if finite(row[key])]
            if not rows:
                continue
            colour, marker = CASE_STYLES[coloured % len(CASE_STYLES)]
            dash = ["-", "--", "-."][coloured // len(CASE_STYLES) % 3]
            coloured += 1
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
            for name, bound in (("optimal", f"opt_{key}"), ("LRU, single cache", f"lru_{key}")):
                for row in rows:
                    if finite(row.get(bound)):
                        at = references.setdefault(name, {})
                        at[row[along["name"]]] = max(row[bound], at.get(row[along["name"]], 0))
    if not lines:
        return None
    left_out = max(0, len(lines) - MAX_LINES)
    chosen = choice.row
    star = []
    if chosen and finite(chosen[key]):
        star = [recommended_point(chosen[along["name"]], chosen[key], compared_hover(compared, chosen))]
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
    more = f" (the first {MAX_LINES} of {len(lines)} lines)" if left_out else ""
    filled = ", filled: best or as good" if len(choices) > 1 else ""
    marks = [("y", limit, "goal")] if limit is not None else []
    return line_chart(
        f"{title} by {tier_label(along)}{filled}{more}",
        along["name"],
        along["unit"],
        lines[:MAX_LINES],
        key,
        marks,
        reference,
        star,
    )
