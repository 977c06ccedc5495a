"""The charts of a comparison with one line per simulation."""

from kvtwin.chart_kinds import MAX_LINES, line_chart
from kvtwin.charts import BLUE, CASE_STYLES, INK, Axis, Chart, Series, Table
from kvtwin.charts_of_settings import gpu_charts
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


def swept_name(sweep, row):
    words = [str(row["case"])] if row.get("case") else []
    return ", ".join(
        words
        + [
            f"{axis['name']}={exact(row[axis['name']])}"
            for axis in sweep.plan["axes"]
            if row.get(axis["name"]) is not None
        ]
    )


def best_cells(sweep, key):
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


def sweep_charts(sweep):
    """One chart per shown figure: lines over the x axis of the sweep, or over the numeric axis with most values; else bars."""
    plan = sweep.plan
    numeric = [
        axis
        for axis in plan["axes"]
        if len(axis["values"]) > 1
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in axis["values"])
    ]
    along = next((axis for axis in plan["axes"] if axis["name"] == plan.get("along")), None) or max(
        numeric, key=lambda axis: len(axis["values"]), default=None
    )
    charts = []
    for key in dict.fromkeys([*plan["show"], "hit_ratio"]):
        rows = [row for row in sweep.rows if finite(row.get(key))]
        if rows:
            charts.append(sweep_lines(sweep, key, along, rows) if along else sweep_bars(sweep, key, rows))
    points = [(row, None, sweep_hover(sweep, row)) for row in sweep.rows]
    return charts + gpu_charts(points, plan)


def sweep_hover(sweep, row):
    figures = list(dict.fromkeys([*sweep.plan["show"], "ttft_mean_s", "ttft_p99_s", "tpot_mean_s", "hit_ratio"]))
    return "\n".join(
        [swept_name(sweep, row).replace(", ", "\n")]
        + [f"{figure_name(key)}: {figure_text(key, row.get(key), 4)}" for key in figures if row.get(key) is not None]
    )


def sweep_lines(sweep, key, along, rows):
    groups, levels = {}, {}
    for row in rows:
        name = swept_name(sweep, {k: v for k, v in row.items() if k != along["name"]}) or figure_name(key)
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
        (name, [(x, members[0][key], True, None, sweep_hover(sweep, members[0])) for x in ends], INK, "", "--")
        for name, members in levels.items()
    ]
    if not lines:
        return None
    more = f" (the first {MAX_LINES} of {len(lines)} lines)" if len(lines) > MAX_LINES else ""
    name = figure_name(key)
    return line_chart(
        f"{sentence_case(name)} by {along['name']}{more}",
        along["name"],
        along["unit"],
        lines[:MAX_LINES],
        key,
        (),
        level[:2],
    )


def sweep_bars(sweep, key, rows):
    rows = rows[:40]
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
