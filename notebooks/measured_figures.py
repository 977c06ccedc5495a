"""Draws figures of the tables that measured.py stores. Needs matplotlib (requirements.txt).

    python notebooks/measured_figures.py FOLDER    writes FOLDER/figures/*.png. Equal tables give equal bytes.
                                                   FOLDER has the tables, or a subfolder tables/ with them

In a notebook: draw_rates(Table("models/measured/GPU/matrix.csv"))
"""

import sys
from pathlib import Path

import matplotlib
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from kvtwin import figures
from measured import Table, TableError

# The palette of Okabe and Ito, as in kvtwin.figures.
PATHS = {
    "copy_loop": ("loop of copies", "#999999"),
    "batch": ("batch of pieces", "#56B4E9"),
    "boxes": ("3-D copies", "#0072B2"),
    "kernel": ("register kernel", "#E69F00"),
    "ring": ("ring kernel", "#D55E00"),
    "staged": ("staged", "#009E73"),
    "warp_per_row": ("one warp per row", "#F0E442"),
}
DIRECTIONS = [("h2d", "host to device"), ("d2h", "device to host")]
OTHERS = ["#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#999999", "#333333"]


def figure_of(table, title, panels, height=3.6):
    figure = Figure(figsize=(8.5, height), layout="constrained")
    figure.suptitle(f"{title} · {table.about.get('gpu', 'unknown GPU').partition(',')[0]}", x=0.01, ha="left")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def size_text(value, _=None):
    return f"{value / 1024:g} KiB" if value < 1 << 20 else f"{value / (1 << 20):g} MiB"


def draw_rates(matrix):
    """Draws the rate of each path, relative to one large copy, over the piece size. Uses the largest transfer of each
    piece size. The band is p10 to p90."""
    figure, panels = figure_of(matrix, "Transfer rate relative to one large copy", 2)
    for axes, (direction, label) in zip(panels, DIRECTIONS):
        for path, (name, colour) in PATHS.items():
            largest = {}
            for row in matrix.where(direction=direction, path=path):
                if row["bytes"] >= largest.get(row["chunk_bytes"], row)["bytes"]:
                    largest[row["chunk_bytes"]] = row
            rows = [largest[chunk] for chunk in sorted(largest)]
            chunks = [row["chunk_bytes"] for row in rows]
            axes.plot(chunks, [row["r_median"] for row in rows], color=colour, marker="o", markersize=3, label=name)
            axes.fill_between(chunks, [row["r_p10"] for row in rows], [row["r_p90"] for row in rows], color=colour, alpha=0.2, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(size_text))
        axes.set(title=label, xlabel="piece size", ylim=(0, 1.05))
    panels[0].set_ylabel("rate / rate of one large copy")
    panels[1].legend(fontsize=7, loc="lower right")
    return figure


def draw_best(matrix):
    """Draws the fastest path, and its relative rate, by piece size and number of pieces."""
    figure, panels = figure_of(matrix, "Fastest path, and its rate relative to one large copy", 2, 4.2)
    chunks = sorted({row["chunk_bytes"] for row in matrix.rows})
    counts = sorted({row["chunks"] for row in matrix.rows})
    names = list(PATHS)
    for axes, (direction, label) in zip(panels, DIRECTIONS):
        best = [[float("nan")] * len(counts) for _ in chunks]
        for y, chunk in enumerate(chunks):
            for x, count in enumerate(counts):
                rows = matrix.where(direction=direction, chunk_bytes=chunk, chunks=count)
                if rows:
                    row = max(rows, key=lambda r: r["r_median"])
                    best[y][x] = names.index(row["path"])
                    axes.text(x, y, f"{row['r_median']:.2f}", ha="center", va="center", fontsize=6, color=figures.INK)
        axes.imshow(best, cmap=ListedColormap([colour for _, colour in PATHS.values()]), vmin=-0.5, vmax=len(names) - 0.5, aspect="auto", alpha=0.75)
        axes.set_xticks(range(len(counts)), [f"{count:.0f}" for count in counts])
        axes.set_yticks(range(len(chunks)), [size_text(chunk) for chunk in chunks])
        axes.grid(False)
        axes.set(title=label, xlabel="number of pieces", ylabel="piece size")
    handles = [Patch(color=colour, label=name) for name, colour in PATHS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)
    return figure


