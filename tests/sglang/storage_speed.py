"""Reads and writes of SGLang's storage threads: its file back end, NIXL's POSIX plug-in, and kvtwin, in turn in one run.

    storage_speed.py FOLDER [--rounds N] [--megabytes N] [--layout NAME]

Prints a Markdown table: GB/s as SGLang's backup and prefetch see them; `write + sync` includes the time until the disk has
the pages (a back end that uses the page cache returns before); CPU microseconds per page of the whole process; the
longest batch of 128 pages. Reads come after the page cache was dropped, where the process may do that (root).
"""

import argparse
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

import sglang_imports

sglang_imports.prepare()

import storage_controller as sglang
import torch

BATCH = 128
PAGES = {"64 KB": {"layers": 4, "heads": 4, "head_dim": 64, "page_tokens": 16},
         "2 MB": {"layers": 16, "heads": 4, "head_dim": 128, "page_tokens": 64}}


def drop_page_cache():
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return True
    except OSError:
        return False


def kvtwin(folder):
    return "dynamic", {"backend_name": "kvtwin", "module_path": "kvtwin_sglang.storage", "class_name": "KvtwinStorage",
                       "interface_v1": 1, "path": str(folder), "capacity_gib": 8, "revision": "1"}


def file(folder):
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
    return "file", {}


def nixl(folder):
    import nixl._api  # noqa: F401  if absent, NIXL is not run

    os.environ["SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"] = str(folder)
    return "nixl", {"plugin": {"posix": {"active": True}}, "use_direct_io": True}


def measure(backend, extra, shape, layout, megabytes):
    """One round: batches written, then read. Returns figures by name."""
    batches = max(1, megabytes * 1_000_000 // (BATCH * page_bytes(shape)))
    pool = sglang.mha_pool(layout, BATCH * batches + 1, **shape)
    engine = sglang.Engine(pool, backend, extra)
    indices = pool.alloc(BATCH * batches * pool.page_size)
    pool.kv_buffer.view(torch.int16).random_(0, 30_000)
    expected = pool.kv_buffer.clone()
    step = BATCH * pool.page_size
    parts = [(engine.tokens(BATCH, n), indices[n * step : (n + 1) * step]) for n in range(batches)]
    begin = time.perf_counter()
    written, write_cpu = timed(engine.back_up, parts)
    os.sync()
    synced = time.perf_counter() - begin
    pool.kv_buffer.zero_()
    dropped = drop_page_cache()
    read, read_cpu = timed(engine.prefetch, parts)
    assert torch.equal(expected.view(torch.int16)[:, : pool.size], pool.kv_buffer.view(torch.int16)) or same_pages(
        pool, expected, indices), "wrong bytes"
    engine.close()
    total, pages = batches * BATCH * page_bytes(shape) / 1e9, batches * BATCH
    return {"write": total / sum(written), "write + sync": total / synced, "read": total / sum(read),
            "write cpu": write_cpu / pages * 1e6, "read cpu": read_cpu / pages * 1e6,
            "write longest": max(written) * 1e3, "read longest": max(read) * 1e3}, dropped


def timed(move, parts):
    """Moves each batch. Returns the seconds of each, and the CPU seconds of all."""
    seconds, used = [], time.process_time()
    for tokens, slots in parts:
        start = time.perf_counter()
        moved = move(tokens, slots)
        assert moved == BATCH, f"{moved} of {BATCH} pages moved"
        seconds.append(time.perf_counter() - start)
    return seconds, time.process_time() - used


def same_pages(pool, expected, indices):
    """Slots that no page of the test uses may differ."""
    current = pool.kv_buffer
    right = sglang.content(pool, indices)
    pool.kv_buffer = expected
    same = torch.equal(right, sglang.content(pool, indices))
    pool.kv_buffer = current
    return same


def page_bytes(shape):
    return 2 * 2 * shape["layers"] * shape["heads"] * shape["head_dim"] * shape["page_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256, help="of each round; at least one batch")
    parser.add_argument("--layout", default="page_first_direct")
    options = parser.parse_args()
    sglang.of_one_rank()
    backends = [file, nixl, kvtwin]
    print(f"| page | back end | write GB/s | write + sync | read GB/s | CPU us a page, write | read | longest batch ms, write | read |\n"
          f"|{'---|' * 9}")
    for name, shape in PAGES.items():
        in_turn(name, backends, options, measure, (shape, options.layout, options.megabytes), cpu_digits=0)


def in_turn(name, backends, options, measure_one, settings, cpu_digits):
    """Runs the back ends in turn, options.rounds times, each in a new folder, and prints a row for each: medians, and the longest batch.

    measure_one(what a back end returns for the folder, settings) returns figures by name, and whether the page cache was dropped. A
    back end whose package is not there is named, and has no row.
    """
    rounds = {backend.__name__: [] for backend in backends}
    for number in range(options.rounds):
        for backend in backends:
            folder = options.folder / f"{backend.__name__}-{number}"
            folder.mkdir(parents=True)
            try:
                figures, dropped = measure_one(*backend(folder), *settings)
            except ImportError as error:
                print(f"{Path(sys.argv[0]).name}: {backend.__name__} is not run: {error}", file=sys.stderr)
                continue
            finally:
                shutil.rmtree(folder)
            rounds[backend.__name__].append(figures)
            if not dropped:
                print(f"{Path(sys.argv[0]).name}: the page cache could not be dropped; reads may come from memory", file=sys.stderr)
    for backend, results in rounds.items():
        if results:
            cells = [statistics.median(result[key] for result in results) for key in ("write", "write + sync", "read")]
            cpu = [statistics.median(result[key] for result in results) for key in ("write cpu", "read cpu")]
            longest = [max(result[key] for result in results) for key in ("write longest", "read longest")]
            print(f"| {name} | {backend} | " + " | ".join([*(f"{c:.2f}" for c in cells), *(f"{c:.{cpu_digits}f}" for c in cpu),
                                                            *(f"{c:.0f}" for c in longest)]) + " |", flush=True)


if __name__ == "__main__":
    main()
