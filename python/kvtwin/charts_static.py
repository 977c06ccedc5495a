"""Draws charts with matplotlib."""

import base64
import io
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from kvtwin.charts import DARK, INK, PAPER, WIDTH, Axis, Chart, Series
from kvtwin.figure_words import finite

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 120,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def label_between_decades(matplotlib_axis: Any, text: Callable[[float], str]) -> None:
    """Labels ticks between the powers of ten of a logarithmic axis, if it has few of these powers."""
    low, high = matplotlib_axis.get_view_interval()
    shown = "23456789" if high < 3 * low else "25" if high < 300 * low else ""
    matplotlib_axis.set_minor_formatter(
        FuncFormatter(lambda value, _: text(value) if f"{value:e}"[0] in shown else "") if shown else NullFormatter()
    )


def static_axis(axis: Axis, matplotlib_axis: Any, limits: Callable[..., Any]) -> None:
    text = axis.text
    if axis.log:
        limits(scale="log")
        label_between_decades(matplotlib_axis, text)
    if axis.ticks is not None:
        matplotlib_axis.set_ticks(
            [value for value, _ in axis.ticks],
            [plain("\n".join(textwrap.wrap(str(text), 26))) for _, text in axis.ticks],
        )
        matplotlib_axis.set_minor_formatter(NullFormatter())
    else:
        matplotlib_axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
        if not axis.log:
            matplotlib_axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))


def static_series(axes: Axes, series: Series, stacks: dict[tuple[int, float], float]) -> None:
    label = plain(series.name) if series.legend else None
    x, y = [[float(f"{value:.6g}") if finite(value) else math.nan for value in values] for values in (series.x, series.y)]
    if series.kind in ("bars", "columns"):
        along, place = (x, y) if series.kind == "bars" else (y, x)
        start = series.base or [stacks.get((series.panel, at), 0) for at in place]
        for at, begin, size in zip(place, start, along):
            if math.isfinite(size):
                stacks[series.panel, at] = begin + size
        sizes = [size if math.isfinite(size) else 0 for size in along]
        if series.kind == "bars":
            axes.barh(
                place,
                sizes,
                left=start,
                height=series.width,
                color=series.colour,
                label=label,
                xerr=series.whiskers,
                error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
            )
        else:
            axes.bar(place, sizes, width=series.width, bottom=start, color=series.colour, label=label)
        return
    if series.kind != "points":
        axes.plot(
            x,
            y,
            color=series.colour,
            linestyle=series.dash,
            linewidth=0.8 * series.thick,
            drawstyle="steps-post" if series.kind == "step" else None,
        )
    if series.marker:
        faces = [series.colour if fill else "white" for fill in (series.filled or [True] * len(x))]
        axes.scatter(
            x,
            y,
            marker=series.marker,
            s=180 if series.marker == "*" else 36,
            c=faces,
            edgecolors=PAPER if series.marker == "*" else series.colour,
            zorder=4 if series.marker == "*" else 3,
        )
    if series.whiskers is not None:
        axes.errorbar(x, y, yerr=series.whiskers, color=series.colour, linestyle="none", elinewidth=1, capsize=2)
    axes.plot(
        [],
        [],
        color=series.colour,
        linestyle="none" if series.kind == "points" else series.dash,
        marker=series.marker or None,
        label=label,
    )


def plain(text: str) -> str:
    """Escapes the signs of matplotlib's formulas, and the mark of labels that are left out of legends."""
    text = str(text).replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def draw_panels(place: Any, chart: Chart, titled: bool) -> dict[str, Any]:
    """Draws the panels of the chart on a figure or a part of a figure. Returns the labels and the handles of its legend."""
    all_axes = place.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
    stacks: dict[tuple[int, float], float] = {}
    for series in chart.series:
        static_series(all_axes[series.panel], series, stacks)
    for index, (axes, axis) in enumerate(zip(all_axes, chart.panels)):
        static_axis(axis, axes.yaxis, lambda scale, axes=axes: axes.set_yscale(scale))
        if axis.ends is not None:
            axes.set_ylim(*axis.ends)
        elif from_zero(axis, axes.get_ylim()):
            axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        if len(chart.panels) > 1:
            axes.set_title(plain(axis.title), loc="left", fontsize=9)
        else:
            axes.set_ylabel(plain(axis.title))
        if index == len(chart.panels) - 1:
            axes.set_xlabel(plain(chart.x.title))
    bottom = all_axes[-1]
    static_axis(chart.x, bottom.xaxis, lambda scale: bottom.set_xscale(scale))
    if chart.x.ends is not None:
        bottom.set_xlim(*chart.x.ends)
    elif from_zero(chart.x, bottom.get_xlim()):
        bottom.set_xlim(0, 1.02 * bottom.get_xlim()[1])
    if any(series.kind == "bars" for series in chart.series):
        all_axes[0].invert_yaxis()
        all_axes[0].grid(visible=False, axis="y")
    for direction, value, label in chart.lines:
        draw_line(all_axes[0], direction, value, label)
    if titled:
        place.suptitle(plain("\n".join(textwrap.wrap(chart.title, 60))), x=0.01, ha="left", fontsize=9.5, fontweight="normal")
    found: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, handle)
    return found


