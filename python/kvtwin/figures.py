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

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from kvtwin.charts import BLUE, CASE_STYLES, GREY, INK, RUN_STYLES
from kvtwin.charts_static import STYLE
from kvtwin.errors import InputError
from kvtwin.figure_words import (
    better_of,
    bytes_text,
    count,
    figure_name,
    figure_text,
    limit_words,
    seconds,
    sentence_case,
)
from kvtwin.result_folders import (
    SOURCES,
    combinations,
    compared_grid,
    has_cells,
    is_sweep,
    label_of,
    left_out_text,
    load_compare,
    load_run,
    load_sweep,
    load_validation,
    part_values,
    parts_of,
    setting_text,
    short_name,
    tidy_setting,
    tier_label,
    values_of,
    whiskers_of,
)


def blank_figure(title, height):
    figure = Figure(figsize=(7, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left")
    return figure


def note(axes, text):
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INK)
    axes.set(xticks=[], yticks=[])


def draw_ttft(run):
    """Draws the TTFT of all requests: a histogram above, the cumulative share below, with one logarithmic axis."""
    ttft = run.requests["ttft_s"]
    ttft = np.sort(ttft[np.isfinite(ttft)])
    with matplotlib.rc_context(STYLE):
        figure = blank_figure(run.title("Time to first token"), 5)
        histogram, cumulative = figure.subplots(2, 1, sharex=True)
        positive = ttft[ttft > 0]
        if not positive.size:
            note(histogram, "no request reached its first token")
            note(cumulative, "")
            return figure
        low, high = positive[0] / 1.1, positive[-1] * 1.1
        histogram.hist(positive, bins=np.geomspace(low, high, 41), color=BLUE)
        histogram.set(ylabel="requests", xscale="log", xlim=(low, high))
        histogram.yaxis.set_major_locator(MaxNLocator(integer=True))
        histogram.grid(visible=False, axis="x")
        # One step per request, from 0 to 1.
        cumulative.step(np.r_[low, ttft, high], np.r_[0, np.arange(1, ttft.size + 1) / ttft.size, 1], where="post", color=BLUE)
        cumulative.set(ylabel="share of requests", xlabel="TTFT", ylim=(0, 1.02))
        cumulative.yaxis.set_major_formatter(PercentFormatter(1))
        cumulative.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
        few_decades = high / low < 300
        cumulative.xaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: seconds(value) if f"{value:e}"[0] in "25" else "") if few_decades else NullFormatter()
        )
        cumulative.tick_params(axis="x", which="minor", labelsize=8)
        for name, share in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]:
            value = run.report["ttft_seconds"][name]
            for axes in (histogram, cumulative):
                axes.axvline(value, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
            cumulative.plot([value], [share], marker="o", markersize=4, color=INK)
            # The labels are below the curve, where there is space.
            cumulative.annotate(
                f"{name} {seconds(value)}", (value, share), (6, -4), textcoords="offset points", va="top", fontsize=8, color=INK,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85},
            )
    return figure


