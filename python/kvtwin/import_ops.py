"""Makes tables of measured operator times of the Python package aiconfigurator-core (Apache-2.0), for hardware.operators_file.

    python -m kvtwin.import_ops WHEEL_OR_FOLDER --out DIR [--gpu NAME,...] [--engine NAME,...] [--date YYYY-MM-DD]
                                [--leave-out N] [--force]

WHEEL_OR_FOLDER is the wheel of the package, or a folder with its content. DIR/GPU.ENGINE.zst has the measured times of one
GPU and one engine: facts, no code. Without --gpu and --engine: of all that the package has. Exit codes: 0 done; 1 a table
cannot be written; 2 bad input, or a package is absent.

Each family of operators becomes lattices: the product of one to three axes, with a time at each point.
    gemm          type                             m, n, k
    context       kv type, head size, window, heads, kv heads   batch, pairs = isl * (isl + 1) / 2
    generation    kv type, head size, window, heads, kv heads   batch, KV tokens of each sequence
    mla_context, mla_generation   kv type, heads   the same
    moe           type, hidden, inter, top k, experts, tp, ep   tokens
    moe_normal, moe_low_latency   the same: kernels of DeepEP's modes for prefills and for decodes. Of nvfp4, the kernels of
                  TensorRT-LLM's wide expert parallelism. At 8, 24 and 48 ranks, if not measured, by interpolation
    moe_balanced  the same: TensorRT-LLM's wide expert parallelism with balanced experts (EPLB), as many slots as experts
    exchange      type, hidden, top k, experts, ranks   tokens of a rank. TensorRT-LLM's all-to-all over NVLink to the
                  experts and back. Measured on GB200; GB300 has the same NVLink domain
    exchange_normal, exchange_low_latency   hidden, top k, experts, ranks   tokens of a rank. DeepEP's kernels to the experts
                  and back; H100 and H200: up to 8 nodes. The normal kernels with 20 SMs, DeepEP's default
    dsa_context, dsa_generation   type, kv type, hidden, heads   batch, tokens; or batch, KV tokens of each sequence.
                  Sparse attention with its projections, and with the host's launches in a prefill
    gdn_context, gdn_generation   hidden, key heads, value heads   batch, tokens; or batch
    all_reduce    ranks                            bytes
    launch                                         kernels. Time of the host for a kernel without a CUDA graph: SGLang's
                  eager attention layer by its 15 kernels; without such rows an eager all-reduce (operator_rows.py)
The engine's newest version counts; older versions, and then the other engines on this GPU, fill the lattices that it
lacks. Matrix products have the fastest engine's time at each point: some were measured outside of a CUDA graph, so that
the launch limits small ones (blocks of fp8 by vLLM on a B200: 226 us, where SGLang takes 10 us). So have TensorRT-LLM's
experts, which were measured with one of its back ends, and not with the fastest.
Missing points are interpolated from their neighbours in the lattice; beyond the measured range, time grows in
proportion. Times never fall with more tokens, sequences or bytes: on one axis by isotonic regression (median), on two
axes by the mean of the monotone bounds above and below. An axis value is dropped if its neighbours reproduce 95 % of its
times within 1 %. Times have three significant digits, in nanoseconds. The same source gives the same bytes.

--leave-out N leaves one row in N out of the tables, and writes these rows to DIR/GPU.ENGINE.csv (for
docs/results/tools/operator-errors).
"""

import argparse
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvtwin.operator_rows import ENGINES, FAMILIES, PointOfOperator, Refused, Source, launch_of, sources_of

LeftOut = tuple[str, tuple[int, ...], float]  # label, point, ns

WITHIN = 0.01  # a dropped axis value is reproduced within this share


def lines_of(
    array: npt.NDArray[Any], axis: int
) -> tuple[npt.NDArray[Any], Callable[[npt.NDArray[Any]], npt.NDArray[Any]]]:
    """Returns the lines along an axis as rows, and a function that turns such rows back."""
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape(-1, moved.shape[-1]).copy(), lambda rows: np.moveaxis(rows.reshape(moved.shape), -1, axis)


