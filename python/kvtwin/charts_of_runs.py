"""The charts of a run, and of several runs side by side."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtwin.chart_kinds import latency_chart, stacked_chart
from kvtwin.charts import BLUE, INK, ORANGE, RUN_STYLES, SKY, Axis, Chart, Series, Table
from kvtwin.figure_words import bytes_text, count, percent, seconds
from kvtwin.result_folders import SOURCES, Run, part_values, parts_of

MAX_BINS = 120  # of a time axis


def kind_of(lane: str) -> str:
    """engine3.gpu0.h2d -> h2d"""
    return re.sub(r"^(engine\d+\.)?(gpu\d+\.)?", "", lane)


def latencies_chart(run: Run) -> Chart | None:
    """TTFT and TPOT of all requests."""
    entries = [("TTFT", run.requests["ttft_s"], BLUE, "-"), ("TPOT", run.requests["tpot_s"], ORANGE, "--")]
    return latency_chart("TTFT and TPOT: share of requests within a time", entries)


def ttft_chart(run: Run) -> Chart | None:
    """TTFT of all requests, with its quantiles in the report."""
    marks = []
    for name, share, marker in (("p50", 0.5, "o"), ("p90", 0.9, "s"), ("p99", 0.99, "D")):
        value = run.report["ttft_seconds"].get(name)
        if value is not None:
            text = f"{name} {seconds(value)}"
            marks.append(Series(text, [value], [share], INK, kind="points", marker=marker, hover=[text]))
    entries = [("TTFT", run.requests["ttft_s"], BLUE, "-")]
    return latency_chart("TTFT: share of requests within a time", entries, marks)


def parts_chart(run: Run) -> Chart | None:
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


def tokens_chart(run: Run) -> Chart | None:
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
    grand = sum(values.sum() for values in sums.values())
    for key, label, colour in used:
        shares = (sums[key] / totals).tolist()
        hover = [
            f"{label}: {percent(share)}\nof {count(total)} prompt tokens\narrivals {seconds(start)} to {seconds(end)}"
            for share, total, start, end in zip(shares, totals, edges[:-1], edges[1:])
        ]
        series.append(
            Series(
                f"{label} {percent(sums[key].sum() / grand)}",
                middle,
                shares,
                colour,
                kind="columns",
                width=float(edges[1] - edges[0]),
                hover=hover,
            )
        )
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


def lane_bins(lanes: dict[str, Any], chosen: npt.NDArray[Any], end: float) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
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


def lanes_chart(run: Run) -> Chart | None:
    lanes = run.lanes
    if not lanes["lane"].size:
        return None
    kinds: dict[str, list[str]] = {}
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
        for label, values, colour, thick in (("99th percentile", p99, SKY, 1), ("mean", mean, BLUE, 2)):
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


def side_by_side_charts(runs: Sequence[tuple[str, Run]]) -> list[Chart | None]:
    """`runs`: [(name, Run)]."""
    names = [name for name, _ in runs]
    entries = {
        key: [(name, run.requests[f"{key}_s"], *style) for (name, run), style in zip(runs, RUN_STYLES)]
        for key in ("ttft", "tpot")
    }
    ttfts = [run.report["ttft_parts_seconds"] for _, run in runs]
    totals = [sum(run.report["tokens"].get(key, 0) for key, _, _ in SOURCES) for _, run in runs]
    tokens = {
        key: [run.report["tokens"].get(key, 0) / total if total else None for (_, run), total in zip(runs, totals)]
        for key, _, _ in SOURCES
    }
    parts = parts_of(*ttfts)
    where = Axis("mean TTFT", "seconds")
    share = Axis("share of prompt tokens", "share", ends=(0, 1))
    return [
        latency_chart("TTFT: share of requests within a time", entries["ttft"]),
        latency_chart("TPOT: share of requests within a time", entries["tpot"]),
        stacked_chart("Where the mean time to first token goes", names, parts, part_values(parts, ttfts), where),
        stacked_chart("Where the prompt tokens came from", names, SOURCES, tokens, share),
    ]