def draw_tokens(run):
    """Draws the sources of prompt tokens: for the whole run, and over time by the arrival of the requests."""
    tokens = run.report["tokens"]
    admitted = np.isfinite(run.requests["miss"])
    arrival = run.requests["arrival_s"][admitted]
    with matplotlib.rc_context(STYLE):
        figure = blank_figure(run.title("Prompt tokens by source"), 4.6)
        whole, over_time = figure.subplots(2, 1, height_ratios=[1, 4])
        total = sum(tokens.get(key, 0) for key, _, _ in SOURCES)
        if not total:
            note(whole, "no prompt tokens")
            note(over_time, "")
            return figure
        used = [source for source in SOURCES if tokens.get(source[0])]
        left = 0
        for key, label, colour in used:
            share = tokens[key] / total
            whole.barh([0], [share], left=left, color=colour, label=label)
            if share > 0.035:
                dark = colour in ("#0072B2", "#D55E00", "#009E73")
                whole.text(left + share / 2, 0, f"{share:.0%}", ha="center", va="center", color="white" if dark else INK)
            left += share
        whole.set(xlim=(0, 1), yticks=[])
        whole.set_xlabel(f"share of {count(total)} prompt tokens")
        whole.xaxis.set_major_formatter(PercentFormatter(1))
        whole.spines["left"].set_visible(False)
        whole.grid(visible=False)

        windows = int(min(48, max(1, arrival.size // 4)))
        end = arrival.max() if arrival.size else 0
        edges = np.linspace(0, end or 1, windows + 1)
        window = np.clip(np.searchsorted(edges, arrival, side="right") - 1, 0, windows - 1)
        sums = [np.bincount(window, run.requests[key][admitted], windows) for key, _, _ in used]
        totals = np.maximum(np.sum(sums, axis=0), 1)
        bottom = np.zeros(windows)
        for (_, _, colour), part in zip(used, sums):
            over_time.bar(edges[:-1], part / totals, np.diff(edges), bottom, align="edge", color=colour)
            bottom += part / totals
        over_time.set(xlim=(0, edges[-1]), ylim=(0, 1), xlabel="arrival of the request (s)", ylabel="share of prompt tokens")
        over_time.yaxis.set_major_formatter(PercentFormatter(1))
        over_time.grid(visible=False)
        figure.legend(*whole.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(used), 4))
    return figure


MAX_LANES, MAX_BINS = 24, 160


def draw_lanes(run):
    """Draws the utilisation of each lane over time: the mean (dark) and the peak (pale). One strip per lane; if there
    are many lanes, the busiest ones."""
    lanes = run.lanes
    names = list(dict.fromkeys(lanes["lane"].tolist()))
    shown = names
    if len(names) > MAX_LANES:
        busy = {n: np.sum((lanes["busy_fraction"] * lanes["window_s"])[lanes["lane"] == n]) for n in names}
        kept = set(sorted(names, key=lambda n: -busy[n])[:MAX_LANES])
        shown = [n for n in names if n in kept]
    with matplotlib.rc_context(STYLE):
        figure = blank_figure(run.title("Lane utilisation over time"), 1.1 + 0.62 * max(2, len(shown)))
        strips = figure.subplots(max(1, len(shown)), 1, sharex=True, squeeze=False)[:, 0]
        if not shown:
            note(strips[0], "no lanes")
            return figure
        end = np.max(lanes["window_start_s"] + lanes["window_s"])
        for axes, name in zip(strips, shown):
            rows = lanes["lane"] == name
            start, width, busy = (lanes[column][rows] for column in ("window_start_s", "window_s", "busy_fraction"))
            # At most MAX_BINS bins. Each bin has its mean, and behind it, pale, its busiest window.
            first = np.unique(np.arange(MAX_BINS) * start.size // MAX_BINS)
            mean_of_bin = np.add.reduceat(busy * width, first) / np.maximum(np.add.reduceat(width, first), 1e-30)
            edges = np.r_[start[first], start[-1] + width[-1]]
            for height, opacity in ((np.maximum.reduceat(busy, first), 0.25), (mean_of_bin, 0.9)):
                axes.fill_between(edges, np.r_[height, height[-1]], step="post", color=BLUE, alpha=opacity, linewidth=0)
            mean = np.sum(busy * width) / max(np.sum(width), 1e-30)
            moved = np.sum(lanes["bytes"][rows])
            axes.set(ylim=(0, 1), yticks=[0, 1], xlim=(0, end))
            axes.set_yticklabels(["0", "100%"], fontsize=6.5)
            axes.set_ylabel(name, rotation=0, ha="right", va="center")
            label = f"{mean:.0%} busy" + (f", {bytes_text(moved)}" if moved else "")
            axes.annotate(label, (1, 0.5), (6, 0), "axes fraction", "offset points", va="center", fontsize=8, color=INK)
        which = f" · the {len(shown)} busiest of {len(names)} lanes" if len(shown) < len(names) else ""
        pale = " · dark: mean, pale: peak" if lanes["lane"].size > MAX_BINS * len(names) else ""
        strips[-1].set_xlabel(f"time (s){which}{pale}")
    return figure


def stacked_bars(axes, names, parts, values):
    """Draws one bar per run. `values` maps the key of a part to one value per run. A run without values (None) has a dash
    instead of a bar."""
    left, known = np.zeros(len(names)), np.ones(len(names), dtype=bool)
    for key, label, colour in parts:
        width = np.array(values[key], dtype=float)
        known &= np.isfinite(width)
        width = np.nan_to_num(width)
        if width.any():
            axes.barh(np.arange(len(names)), width, left=left, color=colour, label=label, height=0.6)
        left += width
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(-0.5, len(names) - 0.5)
    for place in np.flatnonzero(~known):
        axes.annotate("– no request completed", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(left.max(), 1e-30) * 1.02)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=4, fontsize=8)


def draw_side_by_side(runs):
    """Compares several runs of one experiment, for example simulated and real: TTFT, the sources of tokens, and the parts
    of the mean TTFT."""
    names = [f"{run.folder.name}\n({run.report['world']})" for run in runs]
    with matplotlib.rc_context(STYLE):
        figure = blank_figure("Side by side: " + ", ".join(run.folder.name for run in runs), 3.4 + 1.5 * (1 + 0.3 * len(runs)) * 2)
        bar = 0.6 + 0.25 * len(runs)
        cumulative, sources, parts = figure.subplots(3, 1, height_ratios=[3, bar, bar])
        measured = False
        for run, name, (colour, line) in zip(runs, names, RUN_STYLES):
            ttft = run.requests["ttft_s"]
            ttft = np.sort(ttft[np.isfinite(ttft) & (ttft > 0)])
            if not ttft.size:
                continue
            measured = True
            label = f"{name.replace(chr(10), ' ')}: mean {seconds(run.report['ttft_seconds']['mean'])}"
            share = np.arange(1, ttft.size + 1) / ttft.size
            cumulative.step(ttft, share, where="post", color=colour, linestyle=line, label=label)
        if measured:
            cumulative.set(ylabel="share of requests", xlabel="TTFT", ylim=(0, 1.02), xscale="log")
            cumulative.yaxis.set_major_formatter(PercentFormatter(1))
            cumulative.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
            cumulative.xaxis.set_minor_formatter(NullFormatter())
            cumulative.legend(loc="upper left", fontsize=8)
        else:
            note(cumulative, "no request reached its first token")
        tokens = [run.report["tokens"] for run in runs]
        totals = [sum(t.get(key, 0) for key, _, _ in SOURCES) for t in tokens]
        stacked_bars(sources, names, SOURCES, {key: [t.get(key, 0) / n if n else None for t, n in zip(tokens, totals)] for key, _, _ in SOURCES})
        sources.set_xlabel("share of prompt tokens")
        sources.xaxis.set_major_formatter(PercentFormatter(1))
        ttfts = [run.report["ttft_parts_seconds"] for run in runs]
        stacked_bars(parts, names, parts_of(*ttfts), part_values(parts_of(*ttfts), ttfts))
        parts.set_xlabel("mean TTFT")
        parts.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    return figure


SHARES = {"good_share", "goodput_per_second"}  # drawn from zero
AXIS_NAMES = {"cluster.prefill": "prefill engines"}
FLAT_LINES = ["--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))]  # of the cases that do not depend on the x axis


def draw_panel(axes, sweep, setting, figure):
    """Draws one line per case along the x axis of the sweep. A case that does not depend on the axis is a horizontal line.
    A cell without a value (no request completed) has no point."""
    plan = sweep.plan
    along = next(axis for axis in plan["axes"] if axis["name"] == plan["along"])
    positions = along["values"]
    low, high = np.inf, 0.0
    coloured = flat = 0
    for case in plan["cases"] or [None]:
        rows = sweep.select(case, **setting)
        rows.sort(key=lambda row: row.get(plan["along"]) or 0)
        y = values_of(rows, figure)
        if rows[0].get(plan["along"]) is None:
            y = [y[0]] * 2
            axes.plot([positions[0], positions[-1]], y, color=INK, linestyle=FLAT_LINES[flat % len(FLAT_LINES)], linewidth=1.6, label=case)
            flat += 1
        else:
            x = [row[plan["along"]] for row in rows]
            colour, marker = CASE_STYLES[coloured % len(CASE_STYLES)]
            # Later lines are thinner, so that lines on top of each other stay visible.
            thin = min(coloured, 6)
            axes.plot(x, y, color=colour, marker=marker, markersize=6.5 - 0.6 * thin, linewidth=2.2 - 0.2 * thin, label=case)
            coloured += 1
        known = [value for value in y if np.isfinite(value)]
        low, high = min([low, *known]), max([high, *known])
    wide = 0 < 10 * min(positions) <= max(positions)
    axes.set_xscale("log" if wide else "linear")
    axes.set_xlim(positions[0], positions[-1])
    axes.set_xticks(positions, [f"{value:g}" for value in positions])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    if low == np.inf:
        axes.annotate("no request completed", (0.5, 0.5), xycoords="axes fraction", ha="center", va="center", fontsize=8, color=INK)
    elif figure in SHARES:
        axes.set_ylim(bottom=0)
    elif low > 0:
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figure_text(figure, value)))
    few_decades = axes.get_yscale() == "log" and high < 30 * low
    labelled = "25" if high > 3 * low else "23456789"
    axes.yaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: figure_text(figure, value) if f"{value:e}"[0] in labelled else "") if few_decades else NullFormatter()
    )
    axes.tick_params(axis="y", which="minor", labelsize=7.5)


