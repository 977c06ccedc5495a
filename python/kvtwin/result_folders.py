"""Folders that kvtwin wrote, as tables: runs, comparisons, sweeps and validations. Needs numpy only."""

import csv
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtwin.errors import InputError
from kvtwin.figure_words import percent
from kvtwin.simulation import load_json

TEXT_COLUMNS = {"outcome", "lane"}
REQUEST_COLUMNS = """request arrival_s prompt_tokens output_tokens hit_device hit_host hit_disk hit_remote miss
    recomputed_after_stop retracted_recompute queue_s prefetch_wait_s load_wait_s compute_s ttft_s tpot_s e2e_s
    retractions outcome""".split()
LANE_COLUMNS = "lane window_start_s window_s busy_fraction bytes".split()
# The sources of prompt tokens: key in report.json and requests.csv (old runs lack the newer tiers), label, colour. From
# the fastest to the slowest tier, then computed tokens. The palette of Okabe and Ito suits colour-blind readers.
SOURCES = [
    ("hit_device", "GPU memory", "#0072B2"),
    ("hit_host", "host memory", "#56B4E9"),
    ("hit_disk", "disk", "#009E73"),
    ("hit_shared_fs", "shared file system", "#E69F00"),
    ("hit_remote", "remote", "#F0E442"),
    ("recomputed_after_stop", "computed after a stopped prefetch", "#CC79A7"),
    ("miss", "computed", "#D55E00"),
]
PARTS = [("queue", "queue", "#999999"), ("prefetch_wait", "wait for the prefetch", "#E69F00"),
         ("load_wait", "wait for loads", "#56B4E9"), ("compute", "compute", "#D55E00")]
HAND_OVER = ("hand_over", "hand-over", "#009E73")


@dataclass
class Run:
    """One run folder. `report` is report.json. `requests` and `lanes` map the name of a column to a numpy array; empty
    cells are NaN."""

    folder: Path
    report: dict[str, Any]
    requests: dict[str, npt.NDArray[Any]]
    lanes: dict[str, npt.NDArray[Any]]

    def title(self, what: str) -> str:
        name = self.folder.name
        return f"{what} · {name if len(name) <= 32 else name[:31] + '…'} ({self.report['world']} world)"


def read_table(path: Path, columns: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            names = next(rows, [])
            cells = list(rows)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is this the folder of a finished run?") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a table: {error}") from error
    missing = [name for name in columns if name not in names]
    if missing:
        raise InputError(f"{path}: no column {missing[0]}")
    table = {}
    for index, name in enumerate(names):
        try:
            column = [row[index] for row in cells]
            table[name] = np.array(column if name in TEXT_COLUMNS else [float(cell or "nan") for cell in column])
        except (IndexError, ValueError) as error:
            raise InputError(f"{path}: column {name}: {error}") from error
    return table


def load_run(folder: str | os.PathLike[str]) -> Run:
    folder = Path(folder)
    report = load_json(folder / "report.json")
    requests = read_table(folder / "requests.csv", REQUEST_COLUMNS)
    return Run(folder.resolve(), report, requests, read_table(folder / "lanes.csv", LANE_COLUMNS))


def check_complete(run: Run) -> None:
    """A finished run has a row for each request that completed or was rejected."""
    requests = run.report["requests"]
    ended = requests["completed"] + requests["rejected"]
    rows = len(run.requests["request"])
    if rows < ended:
        raise InputError(
            f"{run.folder / 'requests.csv'}: {rows} rows where report.json counts {ended} requests; is the file cut?"
        )


def resolved(folder: str | os.PathLike[str], name: str = "experiment.resolved.toml") -> tuple[str, dict[str, str]]:
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


