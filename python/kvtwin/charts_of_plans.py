"""A plan with the words that several of its tables need, and its charts."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtwin.chart_kinds import RECOMMENDATION, Point, effect_chart, front_chart, line_chart, stacked_chart
from kvtwin.charts import AMBER, BLUE, GREEN, INK, SKY, Axis, Chart, Series, Table
from kvtwin.figure_words import (
    LESS,
    better_of,
    count,
    exact,
    figure_name,
    figure_text,
    finite,
    joined,
    judged_text,
    limit_words,
    money,
    percent,
    setting_words,
)
from kvtwin.result_folders import part_values, parts_of, resolved
from kvtwin.simulation import load_json


class Plan:
    """plan.json with the words that several of its tables need."""

    def __init__(self, folder: str | os.PathLike[str], plan: dict[str, Any]) -> None:
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

    def limit_text(self, goal: dict[str, Any]) -> str:
        return limit_words(goal["figure"], goal["limit"], goal["better"])

    def goal_cells(self, one: dict[str, Any]) -> list[str]:
        figures = one.get("figures") or {}
        return [judged_text(goal["figure"], figures.get(goal["figure"]), goal["limit"]) for goal in self.goals]

    def meets(self, one: dict[str, Any], with_reason: bool) -> str:
        no = f"no: {one['why_not']}" if with_reason and one.get("why_not") else "no"
        words: dict[Any, str] = {True: "yes", False: no}
        return words.get(one.get("meets"), "–")

    def parts_text(self, one: dict[str, Any]) -> str:
        return joined([f"{count_text(part)} {part['name']}" for part in one.get("parts") or []]) or setting_words(
            one.get("settings") or {}
        )

    def price_text(self, one: dict[str, Any]) -> str:
        return money(one.get("price_month"), self.currency)

    def difference_text(self, one: dict[str, Any]) -> str:
        """Returns the difference between the price of a setting and that of the recommendation: +USD 268."""
        price, own = one.get("price_month"), (self.plan.get("recommendation") or {}).get("price_month")
        if not (finite(price) and finite(own)):
            return "–"
        return ("+" if price >= own else "") + money(price - own, self.currency)

    def front(self, key: str, limit: float | None) -> Chart | None:
        """Price, or GPUs where prices are absent, against a figure. The plan's front is of one figure: in a chart of
        another figure, some of its settings are behind others."""
        across = "price_month" if self.priced else "gpus"
        across_name = f"price per month ({self.currency})" if self.priced else "GPUs"
        in_front = set(self.plan.get("front") or [])

        def point(one: dict[str, Any], index: int | None = None, whiskers: tuple[float, float] | None = None) -> Point:
            value, name = (one.get("figures") or {}).get(key, math.nan), setting_words(one.get("settings") or {})
            meets = bool(one.get("meets"))
            return Point(one.get(across, math.nan), value, meets, name, self.hover(one), index in in_front, whiskers)

        chosen = self.plan.get("recommendation")
        points = [
            point(one, index) for index, one in enumerate(self.tried) if one.get("stage", "full") == "full"
        ]
        chosen = point(chosen, whiskers=self.whiskers(key, chosen)) if chosen else None
        return front_chart(across, across_name, key, limit, points, better_of(self.plan, key), chosen)

    def interval(self, key: str) -> list[float] | None:
        """Returns [low, high]: between them a figure of the recommendation lies with 80 %. None if there is none."""
        return (self.confidence.get("ranges") or {}).get(key)

    def whiskers(self, key: str, one: dict[str, Any]) -> tuple[float, float] | None:
        interval, value = self.interval(key), (one.get("figures") or {}).get(key)
        return (max(0, value - interval[0]), max(0, interval[1] - value)) if interval and finite(value) else None

    def capacity_tokens(self) -> int | None:
        """Returns the tokens that all tiers of the recommendation hold; None if its run folder is absent."""
        folder = self.folder / "recommended"
        if not (self.plan.get("recommendation") and (folder / "report.json").exists()):
            return None
        page_tokens = resolved(folder)[1].get("cache.page_tokens", "")
        pages = sum(tier["capacity_pages"] for tier in load_json(folder / "report.json")["tiers"])
        return pages * int(page_tokens) if page_tokens.isdigit() else None

    def hover(self, one: dict[str, Any]) -> str:
        words = [f"{name}={exact(value)}" for name, value in (one.get("settings") or {}).items()]
        figures = one.get("figures") or {}
        # Plotly leaves out a label that is taller than the figure.
        keys = dict.fromkeys([*(goal["figure"] for goal in self.goals), "hit_ratio", "good_share"])
        words += [f"{figure_name(key)}: {figure_text(key, figures[key])}" for key in keys if key in figures]
        words += [f"GPUs: {one['gpus']}"] if "gpus" in one else []
        words += [f"price per month: {self.price_text(one)}"] if finite(one.get("price_month")) else []
        words += [f"does not meet the goals: {one['why_not']}"] if one.get("why_not") else []
        return "\n".join([*words, f"computed as: {one['stage']}"] if one.get("stage") else words)


def meets_limit(goal: dict[str, Any], value: float) -> bool:
    return value <= goal["limit"] if goal["better"] == LESS else value >= goal["limit"]


def count_text(part: dict[str, Any]) -> str:
    """Returns the number of a part to buy: whole GiB, GPUs and drives."""
    return f"{round(part['count']):,}" if finite(part.get("count")) else "–"


def interval_text(key: str, interval: Sequence[float] | None) -> str:
    return " to ".join(figure_text(key, end) for end in interval) if interval else "–"


def interval_chart(plan: Plan, one: dict[str, Any]) -> Chart | None:
    """The 80 % interval of each goal's figure against its limit. The axis is a share of the limit, so that goals with
    different units share it."""
    goals = [goal for goal in plan.goals if plan.interval(goal["figure"]) and goal["limit"] > 0]
    bars: dict[str, tuple[str, list[Any]]] = {"meets the goal": (SKY, []), "misses the goal": (AMBER, [])}
    stars, rows, names = [], [], []
    for place, goal in enumerate(goals):
        key, limit = goal["figure"], goal["limit"]
        value = (one.get("figures") or {}).get(key)
        text = judged_text(key, value, limit)
        names.append(figure_name(key))
        interval = plan.interval(key) or [math.nan, math.nan]
        rows.append([names[-1], plan.limit_text(goal), text, interval_text(key, interval)])
        low, high = interval
        below, above = ("meets the goal", "misses the goal")[:: 1 if goal["better"] == LESS else -1]
        for label, start, end in ((below, low, min(high, limit)), (above, max(low, limit), high)):
            if start < end:
                bars[label][1].append((start / limit, (end - start) / limit, place))
        if finite(value):
            stars.append((value / limit, place, f"{names[-1]}: {text}\nlimit: {rows[-1][1]}\n80 % interval: {rows[-1][3]}"))
    series = []
    for label, (colour, pieces) in bars.items():
        if pieces:
            start, size, places = map(list, zip(*pieces))
            hover = [f"{names[place]}\nlimit: {rows[place][1]}\n80 % interval: {rows[place][3]}" for place in places]
            series.append(Series(label, size, places, colour, kind="bars", base=start, hover=hover, width=0.36))
    if not series:
        return None
    if stars:
        x, y, hover = map(list, zip(*stars))
        series.append(Series(RECOMMENDATION, x, y, GREEN, kind="points", marker="*", hover=hover))
    most = max([1, *(start + size for _, pieces in bars.values() for start, size, _ in pieces), *(x for x, *_ in stars)])
    return Chart(
        f"Range in which each figure of the {RECOMMENDATION if one else 'nearest setting'} lies with a probability of 80 %",
        "; ".join(f"{name}: limit {limit}, expected {text}, 80 % interval {ends}" for name, limit, text, ends in rows),
        Axis("share of the limit", "share", ends=(0, 1.05 * most)),
        [Axis("", ticks=list(enumerate(names)))],
        series,
        Table("", ["goal", "limit", "expected", "80 % interval"], rows),
        height=170 + 46 * len(names),
        lines=[("x", 1, "limit")],
    )


def hits_chart(plan: Plan) -> Chart | None:
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


def drives_chart(plan: Plan) -> Chart | None:
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


def causes_chart(plan: Plan) -> Chart | None:
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


def ttft_chart(plan: Plan) -> Chart | None:
    """The parts of the mean TTFT of the recommendation."""
    ttft = (plan.plan.get("binds") or {}).get("ttft_parts_seconds")
    if not ttft:
        return None
    parts = parts_of(ttft)
    values = part_values(parts, [ttft])
    return stacked_chart("Where the mean time to first token goes", [RECOMMENDATION], parts, values, Axis("TTFT", "seconds"))


def lanes_chart(plan: Plan) -> Chart | None:
    """Mean and 99th percentile of the utilisation of each kind of lane."""
    lanes = [lane for lane in (plan.plan.get("binds") or {}).get("lanes") or [] if finite(lane.get("busy_fraction"))]
    if not lanes:
        return None
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
    return Chart(
        "How busy each kind of lane of the recommendation is",
        "; ".join(f"{row[0]}: mean {row[1]}, p99 {row[2]}" for row in rows),
        Axis("busy", "share", ends=(0, 1.02)),
        [Axis("", ticks=list(enumerate(names)))],
        series,
        Table("", ["lane", "mean", "99th percentile"], rows),
        height=140 + 46 * len(names),
    )
