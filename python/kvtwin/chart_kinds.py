"""Charts that several kinds of folder have."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtwin.charts import BLUE, GREEN, GREY, ORANGE, Axis, Chart, Series, Table
from kvtwin.figure_words import (
    LESS,
    MORE,
    count,
    exact,
    figure_name,
    figure_text,
    finite,
    number_text,
    percent,
    seconds,
    sentence_case,
    unit_of_figure,
    value_text,
)

MAX_POINTS = 240  # of a line
MAX_LINES = 14  # of a figure with one line per setting
MAX_ROWS = 300  # of a table
RECOMMENDATION = "recommendation"  # the label of the recommendation in figures


def thinned(values: npt.NDArray[Any], most: int = MAX_POINTS) -> npt.NDArray[Any]:
    """Returns at most `most` indices, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))


def latency_series(name: str, values: npt.NDArray[Any], colour: str, dash: str = "-") -> Series | None:
    """Returns the cumulative share of a latency as a line on a logarithmic axis; None without a positive value."""
    values = np.sort(values[np.isfinite(values) & (values > 0)])
    if not values.size:
        return None
    at = thinned(values)
    shares = (at + 1) / values.size
    hover = [
        f"{name}\n{percent(share)} of requests within {seconds(value)}" for value, share in zip(values[at], shares)
    ]
    return Series(name, values[at].tolist(), shares.tolist(), colour, kind="step", dash=dash, hover=hover)


def quantile_row(name: str, values: npt.NDArray[Any]) -> list[str]:
    values = np.sort(values[np.isfinite(values)])
    if not values.size:
        return [name, "0", *["–"] * 6]
    # The smallest value that at least this share of the requests does not exceed.
    at = [values[max(0, math.ceil(share * values.size) - 1)] for share in (0.1, 0.5, 0.9, 0.95, 0.99, 1)]
    return [name, f"{values.size:,}", *map(seconds, at)]


def latency_chart(
    title: str, entries: Sequence[tuple[str, npt.NDArray[Any], str, str]], marks: Sequence[Series] = ()
) -> Chart | None:
    """`entries`: [(name, values, colour, dash)]. `marks`: further series."""
    series = [one for one in (latency_series(*entry) for entry in entries) if one is not None]
    rows = [quantile_row(name, values) for name, values, _, _ in entries]
    table = Table("", ["", "requests", "p10", "p50", "p90", "p95", "p99", "largest"], rows)
    says = (
        "Cumulative share of requests. "
        + "; ".join(f"{row[0]}: half within {row[3]}, 99 % within {row[6]}" for row in rows)
        + "."
    )
    return (
        Chart(
            title,
            says,
            Axis("time", "seconds", log=True),
            [Axis("share of requests", "share", ends=(0, 1.02))],
            [*series, *marks],
            table,
        )
        if series
        else None
    )


def stacked_chart(
    title: str, names: Sequence[str], parts: Sequence[tuple[str, str, str]], values: dict[str, Any], axis: Axis
) -> Chart | None:
    """Horizontal stacked bars. `parts`: [(key, label, colour)]; `values[key]`: one number or None per name."""
    used = [part for part in parts if any(values[part[0]])]
    series = []
    for key, label, colour in used:
        series.append(Series(label, values[key], list(range(len(names))), colour, kind="bars"))
    rows = [
        [name, *(axis.text(values[key][i]) if finite(values[key][i]) else "–" for key, _, _ in used)]
        for i, name in enumerate(names)
    ]
    table = Table("", ["", *(label for _, label, _ in used)], rows)
    says = "; ".join(
        f"{row[0]}: " + ", ".join(f"{label} {cell}" for (_, label, _), cell in zip(used, row[1:])) for row in rows
    )
    ticks = list(enumerate(names))
    return (
        Chart(title, says, axis, [Axis("", ticks=ticks)], series, table, height=150 + 46 * len(names)) if used else None
    )


