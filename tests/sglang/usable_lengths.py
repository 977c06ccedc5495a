#!/usr/bin/env python3
"""Which lengths of a prefix SGLang's file storage calls usable, when pages, windows or states are missing.

As a program, this module prints the table of the SGLang that is on Python's path; tools/engine-parity sglang --storage
compares it with tests/fixtures/sglang/usable_lengths.tsv, or writes that file. The unit tests of the policy read the file.
Real: HiCacheFile with its files. Objects that are there: 1 in a text with one character for each page; -: no such kind.
"""

import inspect
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/fixtures/sglang/usable_lengths.tsv"
COLUMNS = ("pages", "windows", "window_pages", "states", "usable")


def cases():
    """Tuples of pages, windows, pages of a window (0: the model has none) and states (empty: it has none)."""
    yield "1" * 10, "0011100011", 2, ""
    yield "1" * 10, "", 0, "0001000100"
    yield "1" * 10, "0011100011", 2, "0001000100"
    drawn = random.Random(5)

    def text(length, share):
        return "".join("1" if drawn.random() < share else "0" for _ in range(length))

    for number in range(120):
        length = drawn.randint(1, 24)
        pages = "1" * length if number % 3 else text(length, 0.95)
        window = drawn.randint(1, 5) if number % 4 else 0
        yield pages, text(length, 0.8) if window else "", window, text(length, 0.4) if number % 5 or not window else ""


def table():
    sys.path[:0] = [str(ROOT / "tests/sglang"), str(ROOT / "tests")]
    import sglang_imports

    sglang_imports.prepare()
    from sglang.srt.mem_cache.hicache_storage import (HiCacheFile, HiCacheStorageConfig, PoolHitPolicy, PoolName,
                                                      PoolTransfer)

    fields = {}
    for name, parameter in inspect.signature(HiCacheStorageConfig).parameters.items():
        if parameter.default is inspect.Parameter.empty:
            fields[name] = 0 if "rank" in name else 1 if "size" in name else "m" if name == "model_name" else False
    rows = ["\t".join(COLUMNS)]
    for pages, windows, window_pages, states in cases():
        with tempfile.TemporaryDirectory() as folder:
            store = HiCacheFile(HiCacheStorageConfig(**fields), file_path=folder)
            keys = [f"{page:064x}" for page in range(len(pages))]
            for objects, component in ((pages, ()), (windows, (PoolName.SWA,)), (states, (PoolName.MAMBA,))):
                for page, there in enumerate(objects):
                    if there == "1":
                        (Path(folder) / f"{store._get_component_key(keys[page], *component)}.bin").write_bytes(b"x")
            transfers = []
            for name, trailing in ((PoolName.SWA, window_pages), (PoolName.MAMBA, 1 if states else 0)):
                if trailing:
                    transfers.append(PoolTransfer(name=name, keys=["-"] * trailing,
                                                  hit_policy=PoolHitPolicy.TRAILING_PAGES))
            usable = store.batch_exists_v2(keys, transfers).restorable_prefix_pages or []
            lengths = ",".join(map(str, usable))
            rows.append("\t".join((pages, windows or "-", str(window_pages), states or "-", lengths or "-")))
    return "\n".join(rows)


def compare(renew):
    import stored_table

    return stored_table.compare(__file__, FILE, "usable lengths", renew)


if __name__ == "__main__":
    print(table())
