"""Charts: each is described once here, and drawn by charts_interactive.py (Plotly) or charts_static.py (matplotlib).

Each chart also has a sentence and a table: the text alternative for readers who cannot see the figure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtwin.figure_words import finite, unit_text

INK, BLUE = "#333333", "#0072B2"
ORANGE, GREEN, SKY, AMBER = "#D55E00", "#009E73", "#56B4E9", "#E69F00"
GREY = "#8a8a8a"
# Colours and markers of the cases of a sweep; the markers differ in grey prints too. A case without an x axis is a dashed
# grey line.
CASE_STYLES = [("#D55E00", "o"), ("#0072B2", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#56B4E9", "v"), ("#E69F00", "P"), ("#8B6914", "X")]
# Colours and line styles of runs side by side.
RUN_STYLES = [("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#56B4E9", "-"), ("#E69F00", "--")]
PAPER, GRID, CLEAR = "#ffffff", "#e4e4e4", "rgba(0,0,0,0)"
# The colours of a figure in dark mode; colours that are not here stay.
DARK = {PAPER: "#15181c", GRID: "#3a4048", INK: "#e6e6e6", "#000000": "#e6e6e6", GREY: "#a3a3a3"}
WIDTH = 680  # pixels of a static figure, and of an interactive figure on paper


def number(value: float) -> float | None:
    return float(f"{value:.6g}") if finite(value) else None


@dataclass
class Table:
    """Cells are text. Columns whose cells begin with a digit, a sign, a dash or a currency are set to the right."""

    caption: str
    head: list[str]
    rows: list[list[Any]]
    marked: set[int] = field(default_factory=set)  # numbers of highlighted rows
    note: str = ""
    folded: bool = False  # shown only when opened

    def right(self, column: int) -> bool:
        cells = [str(row[column]) for row in self.rows if column < len(row) and str(row[column])]
        return all(re.match(r"([A-Z]{3} )?[-–−+\d]", cell) for cell in cells) and any(
            re.match(r"[-–−+]?([A-Z]{3} )?[-–−+]?\d", cell) for cell in cells
        )

    def wide(self) -> bool:
        """True if the table needs small letters on paper."""
        return len(self.head) > 8


@dataclass
class Axis:
    title: str
    unit: str = "plain"  # a key of figure_words.UNITS
    log: bool = False
    ticks: Sequence[tuple[float, str]] | None = None  # [(value, text)]; categories of bars
    ends: tuple[float, float] | None = None  # of a linear axis; None: from 0 to the largest value
    suffix: str = ""  # behind each tick, set by `in_units`

    def text(self, value: float) -> str:
        return unit_text(self.unit, value)


@dataclass
class Series:
    """Points (x, y). `kind`: line, step, points, bars (horizontal, stacked; `base`: start of each bar instead of the stack),
    columns (vertical, stacked, `width` wide). NaN leaves a gap."""

    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    colour: str
    kind: str = "line"
    dash: str = "-"
    marker: str = ""
    filled: Sequence[bool] | None = None  # per point; None: all
    hover: Sequence[str] | None = None  # per point; None: name and values
    base: Sequence[float] | None = None
    width: float = 0.6
    thick: float = 2
    whiskers: tuple[Sequence[float], Sequence[float]] | None = None  # (below, above), each per point
    panel: int = 0
    legend: bool = True


@dataclass
class Chart:
    """Panels share the x axis and lie below each other, one y axis each."""

    title: str
    says: str
    x: Axis
    panels: Sequence[Axis]
    series: Sequence[Series]
    table: Table
    height: int = 340
    lines: Sequence[tuple[str, float, str]] = field(default_factory=list)  # ("x" or "y", value, label): dashed lines across panel 0
    name: str = ""  # set by the page
    image: str = ""  # set by `draw_static`
    width: int = WIDTH
