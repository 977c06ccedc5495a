"""Judges and stores the tables that gpu_bench and gpu_ttft measured. Needs only Python.

    python notebooks/measured.py verdict FOLDER [--steps FILE]   prints each target, the measured value, and the result
    python notebooks/measured.py keep FOLDER DIR                 copies the tables of FOLDER to DIR/<gpu>/*.csv, their
                                                                 origin to DIR/<gpu>/provenance.json, and the runs of
                                                                 calibrate to DIR/<gpu>/runs/NAME/

FOLDER has tables/*.csv, and optionally tiers/ and calibrate/; or the archives that tools/gpu-check wrote (*.tar.gz).
In the targets, R is the rate of a transfer divided by the rate of one large copy of the same size.
"""

import csv
import json
import re
import sys
import tarfile
import tempfile
from pathlib import Path

# The required columns of each table. A table may have more columns.
TABLES = {
    "link": "kind direction bytes ctas node gbps",
    "matrix": "path direction chunk_bytes chunks bytes r_median r_p10 r_p90 pairs gbps base_gbps submit_us ctas sm_ms_per_gb wrong_bytes",
    "boxes": "direction width rows boxes us us_per_row r_median",
    "order": "direction chunk_bytes chunks access_order flags r_median",
    "both": "path direction chunk_bytes gbps_alone gbps_beside factor",
    "scatter": "direction chunk_bytes bytes ctas gbps",
    "interference": "load path direction chunk_bytes window_bytes slowdown gbps r first_us small_us small_us_p90",
    "ttft": "model tokens source path overlap mode cufile ttft_ms p10 p90 samples wrong_pages",
}
TEXT = set("kind direction node path access_order flags load model source overlap mode cufile".split())
WITHOUT_SMS = {"copy_loop", "batch", "boxes", "staged"}  # no SMs on the link; `staged` uses SMs within GPU memory only
BULK_BYTES = 16 << 20  # a transfer of at least this size counts as the load of a prefix


class TableError(Exception):
    """A table that cannot be read. The message has the file and the reason."""


class Table:
    """A table. `rows` are dicts, with numbers as floats. `about` has the lines of the head, for example about["gpu"]."""

    def __init__(self, path):
        self.path, self.about = Path(path), {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise TableError(f"{path}: {error.strerror}") from error
        while lines and lines[0].startswith("# "):
            key, _, value = lines.pop(0)[2:].partition(": ")
            self.about[key] = value
        reader = csv.DictReader(lines)
        missing = set(TABLES[self.path.stem].split()) - set(reader.fieldnames or [])
        if missing:
            raise TableError(f"{path}: no column {sorted(missing)[0]}")
        self.rows = []
        for number, row in enumerate(reader, 1):
            if None in row or None in row.values():
                raise TableError(f"{path}: row {number} has other fields than the table has columns")
            try:
                self.rows.append({name: value if name in TEXT else float(value) for name, value in row.items()})
            except ValueError as error:
                raise TableError(f"{path}: row {number}: {error}") from error

    def where(self, **values):
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]


def unpacked(folder, scratch):
    """Returns the folder itself, or a folder with the content of its archives."""
    folder = Path(folder)
    if (folder / "tables").is_dir():
        return folder
    archives = sorted(folder.glob("*.tar.gz"))
    if not archives:
        raise TableError(f"{folder}: neither tables/ nor tables.tar.gz; give the folder that tools/gpu-check wrote")
    for archive in archives:
        with tarfile.open(archive) as file:
            for member in file:
                target = Path(scratch, member.name)
                if member.isfile() and Path(scratch).resolve() in target.resolve().parents:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(file.extractfile(member).read())
    for name in ("machine.json", "steps.txt"):
        if (folder / name).exists():
            (Path(scratch) / name).write_bytes((folder / name).read_bytes())
    return Path(scratch)


def read_tables(folder):
    found = {path.stem: Table(path) for path in sorted(Path(folder, "tables").glob("*.csv")) if path.stem in TABLES}
    return {name: table for name, table in found.items() if table.rows}


# ---- the verdict -------------------------------------------------------------------------------------------------


def bulk_cells(matrix, least, most):
    """Returns {(direction, chunk bytes, chunks): [rows]} of the transfers of at least BULK_BYTES."""
    cells = {}
    for row in matrix.rows:
        if row["bytes"] >= BULK_BYTES and least <= row["chunk_bytes"] <= most:
            cells.setdefault((row["direction"], row["chunk_bytes"], row["chunks"]), []).append(row)
    return cells