def draw_sweep(sweep):
    """Draws a grid of panels. Rows are the shown quantities, columns are combinations of the other axes. With more than
    four combinations: only the first quantity, with one row per value of the first axis."""
    plan = sweep.plan
    if not plan["along"]:
        raise InputError(f"{sweep.folder}: has no x axis; write sweep.along into its experiment")
    others = [axis for axis in plan["axes"] if axis["name"] != plan["along"]]
    settings = combinations(others)
    shown = plan["show"]
    if len(settings) > 4:
        rows = [{others[0]["name"]: value} for value in others[0]["values"]]
        columns = combinations(others[1:])
        grid = [[(row | column, shown[0]) for column in columns] for row in rows]
    else:
        grid = [[(setting, figure) for setting in settings] for figure in shown]
    height, width = len(grid), len(grid[0])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(7, 0.6 + 3.1 * width), 1.6 + 2.35 * height), layout="constrained")
        figure.suptitle(plan["title"] or f"Sweep · {sweep.folder.name}", x=0.01, ha="left")
        unit = f" ({plan['unit']})" if plan["unit"] else ""
        panels = figure.subplots(height, width, squeeze=False, sharex=True, sharey="row")
        for y, cells in enumerate(grid):
            for x, (setting, name) in enumerate(cells):
                axes = panels[y][x]
                draw_panel(axes, sweep, setting, name)
                if x == 0:
                    axes.set_ylabel(figure_name(name))
                if setting and (y == 0 or len(settings) > 4):
                    axes.set_title(setting_text(tidy_setting(setting)), fontsize=8.5, loc="left")
                if y == height - 1:
                    axes.set_xlabel(AXIS_NAMES.get(plan["along"], short_name(plan["along"])) + unit)
                if name == "ttft_mean_s" and plan["pairs"]:
                    mark_crossover(axes, sweep, setting)
        handles, labels = panels[0][0].get_legend_handles_labels()
        if plan["pairs"]:
            handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=":"))
            labels.append("{} slower than {}".format(*plan["pairs"][0]))
        if labels and labels != [None]:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3 if width < 3 else 4))
    return figure