def from_zero(axis: Axis, limits: tuple[float, float]) -> bool:
    """True for an axis that begins at 0: a linear one without ends and categories, of values from 0 on."""
    # Matplotlib's margin may reach below 0.
    return not axis.log and axis.ticks is None and limits[0] > -0.06 * (limits[1] - limits[0])


def draw_line(axes: Axes, direction: str, value: float, label: str) -> None:
    """Draws a dashed line across the axes. Its label is inside, at the end of the line."""
    style: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1, "alpha": 0.8}
    words = plain("\n".join(textwrap.wrap(label, 22)))
    texts: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 7.5, "color": INK, "bbox": box}
    if direction == "x":
        axes.axvline(value, **style)
        right = axes.transAxes.inverted().transform(axes.transData.transform((value, 1)))[0] > 0.6  # no space on the right
        axes.annotate(
            words, (value, 0.98), (-4 if right else 4, 0), ("data", "axes fraction"), ha="right" if right else "left", **texts
        )
    else:
        axes.axhline(value, **style)
        axes.annotate(words, (0.99, value), (0, -3), ("axes fraction", "data"), ha="right", **texts)


def draw_legend(figure: Any, found: dict[str, Any], letters: float) -> None:
    """`letters`: how many fit beside each other."""
    if len(found) > 1:
        columns = max(1, min(len(found), letters // (6 + max(map(len, found)))))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, fontsize=8)


def draw(title: str, charts: Sequence[Chart | None], columns: int = 1, empty: str = "no request completed") -> Figure:
    """Returns a figure of matplotlib with all charts, in rows. Charts with the same legend share one. None among the charts
    leaves its place empty; without any chart, the figure says `empty`."""
    charts = charts or [None]
    rows = [charts[at : at + columns] for at in range(0, len(charts), columns)]
    heights = [max(chart.height if chart else 0 for chart in row) or 200 for row in rows]
    wide = max(WIDTH, 360 * columns) / 96
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(wide, 0.4 + sum(heights) / 96), layout="constrained")
        figure.suptitle(plain(title), x=0.01, ha="left")
        if not any(charts):
            figure.text(0.5, 0.5, empty, ha="center", va="center", color=INK)
            return figure
        places = figure.subfigures(len(rows), columns, squeeze=False, height_ratios=heights)
        drawn = [
            (place, draw_panels(place, chart, len(charts) > 1))
            for line, row in zip(places, rows)
            for place, chart in zip(line, row)
            if chart
        ]
        if len({tuple(found) for _, found in drawn}) == 1:
            draw_legend(figure, drawn[0][1], 90 * wide * 96 // WIDTH)
        else:
            for place, found in drawn:
                draw_legend(place, found, 90 if columns == 1 else 45)
    return figure


def draw_static(chart: Chart) -> None:
    """Draws the chart as SVG into chart.image, a data URL."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "kvtwin"}):
        figure = Figure(figsize=(WIDTH / 96, chart.height / 96), layout="constrained")
        draw_legend(figure, draw_panels(figure, chart, False), 90)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    image = drawn.getvalue().replace("</svg>", f"<style>{static_dark_style()}</style></svg>")
    chart.image = "data:image/svg+xml;base64," + base64.b64encode(image.encode()).decode()


def save(figure: Figure, path: Path) -> Path:
    # Without version and date, so that equal runs give equal bytes.
    figure.savefig(path, dpi=STYLE["figure.dpi"], metadata={"Software": None})
    return path


def static_dark_style() -> str:
    """Returns the style that gives an SVG file of matplotlib the dark colours."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    # Text in black has no colour of its own.
    return f"@media (prefers-color-scheme: dark){{svg{{fill:{DARK[INK]}}}{''.join(rules)}}}"