def worst_of_best(cells, key, paths=None):
    """Returns the row of the best path in the cell in which the best path is worst."""
    best = []
    for rows in cells.values():
        rows = [row for row in rows if paths is None or row["path"] in paths]
        if rows:
            best.append(max(rows, key=key))
    worst = min(best, key=key, default=None)
    return worst


def cell_text(row):
    return f"{row['path']}, {row['direction']}, {row['chunk_bytes'] / 1024:g} KiB x {row['chunks']:.0f}"


def judge(value, met, text):
    return ("not measured", "") if value is None else ("met" if met else "missed", text)


def rate_targets(tables):
    matrix = tables.get("matrix")
    large = matrix and worst_of_best(bulk_cells(matrix, 32768, 1 << 30), lambda row: row["r_median"], WITHOUT_SMS)
    small = matrix and worst_of_best(bulk_cells(matrix, 0, 28672), lambda row: row["r_median"])
    yield "R >= 0.95 from 32 KiB pieces, no SM on the link", *judge(
        large, large and large["r_median"] >= 0.95, large and f"{large['r_median']:.3f} at worst ({cell_text(large)})")
    yield "R >= 0.90 for pieces of 0.5 to 28 KiB", *judge(
        small, small and small["r_median"] >= 0.90, small and f"{small['r_median']:.3f} at worst ({cell_text(small)})")

    def submit_share(row):
        return row["submit_us"] * row["gbps"] * 1e3 / row["bytes"]

    best = matrix and [max(rows, key=lambda row: row["r_median"]) for rows in bulk_cells(matrix, 0, 1 << 30).values()]
    slow = max(best, key=submit_share) if best else None
    yield "submitting takes <= 1 % of a transfer's time", *judge(
        slow, slow and submit_share(slow) <= 0.01, slow and f"{100 * submit_share(slow):.2f} % at worst ({cell_text(slow)})")
    yield "higher R per SM-ms than one warp per row", *against_baseline(matrix)
    yield from baseline_targets(matrix)


OURS = ("kernel", "ring", "staged", "boxes", "batch")
BASELINES = ("warp_per_row", "copy_loop")


def worst_against(cells, baselines):
    """Returns (factor, row) of the cell in which kvtwin's fastest path is least faster than the fastest baseline."""
    gains = []
    for rows in cells:
        ours = max((row for row in rows if row["path"] in OURS), key=lambda row: row["r_median"], default=None)
        base = max((row["r_median"] for row in rows if row["path"] in baselines), default=0)
        if ours and base > 0:
            gains.append((round(ours["r_median"] / base, 2), ours))
    return min(gains, key=lambda gain: gain[0], default=None)


def baseline_targets(matrix):
    cells = {}
    for row in matrix.rows if matrix else []:
        cells.setdefault((row["direction"], row["chunk_bytes"], row["chunks"]), []).append(row)
    worst = worst_against(cells.values(), BASELINES)
    yield ">= 1.0x the best baseline everywhere", *judge(
        worst, worst and worst[0] >= 1.0, worst and f"{worst[0]:.2f}x at worst ({cell_text(worst[1])})")
    small = worst_against(bulk_cells(matrix, 0, 8192).values() if matrix else [], ("copy_loop",))
    yield ">= 3x the copy loop for pieces of <= 8 KiB", *judge(
        small, small and small[0] >= 3.0, small and f"{small[0]:.2f}x at worst ({cell_text(small[1])})")


def against_baseline(matrix):
    """Checks that in every cell, a path of kvtwin is at least as fast as the baseline kernel and uses less SM time."""
    lost, cells = [], bulk_cells(matrix, 0, 1 << 30) if matrix else {}
    for rows in cells.values():
        base = [row for row in rows if row["path"] == "warp_per_row"]
        ours = [row for row in rows if row["path"] in OURS]
        if not base or not ours:
            continue
        if not any(row["r_median"] >= base[0]["r_median"] and row["sm_ms_per_gb"] < base[0]["sm_ms_per_gb"] for row in ours):
            lost.append(base[0])
    return judge(cells or None, not lost, f"in all {len(cells)} cells" if not lost else f"not in {len(lost)} of {len(cells)}: {cell_text(lost[0])}")


