"""Writes report.html: one self-contained page for folders of kvtwin plan, compare, sweep, simulate and run.

    python -m kvtwin.report OUT DIR...   replaces OUT. Equal folders and equal packages give equal bytes.

The page needs no network: Plotly's script comes from the installed Python package plotly. Without this package, the page
has static figures. Exit codes: 0 done, 1 the page cannot be written, 2 a folder cannot be read or a package is absent.
"""

import base64
import hashlib
import json
import math
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from kvtwin import figures as drawing
from kvtwin.errors import InputError
from kvtwin.figure_words import (
    LATENCIES,
    LESS,
    MORE,
    better_of,
    bytes_text,
    count,
    exact,
    figure_name,
    figure_text,
    finite,
    joined,
    judged_text,
    limit_words,
    money,
    number_text,
    percent,
    seconds,
    sentence_case,
    setting_words,
    unit_of_figure,
    unit_text,
    value_text,
)
from kvtwin.figures import BLUE, CASE_STYLES, GREY, INK, RUN_STYLES, SOURCES, part_values, parts_of
from kvtwin.report_charts import DARK, PAPER, WIDTH, Axis, Chart, Series, Table, draw_static, plotly_figure
from kvtwin.simulation import load_json

ORANGE, GREEN, SKY, AMBER = "#D55E00", "#009E73", "#56B4E9", "#E69F00"
MAX_POINTS = 240  # of a line
MAX_BINS = 120  # of a time axis
MAX_LINES = 14  # of a figure with one line per setting
MAX_ROWS = 300  # of a table
MAX_NEAREST = 10  # settings that miss the goals, of a table of the nearest ones
MAX_PAGE_BYTES = 8_000_000
VERDICT_EDGES = 46  # pixels of border and padding beside a figure of the verdict


@dataclass
class Commands:
    """Lines to paste into a shell. Each line is a block of its own, with a button that copies it."""

    lines: list


@dataclass
class Section:
    """One folder, or the comparison of several. `verdict` and `parts`: [(heading, [block])]; a block is a text, a list of
    texts, a Table, a Chart or Commands."""

    title: str
    lead: str
    facts: list = field(default_factory=list)  # [(name, text)]
    warnings: list = field(default_factory=list)
    verdict: list = field(default_factory=list)
    parts: list = field(default_factory=list)
    commands: list = field(default_factory=list)
    commands_note: str = ""
    experiment: str = ""
    origin: str = ""
    name: str = ""  # set by the page

    def charts(self):
        return [block for _, blocks in self.verdict + self.parts for block in blocks if isinstance(block, Chart)]


# ---- charts that several kinds of folder have


def thinned(values, most=MAX_POINTS):
    """Returns at most `most` indices, evenly spread, with the first and the last."""
    return np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))


def latency_series(name, values, colour, dash="-"):
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


def quantile_row(name, values):
    values = np.sort(values[np.isfinite(values)])
    if not values.size:
        return [name, "0", *["–"] * 6]
    # The smallest value that at least this share of the requests does not exceed.
    at = [values[max(0, math.ceil(share * values.size) - 1)] for share in (0.1, 0.5, 0.9, 0.95, 0.99, 1)]
    return [name, f"{values.size:,}", *map(seconds, at)]


def latency_chart(title, entries):
    """`entries`: [(name, values, colour, dash)]."""
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
            series,
            table,
        )
        if series
        else None
    )


def stacked_chart(title, names, parts, values, axis):
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


def effect_chart(title, rows, key, value, label="as given"):
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
    """One setting of a front chart. `meets`: whether it meets the goals; None: there are none."""

    x: float
    y: float
    meets: bool | None
    name: str
    hover: str
    in_front: bool = True  # may be part of the Pareto front
    whiskers: tuple | None = None  # (below, above)


def wide(values):
    """True if the values need a logarithmic axis."""
    values = [value for value in values if finite(value)]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def wide_latency(key, values):
    """True if the values of a figure need a logarithmic axis."""
    return unit_of_figure(key) == "seconds" and wide(values)


RECOMMENDATION = "recommendation"  # the label of the recommendation in figures


def recommended_point(x, y, hover, whiskers=None):
    hover = ["Recommendation\n" + hover]
    return Series(RECOMMENDATION, [x], [y], GREEN, kind="points", marker="*", hover=hover, whiskers=whiskers)


def whiskers_of_points(points):
    """Returns Series.whiskers; None if no point has an interval."""
    if not any(point.whiskers for point in points):
        return None
    return tuple(map(list, zip(*(point.whiskers or (0, 0) for point in points))))


def front_chart(across, across_name, key, limit, points, better, chosen=None):
    """Price or GPUs against a figure, with the Pareto front. `better`: the figure's direction; `chosen`: the recommended
    point."""
    sign = -1 if better == MORE else 1

    def beats(a, b):
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


# ---- one run


def run_facts(run):
    report = run.report
    requests, throughput = report["requests"], report.get("throughput", {})
    facts = [
        (
            "requests",
            f"{requests['completed']:,} of {requests['total']:,} completed, {requests['rejected']:,} rejected, "
            f"{requests['failed']:,} failed, in {seconds(report.get('simulated_seconds'))}",
        )
    ]
    if finite(throughput.get("requests_per_second")):
        window = throughput.get("window_seconds")  # absent in reports of older versions
        part = finite(window) and window != report.get("simulated_seconds")
        facts.append(
            (
                "throughput",
                f"{number_text(throughput['requests_per_second'])} requests/s, {count(throughput['prompt_tokens_per_second'])} prompt "
                f"tokens/s, {count(throughput['output_tokens_per_second'])} output tokens/s"
                + (f", in the measured window of {seconds(window)}" if part else ""),
            )
        )
    slo = report.get("slo")
    if slo:
        limits = [
            f"{LATENCIES.get(key.split('_')[0], key)} {figure_text(key, slo[key])}"
            for key in slo
            if key.endswith("_s") and slo[key]
        ]
        facts.append(
            (
                "good requests",
                f"{slo['good']:,}, {percent(slo['good_share'])} of all, {figure_text('per_second', slo['goodput_per_second'])} per second"
                + (f" (within {joined(limits)})" if limits else ""),
            )
        )
    tokens = report["tokens"]
    total = sum(tokens.get(key, 0) for key, _, _ in SOURCES)
    if total:
        facts.append(
            (
                "prompt tokens",
                f"{count(total)}: "
                + ", ".join(f"{label} {percent(tokens[key] / total)}" for key, label, _ in SOURCES if tokens.get(key)),
            )
        )
    hand_overs = report.get("hand_overs")
    if hand_overs:
        facts.append(
            (
                "roles",
                f"{hand_overs['prefill_engines']} prefill and {hand_overs['decode_engines']} decode engines: "
                f"{hand_overs['requests']:,} hand-overs of {bytes_text(hand_overs['bytes'])}; {hand_overs['fell_back']:,} "
                f"prompts computed by their decode engine, {hand_overs['sent_again']:,} requests sent again",
            )
        )
    facts.append(("where the time goes", binding_text(report["ttft_parts_seconds"], report.get("lanes", []))))
    if report.get("model_kv"):
        facts.append(("KV of the model", report["model_kv"]))
    world = {"real": "a real run", "simgrid": "a simulation (SimGrid)", "events": "a simulation (event heap)"}.get(
        report["world"], report["world"]
    )
    facts.append(("world", f"{world}, device {report.get('device', '–')}, seed {report.get('seed', '–')}"))
    return facts


def kind_of(lane):
    """engine3.gpu0.h2d -> h2d"""
    return re.sub(r"^(engine\d+\.)?(gpu\d+\.)?", "", lane)


def binding_text(parts, lanes):
    """Names the largest part of the mean TTFT and the busiest kind of lane."""
    words = []
    known = {key: parts.get(key) or 0 for key, _, _ in parts_of(parts)}
    total = sum(known.values())
    if total > 0:
        largest = max(known, key=known.get)
        words.append(
            f"{percent(known[largest] / total)} of the mean TTFT is {dict((key, label) for key, label, _ in parts_of(parts))[largest]}"
        )
    if lanes:
        busiest = max(lanes, key=lambda lane: lane["busy_fraction"])
        words.append(
            f"the busiest lane is {busiest['name']}: {percent(busiest['busy_fraction'])} busy, "
            f"{percent(busiest.get('busy_fraction_p99'))} in its 99th-percentile window"
        )
    return "; ".join(words) or "no request completed"


def latency_table(report):
    columns = ["mean", "p50", "p90", "p95", "p99", "max"]
    rows = [
        [label, *(seconds(report[f"{key}_seconds"].get(name)) for name in columns)]
        for key, label in LATENCIES.items()
        if f"{key}_seconds" in report
    ]
    return Table("", ["latency", *columns], rows)


