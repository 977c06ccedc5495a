"""Microseconds per request of SGLang's tree cores and of kvtwin, for the same requests, in turn."""

import statistics
import time

import sequences
from cases import NO_CHUNKS

ROUNDS = 3
CAPACITIES = (10_000, 100_000)  # pages
SEQUENCES = ("real", "chat")    # the first one that is there


def sglang_us(tree, requests, tokens):
    """The loop only: matches, allocations, evictions and inserts."""
    from sequential_server import Server

    if tree == "kvtwin":
        from shadow_server import ShadowServer

        server = ShadowServer("lru", sequences.PAGE_TOKENS, tokens, chunk_tokens=NO_CHUNKS)
    else:
        server = Server(tree, "lru", sequences.PAGE_TOKENS, tokens, chunk_tokens=NO_CHUNKS)
    prompts = [(r.prompt(), r.answer_tokens, sequences.answer(number, r.answer_tokens))
               for number, r in enumerate(requests)]
    begin = time.perf_counter()
    for number, (prompt, answer_tokens, answer) in enumerate(prompts):
        server.serve(number, prompt, answer_tokens, answer)
    return (time.perf_counter() - begin) / len(requests) * 1e6


def kvtwin_us(kvtwin, path, requests, pages):
    """The whole command: the start of the program, the parse of the file, and the replay."""
    begin = time.perf_counter()
    kvtwin.run("hitrate", "--trace", path, "--trace-block-tokens", sequences.PAGE_TOKENS,
               "--block-tokens", sequences.PAGE_TOKENS, "--capacity", pages, "--eviction",
               "lru", "--evict-unit", "node", "--split-refreshes")
    return (time.perf_counter() - begin) / len(requests) * 1e6


def measure(kvtwin, made, with_kvtwins_core=False):
    """Prints a table in Markdown: medians, and the smallest and the largest value."""
    import sglang_imports

    version = sglang_imports.prepare()
    name = next(name for name in SEQUENCES if made.get(name))
    requests, path, _ = made.get(name)
    print(f"SGLang {version}, sequence {name}, {len(requests):,} requests, {ROUNDS} rounds in turn\n")
    print("| us a request, lru | " + " | ".join(f"{pages:,} pages" for pages in CAPACITIES) + " |")
    print("|---|" + "---|" * len(CAPACITIES))
    columns = {}
    for pages in CAPACITIES:
        ways = {
            "`UnifiedRadixCache`, Python core": lambda pages=pages: sglang_us("python", requests, pages * sequences.PAGE_TOKENS),
            "`UnifiedRadixCache`, Rust core": lambda pages=pages: sglang_us("rust", requests, pages * sequences.PAGE_TOKENS),
            **({"`UnifiedRadixCache`, kvtwin's core":
                lambda pages=pages: sglang_us("kvtwin", requests, pages * sequences.PAGE_TOKENS)} if with_kvtwins_core else {}),
            "`kvtwin hitrate`": lambda pages=pages: kvtwin_us(kvtwin, path, requests, pages),
        }
        times = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, run in ways.items():
                times[way].append(run())
        for way, values in times.items():
            columns.setdefault(way, []).append(
                f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})")
    for way, cells in columns.items():
        print(f"| {way} | " + " | ".join(cells) + " |")
    return 0