def load_targets(tables):
    beside = [row for row in tables["interference"].rows if row["path"] in WITHOUT_SMS] if "interference" in tables else []
    for load in ("prefill", "decode"):
        rows = [row for row in beside if row["load"] == load and row["r"] >= 0.9]
        best = min(rows, key=lambda row: row["slowdown"], default=None)
        yield f"{load} products slower by <= 2 % beside a load at R >= 0.9", *judge(
            best, best and best["slowdown"] <= 1.02,
            best and f"{100 * (best['slowdown'] - 1):.1f} % ({best['path']}, {best['direction']}, window {best['window_bytes'] / 2**20:g} MiB)")
    link, scatter = tables.get("link"), tables.get("scatter")
    copy = max((row["gbps"] for row in link.where(kind="copy_on_device")), default=None) if link else None
    relay = max((row["gbps"] for row in scatter.rows), default=None) if scatter else None
    known = copy and relay
    yield "relayout at >= 80 % of a copy within GPU memory", *judge(
        known, known and relay >= 0.8 * copy, known and f"{100 * relay / copy:.0f} % ({relay:.0f} of {copy:.0f} GB/s)")


def ttft_targets(tables):
    rows = tables["ttft"].rows if "ttft" in tables else []
    slower, judged = [], 0
    for row in rows:
        again = [r for r in rows if (r["model"], r["tokens"], r["source"]) == (row["model"], row["tokens"], "recompute")]
        if row["source"] == "l2" and row["overlap"] == "on" and again:
            judged += 1
            if row["ttft_ms"] > again[0]["ttft_ms"]:
                slower.append(row)
    yield "a hit in host memory is faster than computing", *judge(
        judged or None, not slower, f"in {judged - len(slower)} of {judged} cases")


def step_state(how):
    """Converts the result of a step: 'passed', 'failed (1)', 'stopped after 60 s', 'not measured: REASON', 'not supported:
    REASON' (by the machine)."""
    if how is None:
        return "not measured", ""
    state, _, why = how.partition(": ")
    return (state, why) if state in ("not measured", "not supported") else ("met" if how == "passed" else "missed", how)


def correctness_targets(folder, steps, tables):
    said = {}
    for line in steps:
        name, _, how = line.strip().partition(":")
        said[name] = how
    for name, what in [("smoke", "a kernel of every path leaves the right bytes"), ("gpu_tests_kernels", "kernels equal their CPU twins"), ("gpu_tests_graphs", "random graphs of transfers leave the right bytes"),
                       ("gpu_tests_big", "kernels reach beyond 2^32 bytes"), ("memcheck", "memcheck"), ("racecheck", "racecheck"),
                       ("synccheck", "synccheck"), ("initcheck", "initcheck")]:
        yield what, *step_state(said.get(name))
    cut = [f"{name} {how}" for name, how in said.items() if how.startswith("stopped")]
    yield "every step within its budget", *judge(said or None, not cut, "; ".join(cut[:3]) + (f"; {len(cut) - 3} more" if cut[3:] else ""))
    wrong = sum(row["wrong_bytes"] > 0 for row in tables["matrix"].rows) if "matrix" in tables else None
    # If no cell is wrong but gpu_bench failed, it ended early, and later cells were not checked.
    failed = said.get("bench", "passed").startswith("failed")
    yield "every path leaves the right bytes", *judge(
        wrong, wrong == 0 and not failed, f"wrong in {wrong} cells of the matrix" + (f"; gpu_bench {said['bench']}" if failed else ""))
    pages = [row["wrong_pages"] for row in tables["ttft"].rows] if "ttft" in tables else None
    yield "every prompt finds the right bytes", *judge(pages, pages and not any(pages), pages and f"wrong in {max(pages):.0f} pages at worst")
    reports = [json.loads(path.read_text()) for path in sorted(Path(folder, "tiers").glob("*/report.json"))]
    yield "verified three-tier runs, replayed to equal digests", *runs_state(said, "tiers-")
    yield "pages from the disk past host memory, verified", *direct_state(folder, said.get("tiers-direct"))
    yield "calibration runs, replayed to equal digests", *runs_state(said, "calibrate-")
    if reports:
        evicted = min(sum(tier["evicted_pages"] for tier in report["tiers"]) for report in reports)
        stopped = sum(report["prefetch"]["stopped"] + report["prefetch"].get("revoked_reasons", {}).get("stopped", 0) for report in reports)
        yield "these runs evict pages and stop prefetches", "met" if evicted and stopped else "missed", f"at least {evicted} pages evicted, {stopped} prefetches stopped"