def effect_chart(
    title: str, rows: Sequence[tuple[str, float, float]], key: str, value: float | None, label: str = "as given"
) -> Chart:
    """Sensitivities. `rows`: [(name, figure at the low end, figure at the high end)], largest effect first. `label`: of the
    line at `value`."""
    names = [name for name, _, _ in rows]
    low, high = [min(row[1:]) for row in rows], [max(row[1:]) for row in rows]
    texts = [[name, figure_text(key, at_low, 4), figure_text(key, at_high, 4)] for name, at_low, at_high in rows]
    what = figure_name(key)
    table = Table("", ["number", f"{what} at the low end", f"{what} at the high end"], texts)
    hover = [f"{name}\nlow end: {at_low}\nhigh end: {at_high}" for name, at_low, at_high in texts]
    series = [
        Series(
            what,
            [b - a for a, b in zip(low, high)],
            list(range(len(rows))),
            BLUE,
            kind="bars",
            base=low,
            hover=hover,
            legend=False,
        )
    ]
    says = f"{what}, with one number at a time at each end of its interval. " + "; ".join(
        f"{n}: {a} and {b}" for n, a, b in texts
    )
    around = [*low, *high, value] if finite(value) else [*low, *high]
    margin = 0.05 * (max(around) - min(around)) or abs(max(around)) or 1
    axis = Axis(what, unit_of_figure(key), ends=(min(around) - margin, max(around) + margin))
    lines = [("x", value, label)] if finite(value) else []
    return Chart(
        title,
        says,
        axis,
        [Axis("", ticks=list(enumerate(names)))],
        series,
        table,
        height=130 + 34 * len(rows),
        lines=lines,
    )


@dataclass
class Point:
    """One setting of a front chart; settings without x or y are left out. `meets`: whether it meets the goals; None: there are none."""

    x: float
    y: float
    meets: bool | None
    name: str
    hover: str
    in_front: bool = True  # may be part of the Pareto front
    whiskers: tuple[float, float] | None = None  # (below, above)


def wide(values: Sequence[float]) -> bool:
    """True if the values need a logarithmic axis."""
    values = [value for value in values if finite(value)]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def wide_latency(key: str, values: Sequence[float]) -> bool:
    """True if the values of a figure need a logarithmic axis."""
    return unit_of_figure(key) == "seconds" and wide(values)


def recommended_point(
    x: float, y: float, hover: str, whiskers: tuple[list[float], list[float]] | None = None
) -> Series:
    texts = ["Recommendation\n" + hover]
    return Series(RECOMMENDATION, [x], [y], GREEN, kind="points", marker="*", hover=texts, whiskers=whiskers)


def whiskers_of_points(points: Sequence[Point]) -> tuple[list[float], list[float]] | None:
    """Returns Series.whiskers; None if no point has an interval."""
    if not any(point.whiskers for point in points):
        return None
    below, above = zip(*(point.whiskers or (0, 0) for point in points))
    return list(below), list(above)


def front_chart(
    across: str,
    across_name: str,
    key: str,
    limit: float | None,
    points: Sequence[Point],
    better: str | None,
    chosen: Point | None = None,
) -> Chart | None:
    """Price or GPUs against a figure, with the Pareto front. `better`: the figure's direction; `chosen`: the recommended
    point."""
    sign = -1 if better == MORE else 1

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        """No worse in both, and better in one."""
        return a != b and a[0] <= b[0] and sign * a[1] <= sign * b[1]

    points = [point for point in points if finite(point.x) and finite(point.y)]
    if not points:
        return None
    series = []
    candidates = {(point.x, point.y) for point in points if point.in_front}
    front = sorted(point for point in candidates if not any(beats(other, point) for other in candidates))
    front = front if better in (LESS, MORE) else []
    if len(front) > 1:
        x, y = map(list, zip(*front))
        series.append(Series("Pareto front", x, y, GREY, hover=["Pareto front"] * len(front), thick=1.5))
    kinds = [("meets the goals", BLUE, "o", True), ("does not", ORANGE, "X", False), ("settings", BLUE, "o", None)]
    for label, colour, marker, meets in kinds:
        group = [point for point in points if point.meets is meets]
        if group:
            x, y, hover = [[getattr(point, name) for point in group] for name in ("x", "y", "hover")]
            whiskers = whiskers_of_points(group)
            series.append(Series(label, x, y, colour, kind="points", marker=marker, hover=hover, whiskers=whiskers))
    if chosen and finite(chosen.x) and finite(chosen.y):
        series.append(recommended_point(chosen.x, chosen.y, chosen.hover, whiskers_of_points([chosen])))
    ys = [point.y for point in points]
    log = wide_latency(key, ys)
    words = {True: "yes", False: "no", None: "–"}
    rows = [[point.name, number_text(point.x), figure_text(key, point.y), words[point.meets]] for point in points]
    table = Table("", ["settings", across_name, figure_name(key), "meets the goals"], rows[:MAX_ROWS])
    says = f"{len(points)} settings: {across_name} against {figure_name(key)}."
    says += f" The Pareto front goes from {number_text(front[0][0])} to {number_text(front[-1][0])}." if front else ""
    return Chart(
        sentence_case(f"{figure_name(key)} against {across_name}"),
        says,
        Axis(across_name, log=wide([point.x for point in points])),
        [Axis(figure_name(key), unit_of_figure(key), log=log)],
        series,
        table,
        height=420,
        lines=[("y", limit, "goal")] if limit is not None else [],
    )