def mark_crossover(axes, sweep, setting):
    """Marks the point from which the first case of the first pair is slower than the second case."""
    for crossover in sweep.plan["crossovers"]:
        fits = all(setting.get(name, value) == value for name, value in crossover["settings"].items())
        if not fits or [crossover["slower"], crossover["than"]] != sweep.plan["pairs"][0] or crossover["at"] is None:
            continue
        axes.axvline(crossover["at"], color=INK, linewidth=0.9, linestyle=":")
        text = f"{crossover['where']} {crossover['at']:.2g} {sweep.plan['unit']}"
        right = crossover["at"] > 0.3 * axes.get_xlim()[1]  # no space on the right: the text goes to the left
        axes.annotate(text, (crossover["at"], 0.97), (-4 if right else 4, 0), ("data", "axes fraction"), "offset points", va="top",
                      ha="right" if right else "left", fontsize=7.5, color=INK,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8})


# The two panels of a comparison: the key of a row, the keys of the optimum and of LRU in a single cache of the same size,
# and the label of the axis.
COMPARED = [
    ("hit_ratio", "opt_hit_ratio", "lru_hit_ratio", "share of prompt tokens"),
    ("saved_s", "opt_saved_s", "lru_saved_s", "GPU time"),
]
MAX_CIRCUMSTANCES = 6


def tokens_text(value, unit):
    return count(value) if unit == "tokens" else f"{value:g}"