def direct_state(folder, how):
    state, text = step_state(how)
    report = Path(folder, "tiers", "direct", "report.json")
    if state != "met" or not report.exists():
        return state, text
    disk = json.loads(report.read_text()).get("real", {}).get("storage", {}).get("disk", {})
    pages = disk.get("direct_pages", 0)
    return (state, f"{pages} pages") if pages else ("not measured", "cuFile took no page of that disk")


def runs_state(said, prefix):
    states = {name: step_state(how)[0] for name, how in said.items() if name.startswith(prefix)}
    judged = [name for name, state in states.items() if state != "not measured"]
    failed = [name for name in judged if states[name] == "missed"]
    runs = sum(not name.endswith("-replay") for name in judged)
    return judge(judged or None, not failed, f"{runs} runs" + (f"; failed: {' '.join(failed)}" if failed else ""))


def verdict(folder, steps):
    tables = read_tables(folder)
    rows = [*correctness_targets(folder, steps, tables), *rate_targets(tables), *load_targets(tables), *ttft_targets(tables)]
    width = max(len(row[0]) for row in rows)
    gpu = next(iter(tables.values())).about.get("gpu", "unknown") if tables else "none measured"
    print(f"GPU: {gpu}")
    for target, state, figure in rows:
        print(f"{target:{width}}  {state:13}  {figure}".rstrip())
    counts = {state: sum(row[1] == state for row in rows) for state in ("met", "missed", "not measured", "not supported")}
    print(", ".join(f"{number} {state}" for state, number in counts.items()))


# ---- keeping -----------------------------------------------------------------------------------------------------


def folder_name(gpu):
    """Returns a folder name: 'NVIDIA H200, 132 SMs' -> nvidia-h200"""
    return re.sub(r"[^a-z0-9]+", "-", gpu.partition(",")[0].lower()).strip("-")


RUN_FILES = ("report.json", "requests.csv", "lanes.csv", "experiment.resolved.toml")


def keep_runs(folder, target):
    """Copies the runs that cost models are fitted to, or tested with, to target/runs/. Returns {name: use}."""
    kept = {}
    for report in sorted(Path(folder, "calibrate").glob("*/report.json")):
        name = report.parent.name
        (target / "runs" / name).mkdir(parents=True, exist_ok=True)
        for file in RUN_FILES:
            if (report.parent / file).exists():
                (target / "runs" / name / file).write_bytes((report.parent / file).read_bytes())
        kept[name] = "held out" if name.startswith("held-out") else "fitted to"
    return kept


def keep(folder, to):
    """Copies the tables and the calibration runs. Returns the new folder."""
    tables = read_tables(folder)
    if not tables:
        raise TableError(f"{folder}: no tables")
    gpus = {table.about.get("gpu", "") for table in tables.values()}
    if len(gpus) != 1 or not all(gpus):
        raise TableError(f"{folder}: tables of {len(gpus)} GPUs ({'; '.join(sorted(gpus))}); keep one machine's at a time")
    gpu = gpus.pop()
    if "twin" in gpu:
        raise TableError(f"{folder}: these were taken without a GPU, on {gpu.partition(',')[0]}; they mean nothing")
    target = Path(to, folder_name(gpu))
    target.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        (target / f"{name}.csv").write_bytes(table.path.read_bytes())
    machine = Path(folder, "machine.json")
    provenance = {
        "machine": json.loads(machine.read_text()) if machine.exists() else {},
        "tables": {name: {"rows": len(table.rows), **table.about} for name, table in tables.items()},
        "runs": keep_runs(folder, target),
    }
    (target / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")
    return target


def main(arguments):
    try:
        with tempfile.TemporaryDirectory() as scratch:
            if len(arguments) in (2, 4) and arguments[0] == "verdict":
                steps = Path(arguments[3]).read_text().splitlines() if arguments[2:3] == ["--steps"] else []
                verdict(unpacked(arguments[1], scratch), steps)
                return 0
            if len(arguments) == 3 and arguments[0] == "keep":
                print(keep(unpacked(arguments[1], scratch), arguments[2]))
                return 0
    except (TableError, OSError, ValueError) as error:
        print(f"measured.py: {error}", file=sys.stderr)
        return 2
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
