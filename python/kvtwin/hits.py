"""Hit ratios of eviction policies on a trace, without timing."""

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvtwin import program
from kvtwin.errors import InputError

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
    in blocks of the trace. policies: eviction policies ("lru", "slru(protected=3)", ...) and bounds ("opt"). limit: requests to replay
    (0 = all). warm_up: requests at the start that are not counted. host_capacity: of the host tier, in blocks.
    options: further options of `kvtwin hitrate`, for example write_policy="write_back", exclusive=True.

    Columns: eviction, capacity_blocks, requests; lookup_blocks, hit_blocks, block_hit_ratio (0 to 1), the same in tokens;
    saved_cost and total_cost (prefill cost: seconds with model=..., else in units of the first token's cost).

    Raises InputError for bad input, with the program's sentence.
    """
    import pandas as pd

    sizes = [capacities] if not isinstance(capacities, Iterable) else list(capacities)
    names = [policies] if isinstance(policies, str) else list(policies)
    arguments = ["hitrate", "--json", "--trace", str(program.data(os.fspath(trace)))]
    arguments += ["--capacity", ",".join(map(str, sizes)), "--eviction", ",".join(names)]
    arguments += option_arguments({"limit": limit, "warm_up": warm_up, "host_capacity": host_capacity, **options})
    return pd.DataFrame([json.loads(line) for line in program.run(arguments).splitlines()])


def option_arguments(options: dict[str, Any]) -> list[str]:
    """Returns --name value for name=value, --name for name=True, and nothing for False, None and 0."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif isinstance(value, str | int | float | os.PathLike) or hasattr(value, "item"):
            if isinstance(value, str) or value:
                arguments += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
        elif value is not None:
            raise InputError(f"{name} is {value!r}; give a text, a number, True or False")
    return arguments
