"""Draws charts with Plotly: interactive figures of a page."""

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtwin.charts import CLEAR, GREY, GRID, INK, PAPER, Axis, Chart, Series, number
from kvtwin.figure_words import finite, scale_for

FONT = "system-ui, 'DejaVu Sans', Arial, sans-serif"
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "*": "star",
}
DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}


def plotly_text(text: str) -> str:
    """Escapes a text: Plotly reads some HTML in texts of figures."""
    return html.escape(str(text), quote=False)


def broken(text: str, width: int) -> str:
    return "<br>".join(plotly_text(line) for line in textwrap.wrap(str(text), width) or [""])


def hover_of(chart: Chart, series: Series) -> list[str]:
    if series.hover is not None:
        return ["<br>".join(map(plotly_text, text.split("\n"))) for text in series.hover]
    across, up = chart.x, chart.panels[series.panel]
    ticks = dict(across.ticks or up.ticks or [])
    found = []
    for index, (x, y) in enumerate(zip(series.x, series.y)):
        if not (finite(x) and finite(y)):
            found.append("")
            continue
        if series.kind == "bars":
            start = series.base[index] if series.base else None
            text = f"{across.text(start)} to {across.text(start + x)}" if start is not None else across.text(x)
            where = ticks.get(y, "")
        else:
            text, where = up.text(y), f"{across.title}: {ticks.get(x) or across.text(x)}"
        found.append(f"{plotly_text(series.name)}: {plotly_text(text)}<br>{plotly_text(where)}")
    return found


def axis_unit(chart: Chart, axis: Axis, across: bool) -> tuple[str, float]:
    """Returns (name, size) of the unit of an axis: one unit for the whole axis. Values of other axes than linear ones are
    not scaled. `across`: it is the x axis."""
    if axis.log or axis.ticks is not None:
        return "", 1
    largest = max(map(abs, axis.ends)) if axis.ends else 0
    stacked = 0.0
    for series in chart.series:
        if not across and chart.panels[series.panel] is not axis:
            continue
        values = [value for value in (series.x if across else series.y) if finite(value)]
        if series.base is not None and across:
            values = [start + size for start, size in zip(series.base, series.x) if finite(size)]
        elif (series.kind, across) in (("bars", True), ("columns", False)):
            stacked += max(values, default=0)
        if series.whiskers is not None and (series.kind == "bars") == across:
            ends = zip(series.x if across else series.y, series.whiskers[1])
            values += [value + above for value, above in ends if finite(value) and finite(above)]
        largest = max([largest, stacked, *map(abs, values)])
    return scale_for(axis.unit, largest)


def scaled(values: Sequence[Any], size: float) -> list[Any]:
    return [value / size if finite(value) else value for value in values]


def in_units(chart: Chart) -> Chart:
    """Returns the chart with the values of each axis in the unit of the axis, and with these units as texts behind the ticks."""
    x_name, x_size = axis_unit(chart, chart.x, True)
    units = [axis_unit(chart, axis, False) for axis in chart.panels]

    def axis_in(axis: Axis, name: str, size: float) -> Axis:
        return replace(axis, ends=(axis.ends[0] / size, axis.ends[1] / size) if axis.ends else None, suffix=name)

    series = []
    for one in chart.series:
        size = units[one.panel][1]
        along = x_size if one.kind == "bars" else size
        series.append(
            replace(
                one,
                x=scaled(one.x, x_size),
                y=scaled(one.y, size),
                base=one.base and scaled(one.base, x_size),
                width=one.width / (size if one.kind == "bars" else x_size),
                whiskers=one.whiskers and (scaled(one.whiskers[0], along), scaled(one.whiskers[1], along)),
                hover=hover_of(chart, one),
            )
        )
    return replace(
        chart,
        x=axis_in(chart.x, x_name, x_size),
        panels=[axis_in(axis, *unit) for axis, unit in zip(chart.panels, units)],
        series=series,
        lines=[(way, value / (x_size if way == "x" else units[0][1]), label) for way, value, label in chart.lines],
    )


def decade_ticks(axis: Axis, values: Sequence[float]) -> list[tuple[float, str]] | None:
    """Returns ticks at 1, 2 and 5 of each decade; only at 1 where there are many decades. None without positive values."""
    values = [value for value in values if finite(value) and value > 0]
    if not values:
        return None
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [
        (one * 10.0**decade, axis.text(one * 10.0**decade))
        for decade in range(low, high + 1)
        for one in ((1, 2, 5) if high - low < 4 else (1,))
    ]


