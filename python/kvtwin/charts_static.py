"""Draws charts with matplotlib."""

import base64
import io
import math
import textwrap

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from kvtwin.charts import DARK, INK, PAPER, WIDTH, number
from kvtwin.figure_words import finite

STYLE = {
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


def static_axis(axis, matplotlib_axis, limits):
    text = axis.text
    if axis.log:
        limits(scale="log")
        low, high = matplotlib_axis.get_view_interval()
        shown = "25" if high < 300 * low else ""
        matplotlib_axis.set_minor_formatter(
            FuncFormatter(lambda value, _: text(value) if f"{value:e}"[0] in shown else "")
            if shown
            else NullFormatter()
        )
    if axis.ticks is not None:
        matplotlib_axis.set_ticks(
            [value for value, _ in axis.ticks],
            [plain("\n".join(textwrap.wrap(str(text), 26))) for _, text in axis.ticks],
        )
        matplotlib_axis.set_minor_formatter(NullFormatter())
    else:
        matplotlib_axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def static_series(axes, series, stacks):
    label = plain(series.name) if series.legend else None
    x, y = [[number(value) if finite(value) else math.nan for value in values] for values in (series.x, series.y)]
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


def plain(text):
    """Escapes the signs of matplotlib's formulas, and the mark of labels that are left out of legends."""
    text = str(text).replace("$", r"\$")
    return " " + text if text.startswith("_") else text


def draw_static(chart):
    """Draws the chart as SVG into chart.image, a data URL."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": "kvtwin"}):
        figure = Figure(figsize=(WIDTH / 96, chart.height / 96), layout="constrained")
        all_axes = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
        stacks = {}
        for series in chart.series:
            static_series(all_axes[series.panel], series, stacks)
        for index, (axes, axis) in enumerate(zip(all_axes, chart.panels)):
            static_axis(axis, axes.yaxis, lambda scale, axes=axes: axes.set_yscale(scale))
            if axis.ends is not None:
                axes.set_ylim(*axis.ends)
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
        if any(series.kind == "bars" for series in chart.series):
            all_axes[0].invert_yaxis()
            all_axes[0].grid(visible=False, axis="y")
        for direction, value, label in chart.lines:
            (all_axes[0].axvline if direction == "x" else all_axes[0].axhline)(
                value, color=INK, linestyle="--", linewidth=1.2, label=plain(label)
            )
        handles, labels = [], []
        for axes in all_axes:
            for handle, label in zip(*axes.get_legend_handles_labels()):
                if label not in labels:
                    handles.append(handle)
                    labels.append(label)
        if len(labels) > 1 or chart.lines:
            figure.legend(
                handles,
                labels,
                loc="outside lower center",
                ncols=max(1, min(len(labels), 90 // (6 + max(map(len, labels))))),
                fontsize=8,
            )
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    image = drawn.getvalue().replace("</svg>", f"<style>{static_dark_style()}</style></svg>")
    chart.image = "data:image/svg+xml;base64," + base64.b64encode(image.encode()).decode()


def static_dark_style():
    """Returns the style that gives an SVG file of matplotlib the dark colours."""
    rules = [
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    # Text in black has no colour of its own.
    return f"@media (prefers-color-scheme: dark){{svg{{fill:{DARK[INK]}}}{''.join(rules)}}}"