def parts_chart(run):
    """The parts of the TTFT, for all requests and for the slowest ones. The mean of all is the report's."""
    ttft = run.requests["ttft_s"]
    served = np.isfinite(ttft)
    groups = [("all requests", served)]
    for share, name in ((0.1, "slowest 10 %"), (0.01, "slowest 1 %")):
        slow = math.ceil(share * served.sum())
        if slow >= 3:
            groups.append((name, served & (ttft >= np.sort(ttft[served])[-slow])))
    if not served.any():
        return None
    parts = parts_of(run.report["ttft_parts_seconds"])
    values = {key: [float(np.mean(run.requests[f"{key}_s"][group])) for _, group in groups] for key, _, _ in parts}
    return stacked_chart(
        "Parts of the mean TTFT, of all and of the slowest requests",
        [name for name, _ in groups],
        parts,
        values,
        Axis("TTFT", "seconds"),
    )


def tokens_chart(run):
    """The sources of prompt tokens by the arrival of the requests."""
    admitted = np.isfinite(run.requests["miss"])
    arrival = run.requests["arrival_s"][admitted]
    used = [source for source in SOURCES if source[0] in run.requests and np.nansum(run.requests[source[0]])]
    if not used:
        return None
    windows = int(min(48, max(1, arrival.size // 8)))
    edges = np.linspace(0, arrival.max() or 1, windows + 1)
    window = np.clip(np.searchsorted(edges, arrival, side="right") - 1, 0, windows - 1)
    sums = {key: np.bincount(window, run.requests[key][admitted], windows) for key, _, _ in used}
    totals = np.maximum(sum(sums.values()), 1)
    middle = ((edges[:-1] + edges[1:]) / 2).tolist()
    series = []
    for key, label, colour in used:
        shares = (sums[key] / totals).tolist()
        hover = [
            f"{label}: {percent(share)}\nof {count(total)} prompt tokens\narrivals {seconds(start)} to {seconds(end)}"
            for share, total, start, end in zip(shares, totals, edges[:-1], edges[1:])
        ]
        series.append(
            Series(label, middle, shares, colour, kind="columns", width=float(edges[1] - edges[0]), hover=hover)
        )
    grand = sum(values.sum() for values in sums.values())
    rows = [[label, f"{sums[key].sum():,.0f}", percent(sums[key].sum() / grand)] for key, label, _ in used]
    says = "Share of prompt tokens by source, over the arrival of the requests. All requests: " + ", ".join(
        f"{row[0]} {row[2]}" for row in rows
    )
    return Chart(
        "Prompt tokens by source, over the arrival of the requests",
        says,
        Axis("arrival of the request (s)"),
        [Axis("share of prompt tokens", "share", ends=(0, 1))],
        series,
        Table("", ["source", "prompt tokens", "share"], rows),
        height=360,
    )


def lane_bins(lanes, chosen, end):
    """Returns mean and 99th percentile of the utilisation in each time bin, over all lanes in `chosen` and their windows."""
    start, width, busy = (lanes[column][chosen] for column in ("window_start_s", "window_s", "busy_fraction"))
    size = end / MAX_BINS
    first = np.clip((start / size).astype(int), 0, MAX_BINS - 1)
    last = np.clip(np.ceil((start + width) / size).astype(int) - 1, first, MAX_BINS - 1)
    # One piece per window and bin; a long idle window has many pieces.
    pieces = np.repeat(np.arange(start.size), last - first + 1)
    offset = np.arange(pieces.size) - np.repeat(np.cumsum(last - first + 1) - (last - first + 1), last - first + 1)
    bins = first[pieces] + offset
    weight = np.minimum(start[pieces] + width[pieces], (bins + 1) * size) - np.maximum(start[pieces], bins * size)
    weight = np.maximum(weight, 0)
    busy = busy[pieces]
    total = np.bincount(bins, weight, MAX_BINS)
    mean = np.bincount(bins, weight * busy, MAX_BINS) / np.where(total > 0, total, np.nan)
    order = np.lexsort((busy, bins))
    upto = np.cumsum(weight[order])
    begin = np.concatenate(([0], np.cumsum(total)[:-1]))
    p99 = np.full(MAX_BINS, np.nan)
    reached = upto >= (begin + 0.99 * total)[bins[order]] * (1 - 1e-12)
    for place in np.flatnonzero(reached)[::-1]:
        p99[bins[order][place]] = busy[order][place]
    return mean, p99


def lanes_chart(run):
    lanes = run.lanes
    if not lanes["lane"].size:
        return None
    kinds = {}
    for name in dict.fromkeys(lanes["lane"].tolist()):
        kinds.setdefault(kind_of(name), []).append(name)
    end = float(np.max(lanes["window_start_s"] + lanes["window_s"]))
    if end <= 0:
        return None
    edges = np.linspace(0, end, MAX_BINS + 1)
    panels, series, rows = [], [], []
    for index, (kind, names) in enumerate(kinds.items()):
        chosen = np.isin(lanes["lane"], names)
        mean, p99 = lane_bins(lanes, chosen, end)
        of = f" ({len(names)} lanes)" if len(names) > 1 else ""
        panels.append(Axis(f"{kind}{of}", "share", ends=(0, 1)))
        when = [f"{seconds(a)} to {seconds(b)}" for a, b in pairwise(edges)]
        for label, values, colour, thick in (("99th percentile", p99, "#56B4E9", 1), ("mean", mean, BLUE, 2)):
            hover = [f"{kind}, {label}: {percent(value)}\n{text}" for value, text in zip(values, when)]
            series.append(
                Series(
                    label,
                    edges[:-1].tolist(),
                    values.tolist(),
                    colour,
                    kind="step",
                    hover=hover,
                    thick=thick,
                    panel=index,
                    legend=index == 0,
                )
            )
        weight = lanes["window_s"][chosen]
        use = float(np.sum(lanes["busy_fraction"][chosen] * weight) / max(np.sum(weight), 1e-30))
        moved = float(np.sum(lanes["bytes"][chosen]))
        peak = np.nanmax(p99)
        rows.append([kind, f"{len(names)}", percent(use), percent(peak), bytes_text(moved) if moved else "–"])
    table = Table("", ["kind of lane", "lanes", "busy, mean", "busy, largest p99 of a time bin", "moved"], rows)
    says = "Utilisation over time, one row per kind of lane. Mean: " + ", ".join(f"{row[0]} {row[2]}" for row in rows)
    return Chart(
        "Lanes over time",
        says,
        Axis("time (s)", ends=(0, end)),
        panels,
        series,
        table,
        height=130 + 74 * max(2, len(panels)),
    )


def tiers_table(report):
    rows = []
    for tier in report.get("tiers", []):
        if not tier["capacity_pages"]:
            continue
        dropped = ", ".join(f"{pages:,} ({reason})" for reason, pages in tier.get("dropped", {}).items())
        rows.append(
            [
                tier["name"],
                f"{tier['capacity_pages']:,}",
                percent(tier["used_pages_max"] / tier["capacity_pages"]),
                f"{tier['evicted_pages']:,}",
                bytes_text(tier["written_bytes"]),
                dropped or "0",
            ]
        )
    return Table("", ["tier", "capacity (pages)", "most used", "evicted pages", "written", "dropped pages"], rows)


def wear_table(report):
    """Writes to the disk tier; None if there are none."""
    disk = next((tier for tier in report.get("tiers", []) if tier["name"] == "disk"), None)
    if not disk or not disk["written_bytes"]:
        return None
    rows = [["written in the run", bytes_text(disk["written_bytes"])]]
    if finite(disk.get("written_bytes_per_day")):
        rows.append(["at the rate of the measured window", f"{bytes_text(disk['written_bytes_per_day'])} a day"])
    if finite(disk.get("writes_per_day")):
        rows.append(["drive writes per day, for drives as large as the tier", number_text(disk["writes_per_day"])])
    return Table("", ["disk tier, all engines", ""], rows, note="Without the write amplification of the drives.")


def bounds_table(report):
    bounds, tokens = report.get("bounds"), report.get("warm", report)["tokens"]  # bounds are of the warm part
    if not bounds:
        return None
    hit = sum(value for key, value in tokens.items() if key.startswith("hit_"))
    rows = [
        [name, f"{value:,}", percent(value / tokens["prompt"]) if tokens["prompt"] else "–"]
        for name, value in (
            ("this run", hit),
            ("LRU, single cache", bounds["lru_hit_tokens"]),
            ("optimal, single cache", bounds["eviction_opt_hit_tokens"]),
        )
    ]
    gap = bounds.get("gap_closed")
    return Table(
        "",
        ["", "hit tokens", "share of the prompt"],
        rows,
        note=f"Gap to optimal closed: {percent(gap)}." if finite(gap) else "",
    )


def draws_parts(report):
    draws = report.get("draws")
    if not draws:
        return []
    rows = [
        [figure_name(key), figure_text(key, one["value"]), figure_text(key, one["low"]), figure_text(key, one["high"])]
        for key, one in draws["figures"].items()
    ]
    blocks = [
        Table(
            "",
            ["figure", "as given", "2.5 %", "97.5 %"],
            rows,
            note=f"{draws['count']} hardware variants, {draws['numbers']} numbers drawn.",
        )
    ]
    causes = [
        (cause["number"], cause["ttft_mean_s"]["at_low"], cause["ttft_mean_s"]["at_high"])
        for cause in draws["hangs_on"]
    ]
    causes = [cause for cause in causes if finite(cause[1]) and finite(cause[2])]
    if causes:
        blocks.append(
            effect_chart(
                "Numbers of the hardware that the mean TTFT depends on",
                causes,
                "ttft_mean_s",
                report["ttft_seconds"]["mean"],
            )
        )
    return [("How sure: hardware variants", blocks)]


def resolved(folder, name="experiment.resolved.toml"):
    """Returns the text of an experiment file, and its keys with their values; empty if the folder has none."""
    try:
        text = (Path(folder) / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return "", {}
    except UnicodeDecodeError as error:
        raise InputError(f"{Path(folder) / name}: not text: {error}") from error
    except OSError as error:
        raise InputError(f"{Path(folder) / name}: {error.strerror}") from error
    return text, {key: value.strip("'\"") for key, value in re.findall(r"^([\w.]+) = (\S+)", text, re.MULTILINE)}


def check_complete(run):
    """A finished run has a row for each request that completed or was rejected."""
    requests = run.report["requests"]
    ended = requests["completed"] + requests["rejected"]
    rows = len(run.requests["request"])
    if rows < ended:
        raise InputError(
            f"{run.folder / 'requests.csv'}: {rows} rows where report.json counts {ended} requests; is the file cut?"
        )


def run_section(folder, run):
    report = run.report
    check_complete(run)
    experiment, keys = resolved(folder)
    ttft = report["ttft_seconds"]
    what = joined(
        [word for word in (keys.get("model.name"), keys.get("hardware.file") or keys.get("hardware.name")) if word]
    )
    lead = (
        f"TTFT {seconds(ttft['mean'])} on average, {seconds(ttft.get('p90'))} at p90, {seconds(ttft.get('p99'))} at p99."
        if finite(ttft["mean"])
        else "No request completed."
    )
    section = Section(
        f"{run.folder.name}: {'real run' if report['world'] == 'real' else 'simulation'}"
        + (f" of {what}" if what else ""),
        lead,
    )
    section.facts = run_facts(run)
    section.warnings = report.get("notes", [])
    section.verdict = [("Latency", [latency_table(report)])]
    entries = [("TTFT", run.requests["ttft_s"], BLUE, "-"), ("TPOT", run.requests["tpot_s"], ORANGE, "--")]
    section.parts += [
        (
            "Time to first token, time per output token",
            [latency_chart("TTFT and TPOT: share of requests within a time", entries)],
        ),
        ("Where the time goes", [parts_chart(run)]),
        ("Where the tokens came from", [tokens_chart(run)]),
        ("Distance to optimal", [bounds_table(report)]),
        ("Tiers and lanes", [tiers_table(report), lanes_chart(run)]),
        ("Drive wear", [wear_table(report)]),
        *draws_parts(report),
    ]
    if experiment:
        section.experiment = experiment
        again = shlex.quote(f"{folder}/experiment.resolved.toml")
        if report["world"] == "real":
            section.commands = [
                f"kvtwin replay {shlex.quote(str(folder))}",
                f"kvtwin run {again} --device {report.get('device', 'host')} --out out/again",
            ]
        else:
            draws = f" --draws {report['draws']['count']}" if report.get("draws") else ""
            section.commands = [f"kvtwin simulate {again} --world {report['world']}{draws} --out out/again"]
    section.origin = origin_text(report)
    return section


def origin_text(report):
    return f"kvtwin {report.get('kvtwin_version', 'of unknown version')}, commit {report.get('git_commit', 'unknown')}"


# ---- comparisons


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


def set_words(settings):
    """Returns the options that give a run these settings. An axis can be several keys: a+b."""
    words = [
        f"--set {shlex.quote(f'{key}={exact(value)}')}" for keys, value in settings.items() for key in keys.split("+")
    ]
    return " ".join(words)


STANDING = {"best": " ★", "equal": " ="}


def compared_cell(row, key, goal, standing=True):
    text = (
        judged_text(key, row[key], goal["value"], 4)
        if goal and goal["figure"] == key
        else figure_text(key, row[key], 4)
    )
    if finite(row.get(f"{key}_low")):
        text += f" [{figure_text(key, row[f'{key}_low'])} to {figure_text(key, row[f'{key}_high'])}]"
    elif finite(row.get(f"{key}_ci95")):
        text += f" ± {figure_text(key, row[f'{key}_ci95'])}"
    return text + (STANDING.get(row.get(f"{key}_standing"), "") if standing else "")


def unit_of(key):
    """Returns the unit of a key's values that its name ends in; empty if there is none."""
    return "GiB" if key.endswith((".gib", "_gib")) else ""


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


def compare_table(compared, figures, choice):
    axes, goal = compared.plan["axes"], compared.plan.get("goal")
    away = [key for key in ("rejected_share", "failed_share") if any(row.get(key) for row in compared.rows)]
    head = [axis["name"] for axis in axes] + [figure_name(key) for key in [*figures, *away]]
    head += ["meets the goal"] if goal else []
    rows, marked = [], set()
    for row in compared.rows[:MAX_ROWS]:
        cells = [value_text(row[axis["name"]], axis["unit"]) for axis in axes] + [compared_cell(row, key, goal) for key in figures]
        cells += [percent(row[key]) for key in away]
        cells += [{True: "yes", False: "no"}.get(row.get("meets_goal"), "–")] if goal else []
        if row is choice.row:
            marked.add(len(rows))
        rows.append(cells)
    more = f" The first {MAX_ROWS} of {len(compared.rows)} settings." if len(compared.rows) > MAX_ROWS else ""
    note = f"{'Highlighted: the recommendation. ' if marked else ''}★ best under equal circumstances, = as good as the best.{more}"
    return Table("", head, rows, marked, note)


def other_figures_table(compared, figures):
    """The figures that compare_table does not have, and the warnings."""
    axes = compared.plan["axes"]
    rows = []
    for row in compared.rows[:MAX_ROWS]:
        cells = [value_text(row[axis["name"]], axis["unit"]) for axis in axes] + [compared_cell(row, key, None) for key in figures]
        rows.append([*cells, row.get("warnings") or "–"])
    head = [*(axis["name"] for axis in axes), *map(figure_name, figures), "warnings"]
    return Table("", head, rows, note="★ best, = as good as the best, under equal circumstances.", folded=True)


def goal_words(compared):
    goal = compared.plan["goal"]
    found = []
    unit = next((axis["unit"] for axis in compared.plan["axes"] if axis["name"] == goal["along"]), "")
    for line in goal["lines"]:
        size = f"from {value_text(line['from'], unit)} on" if line["from"] is not None else "not even at the largest"
        found.append([setting_words(line["settings"]) or "all", size])
    return f"{figure_name(goal['figure'])} {limit_words(goal['figure'], goal['value'], better_of(compared.plan, goal['figure']))}", found


def line_chart(title, along, unit, lines, key, marks=(), reference=(), more=()):
    """One line per setting over the values of an axis. `lines`: [(name, [(x, y, filled, whiskers, hover)], colour, marker,
    dash)]; `reference`: the same, without markers; `more`: further series."""
    series, rows = [], []
    xs = sorted({point[0] for _, points, *_ in [*lines, *reference] for point in points})
    wide = xs[0] > 0 and xs[-1] >= 4 * xs[0]
    for of_reference, chosen in ((False, lines), (True, reference)):
        for name, points, colour, marker, dash in chosen:
            points = sorted(points, key=lambda point: point[0])
            whiskers = (
                None
                if of_reference or not any(point[3] for point in points)
                else tuple(zip(*[point[3] or (0, 0) for point in points]))
            )
            series.append(
                Series(
                    name,
                    [point[0] for point in points],
                    [point[1] for point in points],
                    colour,
                    marker="" if of_reference else marker,
                    dash=dash,
                    filled=None if of_reference else [bool(point[2]) for point in points],
                    hover=[point[4] for point in points],
                    whiskers=whiskers,
                )
            )
            values = {point[0]: point[1] for point in points}
            rows.append([name, *(figure_text(key, values.get(x)) for x in xs)])
    series += more
    # Plotly and matplotlib choose the ticks of a linear axis; a logarithmic axis has the varied values.
    kept = []
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


def compare_charts(compared, choice):
    along, circumstances = drawing.compared_grid(compared)
    goal, figures = compared.plan.get("goal"), compared_figures(compared.rows)
    wanted = ("hit_ratio", goal and goal["figure"], "ttft_p90_s", "good_share", "saved_s")
    shown = dict.fromkeys(key for key in wanted if key in figures and some(compared.rows, key))
    charts = [compare_chart(compared, key, along, circumstances, choice) for key in shown]
    meets = (lambda row: row.get("meets_goal")) if goal else (lambda row: None)
    points = [(row, meets(row), compared_hover(compared, row)) for row in compared.rows]
    return charts + gpu_charts(points, compared.plan, goal, choice.row)


def line_name(compared, setting):
    """The values of a setting; with the names of their keys, if several keys vary or the value is a number."""
    varied = [axis["name"] for axis in compared.plan["axes"] if axis["name"] in setting and len(axis["values"]) > 1]
    if len(varied) > 1:
        return drawing.setting_text(drawing.tidy_setting({name: setting[name] for name in varied}))
    if varied and not isinstance(setting[varied[0]], str):
        return setting_words({varied[0]: setting[varied[0]]})
    return drawing.label_of(compared, setting) or compared.plan["eviction"]


def compared_hover(compared, row):
    return row_hover(row, compared.plan["axes"], main_figures(compared.rows, compared.plan.get("goal")))


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
    below, above = drawing.whiskers_of(rows, key)
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
            drawing.label_of(compared, {axis["name"]: row[axis["name"]] for axis in compared.plan["axes"]})
            or compared.plan["eviction"]
            for row in rows
        ]
        best = [row.get(f"{key}_standing") == "best" for row in rows]
        series = []
        below, above = drawing.whiskers_of(rows, key)
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
    choices = drawing.combinations(compared.axes(choice=True))
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
            below, above = drawing.whiskers_of(rows, key)
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
        f"{title} by {drawing.tier_label(along)}{filled}{more}",
        along["name"],
        along["unit"],
        lines[:MAX_LINES],
        key,
        marks,
        reference,
        star,
    )


def row_hover(row, axes, figures):
    words = [f"{axis['name']}={exact(row[axis['name']])}" for axis in axes]
    return "\n".join(words + [f"{figure_name(key)}: {figure_text(key, row.get(key), 4)}" for key in figures])


def vary_words(axes):
    return " ".join(
        f"--vary {shlex.quote(axis['name'] + '=' + ','.join(exact(v) for v in axis['values']))}"
        for axis in axes
    )


VARIED_NOTE = "With the --set options of the original command, if there were any: the folder does not record them."


ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def server_parts(servers):
    """The recommendation as the command of a server of each engine. `servers`: of compare.json or plan.json."""
    parts = []
    for engine, server in servers.items():
        notes = [str(note) for note in server.get("notes") or []]
        blocks = [Commands([str(server["command"])]), *(["The flags do not say everything:", notes] if notes else [])]
        parts.append((f"Command of a server: {ENGINES.get(engine, engine)}", blocks))
    return parts


def compare_section(folder, compared):
    plan = compared.plan
    if not compared.rows:
        raise InputError(f"{compared.folder / 'compare.jsonl'}: no settings; is the comparison finished?")
    wanted = math.prod(len(axis["values"]) for axis in plan["axes"])
    if len(compared.rows) < wanted:
        raise InputError(
            f"{compared.folder / 'compare.jsonl'}: {len(compared.rows)} settings where compare.json has {wanted}; is the file cut?"
        )
    goal = plan.get("goal")
    section = Section(f"{compared.folder.name}: comparison", "")
    choice = choice_of(compared)
    deciding = choice.row or choice.nearest
    gets = f"{figure_name(choice.key)} {compared_cell(deciding, choice.key, goal, False)}" if deciding else ""
    at = setting_words(settings_of(compared, deciding)) if deciding else ""
    if goal:
        words, found = goal_words(compared)
        gets += f" ({limit_words(choice.key, goal['value'], better_of(plan, choice.key))})" if gets else ""
    if choice.row:
        section.lead = f"Recommendation: {at}: {gets}."
        options = set_words(settings_of(compared, choice.row))
        experiment = shlex.quote(str(plan.get("experiment", "EXPERIMENT.toml")))
        again = Commands([f"kvtwin simulate {experiment} {options}"])
        reason = f"{sentence_case(choice.reason)}."
        section.verdict.append(("Why, and the command that simulates the recommendation", [reason, again, VARIED_NOTE]))
        section.verdict += server_parts(choice.servers)
    elif "recommendation" not in plan:
        section.lead = "No recommendation: compare.json has none."
    elif goal:
        section.lead = f"No recommendation: no setting meets the goal, {words}." + (f" Nearest: {at}: {gets}." if at else "")
    else:
        section.lead = "No recommendation: no setting completes enough requests."
    if goal and goal.get("along"):
        table = Table("", ["setting", f"needs {goal['along']}"], found)
        section.verdict.append((f"Smallest size that meets the goal: {words}", [table]))
    section.facts = [
        ("experiment", plan.get("experiment", "–")),
        ("settings", f"{len(compared.rows)}"),
        (
            "repeats",
            f"{plan['draws']} hardware variants"
            if "draws" in plan
            else f"{plan['seeds']} seed{'s' if plan['seeds'] > 1 else ''}",
        ),
    ]
    section.warnings = warning_counts(compared.rows)
    figures = main_figures(compared.rows, goal)
    section.verdict.append(("All settings", [compare_table(compared, figures, choice)]))
    section.parts = [("Figures", compare_charts(compared, choice))]
    others = [key for key in compared_figures(compared.rows) if some(compared.rows, key) and key not in figures]
    section.parts.append(("Other figures", [other_figures_table(compared, others)]))
    options = (f" --seeds {plan['seeds']}" if plan["seeds"] > 1 else "") + (
        f" --draws {plan['draws']}" if "draws" in plan else ""
    )
    options += f" --goal {goal['figure']}={exact(goal['value'])}" if goal else ""
    section.commands = [
        f"kvtwin compare {shlex.quote(str(plan.get('experiment', 'EXPERIMENT.toml')))} {vary_words(plan['axes'])}{options} --out out/again"
    ]
    section.commands_note = VARIED_NOTE
    section.origin = origin_text(plan)
    return section


def warning_counts(rows):
    """`warnings` of a row: names, separated by blanks or commas."""
    names = {}
    for row in rows:
        for name in re.split(r"[,\s]+", row.get("warnings") or ""):
            if name:
                names[name] = names.get(name, 0) + 1
    return [f"{name}: {times} of {len(rows)} rows" for name, times in sorted(names.items())]


# ---- sweeps


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


def sweep_table(sweep):
    plan, rows = sweep.plan, sweep.rows
    shown = list(dict.fromkeys([*plan["show"], "hit_ratio", "rejected_share", "failed_share"]))
    shown = [key for key in shown if any(row.get(key) is not None for row in rows)]
    best = {key: best_cells(sweep, key) if not key.endswith("ed_share") else set() for key in shown}
    failures = any(row.get("failure") for row in rows)
    cases = ["case"] if plan["cases"] else []
    head = (
        cases
        + [axis["name"] for axis in plan["axes"]]
        + [figure_name(key) for key in shown]
        + (["failure"] if failures else [])
    )
    cells = []
    for index, row in enumerate(rows[:MAX_ROWS]):
        setting = [str(row.get("case") or "–") for _ in cases] + [
            value_text(row[axis["name"]], axis["unit"]) if row.get(axis["name"]) is not None else "–" for axis in plan["axes"]
        ]
        figures = [
            figure_text(key, row.get(key), 4) + (" ★" if index in best[key] and len(rows) > 1 else "") for key in shown
        ]
        cells.append(setting + figures + ([row.get("failure") or "–"] if failures else []))
    more = f" The first {MAX_ROWS} of {len(rows)} cells; all are in sweep.csv." if len(rows) > MAX_ROWS else ""
    first = plan["show"][0] if plan["show"] else "ttft_mean_s"
    return Table(
        "",
        head,
        cells,
        best.get(first, set()),
        f"★ best of all cells; highlighted: best {figure_name(first)}. Only cells that complete {plan.get('min_served_percent', 99):g} % of the most requests count.{more}",
    )


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


def sweep_section(folder, sweep):
    plan = sweep.plan
    if not isinstance(plan["show"], list):
        raise TypeError("show is no list")
    if len(sweep.rows) < plan["cells"] or not sweep.rows:
        raise InputError(
            f"{sweep.folder / 'sweep.jsonl'}: {len(sweep.rows)} cells where its plan has {plan['cells']}; is it finished?"
        )
    first = plan["show"][0] if plan["show"] else "ttft_mean_s"
    best = sorted(best_cells(sweep, first))
    lead = plan.get("sentence") or (
        f"Best {figure_name(first)}: {swept_name(sweep, sweep.rows[best[0]])}, {figure_text(first, sweep.rows[best[0]][first])}."
        if len(best) == 1
        else f"{len(best)} cells have the best {figure_name(first)}."
        if best
        else f"No cell has a {figure_name(first)}."
    )
    title = plan.get("title") or "sweep"
    section = Section(f"{sweep.folder.name}: {title}", lead)
    failed = sum(bool(row.get("failure")) for row in sweep.rows)
    section.facts = [
        ("experiment", plan.get("experiment", "–")),
        ("cells", f"{len(sweep.rows)}" + (f", {failed} failed" if failed else "")),
    ]
    section.warnings = warning_counts(sweep.rows)
    section.verdict = [("All cells", [sweep_table(sweep)])]
    section.parts = [("Figures", sweep_charts(sweep))]
    varied = "" if plan["cases"] else " " + vary_words(plan["axes"])
    section.commands = [
        f"kvtwin compare {shlex.quote(str(plan.get('experiment', 'EXPERIMENT.toml')))}{varied} --out out/again"
    ]
    section.commands_note = VARIED_NOTE
    section.origin = origin_text(plan)
    return section


# ---- plans


class Plan:
    """plan.json with the words that several of its tables need."""

    def __init__(self, folder, plan):
        self.folder, self.plan = Path(folder).resolve(), plan
        self.goals = plan.get("goals") or []
        self.prices = plan.get("prices") or {}
        self.currency = self.prices.get("currency") or ""
        self.tried = plan.get("tried") or []
        self.confidence = plan.get("confidence") or {}
        self.priced = any(
            finite(one.get("price_month"))
            for one in self.tried + ([plan["recommendation"]] if plan.get("recommendation") else [])
        )

    def limit_text(self, goal):
        return limit_words(goal["figure"], goal["limit"], goal["better"])

    def goal_cells(self, one):
        figures = one.get("figures") or {}
        return [judged_text(goal["figure"], figures.get(goal["figure"]), goal["limit"]) for goal in self.goals]

    def meets(self, one, with_reason):
        no = f"no: {one['why_not']}" if with_reason and one.get("why_not") else "no"
        return {True: "yes", False: no}.get(one.get("meets"), "–")

    def parts_text(self, one):
        return joined([f"{count_text(part)} {part['name']}" for part in one.get("parts") or []]) or setting_words(
            one.get("settings") or {}
        )

    def price_text(self, one):
        return money(one.get("price_month"), self.currency)

    def difference_text(self, one):
        """Returns the difference between the price of a setting and that of the recommendation: +USD 268."""
        price, own = one.get("price_month"), (self.plan.get("recommendation") or {}).get("price_month")
        if not (finite(price) and finite(own)):
            return "–"
        return ("+" if price >= own else "") + money(price - own, self.currency)

    def front(self, key, limit):
        """Price, or GPUs where prices are absent, against a figure. The plan's front is of one figure: in a chart of
        another figure, some of its settings are behind others."""
        across = "price_month" if self.priced else "gpus"
        across_name = f"price per month ({self.currency})" if self.priced else "GPUs"
        in_front = set(self.plan.get("front") or [])

        def point(one, index=None, whiskers=None):
            value, name = (one.get("figures") or {}).get(key), setting_words(one.get("settings") or {})
            meets = bool(one.get("meets"))
            return Point(one.get(across), value, meets, name, self.hover(one), index in in_front, whiskers)

        chosen = self.plan.get("recommendation")
        points = [
            point(one, index) for index, one in enumerate(self.tried) if one.get("stage", "full") == "full"
        ]
        chosen = point(chosen, whiskers=self.whiskers(key, chosen)) if chosen else None
        return front_chart(across, across_name, key, limit, points, better_of(self.plan, key), chosen)

    def interval(self, key):
        """Returns [low, high]: between them a figure of the recommendation lies with 90 %. None if there is none."""
        return (self.confidence.get("ranges") or {}).get(key)

    def whiskers(self, key, one):
        interval, value = self.interval(key), (one.get("figures") or {}).get(key)
        return (max(0, value - interval[0]), max(0, interval[1] - value)) if interval and finite(value) else None

    def capacity_tokens(self):
        """Returns the tokens that all tiers of the recommendation hold; None if its run folder is absent."""
        folder = self.folder / "recommended"
        if not (self.plan.get("recommendation") and (folder / "report.json").exists()):
            return None
        page_tokens = resolved(folder)[1].get("cache.page_tokens", "")
        pages = sum(tier["capacity_pages"] for tier in load_json(folder / "report.json")["tiers"])
        return pages * int(page_tokens) if page_tokens.isdigit() else None

    def hover(self, one):
        words = [f"{name}={exact(value)}" for name, value in (one.get("settings") or {}).items()]
        figures = one.get("figures") or {}
        # Plotly leaves out a label that is taller than the figure.
        keys = dict.fromkeys([*(goal["figure"] for goal in self.goals), "hit_ratio", "good_share"])
        words += [f"{figure_name(key)}: {figure_text(key, figures[key])}" for key in keys if key in figures]
        words += [f"GPUs: {one['gpus']}"] if "gpus" in one else []
        words += [f"price per month: {self.price_text(one)}"] if finite(one.get("price_month")) else []
        words += [f"does not meet the goals: {one['why_not']}"] if one.get("why_not") else []
        return "\n".join([*words, f"computed as: {one['stage']}"] if one.get("stage") else words)


def count_text(part):
    """Returns the number of a part to buy: whole GiB, GPUs and drives."""
    return f"{round(part['count']):,}" if finite(part.get("count")) else "–"


def meets_limit(goal, value):
    return value <= goal["limit"] if goal["better"] == LESS else value >= goal["limit"]


def interval_text(key, interval):
    return " to ".join(figure_text(key, end) for end in interval) if interval else "–"


def goal_table(plan, one):
    drawn = plan.confidence.get("ranges_of_draws") or {}
    rows = []
    for goal, text in zip(plan.goals, plan.goal_cells(one)):
        key = goal["figure"]
        value = (one.get("figures") or {}).get(key)
        met = ("yes" if meets_limit(goal, value) else "no") if finite(value) else "–"
        cells = [figure_name(key), plan.limit_text(goal), text, interval_text(key, plan.interval(key)), met]
        rows.append(cells + ([interval_text(key, drawn.get(key))] if drawn else []))
    head = ["goal", "limit", "expected", "90 % interval", "met"]
    return Table("", head + (["on drawn machines"] if drawn else []), rows)


def interval_chart(plan, one):
    """The 90 % interval of each goal's figure against its limit. The axis is a share of the limit, so that goals with
    different units share it."""
    goals = [goal for goal in plan.goals if plan.interval(goal["figure"]) and goal["limit"] > 0]
    bars = {"meets the goal": (SKY, []), "misses the goal": (AMBER, [])}
    stars, rows, names = [], [], []
    for place, goal in enumerate(goals):
        key, limit = goal["figure"], goal["limit"]
        value = (one.get("figures") or {}).get(key)
        text = judged_text(key, value, limit)
        names.append(figure_name(key))
        rows.append([names[-1], plan.limit_text(goal), text, interval_text(key, plan.interval(key))])
        low, high = plan.interval(key)
        below, above = ("meets the goal", "misses the goal")[:: 1 if goal["better"] == LESS else -1]
        for label, start, end in ((below, low, min(high, limit)), (above, max(low, limit), high)):
            if start < end:
                bars[label][1].append((start / limit, (end - start) / limit, place))
        if finite(value):
            stars.append((value / limit, place, f"{names[-1]}: {text}\nlimit: {rows[-1][1]}\n90 % interval: {rows[-1][3]}"))
    series = []
    for label, (colour, pieces) in bars.items():
        if pieces:
            start, size, places = map(list, zip(*pieces))
            hover = [f"{names[place]}\nlimit: {rows[place][1]}\n90 % interval: {rows[place][3]}" for place in places]
            series.append(Series(label, size, places, colour, kind="bars", base=start, hover=hover, width=0.36))
    if not series:
        return None
    if stars:
        x, y, hover = map(list, zip(*stars))
        series.append(Series(RECOMMENDATION, x, y, GREEN, kind="points", marker="*", hover=hover))
    most = max([1, *(start + size for _, pieces in bars.values() for start, size, _ in pieces), *(x for x, *_ in stars)])
    return Chart(
        f"Range in which each figure of the {RECOMMENDATION if one else 'nearest setting'} lies with a probability of 90 %",
        "; ".join(f"{name}: limit {limit}, expected {text}, 90 % interval {ends}" for name, limit, text, ends in rows),
        Axis("share of the limit", "share", ends=(0, 1.05 * most)),
        [Axis("", ticks=list(enumerate(names)))],
        series,
        Table("", ["goal", "limit", "expected", "90 % interval"], rows),
        height=170 + 46 * len(names),
        lines=[("x", 1, "limit")],
    )


def odds_text(plan):
    """Returns the probability that the goals hold; empty if no goal depends on a figure whose errors are published."""
    probability = plan.confidence.get("probability")
    # The blank before the sign does not break a line.
    return unit_text("share", probability, 2).replace(" ", "\u00a0") if finite(probability) else ""


def odds_sentences(plan):
    sure, words = plan.confidence, []
    if not sure:
        return ""
    if odds_text(plan):
        hold = "The goals hold" if plan.plan.get("recommendation") else "With the nearest setting, the goals hold"
        words.append(f"{hold} with a probability of {odds_text(plan)}, by the errors of {sure['errors_of']}.")
    elif plan.goals:
        words.append("No goal depends on TTFT or TPOT, whose errors are published, so there is no probability.")
    for key in sure.get("not_judged") or []:
        words.append(f"The probability leaves out {figure_name(key)}: no published run has this figure.")
    if sure.get("seeds", 1) > 1:
        words.append(f"The goals are met with {sure['seeds_meeting']} of {sure['seeds']} seeds of the traffic.")
    elif str((plan.plan.get("workload") or {}).get("source", "")).startswith("generated"):
        words.append("One seed of the traffic was simulated.")
    if sure.get("draws"):
        assumed = sure.get("assumed_spread_percent")
        spread = f", with an error of {number_text(assumed)} % assumed for each figure of the hardware" if assumed else ""
        words.append(f"The goals are met on {sure['draws_meeting']} of {sure['draws']} drawn machines{spread}.")
    return " ".join(words)


def changed_settings(plan, one):
    """Returns the settings that differ from those of the recommendation, in words."""
    own = (plan.plan.get("recommendation") or {}).get("settings") or {}
    changed = {key: value for key, value in (one.get("settings") or {}).items() if own.get(key) != value}
    return setting_words(changed) or "as recommended"


def setting_rows_table(first, entries, plan, with_settings=True, with_reasons=True):
    """`entries`: [(text of the first column, TRIED)]. Settings that all entries share are in the note. `with_settings` and
    `with_reasons`: false if the first column says the settings, and why a setting is out."""
    settings = [one.get("settings") or {} for _, one in entries]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varied = [key for key in keys if any(setting.get(key) != settings[0].get(key) for setting in settings)]
    varied = varied if with_settings else []
    head = [
        first,
        *varied,
        "GPUs",
        *(figure_name(goal["figure"]) for goal in plan.goals),
        "price per month",
        "difference",
        "meets the goals",
    ]
    rows = [
        [
            text,
            *(value_text(setting.get(key, "–"), unit_of(key)) for key in varied),
            value_text(one.get("gpus", "–")),
            *plan.goal_cells(one),
            plan.price_text(one),
            plan.difference_text(one),
            plan.meets(one, with_reasons),
        ]
        for (text, one), setting in zip(entries, settings)
    ]
    shared = setting_words({key: settings[0][key] for key in keys if key not in varied}) if with_settings else ""
    return Table("", head, rows, note=f"{'All with' if len(entries) > 1 else 'With'} {shared}." if shared else "")


def question_text(name):
    """Returns the question of a member of `follow_ups`."""
    if name.startswith("load x "):
        return f"What does {name.removeprefix('load x ')} x the traffic need?"
    if name.startswith("GPU "):
        return f"Is {name.removeprefix('GPU ')} cheaper?"
    return {
        "load": "How much more traffic do the same parts serve?",
        "spare": "What if one engine is out of service?",
        "no tiers": "What are the KV tiers below the device worth?",
        "pool": "Is a remote pool cheaper?",
        "mixed chunks": "Are mixed chunks cheaper?",
    }.get(name, name)


def answer_text(plan, one):
    """Returns the answer with the settings that differ from the recommendation, without the price: both have columns."""
    settings, answer = one.get("settings"), str(one.get("answer") or "–")
    if settings:
        full = " ".join(f"{name}={exact(value)}" for name, value in settings.items())
        answer = answer.replace(full, changed_settings(plan, one))
    return answer.replace(f": {plan.price_text(one)} a month ({plan.difference_text(one)})", "")


def questions_table(plan):
    """The questions that follow the recommendation: more traffic, an engine less, other parts."""
    rows = [
        [question_text(str(one["name"])), answer_text(plan, one), plan.price_text(one), plan.difference_text(one)]
        for one in plan.plan.get("follow_ups") or []
    ]
    return Table("", ["question", "answer", "price per month", "difference"], rows) if rows else None


def nearest_table(plan):
    """Of each combination of parts that never met the goals: the nearest setting. The nearest ones of all come first: those
    with the smallest miss of a goal. Settings that leave requests out, or that are out for another reason, come last."""

    def miss(one):
        figures = one.get("figures") or {}
        misses = [math.inf for key in ("rejected_share", "failed_share") if figures.get(key)]
        for goal in plan.goals:
            value = figures.get(goal["figure"])
            if not finite(value):
                misses.append(math.inf)
            elif not meets_limit(goal, value):
                low, high = sorted((value, goal["limit"]))
                misses.append(high / low if low > 0 else math.inf)
        return max(misses, default=math.inf), one.get("price_month") or 0

    out = sorted((plan.tried[index] for index in plan.plan.get("out") or []), key=miss)
    if not out:
        return None
    near = out[:MAX_NEAREST]
    table = setting_rows_table("", [(str(place), one) for place, one in enumerate(near, 1)], plan)
    if len(out) > len(near):
        table.note = f"The {len(near)} nearest settings; {len(out) - len(near)} more are in plan.json. {table.note}".strip()
    return table


def hits_chart(plan):
    points = plan.plan.get("hits_by_capacity") or []
    lines = []
    for key, name, colour, marker, dash in (
        (
            "hit_ratio",
            "LRU" if not any("eviction" in point for point in points) else str(points[0].get("eviction")),
            BLUE,
            "o",
            "-",
        ),
        ("hit_opt", "optimal", INK, "", "--"),
    ):
        known = [point for point in points if finite(point.get(key))]
        if known:
            lines.append(
                (
                    name,
                    [
                        (
                            point["capacity_tokens"],
                            point[key],
                            True,
                            None,
                            f"{name}: {percent(point[key])}\n{count(point['capacity_tokens'])} tokens",
                        )
                        for point in known
                    ],
                    colour,
                    marker or "s",
                    dash,
                )
            )
    if not lines:
        return None
    size = plan.capacity_tokens()
    marks = [("x", size, RECOMMENDATION)] if size else []
    return line_chart("Hits by capacity of all tiers together", "capacity", "tokens", lines, "hit_ratio", marks)


def drives_table(plan):
    rows = [
        [
            drive.get("write_policy", "–"),
            bytes_text(1e12 * drive["written_tb_per_day"]) if finite(drive.get("written_tb_per_day")) else "–",
            number_text(drive["dwpd"]) if finite(drive.get("dwpd")) else "–",
            figure_text("drive_years", drive["years"]) if finite(drive.get("years")) else "–",
        ]
        for drive in plan.plan.get("drives") or []
    ]
    return (
        Table("", ["write policy", "written a day", "drive writes per day", "life of the drives"], rows)
        if rows
        else None
    )


def drives_chart(plan):
    drives = [drive for drive in plan.plan.get("drives") or [] if finite(drive.get("years"))]
    if len(drives) < 2:
        return None
    names, years = [drive.get("write_policy", "–") for drive in drives], [drive["years"] for drive in drives]
    hover = [f"{name}: {figure_text('drive_years', life)}" for name, life in zip(names, years)]
    # The drives of the recommendation; without drives in it, none of the bars is its.
    chosen = (plan.plan.get("recommendation") or {}).get("settings")
    policy = resolved(plan.folder, "recommended.toml")[1].get("cache.write_policy")
    own = [drive.get("settings") == chosen and drive.get("write_policy") == policy for drive in drives]
    series = []
    for label, colour, wanted in ((RECOMMENDATION, GREEN, True), ("others", BLUE, False)):
        at = [index for index, one in enumerate(own) if one == wanted]
        if at:
            bars = [years[index] for index in at]
            texts = [hover[index] for index in at]
            series.append(Series(label, bars, at, colour, kind="bars", hover=texts, legend=any(own)))
    return Chart(
        "Life of the drives by write policy" + ("" if any(own) else " (the recommendation has no drives)"),
        "; ".join(hover),
        Axis("life (years)"),
        [Axis("", ticks=list(enumerate(names)))],
        series,
        Table("", ["write policy", "life"], [[name, figure_text("drive_years", life)] for name, life in zip(names, years)]),
        height=150 + 40 * len(names),
    )


def causes_chart(plan):
    hangs_on = plan.confidence.get("hangs_on") or []
    causes = [
        (str(cause["number"]), cause["at_low"], cause["at_high"])
        for cause in hangs_on
        if finite(cause.get("at_low")) and finite(cause.get("at_high"))
    ]
    if not (causes and plan.goals):
        return None
    key = next((cause["figure"] for cause in hangs_on if cause.get("figure")), plan.goals[0]["figure"])
    return effect_chart(
        f"Numbers of the hardware that {figure_name(key)} depends on (first eighth of the requests)",
        causes,
        key,
        next((cause["as_given"] for cause in hangs_on if finite(cause.get("as_given"))), None),
        RECOMMENDATION,
    )


def plan_section(folder, raw):
    plan = Plan(folder, raw)
    chosen = raw.get("recommendation")
    section = Section(f"{plan.folder.name}: {raw.get('title') or 'plan'}", "")
    if chosen:
        price = f" for {plan.price_text(chosen)} per month" if finite(chosen.get("price_month")) else ""
        section.lead = f"Recommendation: {plan.parts_text(chosen)}{price}."
        section.lead += f" The goals hold with a probability of {odds_text(plan)}." if odds_text(plan) else ""
        section.facts.append(("settings", setting_words(chosen.get("settings") or {})))
        for name, text in (
            ("GPUs", value_text(chosen.get("gpus", ""))),
            ("power", figure_text("power_kw", chosen["power_kw"]) if finite(chosen.get("power_kw")) else ""),
            (
                "price per million tokens",
                money(chosen["price_per_million_tokens"], plan.currency)
                if finite(chosen.get("price_per_million_tokens"))
                else "",
            ),
        ):
            if text:
                section.facts.append((name, text))
    else:
        section.lead = f"No recommendation: {raw.get('reason') or 'no setting meets the goals'}."
    work = raw.get("workload") or {}
    words = [
        f"{work['requests']:,} requests" if work.get("requests") else "",
        f"{number_text(work['requests_per_second'])} requests/s" if finite(work.get("requests_per_second")) else "",
        f"{work['prompt_tokens_mean']:,.0f} prompt tokens and {work['output_tokens_mean']:,.0f} output tokens on average"
        if finite(work.get("prompt_tokens_mean")) and finite(work.get("output_tokens_mean"))
        else "",
        f"source: {work['source']}" if work.get("source") else "",
    ]
    section.facts += [("model", raw.get("model", "–")), ("traffic", ", ".join(word for word in words if word) or "–")]
    warm = (chosen or {}).get("warm")
    if warm:
        steady = "where hits and waits are steady" if warm["flat"] else f"not steady: {warm['not_flat']}"
        section.facts.append(("measured", f"the requests from {warm['from_s']:.0f} to {warm['to_s']:.0f} s, {steady}"))
    section.warnings = raw.get("warnings") or []
    binds = raw.get("binds") or {}
    goals = [goal_table(plan, chosen or {}), interval_chart(plan, chosen or {})] if plan.goals else []
    section.verdict.append(("Goals", [odds_sentences(plan), *goals]))
    section.verdict += server_parts((chosen or {}).get("servers") or {})
    section.verdict.append(("Questions that follow", [questions_table(plan)]))
    if raw.get("alternatives"):
        reasons = [(one.get("because") or "–", one) for one in raw["alternatives"]]
        section.verdict.append(
            (
                "Alternatives",
                [setting_rows_table("why", reasons, plan, with_reasons=False)],
            )
        )
    if raw.get("ties"):
        table = setting_rows_table("differs in", [(changed_settings(plan, one), one) for one in raw["ties"]], plan, with_settings=False)
        words = "These settings differ from the recommendation by less than the error of a choice between settings."
        section.verdict.append(("Ties", [words, table]))
    if binds.get("sentence"):
        section.verdict.append(("What binds", [str(binds["sentence"])]))
    if raw.get("margins"):
        changes = [(one.get("change") or "–", one) for one in raw["margins"]]
        section.verdict.append(
            (
                "One step more or less",
                [setting_rows_table("change", changes, plan, with_settings=False)],
            )
        )
    if drives_table(plan):
        section.verdict.append(("Drive life", [drives_table(plan)]))
    prices = [str(name) for name in plan.prices.get("assumed") or []]
    assumed = [f"price list: {joined(prices)}"] if prices else []
    section.verdict.append(("Assumptions", [assumed + [str(sentence) for sentence in raw.get("assumed") or []]]))

    goal_figures = {goal["figure"]: goal["limit"] for goal in plan.goals} or {"ttft_p90_s": None}
    goodput = [key for one in plan.tried for key in one.get("figures") or {} if key.startswith("good")]
    goal_figures |= {key: None for key in goodput[:1] if key not in goal_figures}
    section.parts.append(("Price and service", [plan.front(key, limit) for key, limit in goal_figures.items()]))
    lanes = [lane for lane in binds.get("lanes") or [] if finite(lane.get("busy_fraction"))]
    blocks = []
    ttft = binds.get("ttft_parts_seconds")
    if ttft:
        blocks.append(
            stacked_chart(
                "Where the mean time to first token goes",
                [RECOMMENDATION],
                parts_of(ttft),
                part_values(parts_of(ttft), [ttft]),
                Axis("TTFT", "seconds"),
            )
        )
    if lanes:
        names = [str(lane["name"]) for lane in lanes]
        series = [
            Series(
                label,
                [lane.get(key) for lane in lanes],
                [index + shift for index in range(len(lanes))],
                colour,
                kind="bars",
                width=0.36,
            )
            for label, key, colour, shift in (
                ("mean", "busy_fraction", BLUE, -0.19),
                ("99th percentile", "busy_fraction_p99", SKY, 0.19),
            )
            if all(finite(lane.get(key)) for lane in lanes)
        ]
        rows = [
            [name, percent(lane["busy_fraction"]), percent(lane.get("busy_fraction_p99"))]
            for name, lane in zip(names, lanes)
        ]
        blocks.append(
            Chart(
                "How busy each kind of lane of the recommendation is",
                "; ".join(f"{row[0]}: mean {row[1]}, p99 {row[2]}" for row in rows),
                Axis("busy", "share", ends=(0, 1.02)),
                [Axis("", ticks=list(enumerate(names)))],
                series,
                Table("", ["lane", "mean", "99th percentile"], rows),
                height=140 + 46 * len(names),
            )
        )
    section.parts.append(("What binds", blocks))
    section.parts.append(("Hits by capacity", [hits_chart(plan)]))
    section.parts.append(("Sensitivities", [causes_chart(plan)]))
    section.parts.append(("Drive wear", [drives_chart(plan)]))
    if chosen and chosen.get("parts"):
        rows = [
            [
                str(part["name"]),
                count_text(part),
                money(part.get("price_month"), plan.currency),
                figure_text("power_kw", part["power_w"] / 1000) if finite(part.get("power_w")) else "–",
            ]
            for part in chosen["parts"]
        ]
        section.parts.append(
            ("Parts of the recommendation", [Table("", ["part", "count", "price per month", "power"], rows)])
        )
    if plan.prices.get("used"):
        rows = [
            [
                str(price["name"]),
                value_text(price["value"], price.get("unit", "")),
                "yes" if price["name"] in prices else "no",
                str(price.get("source", "–")),
                str(price.get("date", "–")),
            ]
            for price in plan.prices["used"]
        ]
        section.parts.append(("Prices", [Table("", ["name", "value", "assumed", "source", "date"], rows)]))
    section.parts.append(("Other parts, which never met the goals", [nearest_table(plan)]))
    if plan.tried:
        recommended = {
            index
            for index, one in enumerate(plan.tried)
            if chosen and (one.get("settings"), one.get("stage")) == (chosen.get("settings"), chosen.get("stage"))
        }
        shown = sorted([*recommended, *(i for i in range(len(plan.tried)) if i not in recommended)][:MAX_ROWS])
        entries = [(f"{index + 1}", plan.tried[index]) for index in shown]
        table = setting_rows_table("number", entries, plan)
        table.head.append("computed as")
        for cells, (_, one) in zip(table.rows, entries):
            cells.append(str(one.get("stage") or "–"))
        table.marked = {place for place, index in enumerate(shown) if index in recommended}
        search = raw.get("search") or {}
        table.note += (
            f" {search['simulations']} simulations, {search.get('bounded', 0)} settings left out by bounds"
            if "simulations" in search
            else ""
        ) + (f"; {MAX_ROWS} of {len(plan.tried)} rows, all are in plan.json" if len(plan.tried) > MAX_ROWS else "")
        table.folded = len(entries) > 20
        section.parts.append(("All settings", [table]))
    name = (chosen or {}).get("experiment")
    if name and Path(str(name)).name == name:
        section.experiment, _ = resolved(folder, name)
    section.commands = [str(command) for command in [raw.get("command"), *(raw.get("reproduce") or [])] if command]
    section.origin = origin_text(raw)
    return section


# ---- several folders


def runs_section(runs):
    """Figures of several runs side by side."""
    names = [name for name, _ in runs]
    section = Section("Side by side", "")
    entries = {
        key: [(name, run.requests[f"{key}_s"], *style) for (name, run), style in zip(runs, RUN_STYLES)]
        for key in ("ttft", "tpot")
    }
    ttfts = [run.report["ttft_parts_seconds"] for _, run in runs]
    parts = parts_of(*ttfts)
    totals = [sum(run.report["tokens"].get(key, 0) for key, _, _ in SOURCES) for _, run in runs]
    tokens = {
        key: [run.report["tokens"].get(key, 0) / total if total else None for (_, run), total in zip(runs, totals)]
        for key, _, _ in SOURCES
    }
    rows = []
    means = [run.report["ttft_seconds"]["mean"] for _, run in runs]
    same_world = len({run.report["world"] for _, run in runs}) == 1  # a simulation is not better than a real run
    best = min((mean for mean in means if finite(mean)), default=None) if same_world else None
    for name, run in runs:
        report = run.report
        hit = sum(value for key, value in report["tokens"].items() if key.startswith("hit_"))
        requests = report["requests"]
        rows.append(
            [
                name,
                report["world"],
                f"{requests['completed']:,} of {requests['total']:,}",
                *(seconds(report["ttft_seconds"].get(key)) for key in ("mean", "p90", "p99")),
                seconds(report.get("tpot_seconds", {}).get("mean")),
                percent(hit / report["tokens"]["prompt"]) if report["tokens"]["prompt"] else "–",
            ]
        )
    if best is not None:
        section.lead = f"Lowest mean TTFT: {names[means.index(best)]}, {seconds(best)}."
    elif any(finite(mean) for mean in means):
        each = (f"{name} {seconds(mean)} ({run.report['world']})" for (name, run), mean in zip(runs, means))
        section.lead = f"Mean TTFT: {', '.join(each)}."
    else:
        section.lead = "No run completed a request."
    head = ["run", "world", "completed", "TTFT mean", "TTFT p90", "TTFT p99", "TPOT mean", "prompt tokens hit"]
    section.verdict = [
        (
            "Runs",
            [
                Table("", head, rows, {means.index(best)}, "Highlighted: lowest mean TTFT.")
                if best is not None
                else Table("", head, rows)
            ],
        )
    ]
    section.parts = [
        (
            "Figures of all runs",
            [
                latency_chart("TTFT: share of requests within a time", entries["ttft"]),
                latency_chart("TPOT: share of requests within a time", entries["tpot"]),
                stacked_chart(
                    "Where the mean time to first token goes",
                    names,
                    parts,
                    part_values(parts, ttfts),
                    Axis("mean TTFT", "seconds"),
                ),
                stacked_chart(
                    "Where the prompt tokens came from",
                    names,
                    SOURCES,
                    tokens,
                    Axis("share of prompt tokens", "share", ends=(0, 1)),
                ),
            ],
        )
    ]
    return section


def plans_section(plans):
    """Recommendations of several plans side by side."""
    section = Section("Plans side by side", "")
    figures = list(dict.fromkeys(goal["figure"] for _, plan in plans for goal in plan.goals))
    rows, priced = [], []
    for name, plan in plans:
        one = plan.plan.get("recommendation")
        if not one:
            rows.append([name, plan.plan.get("reason") or "no recommendation", "–", "–", "–", *["–"] * len(figures)])
            continue
        if finite(one.get("price_month")):
            priced.append((one["price_month"], len(rows)))
        rows.append(
            [
                name,
                plan.parts_text(one),
                value_text(one.get("gpus", "–")),
                plan.price_text(one),
                odds_text(plan) or "–",
                *(figure_text(key, (one.get("figures") or {}).get(key)) for key in figures),
            ]
        )
    comparable = len({plan.currency for _, plan in plans}) == 1 and priced
    cheapest = min(priced)[1] if comparable else None
    section.lead = (
        f"Lowest price: {rows[cheapest][0]}, {rows[cheapest][3]} per month." if comparable else f"{len(plans)} plans."
    )
    section.verdict = [
        (
            "Recommendations",
            [
                Table(
                    "",
                    ["plan", "recommendation", "GPUs", "price per month", "goals hold with", *map(figure_name, figures)],
                    rows,
                    {cheapest} if comparable else set(),
                )
            ],
        )
    ]
    return section


KINDS = ("plan.json", "compare.json", "sweep.json", "report.json")  # a folder is of the first kind whose file it has


def sections_of(folders):
    sections, runs, plans = [], [], []
    names = unique_names(folders)
    for folder, name in zip(folders, names):
        kind = next((kind for kind in KINDS if (Path(folder) / kind).exists()), None)
        try:
            if kind == "plan.json":
                raw = load_json(Path(folder) / "plan.json")
                sections.append(plan_section(folder, raw))
                plans.append((name, Plan(folder, raw)))
            elif kind == "sweep.json" or (kind == "compare.json" and drawing.has_cells(folder)):
                sections.append(sweep_section(folder, drawing.load_sweep(folder)))
            elif kind == "compare.json":
                sections.append(compare_section(folder, drawing.load_compare(folder)))
            elif kind == "report.json":
                run = drawing.load_run(folder)
                sections.append(run_section(folder, run))
                runs.append((name, run))
            else:
                raise InputError(
                    f"{folder}: holds no {', '.join(KINDS[:-1])} or {KINDS[-1]}; give a folder that kvtwin plan, compare, sweep, simulate or run wrote"
                )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise InputError(
                f"{Path(folder) / kind}: a member is absent or of the wrong type ({type(error).__name__}: {error})"
            ) from error
    if len(runs) > len(RUN_STYLES):
        raise InputError(f"{len(runs)} run folders; at most {len(RUN_STYLES)} can be side by side")
    beside = ([plans_section(plans)] if len(plans) > 1 else []) + ([runs_section(runs)] if len(runs) > 1 else [])
    return beside + sections


def unique_names(folders):
    """Returns the name of each folder; the path as given where names are equal."""
    names = [Path(folder).resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders)]


# ---- the page

# Draws the figures in the colours of the screen, light or dark. On paper a figure is light, and has the width of the paper.
# Adds the buttons that copy commands. Where the browser refuses to copy, the command is selected.
SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figure-data").textContent);
// Without Plotly's button that sends a figure to a server.
const buttons = ["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const config = {responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: [buttons]};
const dark = DARK_COLOURS;
const scheme = matchMedia("(prefers-color-scheme: dark)");
function recoloured(value) {
  if (typeof value === "string") return dark[value] ?? value;
  if (Array.isArray(value)) return value.map(recoloured);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, recoloured(one)]));
}
function draw(onPaper) {
  for (const name of Object.keys(figures)) {
    const drawn = scheme.matches && !onPaper ? recoloured(figures[name]) : structuredClone(figures[name]);
    const place = document.getElementById(name);
    const width = PAPER_WIDTH - (place.closest(".verdict") ? VERDICT_EDGES : 0);
    // With both sizes set, Plotly leaves the size alone when the window changes.
    const size = onPaper ? {width, height: place.clientHeight, autosize: false} : {};
    Plotly.newPlot(name, drawn.data, {...drawn.layout, ...size}, config);
  }
  // The label and the table of a figure are its text: a screen reader leaves out the numbers of the axes.
  for (const drawing of document.querySelectorAll(".plot svg.main-svg")) drawing.setAttribute("aria-hidden", "true");
}
for (const block of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.title = "Copy the command";
  button.addEventListener("click", async () => {
    const command = block.querySelector("pre");
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
  block.append(button);
}
draw();
scheme.addEventListener("change", () => draw());
addEventListener("beforeprint", () => draw(true));
addEventListener("afterprint", () => draw());
"""


def plotly_library():
    """Returns Plotly's script; None if the package plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs()


def digest(script):
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def page(folders):
    try:
        import jinja2
    except ImportError as error:
        raise InputError(
            f"{sys.executable}: no package jinja2; run tools/quickstart, or install notebooks/requirements.txt"
        ) from error
    sections = sections_of(folders)
    library = plotly_library()
    charts = []
    for number, section in enumerate(sections, 1):
        section.name = f"section-{number}"
        for group in ("verdict", "parts"):
            kept = [(heading, [block for block in blocks if block]) for heading, blocks in getattr(section, group)]
            setattr(section, group, [(heading, blocks) for heading, blocks in kept if blocks])
        charts += section.charts()
    for number, chart in enumerate(charts, 1):
        chart.name = f"figure-{number}"
        if library is None:
            draw_static(chart)
    script = SCRIPT.replace("PAPER_WIDTH", str(WIDTH)).replace("VERDICT_EDGES", str(VERDICT_EDGES)).replace("DARK_COLOURS", json.dumps(DARK))
    data = json.dumps(
        {chart.name: plotly_figure(chart) for chart in charts} if library else {},
        allow_nan=False,
        separators=(",", ":"),
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.tests |= {
        "table": lambda block: isinstance(block, Table),
        "chart": lambda block: isinstance(block, Chart),
        "commands": lambda block: isinstance(block, Commands),
        "sentences": lambda block: isinstance(block, list),
    }
    # In a script element, "</script" ends the script and "<!--" changes how the rest is read.
    library = library and library.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    scripts = f"{digest(library)} {digest(script)}" if library else "'none'"
    trusted = jinja2.utils.markupsafe.Markup
    return environment.get_template("report.html.jinja").render(
        title=sections[0].title if len(sections) == 1 else "kvtwin report: " + ", ".join(unique_names(folders)),
        sections=sections,
        may_break=trusted(".<wbr>"),
        static=library is None,
        library=trusted(library or ""),
        script=trusted(script),
        dark_paper=trusted(DARK[PAPER]),
        data=trusted(data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")),
        content_policy=f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
    )


def main(arguments):
    if len(arguments) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    out, folders = Path(arguments[0]), arguments[1:]
    unfinished = out.with_name(f"{out.name}.unfinished")
    try:
        text = page(folders).encode("utf-8", errors="replace")
        if len(text) > MAX_PAGE_BYTES:
            raise InputError(f"the page would have {len(text):,} bytes, more than {MAX_PAGE_BYTES:,}; give fewer folders")
        unfinished.write_bytes(text)
        os.replace(unfinished, out)
        print(out)
    except InputError as error:
        print(f"kvtwin report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        print(f"kvtwin report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