def between(times: npt.NDArray[Any], at: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Returns the lines through the measured neighbours along an axis; NaN outside of them."""
    rows, back = lines_of(times, axis)
    guess = np.full(rows.shape, np.nan)
    for row, to in zip(rows, guess):
        known = np.flatnonzero(~np.isnan(row))
        if len(known) < 2 or len(known) == len(row):
            continue
        holes = np.flatnonzero(np.isnan(row))
        holes = holes[(holes > known[0]) & (holes < known[-1])]
        to[holes] = np.interp(at[holes], at[known], row[known])
    return back(guess)


def filled(times: npt.NDArray[Any], axes: Sequence[Any]) -> npt.NDArray[Any]:
    """Fills missing points. Between measured points: on three axes by the median of the interpolations along each axis,
    in logarithms; on two axes along the first, or else the second. Then, from the last axis to the first, beyond the
    last point in proportion, before the first point with its time."""
    if not np.isnan(times).any():
        return times
    scales = [np.array(values, float) for values in axes]
    if len(axes) == 2:
        for axis in range(2):
            times = np.where(np.isnan(times), between(times, scales[axis], axis), times)
    else:
        guesses = [between(np.log(times), np.log(scale), axis) for axis, scale in enumerate(scales)]
        stack = np.sort(np.stack(guesses), 0)  # NaN sorts to the end
        count = (~np.isnan(stack)).sum(0)
        low = np.take_along_axis(stack, np.maximum(0, (count - 1) // 2)[None], 0)[0]
        high = np.take_along_axis(stack, (count // 2).clip(0, len(axes) - 1)[None], 0)[0]
        times = np.where(np.isnan(times) & (count > 0), np.exp((low + high) / 2), times)
    for axis in reversed(range(len(axes))):
        values = np.array(axes[axis], float)
        rows, back = lines_of(times, axis)
        for row in rows:
            known = np.flatnonzero(~np.isnan(row))
            if len(known) == 0:
                continue
            first, last = known[0], known[-1]
            row[:first] = row[first]
            inner = np.isnan(row[first:last])
            row[first:last][inner] = np.interp(values[first:last][inner], values[known], row[known])
            row[last + 1:] = row[last] * values[last + 1:] / values[last]
        times = back(rows)
    return times


def isotonic(row: npt.NDArray[Any]) -> list[float]:
    """Isotonic regression for the sum of absolute errors: blocks that would fall are pooled to their median."""
    blocks = []
    for value in row:
        blocks.append((value, [value]))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            pooled = blocks[-2][1] + blocks[-1][1]
            blocks[-2:] = [(float(np.median(pooled)), pooled)]
    return [value for value, pooled in blocks for _ in pooled]


def monotone(times: npt.NDArray[Any], axes: Sequence[int]) -> npt.NDArray[Any]:
    if len(axes) == 1:
        rows, back = lines_of(np.log(times), axes[0])
        return np.exp(back(np.array([isotonic(row) for row in rows])))
    above, below = times, times
    for axis in axes:
        above = np.maximum.accumulate(above, axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
    return np.sqrt(above * below)


def thinned(times: npt.NDArray[Any], axes: Sequence[Any]) -> tuple[npt.NDArray[Any], list[list[int]]]:
    """Drops the axis values that their neighbours reproduce."""
    axes = [list(values) for values in axes]
    for axis in range(len(axes)):
        rows, _ = lines_of(times, axis)
        values = np.array(axes[axis], float)
        kept = list(range(len(values)))
        for candidate in range(1, len(values) - 1):
            low = max(i for i in kept if i < candidate)
            high = min(i for i in kept if i > candidate)
            dropped = np.arange(low + 1, high)
            share = (values[dropped] - values[low]) / (values[high] - values[low])
            guess = rows[:, [low]] + (rows[:, [high]] - rows[:, [low]]) * share
            if np.percentile(np.abs(guess / rows[:, dropped] - 1), 95) <= WITHIN:
                kept.remove(candidate)
        axes[axis] = [axes[axis][i] for i in kept]
        times = np.take(times, kept, axis)
    return times, axes


def three_digits(ns: float) -> int:
    """Rounds to three significant digits. Monotone, so times stay monotone."""
    whole = max(1, round(float(ns)))
    unit: int = 10 ** max(0, len(str(whole)) - 3)
    return (whole + unit // 2) // unit * unit


def is_left_out(name: str, at: tuple[int, ...], every: int) -> bool:
    return every > 0 and zlib.crc32(f"{name} {at}".encode()) % every == 0


def label_of(name: str, key: tuple[Any, ...]) -> str:
    return " ".join([name, *map(str, key)])


def lattices(
    name: str, points: Iterable[PointOfOperator], monotone_axes: Sequence[int], every: int, left_out: list[LeftOut]
) -> Iterator[tuple[str, list[list[int]], npt.NDArray[Any]]]:
    """Yields (label, axes, times) for each key."""
    by_key: dict[tuple[Any, ...], dict[tuple[int, ...], float]] = {}
    for key, at, milliseconds in points:
        if not milliseconds or milliseconds <= 0:
            continue
        ns = milliseconds * 1e6
        found = by_key.setdefault(key, {})
        found[at] = min(ns, found.get(at, ns))  # the same operator twice, for example by two libraries: the faster one
    for key in sorted(by_key, key=lambda k: tuple(str(part).zfill(9) for part in k)):
        label = label_of(name, key)
        measured = {}
        for at, ns in sorted(by_key[key].items()):
            if is_left_out(label, at, every):
                left_out.append((label, at, ns))
            else:
                measured[at] = ns
        if len(measured) < 4:
            continue
        axes = [sorted({at[d] for at in measured}) for d in range(len(next(iter(measured))))]
        times = np.full([len(values) for values in axes], np.nan)
        index = [{v: i for i, v in enumerate(values)} for values in axes]
        for at, ns in measured.items():
            times[tuple(index[d][v] for d, v in enumerate(at))] = ns
        times = monotone(filled(times, axes), monotone_axes)
        times, axes = thinned(times, axes)
        yield label, axes, times


def table_of(source: Source, gpu: str, engine: str, date: str, every: int, left_out: list[LeftOut]) -> str:
    """Returns the text of a table; "" if the source has no rows of the GPU with the engine."""
    versions, body, have = [], [], set()
    for name, folder, file, points, axis_names, monotone_axes in FAMILIES:
        for used, rows in sources_of(source, name, gpu, folder, engine, file):
            mine = [point for point in points(rows) if label_of(name, point[0]) not in have]
            added = 0
            for label, axes, times in lattices(name, mine, monotone_axes, every, left_out):
                added += 1
                have.add(label)
                body.append(f"table {label}")
                body += [f"axis {axis} {' '.join(map(str, values))}" for axis, values in zip(axis_names, axes)]
                flat = [str(three_digits(ns)) for ns in times.reshape(-1, times.shape[-1]).reshape(-1)]
                width = times.shape[-1]
                body += [f"ns {' '.join(flat[i:i + width])}" for i in range(0, len(flat), width)]
            if added:
                versions.append(f"# {name}: {used}: {added} tables")
    if not body:
        return ""
    launch = launch_of(source, gpu, engine)
    if launch:
        body += ["table launch", "axis kernels 1", f"ns {three_digits(launch[0] * 1e6)}"]
        versions.append(f"# launch: {launch[1]}: 1 table")
    head = [
        "kvtwin-operators 1",
        f"gpu {gpu}",
        f"engine {engine}",
        f"source {source.package()}",
        f"date {date}",
        "# Times measured by NVIDIA CORPORATION & AFFILIATES, in the Python package aiconfigurator-core,",
        "# licence Apache-2.0 (Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES). Changed: selected, interpolated,",
        "# made monotone, rounded to three digits. Made by kvtwin import-ops.",
        *versions,
    ]
    return "\n".join(head + body) + "\n"


def names_of(text: str, known: Sequence[str], option: str) -> list[str]:
    """Returns the names of a list with commas; all that are known for an empty one."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise Refused(f"{option}: there is no '{name}'; the source has {', '.join(known)}")
    return names or list(known)


def write_table(path: str, text: str) -> None:
    data = pa.Codec("zstd", compression_level=19).compress(text.encode(), asbytes=True)
    with open(path, "wb") as file:
        file.write(data)
    tables = text.count("\ntable ")
    print(f"{path}: {tables} tables, {len(text)} bytes of text, {len(data)} bytes", flush=True)


def import_tables(arguments: argparse.Namespace) -> None:
    source = Source(arguments.source)
    gpus = source.gpus()
    if not gpus:
        raise Refused(f"{arguments.source}: has no measured operators (systems/data/GPU/...); give the wheel of "
                      "aiconfigurator-core, or a folder with its content")
    if arguments.date and not re.fullmatch(r"\d{4}-\d\d-\d\d", arguments.date):
        raise Refused(f"--date: '{arguments.date}' is no date; for example 2026-11-24")
    gpus = names_of(arguments.gpu.replace("-", "_"), gpus, "--gpu")
    engines = names_of(arguments.engine, ENGINES, "--engine")
    if os.path.isdir(arguments.out) and os.listdir(arguments.out) and not arguments.force:
        raise Refused(f"{arguments.out}: is not empty; give another folder, or --force to replace its tables")
    os.makedirs(arguments.out, exist_ok=True)
    written = 0
    for gpu in gpus:
        for engine in engines:
            left_out: list[LeftOut] = []
            text = table_of(source, gpu, engine, arguments.date or source.date(), arguments.leave_out, left_out)
            if not text or not source.has_engine(gpu, engine):
                continue
            name = os.path.join(arguments.out, f"{gpu.replace('_', '-')}.{engine}")
            write_table(name + ".zst", text)
            written += 1
            if arguments.leave_out:
                with open(name + ".csv", "w", encoding="utf-8") as file:
                    file.writelines(f"{label},{'/'.join(map(str, at))},{ns:.0f}\n" for label, at, ns in left_out)
    if not written:
        raise Refused(f"{arguments.source}: has no rows of {', '.join(gpus)} with {', '.join(engines)}")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="kvtwin import-ops", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="WHEEL_OR_FOLDER")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--gpu", default="", metavar="NAME,...")
    parser.add_argument("--engine", default="", metavar="NAME,...")
    parser.add_argument("--date", default="", metavar="YYYY-MM-DD")
    parser.add_argument("--leave-out", type=int, default=0, metavar="N")
    parser.add_argument("--force", action="store_true")
    try:
        import_tables(parser.parse_args(words))
    except Refused as error:
        print(f"kvtwin import-ops: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kvtwin import-ops: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