def line_chart(
    title: str,
    along: str,
    unit: str,
    lines: Sequence[tuple[str, list[Any], str, str, str]],
    key: str,
    marks: Sequence[tuple[str, float, str]] = (),
    reference: Sequence[tuple[str, list[Any], str, str, str]] = (),
    more: Sequence[Series] = (),
) -> Chart:
    """One line per setting over the values of an axis. `lines`: [(name, [(x, y, filled, whiskers, hover)], colour, marker,
    dash)]; `reference`: the same, without markers; `more`: further series."""
    series, rows = [], []
    xs = sorted({point[0] for _, points, *_ in [*lines, *reference] for point in points})
    wide = xs[0] > 0 and xs[-1] >= 4 * xs[0]
    for of_reference, chosen in ((False, lines), (True, reference)):
        for name, points, colour, marker, dash in chosen:
            points = sorted(points, key=lambda point: point[0])
            whiskers = None
            if not of_reference and any(point[3] for point in points):
                below, above = zip(*[point[3] or (0, 0) for point in points])
                whiskers = (below, above)
            series.append(
                Series(
                    name,
                    [point[0] for point in points],
                    [point[1] for point in points],
                    colour,
                    marker="" if of_reference else marker,
                    dash=dash,
                    thick=3.5 if colour == GREY and not of_reference else 2,  # LRU stays visible below another line
                    filled=None if of_reference else [bool(point[2]) for point in points],
                    hover=[point[4] for point in points],
                    whiskers=whiskers,
                )
            )
            values = {point[0]: point[1] for point in points}
            rows.append([name, *(figure_text(key, values.get(x)) for x in xs)])
    series += more
    # Plotly and matplotlib choose the ticks of a linear axis; a logarithmic axis has the varied values.
    kept: list[tuple[float, str]] = []
    for x in xs:
        if not kept or math.log(x / kept[-1][0]) > 0.08 * math.log(xs[-1] / xs[0]) if wide else False:
            kept.append((x, count(x) if unit == "tokens" else value_text(x)))
    what = figure_name(key)
    axis = Axis(
        f"{along} ({unit})" if unit else along, "count" if unit == "tokens" else "plain", log=wide, ticks=kept or None
    )
    says = f"{what} over {along}. " + "; ".join(f"{row[0]}: {row[1]} to {row[-1]}" for row in rows[:MAX_LINES])
    table = Table("", [along, *(value_text(x) for x in xs)], rows)
    return Chart(
        title,
        says,
        axis,
        [Axis(what, unit_of_figure(key), log=wide_latency(key, [y for one in series for y in one.y]))],
        series,
        table,
        height=400,
        lines=list(marks),
    )


def row_hover(row: dict[str, Any], axes: Sequence[dict[str, Any]], figures: Sequence[str]) -> str:
    words = [f"{axis['name']}={exact(row[axis['name']])}" for axis in axes]
    return "\n".join(words + [f"{figure_name(key)}: {figure_text(key, row.get(key), 4)}" for key in figures])