def parts_of(*ttfts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns the parts of the mean TTFT that these `ttft_parts_seconds` have. A hand-over is only in runs with prefill and
    decode engines, and 0 in others."""
    return PARTS + [HAND_OVER] * any("hand_over" in ttft for ttft in ttfts)


def part_values(parts: Sequence[tuple[str, str, str]], ttfts: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [ttft.get(key, 0.0 if key == "hand_over" else None) for ttft in ttfts] for key, _, _ in parts}


@dataclass
class Sweep:
    """One folder of kvtwin compare with a line per simulation. `plan` is compare.json. `rows` is a list of dicts, one per cell, with the values of the
    axes. A value is None if the case sets the keys of the axis itself, so that the axis does not change the case."""

    folder: Path
    plan: dict[str, Any]
    rows: list[dict[str, Any]]

    def select(self, case: str | None = None, **settings: Any) -> list[dict[str, Any]]:
        """Returns the rows of a case that have these values on these axes, or None on an axis."""
        chosen = []
        for row in self.rows:
            fits = all(row.get(name) is None or row[name] == value for name, value in settings.items())
            if fits and (case is None or row.get("case") == case):
                chosen.append(row)
        return chosen


def load_json_lines(
    folder: Path, name: str, plan_name: str | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns PLAN_NAME.json (checks the schema version) and the rows of NAME.jsonl."""
    plan = load_json(folder / f"{plan_name or name}.json")
    path = folder / f"{name}.jsonl"
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is this the folder of a finished {name}?") from error
    except ValueError as error:
        raise InputError(f"{path}: a line is not JSON: {error}") from error
    return plan, rows


def has_earlier_plan(folder: str | os.PathLike[str]) -> bool:
    """Returns True for a folder of an earlier version, which called the compare.json of simulations sweep.json."""
    return (Path(folder) / "sweep.json").exists()


def has_cells(folder: str | os.PathLike[str]) -> bool:
    """Returns True for a folder of kvtwin compare with one line per simulation: --cells, or a [sweep] section."""
    path = Path(folder) / "compare.json"
    return has_earlier_plan(folder) or (path.exists() and "show" in load_json(path))


def load_sweep(folder: str | os.PathLike[str]) -> Sweep:
    folder = Path(folder)
    plan, rows = load_json_lines(folder, "sweep", "sweep" if has_earlier_plan(folder) else "compare")
    return Sweep(folder.resolve(), plan, rows)


def short_name(axis: str) -> str:
    """Shortens the name of an axis. Examples: hardware.set.disk_read_gbps+hardware.set.remote_gbps -> disk_read_gbps, remote_gbps;
    hardware.name -> hardware; tiers.disk.gib -> disk gib."""
    names = [key.removesuffix(".name").removeprefix("tiers.") for key in axis.split("+")]
    return ", ".join(name.replace(".", " ") if key.startswith("tiers.") else name.rsplit(".", 1)[-1] for name, key in zip(names, axis.split("+")))


def combinations(axes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns all combinations of the axes' values, as dicts. The last axis changes fastest."""
    found: list[dict[str, Any]] = [{}]
    for axis in axes:
        found = [one | {axis["name"]: value} for one in found for value in axis["values"]]
    return found


def setting_text(setting: dict[str, Any]) -> str:
    return ", ".join(f"{short_name(name)} {value:,}" if isinstance(value, int) else f"{short_name(name)} {value}"
                     for name, value in setting.items())


def tidy_setting(setting: dict[str, Any]) -> dict[str, Any]:
    return {name: int(value) if isinstance(value, float) and value == int(value) else value for name, value in setting.items()}


@dataclass
class Compared:
    """One folder of kvtwin compare --vary. `plan` is compare.json. `rows` is a list of dicts, one per setting."""

    folder: Path
    plan: dict[str, Any]
    rows: list[dict[str, Any]]

    def axes(self, **wanted: Any) -> list[dict[str, Any]]:
        """Returns the axes of `plan` with these properties, for example choice=True, capacity=False."""
        return [axis for axis in self.plan["axes"] if all(axis[key] == value for key, value in wanted.items())]

    def select(self, setting: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for row in self.rows if all(row[name] == value for name, value in setting.items())]


def load_compare(folder: str | os.PathLike[str]) -> Compared:
    folder = Path(folder)
    plan, rows = load_json_lines(folder, "compare")
    return Compared(folder.resolve(), plan, rows)


def tier_name(axis: dict[str, Any]) -> str:
    """tiers.host.tokens -> host tier"""
    names = [key.split(".")[1] for key in axis["name"].split("+")]
    return f"{' and '.join(names)} {'tier' if len(names) == 1 else 'tiers'}"


def label_of(compared: Compared, setting: dict[str, Any]) -> str:
    """Joins the values of a setting. Axes with a single value are left out."""
    several = {axis["name"] for axis in compared.plan["axes"] if len(axis["values"]) > 1}
    return ", ".join(str(value) for name, value in tidy_setting(setting).items() if name in several)


def values_of(rows: Sequence[dict[str, Any]], key: str) -> npt.NDArray[Any]:
    return np.array([np.nan if row.get(key) is None else row[key] for row in rows], dtype=float)


def left_out_text(row: dict[str, Any]) -> str:
    """Returns the shares of rejected and failed requests, which the values of a row do not contain; empty if none."""
    shares = [(row.get(f"{name}_share") or 0, name) for name in ("rejected", "failed")]
    return ", ".join(f"{percent(share)} {name}" for share, name in shares if share)


def whiskers_of(rows: Sequence[dict[str, Any]], key: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns, per row, how far the interval extends below and above the value. The interval is that of the mean over
    seeds, or that of the hardware variants."""
    if rows and f"{key}_low" in rows[0]:
        y = values_of(rows, key)
        return np.maximum(0, y - values_of(rows, f"{key}_low")), np.maximum(0, values_of(rows, f"{key}_high") - y)
    half = np.nan_to_num(values_of(rows, f"{key}_ci95"))
    return half, half


def compared_grid(compared: Compared) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Returns the capacity for the x axis (None: draw bars), and the combinations of all other axes except choices."""
    capacities = compared.axes(choice=False, capacity=True)
    along = max(capacities, key=lambda axis: len(axis["values"]), default=None)
    if along is not None and len(along["values"]) < 2:
        along = None
    if along is None and not compared.axes(choice=True):
        return None, [{}]
    others = [axis for axis in compared.axes(choice=False) if axis is not along]
    return along, combinations(others)


@dataclass
class Validated:
    """One folder of kvtwin validate. `result` is validate.json."""

    folder: Path
    result: dict[str, Any]

    def figures(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Returns [(configuration, figure)] of the configurations that have the figure and its error."""
        found = []
        for cell in self.result["cells"]:
            found += [(cell["cell"], figure) for figure in cell["figures"] if figure["figure"] == name and figure["error"] is not None]
        return found


def load_validation(folder: str | os.PathLike[str]) -> Validated:
    folder = Path(folder)
    try:
        result = json.loads((folder / "validate.json").read_text())
        for cell in result["cells"]:
            for figure in cell["figures"]:
                _ = figure["figure"], figure["error"]
        return Validated(folder.resolve(), result)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: holds no validate.json of kvtwin validate --out ({error})") from error


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Returns True for a folder of kvtwin compare or validate."""
    return any((Path(folder) / name).exists() for name in ("sweep.json", "compare.json", "validate.json"))