def style_of(index, setting):
    """Returns colour, marker and line style of a choice. LRU, the reference, is grey."""
    if "lru" in setting.values() and len(setting) == 1:
        return GREY, "o", "-"
    colour, marker = CASE_STYLES[index % len(CASE_STYLES)]
    return colour, marker, ["-", (0, (3, 1)), "-."][index // len(CASE_STYLES) % 3]


def draw_compared_lines(axes, compared, circumstance, along, panel):
    """Draws one line per choice over the capacity. Filled markers: the best choice, or as good as the best."""
    key, of_opt, of_lru, _ = panel
    has_lru, low, high = False, np.inf, 0.0
    choices = combinations(compared.axes(choice=True))
    noisy = bool(np.nansum(whiskers_of(compared.rows, key)))
    coloured = 0
    best_of_all = {}
    for index, choice in enumerate(choices):
        # Moves each line a little, so that the intervals of several choices are side by side.
        aside = ScaledTranslation((index - (len(choices) - 1) / 2) * 3.2 / 72 if noisy else 0, 0, axes.figure.dpi_scale_trans)
        place = {"transform": axes.transData + aside}
        rows = sorted(compared.select(circumstance | choice), key=lambda row: row[along["name"]])
        x, y, (below, above) = [row[along["name"]] for row in rows], values_of(rows, key), whiskers_of(rows, key)
        colour, marker, line = style_of(coloured, choice)
        has_lru |= colour == GREY
        coloured += colour != GREY
        label = label_of(compared, choice) or compared.plan["eviction"]
        # LRU is below the other lines, and wider, so that it stays visible under another line.
        thick, order = (3.2, 2.5) if colour == GREY else (1.6, 3)
        axes.plot(x, y, color=colour, linestyle=line, linewidth=thick, zorder=order, **place)
        axes.plot([], [], color=colour, linestyle=line, linewidth=thick, marker=marker, markersize=5.5, label=label)
        if np.nansum(below + above) > 0:
            axes.errorbar(x, y, yerr=(below, above), color=colour, linestyle="none", elinewidth=1, capsize=2, zorder=3, **place)
        good = np.array([len(choices) == 1 or row[f"{key}_standing"] is not None for row in rows])
        for chosen, face in ((good, colour), (~good, "white")):
            axes.plot(np.array(x)[chosen], y[chosen], color=colour, marker=marker, markersize=5.5, markerfacecolor=face, linestyle="none",
                      zorder=4, **place)
        low, high = np.nanmin([low, *(y - below)]), np.nanmax([high, *(y + above)])
        for row in rows:
            for bound in (of_opt, of_lru):
                known = best_of_all.setdefault(bound, {})
                if row[bound] is not None:
                    known[row[along["name"]]] = max(row[bound], known.get(row[along["name"]], 0))
    for bound, label, colour, line in ((of_opt, "optimal", INK, (0, (5, 2))), (of_lru, "LRU, single cache", GREY, ":")):
        known = best_of_all[bound]
        if known and not (bound == of_lru and has_lru):
            x, y = zip(*sorted(known.items()))
            axes.plot(x, y, color=colour, linestyle=line, linewidth=1.4, label=label, zorder=2)
            low, high = min(low, *y), max(high, *y)
    scale_capacity(axes, along)
    if low == np.inf:  # no setting here completes a request
        low = 0.0
    margin = 0.06 * (high - low or high or 1)
    axes.set_ylim(0 if low < 0.6 * high else low - margin, high + margin)


def scale_capacity(axes, along):
    values = sorted(along["values"])
    wide = values[0] > 0 and values[-1] >= 4 * values[0]
    axes.set_xscale("log" if wide else "linear")
    if wide:
        beside = (values[-1] / values[0]) ** 0.05
        axes.set_xlim(values[0] / beside, values[-1] * beside)
    else:
        beside = 0.05 * (values[-1] - values[0] or 1)
        axes.set_xlim(values[0] - beside, values[-1] + beside)
    # A tick at each value, except for values whose number would overlap with another number.
    place = [np.log(value) if wide else value for value in values]
    ticks = [values[0]]
    for value, at in zip(values, place):
        last = place[values.index(ticks[-1])]
        if at > last and at - last >= 0.11 * (place[-1] - place[0]):
            ticks.append(value)
    axes.set_xticks(ticks, [tokens_text(value, along["unit"]) for value in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


def draw_compared_bars(axes, compared, circumstance, panel):
    """Draws one bar per setting. Filled bars: the best setting, or as good as the best. The optimum is a dashed line."""
    key, of_opt, of_lru, _ = panel
    choices = compared.axes(choice=True)
    rows = compared.select(circumstance)
    shown = choices or compared.plan["axes"]
    names = [label_of(compared, {axis["name"]: row[axis["name"]] for axis in shown}) for row in rows]
    away = [left_out_text(row) for row in rows]
    y, (below, above) = values_of(rows, key), whiskers_of(rows, key)
    good = [row[f"{key}_standing"] is not None or not choices for row in rows]
    places = np.arange(len(rows))
    for place, value, name, best in zip(places, y, names, good):
        colour = GREY if name == "lru" else BLUE
        axes.barh(place, value, height=0.62, color=colour if best else "white", edgecolor=colour, linewidth=1.4, zorder=2)
    if np.nansum(below + above) > 0:
        axes.errorbar(y, places, xerr=(below, above), color=INK, linestyle="none", elinewidth=1, capsize=2.5, zorder=3)
    optimal = values_of(rows, of_opt)
    if np.isfinite(optimal).all():
        if choices:
            axes.axvline(optimal.max(), color=INK, linestyle=(0, (5, 2)), linewidth=1.4, label="optimal")
            if "lru" not in names:
                axes.axvline(np.nanmax(values_of(rows, of_lru)), color=GREY, linestyle=":", linewidth=1.4, label="LRU, single cache")
        else:
            axes.plot(optimal, places, color=INK, marker="|", markersize=13, markeredgewidth=1.4, linestyle="none", label="optimal")
    axes.set_yticks(places, [f"{name}\n{text}" if text else name for name, text in zip(names, away)])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, 1.06 * np.nanmax([*(y + above), *optimal, 1e-30]))


def draw_hit_rates(rows):
    """Draws rows of kvtwin hitrate --json: the hit ratio over the capacity, one line per eviction policy. The optimum is
    dashed, LRU is grey."""
    names = list(dict.fromkeys(row["eviction"] for row in rows))
    capacities = sorted({row["capacity_blocks"] for row in rows})
    with matplotlib.rc_context(STYLE):
        figure = blank_figure("Distance to optimal · sequential replay", 4)
        axes = figure.subplots()
        coloured = 0
        for name in names:
            points = sorted((row["capacity_blocks"], row["block_hit_ratio"]) for row in rows if row["eviction"] == name)
            colour, marker, line = style_of(coloured, {"eviction": name})
            if name in ("opt", "infinite"):
                colour, marker, line = INK, None, (0, (5, 2)) if name == "opt" else ":"
            coloured += colour not in (GREY, INK)
            axes.plot(*zip(*points), color=colour, marker=marker, linestyle=line, markersize=5, linewidth=3.2 if colour == GREY else 1.6,
                      zorder=2.5 if colour == GREY else 3, label="optimal" if name == "opt" else name)
        scale_capacity(axes, {"values": capacities, "unit": "tokens"})
        axes.set(ylabel="share of blocks hit", xlabel="capacity (blocks)", ylim=(0, None))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g}%"))
        figure.legend(loc="outside lower center", ncols=min(len(names), 6))
    return figure


def draw_compare(compared):
    """Draws hit ratio and saved prefill time over the capacity, one line per policy; or bars, if no capacity varies. The
    optimum is dashed, LRU is grey."""
    along, circumstances = compared_grid(compared)
    drawn = circumstances[:MAX_CIRCUMSTANCES]
    settings = len(compared.rows) // len(circumstances)
    each = 2.6 if along else 0.7 + 0.28 * settings
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 1.25 + (each + 0.3) * len(drawn)), layout="constrained")
        of_how_many = f" · the first {len(drawn)} of {len(circumstances)} circumstances" if len(drawn) < len(circumstances) else ""
        name = compared.folder.name
        figure.suptitle(f"Distance to optimal · {name if len(name) <= 32 else name[:31] + '…'}{of_how_many}", x=0.01, ha="left")
        panels = figure.subplots(len(drawn), 2, squeeze=False, sharex="all" if along else "none", sharey="none" if along else "row")
        for y, circumstance in enumerate(drawn):
            for x, panel in enumerate(COMPARED):
                axes = panels[y][x]
                if along:
                    draw_compared_lines(axes, compared, circumstance, along, panel)
                else:
                    draw_compared_bars(axes, compared, circumstance, panel)
                value_axis = axes.yaxis if along else axes.xaxis
                value_axis.set_major_formatter(FuncFormatter(lambda value, _, key=panel[0]: figure_text(key, value)))
                value_axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
                where = setting_text(tidy_setting(circumstance)) if len(circumstances) > 1 else ""
                axes.set_title(sentence_case(figure_name(panel[0])) + (f" · {where}" if where else ""), fontsize=9, loc="left")
                if along and y == len(drawn) - 1:
                    axes.set_xlabel(tier_label(along))
                if not along and y == len(drawn) - 1:
                    axes.set_xlabel(panel[3])
                if along:
                    axes.set_ylabel(panel[3])
        handles, labels = panels[0][0].get_legend_handles_labels()
        columns = int(np.clip(120 // (8 + max(map(len, labels), default=0)), 1, max(1, len(labels))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=compare_note(compared), title_fontsize=8)
    return figure


def draw_goal(compared):
    """Draws the quantity of a goal over the capacity, one line per setting. Whiskers: 95 % of the hardware variants, or
    the confidence interval of the mean over seeds. One panel per value of the first other axis. The dashed line is the
    goal. A filled marker is the smallest size that meets the goal; a ring is the smallest size at which 97.5 % of the
    runs meet the goal."""
    goal = compared.plan["goal"]
    key, name = goal["figure"], goal["along"]
    along = next(axis for axis in compared.plan["axes"] if axis["name"] == name)
    others = [axis for axis in compared.plan["axes"] if axis is not along and len(axis["values"]) > 1]
    panels = others[0]["values"] if len(others) > 1 else [None]
    of_lines = others[1:] if len(others) > 1 else others
    columns = min(2, len(panels))
    rows_of_panels = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 1.5 + 2.9 * rows_of_panels), layout="constrained")
        limit = limit_words(key, goal["value"], better_of(compared.plan, key))
        figure.suptitle(f"Tier size needed for {figure_name(key)} {limit}", x=0.01, ha="left")
        grid = figure.subplots(rows_of_panels, columns, squeeze=False, sharex=True, sharey=True)
        for unused in grid.flat[len(panels):]:
            unused.set_visible(False)
        for axes, panel in zip(grid.flat, panels):
            fixed = {} if panel is None else {others[0]["name"]: panel}
            settings = combinations(of_lines)
            for index, setting in enumerate(settings):
                aside = ScaledTranslation((index - (len(settings) - 1) / 2) * 4 / 72, 0, axes.figure.dpi_scale_trans)
                place = {"transform": axes.transData + aside}
                draw_goal_line(axes, compared, goal, fixed | setting, index, setting_text(tidy_setting(setting)) or None, along, place)
            axes.axhline(goal["value"], color=INK, linestyle=(0, (5, 2)), linewidth=1.2, zorder=1.5)
            positions = np.arange(len(along["values"]))
            axes.set_xticks(positions, [tokens_text(value, along["unit"]) for value in sorted(along["values"])])
            axes.set_xlim(-0.3, len(positions) - 0.7)
            if panel is not None:
                axes.set_title(setting_text(tidy_setting(fixed)), fontsize=9, loc="left")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: figure_text(key, value)))
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        tops = values_of(compared.rows, key) + whiskers_of(compared.rows, key)[1]
        # matplotlib does not see the whiskers, because the lines are moved. So set the limits here.
        grid[0][0].set_ylim(0, 1.05 * max(goal["value"], 1e-30, *tops[np.isfinite(tops)]))
        for axes in grid[-1]:
            axes.set_xlabel(tier_label(along))
        for line in grid:
            line[0].set_ylabel(figure_name(key))
        handles, labels = grid[0][0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside lower center", ncols=int(np.clip(110 // (8 + max(map(len, labels))), 1, len(labels))),
                          title=goal_note(compared), title_fontsize=8)
    return figure


