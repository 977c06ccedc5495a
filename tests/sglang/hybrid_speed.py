"""Writes and reads of windows and states in SGLang's storage threads: its file back end and kvtwin, in turn in one run.

    hybrid_speed.py FOLDER [--rounds N] [--megabytes N]

Prints a Markdown table as storage_speed.py. An object is a state, or the windows of a page; a batch is what one node of SGLang's
tree backs up or reads: one state, or the windows of 8 pages. The time is that of the back end's batch_set_v2 and batch_get_v2,
called as SGLang's threads call them. `write + sync` includes the time until the disk has the objects.
"""

import argparse
import os
import resource
import time
from pathlib import Path

import sglang_imports

sglang_imports.prepare()

import hybrid_storage as hybrid
import storage_controller as sglang
import storage_speed
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

KV, SWA, MAMBA = PoolName.KV, PoolName.SWA, PoolName.MAMBA
STATES = {"state, 2 MB": (4, (8, 128, 128)), "state, 50 MB": (24, (32, 128, 128)), "state, 200 MB": (48, (64, 128, 128)),
          "state, 450 MB": (54, (128, 128, 128))}
WINDOWS = {"window, 64 KB": {"layers": 4, "heads": 4, "head_dim": 64, "page_tokens": 16},
           "window, 1 MB": {"layers": 16, "heads": 4, "head_dim": 64, "page_tokens": 64}}


def pools_of(name, objects):
    if name in STATES:
        layers, temporal = STATES[name]
        return {KV: sglang.mha_pool(hybrid.LAYOUT, 2), MAMBA: hybrid.mamba_pool(objects, layers=layers, temporal=temporal)}, MAMBA, 1
    shape = WINDOWS[name]
    return {KV: sglang.mha_pool(hybrid.LAYOUT, 2, page_tokens=shape["page_tokens"]),
            SWA: sglang.mha_pool(hybrid.LAYOUT, objects, **shape)}, SWA, 8


def object_bytes(pool):
    return sum(pool.get_page_buffer_meta(torch.arange(pool.page_size))[1])


def measure(backend, extra, name, megabytes):
    batch = pools_of(name, 1)[2]
    size = object_bytes(pools_of(name, batch)[0][pools_of(name, 1)[1]])
    count = max(2, megabytes * 1_000_000 // (size * batch)) * batch
    pools, pool_name, batch = pools_of(name, count)
    engine = hybrid.Engine("", backend, extra, pools=(pools, {pool_name: (batch, None)}))
    pool = pools[pool_name]
    slots = pool.alloc(count * pool.page_size)
    for number, piece in enumerate(sglang.pieces(pool, slots)):
        piece.random_(0, 256, generator=torch.Generator().manual_seed(number))
    expected = [int(piece.to(torch.int64).sum()) for piece in sglang.pieces(pool, slots)]
    keys = engine.keys(engine.tokens(count))
    step = batch * pool.page_size
    transfers = [[PoolTransfer(pool_name, host_indices=slots[i * step : (i + 1) * step], keys=keys[i * batch : (i + 1) * batch],
                               hit_policy=PoolHitPolicy.TRAILING_PAGES)] for i in range(count // batch)]
    begin = time.perf_counter()
    written, write_cpu = timed(engine.storage.batch_set_v2, transfers, pool_name)
    os.sync()
    synced = time.perf_counter() - begin
    sglang.erase(pool, slots)
    dropped = storage_speed.drop_page_cache()
    read, read_cpu = timed(engine.storage.batch_get_v2, transfers, pool_name)
    assert expected == [int(piece.to(torch.int64).sum()) for piece in sglang.pieces(pool, slots)], "wrong bytes"
    engine.close()
    total = count * size / 1e9
    return {"write": total / sum(written), "write + sync": total / synced, "read": total / sum(read),
            "write cpu": write_cpu / count * 1e3, "read cpu": read_cpu / count * 1e3,
            "write longest": max(written) * 1e3, "read longest": max(read) * 1e3}, dropped


def timed(move, batches, name):
    """Moves each batch. Returns the seconds of each, and the CPU seconds of all."""
    seconds, before = [], cpu()
    for transfers in batches:
        start = time.perf_counter()
        assert all(move(transfers)[name]), "an object was not moved"
        seconds.append(time.perf_counter() - start)
    return seconds, cpu() - before


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=512, help="of each round; at least two batches")
    options = parser.parse_args()
    sglang.of_one_rank()
    backends = [storage_speed.file, storage_speed.kvtwin]
    print(f"| object | back end | write GB/s | write + sync | read GB/s | CPU ms an object, write | read | longest batch ms, write | read |\n"
          f"|{'---|' * 9}")
    for name in [*WINDOWS, *STATES]:
        storage_speed.in_turn(name, backends, options, measure, (name, options.megabytes), cpu_digits=2)


if __name__ == "__main__":
    main()
