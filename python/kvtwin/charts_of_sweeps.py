"""The charts of a comparison with one line per simulation."""

from collections.abc import Sequence
from typing import Any

from kvtwin.chart_kinds import MAX_LINES, line_chart
from kvtwin.charts import BLUE, CASE_STYLES, INK, Axis, Chart, Series, Table
from kvtwin.charts_of_settings import MAX_BARS, gpu_charts
from kvtwin.figure_words import (
    LESS,
    MORE,
    better_of,
    exact,
    figure_name,
    figure_text,
    finite,
    sentence_case,
    unit_of_figure,
)
from kvtwin.result_folders import Sweep, combinations, setting_text, short_name, tidy_setting

MAX_SETTINGS = 6  # of the axes beside the x axis, with a chart each


def swept_name(sweep: Sweep, row: dict[str, Any]) -> str:
    words = [str(row["case"])] if row.get("case") else []
    return ", ".join(
        words
        + [
            f"{axis['name']}={exact(row[axis['name']])}"
            for axis in sweep.plan["axes"]
            if row.get(axis["name"]) is not None
        ]
    )


def best_cells(sweep: Sweep, key: str) -> set[Any]:
    """Returns the numbers of the rows with the best value, among the cells that complete enough requests."""
    better = better_of(sweep.plan, key)
    if better not in (LESS, MORE):
        return set()
    served = [(row.get("completed") or 0) / max(1, row.get("requests") or 0) for row in sweep.rows]
    enough = max(served, default=0) * sweep.plan.get("min_served_percent", 99) / 100
    known = [
        index
        for index, row in enumerate(sweep.rows)
        if finite(row.get(key)) and served[index] >= enough and served[index] > 0
    ]
    if not known:
        return set()
    best = (min if better == LESS else max)(sweep.rows[index][key] for index in known)
    return {index for index in known if sweep.rows[index][key] == best}


def sweep_axis(sweep: Sweep) -> dict[str, Any] | None:
    """Returns the x axis: that of the sweep, else the numeric axis with most values; None if there is none."""
    axes = sweep.plan["axes"]
    numeric = [
        axis
        for axis in axes
        if len(axis["values"]) > 1
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in axis["values"])
    ]
    named = next((axis for axis in axes if axis["name"] == sweep.plan.get("along")), None)
    return named or max(numeric, key=lambda axis: len(axis["values"]), default=None)


def sweep_settings(sweep: Sweep) -> list[dict[str, Any]]:
    """Returns the settings of the other axes that have a chart each; [{}] if one chart has all."""
    along = sweep_axis(sweep)
    settings = combinations([axis for axis in sweep.plan["axes"] if axis is not along and len(axis["values"]) > 1])
    return settings if along and sweep.plan["cases"] and len(settings) <= MAX_SETTINGS else [{}]


def sweep_figures(sweep: Sweep) -> list[str]:
    return [key for key in dict.fromkeys([*sweep.plan["show"], "hit_ratio"]) if any(finite(row.get(key)) for row in sweep.rows)]


def sweep_charts(sweep: Sweep) -> list[Chart | None]:
    """Lines over the x axis: one chart per shown figure, and per setting of the other axes if these are few; else bars. The
    last chart has the GPUs if they vary."""
    along = sweep_axis(sweep)
    charts: list[Chart | None] = []
    for key in sweep_figures(sweep):
        for setting in sweep_settings(sweep):
            rows = [row for row in sweep.select(**setting) if finite(row.get(key))]
            if rows:
                chart = sweep_lines(sweep, key, along, rows, setting) if along else sweep_bars(sweep, key, rows)
                charts.append(chart)
            else:
                charts.append(None)
    points = [(row, None, sweep_hover(sweep, row)) for row in sweep.rows]
    return charts + gpu_charts(points, sweep.plan)


def sweep_hover(sweep: Sweep, row: dict[str, Any]) -> str:
    figures = list(dict.fromkeys([*sweep.plan["show"], "ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "hit_ratio"]))
    return "\n".join(
        [swept_name(sweep, row).replace(", ", "\n")]
        + [f"{figure_name(key)}: {figure_text(key, row.get(key), 4)}" for key in figures if row.get(key) is not None]
    )


def sweep_lines(
    sweep: Sweep, key: str, along: dict[str, Any], rows: Sequence[dict[str, Any]], setting: dict[str, Any]
) -> Chart | None:
    """`setting`: of all rows, and in the title instead of the names of the lines."""
    groups: dict[str, list[dict[str, Any]]] = {}
    levels: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        own = {name: value for name, value in row.items() if name != along["name"] and name not in setting}
        name = swept_name(sweep, own) or figure_name(key)
        (groups if finite(row.get(along["name"])) else levels).setdefault(name, []).append(row)
    lines = []
    for index, (name, members) in enumerate(groups.items()):
        colour, marker = CASE_STYLES[index % len(CASE_STYLES)]
        lines.append(
            (
                name,
                [(row[along["name"]], row[key], True, None, sweep_hover(sweep, row)) for row in members],
                colour,
                marker,
                ["-", "--", "-."][index // len(CASE_STYLES) % 3],
            )
        )
    # A case that does not depend on the axis is a level line.
    ends = [min(along["values"]), max(along["values"])]
    level = [
        (name, [(x, members[0][key], True, None, sweep_hover(sweep, members[0])) for x in ends], INK, "", dash)
        for (name, members), dash in zip(levels.items(), ["--", ":", "-."])
    ]
    if not lines:
        return None
    more = f" (the first {MAX_LINES} of {len(lines)} lines)" if len(lines) > MAX_LINES else ""
    name = figure_name(key)
    where = f" · {setting_text(tidy_setting(setting))}" if setting else ""
    return line_chart(
        f"{sentence_case(name)} by {short_name(along['name'])}{more}{where}",
        short_name(along["name"]),
        along["unit"],
        lines[:MAX_LINES],
        key,
        crossover_lines(sweep, setting) if key == "ttft_mean_s" else (),
        level,
    )


def crossover_lines(sweep: Sweep, setting: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Returns the places where the first case of the first pair begins or ends to be slower than the second case."""
    found = []
    for one in sweep.plan.get("crossovers") or []:
        fits = all(setting.get(name, value) == value for name, value in one["settings"].items())
        if fits and [one["slower"], one["than"]] == sweep.plan["pairs"][0] and one["at"] is not None:
            words = f"{one['where']} {one['at']:.2g} {sweep.plan['unit']}".rstrip()
            found.append(("x", one["at"], f"{words}, {one['slower']} is slower than {one['than']}"))
    return found if len(found) == 1 else []


def sweep_bars(sweep: Sweep, key: str, rows: Sequence[dict[str, Any]]) -> Chart:
    rows = rows[:MAX_BARS]
    names = [swept_name(sweep, row) or "the experiment" for row in rows]
    texts = [[name, figure_text(key, row[key], 4)] for name, row in zip(names, rows)]
    series = [
        Series(
            figure_name(key),
            [row[key] for row in rows],
            list(range(len(rows))),
            BLUE,
            kind="bars",
            hover=[sweep_hover(sweep, row) for row in rows],
            legend=False,
        )
    ]
    name = figure_name(key)
    return Chart(
        sentence_case(name),
        "; ".join(": ".join(text) for text in texts),
        Axis(name, unit_of_figure(key)),
        [Axis("", ticks=list(enumerate(names)))],
        series,
        Table("", ["cell", name], texts),
        height=130 + 34 * len(rows),
    )