def draw_goal_line(axes, compared, goal, setting, index, label, along, place):
    key = goal["figure"]
    rows = sorted(compared.select(setting), key=lambda row: row[along["name"]])
    x, y, (below, above) = np.arange(len(rows)), values_of(rows, key), whiskers_of(rows, key)
    colour, marker = CASE_STYLES[index % len(CASE_STYLES)]
    axes.plot(x, y, color=colour, linewidth=1.6, zorder=3, **place)
    axes.plot([], [], color=colour, marker=marker, markersize=5, linewidth=1.6, label=label)
    axes.plot(x, y, color=colour, marker=marker, markersize=5, markerfacecolor="white", linestyle="none", zorder=3.5, **place)
    if np.nansum(below + above) > 0:
        axes.errorbar(x, y, yerr=(below, above), color=colour, linestyle="none", elinewidth=1, capsize=2, zorder=2.5, **place)
    result = next(line for line in goal["lines"] if all(line["settings"][name] == value for name, value in setting.items()))
    several = compared.plan["seeds"] > 1 or "draws" in compared.plan
    for where, size in (("from", 5), ("surely_from", 11)):
        if result[where] is None or (where == "surely_from" and not several):
            continue
        at = next(number for number, row in enumerate(rows) if row[along["name"]] == result[where])
        axes.plot(at, y[at], color=colour, marker=marker if size == 5 else "o", markersize=size,
                  markerfacecolor=colour if size == 5 else "none", linestyle="none", zorder=4, **place)


