"""Hit ratios of eviction policies on a trace, without timing."""

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvtwin import program

if TYPE_CHECKING:
    import pandas as pd


def hitrate(
    trace: str | os.PathLike[str],
    capacities: int | Iterable[int],
    policies: str | Iterable[str] = "lru",
    *,
    limit: int = 0,
    warm_up: int = 0,
    host_capacity: int = 0,
    **options: Any,
) -> "pd.DataFrame":
    """Replays a trace with each policy and capacity, as `kvtwin hitrate` does. Returns one row for each.

    trace: a trace file, or one that comes with kvtwin ("traces/chat_small.jsonl.zst"). capacities: of the device tier,
    in blocks of the trace. policies: eviction policies ("lru", "slru(protected=3)", ...) and bounds ("opt").
    limit: requests to replay (0 = all). warm_up: requests at the start that are not counted. host_capacity: of the host tier, in blocks.
    options: further options of `kvtwin hitrate`, for example write_policy="write_back", exclusive=True.

    Columns: eviction, capacity_blocks, requests; lookup_blocks, hit_blocks, block_hit_ratio (0 to 1), the same in tokens;
    gap_closed, the share of the gap between "lru" and "opt" that the policy closes in hit blocks (NaN without rows of both
    at this capacity, or without a gap; below 0: fewer hits than "lru"); saved_cost and total_cost (prefill cost: seconds
    with model=..., else in units of the first token's cost).

    Raises InputError for bad input, with the program's sentence.
    """
    import pandas as pd

    sizes = [capacities] if not isinstance(capacities, Iterable) else list(capacities)
    names = [policies] if isinstance(policies, str) else list(policies)
    arguments = ["hitrate", "--json", "--trace", str(program.data(os.fspath(trace)))]
    arguments += ["--capacity", ",".join(map(str, sizes)), "--eviction", ",".join(names)]
    arguments += program.option_arguments({"limit": limit, "warm_up": warm_up, "host_capacity": host_capacity, **options})
    rows = pd.DataFrame([json.loads(line) for line in program.run(arguments).splitlines()])
    rows.insert(list(rows.columns).index("block_hit_ratio") + 1, "gap_closed", gap_closed(rows))
    return rows


def gap_closed(rows: "pd.DataFrame") -> "pd.Series[float]":
    """Returns, for each row, (hits - hits of "lru") / (hits of "opt" - hits of "lru") in blocks, at the same capacity."""
    hits = {name: rows[rows["eviction"] == name].set_index("capacity_blocks")["hit_blocks"] for name in ("lru", "opt")}
    lru, opt = (rows["capacity_blocks"].map(hits[name].groupby(level=0).first()) for name in ("lru", "opt"))
    gap = (opt - lru).astype(float)
    return (rows["hit_blocks"] - lru) / gap.where(gap != 0)
