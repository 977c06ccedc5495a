"""Intervals of a run's figures, by a bootstrap of the trace's sessions.

    result = kvtwin.simulate("experiments/chat_hour.toml")
    kvtwin.bootstrap(result, "traces/chat_small.jsonl.zst", figures=["hit_ratio", "ttft_p90_s"])

The requests of a conversation share their prefix and their user, so they are no independent samples: an interval that
treats them so is too narrow. Whole sessions are drawn instead.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvtwin import traces
from kvtwin.errors import InputError, Note
from kvtwin.simulation import Result

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

FIGURES = ("hit_ratio", "ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s")
HITS = ("hit_device", "hit_host", "hit_disk", "hit_shared_fs", "hit_remote")
FEW_SESSIONS = 30  # below, percentile intervals of a mean are more than a twentieth too narrow
MUCH_QUEUE = 0.1  # share of the mean TTFT from which waits tie the sessions to each other


def bootstrap(
    requests: "Result | pd.DataFrame",
    sessions: "str | os.PathLike[str] | pd.Series[Any]",
    *,
    figures: Sequence[str] = FIGURES,
    interval: float = 0.8,
    window_s: float = 0,
    samples: int = 1000,
    seed: int = 1,
) -> "pd.DataFrame":
    """Returns each figure of a run with its interval: how much the figure depends on which conversations the trace has.
    Draws as many sessions as there are, with replacement, each with all its requests, and computes the figures of each
    sample. The same arguments give the same numbers on every machine.

    requests: a Result, or some rows of its `requests`, for example without a warm-up.
    sessions: the trace that was served, or a Series with the session of each request, by the number of the request, as
    traces.frame(trace, block_tokens=64)["session"]. Session 0 = none: each of these requests is drawn by itself.
    figures: "hit_ratio" (hit prompt tokens / prompt tokens, 0 to 1), and NAME_mean_s or NAME_pNN_s of each column NAME_s of
    `requests` (seconds; without requests that have no value): "ttft_p90_s", "e2e_mean_s", ... By default the hit ratio, and the mean
    and percentiles of the TTFT.
    interval: the probability. window_s: sessions that start in the same window of this length, in seconds, are drawn
    together; 0 = each by itself. samples: number of samples. seed: of the draws, 0 to 2**32 - 1.

    Columns: value (of the run itself), low, high. One row per figure, in the order of `figures`.

    The interval is that of the trace's sample of conversations only: it has no errors of the simulator (`intervals` of
    report.json has them). A drawn session keeps the hits and waits that it had in the run. If requests queue, a burst delays
    many sessions together, and the intervals of times are too narrow; a window of minutes makes them wider, and other
    traces are better (docs/results/intervals.md has the measured coverage). A warning (kvtwin.Note) says so if the queue
    is more than a tenth of the mean TTFT, or if there are fewer than 30 sessions or windows to draw from.

    Raises InputError if a request has no session, a figure is unknown, or there is one session or window only.
    """
    import numpy as np
    import pandas as pd

    if not 0 < interval < 1 or samples < 1:
        raise InputError(
            f"interval is {interval} and samples is {samples}; interval must be between 0 and 1, and samples at least 1"
        )
    rows = requests.requests if isinstance(requests, Result) else requests
    if "outcome" in rows.columns:
        rows = rows[rows["outcome"] != "rejected"]
    groups, count = _groups(rows, sessions, window_s)
    drawn_unit = "windows" if window_s else "sessions"
    if count < 2:
        raise InputError(f"the requests are of {count} {drawn_unit}; an interval needs at least 2")
    for note in _notes(rows, figures, count, drawn_unit):
        warnings.warn(f"bootstrap: {note}", Note, stacklevel=2)
    measures = [_measure(rows, name, groups) for name in figures]
    drawn = np.empty((samples, len(measures)))
    # This generator's stream is the same in every version of numpy; that of default_rng() may change.
    random = np.random.RandomState(seed)
    for sample in range(samples):
        times = np.bincount(random.randint(0, count, count), minlength=count)
        drawn[sample] = [measure(times) for measure in measures]
    once = np.ones(count, dtype=np.int64)
    known = ~np.isnan(drawn).all(axis=0)
    ends = np.full((2, len(measures)), np.nan)
    ends[:, known] = np.nanquantile(drawn[:, known], [(1 - interval) / 2, (1 + interval) / 2], axis=0)
    values = {"value": [measure(once) for measure in measures], "low": ends[0], "high": ends[1]}
    return pd.DataFrame(values, index=pd.Index(list(figures), name="figure"))


def _notes(rows: "pd.DataFrame", figures: Sequence[str], count: int, drawn_unit: str) -> Iterator[str]:
    if count < FEW_SESSIONS:
        yield f"there are {count} {drawn_unit}; below {FEW_SESSIONS}, the intervals are too narrow"
    if {"queue_s", "ttft_s"} <= {*rows.columns} and any(name.endswith("_s") for name in figures):
        queue, ttft = rows["queue_s"].mean(), rows["ttft_s"].mean()
        if queue > MUCH_QUEUE * ttft:
            wider = "" if drawn_unit == "windows" else "; window_s=240 makes them wider"
            yield (
                f"the mean TTFT of {ttft:.3g} s has {queue:.3g} s of queue, which delays many sessions together: "
                f"the intervals of times are too narrow{wider}"
            )


def _groups(rows: "pd.DataFrame", sessions: Any, window_s: float) -> "tuple[NDArray[np.int64], int]":
    """Returns the session of each row, or the window in which its session starts, numbered from 0; and their number."""
    import numpy as np
    import pandas as pd

    numbers = rows["request"] if "request" in rows.columns else rows.index.to_series()
    if isinstance(sessions, str | os.PathLike):
        limit = 0 if numbers.empty else int(numbers.max()) + 1
        parts = [frame["session"] for frame in traces.iterate(sessions, limit=limit)]
        sessions = pd.concat(parts) if parts else pd.Series(dtype=object)
    if not isinstance(sessions, pd.Series):
        raise InputError("sessions is neither a trace nor a pandas Series with the session of each request")
    absent = ~numbers.isin(sessions.index)
    if absent.any():
        raise InputError(f"request {numbers[absent].iloc[0]} has no session; is it the trace that was served?")
    of_rows = sessions.loc[numbers]
    # A request without a session is a session of its own: a pair that no other request has.
    alone = np.where(of_rows == 0, numbers, -1)
    groups, units = pd.factorize(pd.MultiIndex.from_arrays([of_rows.astype(str), alone]))
    if window_s:
        if not window_s > 0 or "arrival_s" not in rows.columns:
            raise InputError(f"window_s is {window_s}; it must be at least 0, and above 0 the requests need a column arrival_s")
        starts = rows["arrival_s"].groupby(groups).transform("min")
        groups, units = pd.factorize(np.floor(starts / window_s).to_numpy())
    return groups, len(units)


def _measure(rows: "pd.DataFrame", name: str, groups: "NDArray[np.int64]") -> "Callable[[NDArray[np.int64]], float]":
    """Returns a function from the number of times that each session is drawn to the figure. NaN: no request has a value."""
    import numpy as np

    count = int(groups.max()) + 1

    def by_session(values: Any) -> Any:
        return np.bincount(groups, weights=np.asarray(values, dtype=float), minlength=count)

    def ratio(above: Any, below: Any) -> "Callable[[NDArray[np.int64]], float]":
        above, below = by_session(above), by_session(below)
        return lambda times: float(times @ above / total) if (total := times @ below) else float("nan")

    if name == "hit_ratio":
        hits = rows[[column for column in HITS if column in rows.columns]].sum(axis=1)
        return ratio(hits, rows["prompt_tokens"])
    found = re.fullmatch(r"(\w+)_(mean|p(\d+(?:\.\d+)?))_s", name)
    column = f"{found[1]}_s" if found else ""
    if found is None or column not in rows.columns or (found[3] and not 0 < float(found[3]) < 100):
        known = ", ".join(one for one in rows.columns if one.endswith("_s") and one != "arrival_s")
        raise InputError(f"figure {name!r} is unknown; give hit_ratio, or NAME_mean_s or NAME_p90_s of one of {known}")
    values = rows[column].to_numpy(dtype=float)
    present = np.isfinite(values)
    if found[2] == "mean":
        return ratio(np.where(present, values, 0), present)
    order = np.argsort(values, kind="stable")[: int(present.sum())]  # NaN is last
    ordered, share, of = values[order], float(found[3]) / 100, groups[order]

    def percentile(times: "NDArray[np.int64]") -> float:
        """The smallest value that at least this share of the requests does not exceed."""
        up_to = np.cumsum(times[of])
        if up_to.size == 0 or up_to[-1] == 0:
            return float("nan")
        return float(ordered[np.searchsorted(up_to, np.ceil(share * up_to[-1]))])

    return percentile