def goal_note(compared):
    note = "filled: smallest size that meets the goal"
    if "draws" in compared.plan:
        note += f"; ring: with 97.5 % of {compared.plan['draws']} hardware variants; whiskers: 95 % of the variants"
    elif compared.plan["seeds"] > 1:
        note += f"; ring: with 97.5 % of {compared.plan['seeds']} seeds; whiskers: 95 % interval of the mean"
    return note


def compare_note(compared):
    seeds = compared.plan["seeds"]
    several = len(combinations(compared.axes(choice=True))) > 1
    words = []
    if several:
        noisy = seeds > 1 or "draws" in compared.plan
        words.append("filled: best" + (", or as good as the best (paired 95 % intervals)" if noisy else ", or equal to the best"))
    if seeds > 1:
        words.append(f"whiskers: 95 % interval of the mean over {seeds} seeds")
    if "draws" in compared.plan:
        words.append(f"whiskers: 95 % of {compared.plan['draws']} hardware variants")
    return "; ".join(words) or None


def draw_validation(validated):
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
            axis.set_minor_formatter(NullFormatter())
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


def write_figures(folder):
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
    for name, draw in FIGURES.items():
        paths.append(save(draw(run), target / name))
    return paths


def save(figure, path):
    # Without version and date, so that equal runs give equal bytes.
    figure.savefig(path, dpi=STYLE["figure.dpi"], metadata={"Software": None})
    return path