def plotly_axis(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    if axis.log and axis.ticks is None:
        axis = replace(axis, ticks=decade_ticks(axis, values))
    made = {
        "title": {"text": plotly_text(axis.title), "standoff": 8},
        "automargin": True,
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": INK,
        "ticks": "outside",
        "tickformat": ",~g",
        "ticksuffix": f" {axis.suffix}" if axis.suffix else "",
    }
    if axis.log:
        made["type"] = "log"
    elif axis.ends is not None:
        made["range"] = [number(end) for end in axis.ends]
    elif axis.ticks is None:
        made |= {"rangemode": "tozero"}
    if axis.ticks is not None:
        made |= {
            "tickvals": [number(value) for value, _ in axis.ticks],
            "ticktext": [broken(text, 26) for _, text in axis.ticks],
            "tickformat": "",
            "ticksuffix": "",
        }
    return made


def plotly_trace(series: Series) -> dict[str, Any]:
    x, y = [[number(value) for value in values] for values in (series.x, series.y)]
    suffix = str(series.panel + 1) if series.panel else ""
    trace = {
        "name": plotly_text(series.name),
        "x": x,
        "y": y,
        "yaxis": f"y{suffix}",
        "showlegend": series.legend,
        "text": series.hover,
        "hovertemplate": "%{text}<extra></extra>",
    }
    if series.kind in ("bars", "columns"):
        trace |= {
            "type": "bar",
            "marker": {"color": series.colour},
            "width": number(series.width),
            "textposition": "none",
        }
        if series.kind == "bars":
            trace["orientation"] = "h"
        if series.base is not None:
            trace["base"] = [number(value) for value in series.base]
        if series.whiskers is not None:
            trace["error_x"] = plotly_whiskers(series)
        return trace
    mode = [] if series.kind == "points" else ["lines"]
    trace |= {
        "type": "scatter",
        "line": {
            "color": series.colour,
            "width": series.thick,
            "dash": DASHES[series.dash],
            "shape": "hv" if series.kind == "step" else "linear",
        },
    }
    if series.marker:
        mode.append("markers")
        symbol = SYMBOLS[series.marker]
        symbols = symbol if series.filled is None else [symbol if fill else f"{symbol}-open" for fill in series.filled]
        trace["marker"] = {
            "symbol": symbols,
            "color": series.colour,
            "size": 18 if series.marker == "*" else 9,
            # An edge in the colour of the paper sets the star off from points beneath it.
            "line": {"color": PAPER if series.marker == "*" else series.colour, "width": 1.5},
        }
    if series.whiskers is not None:
        trace["error_y"] = plotly_whiskers(series)
    return trace | {"mode": "+".join(mode)}


def plotly_whiskers(series: Series) -> dict[str, Any]:
    below, above = series.whiskers or ((), ())
    return {
        "type": "data",
        "symmetric": False,
        "color": INK if series.kind == "bars" else series.colour,
        "thickness": 1.2,
        "array": [number(value) for value in above],
        "arrayminus": [number(value) for value in below],
    }


def plotly_figure(chart: Chart) -> dict[str, Any]:
    """Returns {"data", "layout"} for Plotly.newPlot, in light colours."""
    chart = in_units(chart)
    layout: dict[str, Any] = {
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "modebar": {"bgcolor": CLEAR, "color": GREY, "activecolor": INK},
        "barmode": "stack",
        "bargap": 0.3,
        "margin": {"l": 60, "r": 20, "t": 34, "b": 50},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "namelength": -1},
        "showlegend": sum(series.legend for series in chart.series) > 1
        or any(s.legend and s.kind == "bars" and s.base is None for s in chart.series),
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "xaxis": plotly_axis(chart.x, [x for series in chart.series for x in series.x]),
        "shapes": [],
        "annotations": [],
    }
    panels = len(chart.panels)
    gap = 0.42 / panels if panels > 1 else 0
    each = (1 - gap * (panels - 1)) / panels
    for index, axis in enumerate(chart.panels):
        top = 1 - index * (each + gap)
        suffix = str(index + 1) if index else ""
        layout[f"yaxis{suffix}"] = plotly_axis(
            axis, [y for series in chart.series if series.panel == index for y in series.y]
        ) | {"domain": [number(max(0, top - each)), number(top)]}
        if panels > 1:
            layout[f"yaxis{suffix}"].pop("title")
            layout[f"yaxis{suffix}"]["nticks"] = 3
            layout["annotations"].append(
                {
                    "text": plotly_text(axis.title),
                    "x": 0,
                    "xref": "paper",
                    "xanchor": "left",
                    "y": number(top),
                    "yref": "paper",
                    "yanchor": "bottom",
                    "showarrow": False,
                }
            )
    if panels > 1:
        layout["xaxis"]["anchor"] = f"y{panels}"
    if any(series.kind == "bars" for series in chart.series):
        layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    for direction, value, label in chart.lines:
        ends = (
            {"x0": value, "x1": value, "y0": 0, "y1": 1, "yref": "paper"}
            if direction == "x"
            else {"y0": value, "y1": value, "x0": 0, "x1": 1, "xref": "paper"}
        )
        layout["shapes"].append({"type": "line", "line": {"color": INK, "width": 1.5, "dash": "dash"}, **ends})
        axis = chart.x if direction == "x" else chart.panels[0]
        place = number(math.log10(value)) if axis.log else number(value)
        where = (
            {"x": place, "y": 1, "yref": "paper", "xanchor": "center", "yanchor": "bottom"}
            if direction == "x"
            else {"y": place, "x": 1, "xref": "paper", "xanchor": "right", "yanchor": "bottom"}
        )
        layout["annotations"].append(
            {"text": plotly_text(label), "showarrow": False, "bgcolor": PAPER, "opacity": 0.9, **where}
        )
    if layout["showlegend"]:
        layout["margin"]["b"] = 90
    return {"data": [plotly_trace(series) for series in chart.series], "layout": layout}