def draw_interference(table):
    """Draws the slowdown of matrix products during a transfer, by path and outstanding bytes, for the largest pieces."""
    loads = [load for load in ("prefill", "decode") if table.where(load=load)] or ["none"]
    figure, panels = figure_of(table, "Slowdown of matrix products during a transfer to the device", len(loads))
    for axes, load in zip(panels, loads):
        rows = [row for row in table.where(load=load, direction="h2d")]
        chunk = max((row["chunk_bytes"] for row in rows), default=0)
        rows = [row for row in rows if row["chunk_bytes"] == chunk]
        windows = sorted({row["window_bytes"] for row in rows})
        paths = [path for path in PATHS if any(row["path"] == path for row in rows)]
        for index, window in enumerate(windows):
            heights = [next((100 * (row["slowdown"] - 1) for row in rows if row["path"] == path and row["window_bytes"] == window), float("nan")) for path in paths]
            places = [place + (index - (len(windows) - 1) / 2) * 0.8 / len(windows) for place in range(len(paths))]
            axes.bar(places, heights, 0.8 / len(windows), color=OTHERS[index], label=f"{window / 2**20:g} MiB outstanding")
        axes.set_xticks(range(len(paths)), [PATHS[path][0] for path in paths], rotation=30, ha="right", fontsize=7)
        axes.axhline(2, color=figures.INK, linewidth=0.6, linestyle="--")
        axes.set(title=f"{load}, pieces of {size_text(chunk)}")
    panels[0].set_ylabel("slowdown (%)")
    panels[-1].legend(fontsize=7)
    return figure


def draw_ttft(table):
    """Draws the TTFT over the prompt length, one line per source of the KV."""
    models = sorted({row["model"] for row in table.rows})
    figure, panels = figure_of(table, "Time to first token", len(models))
    for axes, model in zip(panels, models):
        kinds = sorted({(row["source"], row["path"], row["mode"]) for row in table.where(model=model, overlap="on")})
        for index, (source, path, mode) in enumerate(kinds):
            rows = sorted(table.where(model=model, source=source, path=path, mode=mode, overlap="on"), key=lambda row: row["tokens"])
            label = " ".join(part for part in (source, path, mode) if part != "-")
            axes.plot([row["tokens"] for row in rows], [row["ttft_ms"] for row in rows], marker="o", markersize=3, color=OTHERS[index % len(OTHERS)],
                      linestyle=["-", "--", ":"][index // len(OTHERS) % 3], label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:g} k"))
        axes.set(title=model, xlabel="prompt tokens")
        axes.legend(fontsize=6)
    panels[0].set_ylabel("TTFT (ms)")
    return figure


DRAWN = {
    "rates": ("matrix", draw_rates),
    "best_path": ("matrix", draw_best),
    "interference": ("interference", draw_interference),
    "ttft": ("ttft", draw_ttft),
}


def write_figures(folder):
    """Draws a figure for each table that exists. Returns the paths."""
    folder = Path(folder)
    tables = folder / "tables" if (folder / "tables").is_dir() else folder
    written = []
    with matplotlib.rc_context(figures.STYLE):
        for name, (table, draw) in DRAWN.items():
            if not (tables / f"{table}.csv").exists():
                continue
            path = folder / "figures" / f"{name}.png"
            path.parent.mkdir(exist_ok=True)
            figures.save(draw(Table(tables / f"{table}.csv")), path)
            written.append(path)
    if not written:
        raise TableError(f"{folder}: no tables to draw")
    return written


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        for path in write_figures(arguments[0]):
            print(path)
    except TableError as error:
        print(f"measured_figures.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