def write_all_figures(folders):
    """Draws the figures of each folder; for several runs also side_by_side.png, in the last folder."""
    if len(folders) > len(RUN_STYLES):
        raise InputError(f"{len(folders)} run folders; at most {len(RUN_STYLES)} can be drawn side by side")
    paths = [path for folder in folders for path in write_figures(folder)]
    runs = [folder for folder in folders if not is_sweep(folder)]
    if len(runs) > 1:
        figure = draw_side_by_side([load_run(folder) for folder in runs])
        paths.append(save(figure, Path(runs[-1]) / "figures" / "side_by_side.png"))
    return paths


def summary(folder):
    """Returns the most important numbers, as lines of text."""
    report = load_run(folder).report
    requests, tokens, ttft = report["requests"], report["tokens"], report["ttft_seconds"]
    total = sum(tokens.get(key, 0) for key, _, _ in SOURCES)
    shares = ", ".join(f"{label} {tokens[key] / total:.1%}" for key, label, _ in SOURCES if total and tokens.get(key))
    return [
        f"{folder} ({report['world']} world)",
        f"requests       {requests['completed']} of {requests['total']} completed, {requests['rejected']} rejected, "
        f"{requests['failed']} failed, in {seconds(report.get('simulated_seconds'))}",
        f"prompt tokens  {count(tokens['prompt'])}: {shares}",
        "TTFT           " + ", ".join(f"{name} {seconds(ttft.get(name))}" for name in ("mean", "p50", "p99")),
    ]


def main(arguments):
    if len(arguments) < 2 or arguments[0] not in ("figures", "summary"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        if arguments[0] == "figures":
            lines = write_all_figures(arguments[1:])
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
