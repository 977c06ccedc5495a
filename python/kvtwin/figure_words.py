"""The figures of a run in words, and numbers with their units, for figures and pages.

run_figures.json is the program's list of the figures (`kvtwin presets --json`): name, words, unit, direction. tools/docs
writes the file, and a test compares it with the program.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}  # members NAME_seconds of report.json
LESS, MORE = "less", "more"  # which values of a figure are better: as the files say
# Names and sizes of each unit, largest first. The last one has all smaller values too.
UNITS: dict[str, list[tuple[str, float]]] = {
    "seconds": [("s", 1), ("ms", 1e-3), ("µs", 1e-6)],
    "share": [("%", 0.01)],
    "count": [("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1)],
    "bytes": [("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)],
    "gigabytes_per_second": [("GB/s", 1)],
    "years": [("years", 1)],
    "kilowatts": [("kW", 1)],
    "plain": [("", 1)],
}


@dataclass(frozen=True)
class RunFigure:
    """`unit`: a key of UNITS. `better`: LESS, MORE, or None if the figure has no direction."""

    words: str
    unit: str
    better: str | None = None


def _listed() -> dict[str, RunFigure]:
    listed = json.loads(Path(__file__).with_name("run_figures.json").read_text(encoding="utf-8"))
    return {name: RunFigure(one["words"], one["unit"], one.get("better")) for name, one in listed.items()}


RUN_FIGURES = _listed()


def figure_of(key: str) -> RunFigure:
    """Returns the description of a figure. Of an unknown figure, the end of its name is the unit."""
    if key in RUN_FIGURES:
        return RUN_FIGURES[key]
    if key.endswith(("_per_second", "_per_wall_second")):
        unit = "plain"
    elif key.endswith(("_s", "_seconds")):
        unit = "seconds"
    elif key.endswith("_bytes"):
        unit = "bytes"
    else:
        unit = "share" if key.endswith(("_ratio", "_share", "_fraction")) else "plain"
    return RunFigure(key.removesuffix("_s").replace("_", " "), unit)


def figure_name(key: str) -> str:
    return figure_of(key).words


def unit_of_figure(key: str) -> str:
    return figure_of(key).unit


def better_of(plan: dict[str, Any], key: str) -> str | None:
    """Returns the direction of a figure: as compare.json or plan.json says, else the program's; None if it has none."""
    goals = {goal["figure"]: goal.get("better") for goal in plan.get("goals") or []}
    return {**goals, **(plan.get("better") or {})}.get(key) or figure_of(key).better


def finite(value: Any) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def number_text(value: float, digits: int = 3) -> str:
    """Has `digits` significant digits, and all digits before the point with separators: 0.0123, 12.3, 12,345."""
    if not value:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def scale_for(unit: str, largest: float) -> tuple[str, float]:
    """Returns (name, size) of the scale in which a value is 1 or more; the smallest one where there is none. 0 has the
    scale of size 1."""
    scales = UNITS[unit]
    return next((one for one in scales if abs(largest) >= one[1] or (not largest and one[1] == 1)), scales[-1])


def unit_text(unit: str, value: float | None, digits: int = 3) -> str:
    """20 ms, 12.3 %, 1.23 k, 3.2 GB; a dash for no value"""
    if not finite(value):
        return "–"
    # A value that is rounded up to the next scale has this scale: 1 s, not 1,000 ms.
    name, size = scale_for(unit, float(f"{value:.{digits}g}"))
    return f"{number_text(value / size, digits)} {name}".rstrip()


def seconds(value: float | None) -> str:
    return unit_text("seconds", value)


def count(value: float | None) -> str:
    return unit_text("count", value)


def percent(share: float | None) -> str:
    return unit_text("share", share)


def bytes_text(value: float | None) -> str:
    return unit_text("bytes", value)


def figure_text(key: str, value: float | None, digits: int = 3) -> str:
    """Returns the value with its unit; with at least `digits` significant digits."""
    unit = unit_of_figure(key)
    return unit_text(unit, value, max(digits, 4) if unit == "plain" else digits)


def judged_text(key: str, value: float | None, limit: float, least: int = 3) -> str:
    """Like figure_text. Has at least `least` digits, and so many that the text is on the same side of the limit as the value."""
    if not finite(value):
        return "–"
    digits = next((n for n in range(least, 10) if (float(f"{value:.{n}g}") <= limit) == (value <= limit)), 10)
    return figure_text(key, value, digits)


def limit_words(key: str, limit: float, better: str | None) -> str:
    """at most 1 s; without a direction: 1 s"""
    sign = {LESS: "at most ", MORE: "at least "}.get(better or "", "")
    return f"{sign}{figure_text(key, limit)}"


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def money(value: float | None, currency: str) -> str:
    if not finite(value):
        return "–"
    return f"{currency} {number_text(value)}".strip()


def joined(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def exact(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def value_text(value: Any, unit: str = "") -> str:
    """Returns a value of a key, for a table: 3,072 GiB."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return str(value)
    return f"{value:,.15g} {unit}".rstrip()


def setting_words(setting: dict[str, Any]) -> str:
    """cluster.engines=2, drives=0: as the program takes the values, without separators"""
    return ", ".join(f"{name}={exact(value)}" for name, value in setting.items())
