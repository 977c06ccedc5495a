"""Traces: statistics, requests as pandas frames, generated traces, conversion to Mooncake's format.

All formats of docs/traces.md, plain, gzip or zstd. A path such as "traces/chat_small.jsonl.zst", which does not exist in
the working folder, is the file that comes with kvtwin.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin import program
from kvtwin.errors import InputError
from kvtwin.program import option_arguments

if TYPE_CHECKING:
    import pandas as pd

Name = str | os.PathLike[str]


def info(trace: Name, *, limit: int = 0, format: str = "auto", block_tokens: int = 0) -> dict[str, Any]:
    """Returns the statistics of a trace, as `kvtwin trace info --json` prints them: requests, duration_seconds, lengths in
    tokens (input, output), blocks, ideal hits (of an infinite cache).

    trace: a trace file. limit: requests to read; 0 = all. format: one of docs/traces.md; "auto" = by the first line.
    block_tokens: tokens per block; 0 = the format's.
    """
    options = option_arguments({"limit": limit, "format": format, "block_tokens": block_tokens or None})
    return json.loads(program.run(["trace", "info", str(program.data(os.fspath(trace))), "--json", *options]))


def iterate(
    trace: Name,
    *,
    rows: int = 100_000,
    limit: int = 0,
    blocks: bool = False,
    format: str = "auto",
    block_tokens: int = 0,
    shared_tokens: int = 0,
    session_gap_s: float = 30.0,
    seed: int = 1,
    salt: str = "",
) -> "Iterator[pd.DataFrame]":
    """Yields the requests of a trace as frames of at most `rows` rows. The file is never in memory as a whole.

    Columns: arrival_s and think_s (seconds; arrival_s counts from the first request or hint, think_s is NaN if unknown),
    prompt_tokens, output_tokens, session, turn, tenant, type (0 = none), priority. blocks=True adds the column blocks: an
    array of the ids of the prompt's blocks (uint64). Hints are left out.

    trace: a trace file. rows: of a frame, at most. limit: requests; 0 = all. blocks: with the column blocks.
    format: one of docs/traces.md; "auto" = by the first line. block_tokens: tokens per block; 0 = the format's.
    shared_tokens: azure, burstgpt: tokens at the start that all prompts share. session_gap_s: agentic: mean seconds between
    the starts of two sessions. seed: agentic: of the drawn starts. salt: token_ids, sglang: of the blocks' hashes.

    Raises InputError with file, line and key.
    """
    import numpy as np
    import pandas as pd

    from kvtwin import _core

    if format not in _core.trace_formats():
        raise InputError(f"format {format!r} is unknown; the formats are {', '.join(_core.trace_formats())}")
    if rows < 1 or limit < 0:
        raise InputError(f"rows is {rows} and limit is {limit}; rows must be at least 1, and limit at least 0")
    reader = _core.TraceReader(
        str(program.data(os.fspath(trace))), format=format, block_tokens=block_tokens, shared_tokens=shared_tokens,
        session_gap_s=session_gap_s, seed=seed, salt=salt,
    )
    done = 0
    while limit == 0 or done < limit:
        columns = reader.read(rows if limit == 0 else min(rows, limit - done))
        first, ids = columns.pop("first_block"), columns.pop("blocks")
        if not len(first):
            break
        frame = pd.DataFrame(columns, index=pd.RangeIndex(done, done + len(first), name="request"))
        if blocks:
            frame["blocks"] = pd.Series(np.split(ids, first[1:].astype(np.int64)), index=frame.index, dtype=object)
        done += len(first)
        yield frame


def frame(trace: Name, **options: Any) -> "pd.DataFrame":
    """Returns all requests of a trace as one frame. The columns, arguments and errors are those of iterate()."""
    import pandas as pd

    parts = list(iterate(trace, **options))
    return pd.concat(parts) if parts else pd.DataFrame({"arrival_s": []})


def generate(out: Name, kind: str = "chat", *, seed: int = 1, requests: int = 0, force: bool = False, **options: Any) -> Path:
    """Writes a generated trace, as `kvtwin trace generate` does, and returns its path.

    out: names that end in .zst or .gz are compressed. kind: "chat", "agentic", "tools", "groups" or "sessions".
    seed: of all draws. requests: 0 = by `duration` (seconds, default 3600). force: replace the file. options: further options of `kvtwin trace generate`, for example
    sessions_per_second=2.08, prompt_tokens=4000.

    Raises InputError for bad input, WorkError if the file cannot be written.
    """
    options = {"kind": kind, "seed": str(seed), "requests": requests, "force": force, **options}
    program.run(["trace", "generate", "--out", os.fspath(out), *option_arguments(options)])
    return Path(out)


def convert(trace: Name, out: Name, *, limit: int = 0, force: bool = False, **options: Any) -> Path:
    """Converts a trace of any format to Mooncake's, as `kvtwin trace convert` does, and returns the path of the new file.

    trace: a trace file of any format. out: the file to write; names that end in .zst or .gz are compressed.
    limit: requests; 0 = all. force: replace the file.
    options: further options of `kvtwin trace convert`, for example format="azure", block_tokens=64, salt="...".

    Raises InputError for bad input, WorkError if the file cannot be written.
    """
    arguments = option_arguments({"limit": limit, "force": force, **options})
    program.run(["trace", "convert", str(program.data(os.fspath(trace))), os.fspath(out), *arguments])
    return Path(out)
