"""Simulates an experiment, runs it for real, and reads run folders.

    result = kvtwin.simulate("experiments/quickstart.toml", set={"tiers.host.gib": 64})
    result.report["ttft_seconds"]["mean"]       # seconds
    result.requests["ttft_s"].quantile(0.99)    # a pandas frame, one row per request
    result.draw_ttft()                          # a matplotlib figure

Every simulation runs in a child process: SimGrid has one world per process, and an interrupt or a crash ends only the
child. The start of the child takes about 10 ms.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin import program
from kvtwin.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Experiment = str | os.PathLike[str] | Mapping[str, Any]
"""The path of an experiment file (TOML), or its keys: {"model.name": "llama-3.1-8b", "tiers": {"host.gib": 64}}.
docs/reference/keys.md has all keys, with units. Relative paths in a file count from the folder of the file, relative
paths among keys from the working folder. A path such as "experiments/quickstart.toml", which does not exist in the
working folder, is the file that comes with kvtwin."""


def simulate(
    experiment: Experiment,
    *,
    set: Mapping[str, Any] | None = None,
    world: str | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    timeline: bool = False,
    journal: bool = False,
    draws: int = 0,
    sglang_flags: str | Sequence[str] | None = None,
    **options: Any,
) -> "Result":
    """Simulates the requests of an experiment, with the same bytes in the run folder as `kvtwin simulate`.

    experiment: the path of a file, or its keys. set: keys that override those of the experiment.
    world: "simgrid" (transfers share links; the default of the key sim.world) or "events" (no sharing).
    out: run folder to write; without it, the run folder is temporary, and disappears with the Result.
    force: replace the folder. timeline, journal: also write timeline.json, journal.kvj.
    draws: simulate this number of hardware variants too (0, or at least 2), and report the spread.
    sglang_flags: the command line of an SGLang server, whose settings are applied before `set`; or those of a prefill
    engine and of a decode engine.
    options: further options of `kvtwin simulate`, for example from_vllm_flags="vllm serve ...", workload="chat".

    Raises InputError for bad input, with the program's sentence; WorkError if the folder cannot be written or the child
    process dies. Notes of the program are warnings (kvtwin.Note).
    """
    arguments = ["simulate", *experiment_arguments(experiment, set, world, sglang_flags)]
    return _served(arguments, out, {
        "force": force, "timeline": timeline, "journal": journal, "draws": draws or None, **options,
    })  # fmt: skip


def run(
    experiment: Experiment,
    *,
    set: Mapping[str, Any] | None = None,
    device: str | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    timeline: bool = False,
    sglang_flags: str | Sequence[str] | None = None,
    **options: Any,
) -> "Result":
    """Serves the requests of an experiment on this machine, as `kvtwin run` does: real copies, real storage, and every
    byte of every page that is read is checked. Takes the time of the requests.

    experiment, set, sglang_flags: as of simulate().
    device: "host" (host memory takes the place of the GPU), "cuda", or "auto" (the default of the key real.device).
    out: run folder to write, with the journal for `kvtwin replay`; without it, the run folder is temporary, and
    disappears with the Result. force: replace the folder. timeline: also write timeline.json.
    options: further options of `kvtwin run`.

    Raises InputError for bad input, with the program's sentence; WorkError if a byte is wrong, the folder cannot be
    written, or the child process dies. One process, so one rank and one engine: several are started by mpirun, outside
    of Python, and load() reads their folder.
    """
    arguments = ["run", *experiment_arguments(experiment, set, None, sglang_flags)]
    if device is not None:
        arguments += ["--device", device]
    return _served(arguments, out, {"force": force, "timeline": timeline, **options})


def _served(arguments: list[str], out: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> "Result":
    """Runs the program with a run folder, and returns its Result."""
    temporary = None
    if out is None:
        temporary = program.TemporaryFolder()
        out = temporary.path / "run"
    program.run([*arguments, *program.option_arguments({**options, "out": out})])
    return Result(out, _temporary=temporary)


class Result:
    """One run folder: of simulate() or run(), or of an earlier `kvtwin simulate --out` or `kvtwin run --out`. Files are read when
    they are used first. Raises InputError if the folder has no report.json that this version can read."""

    def __init__(self, folder: str | os.PathLike[str], *, _temporary: Any = None):
        self.folder = Path(folder).resolve()
        self._temporary = _temporary  # its folder is deleted with this object
        report = load_json(self.folder / "report.json")
        self.report: dict[str, Any] = report
        """report.json; docs/reference/report.md has its keys. Times in seconds, sizes in bytes or tokens."""

    def __repr__(self) -> str:
        done = self.report["requests"]
        return f"<kvtwin.Result of {done['completed']} of {done['total']} requests, {self.report['world']} world>"

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """requests.csv: one row per request. Times in seconds (columns *_s), lengths and hits in tokens; NaN: no value."""
        return self._table("requests.csv")

    @cached_property
    def lanes(self) -> "pd.DataFrame":
        """lanes.csv: the utilisation of each lane over time. window_start_s and window_s in seconds, bytes in bytes."""
        return self._table("lanes.csv")

    @property
    def tokens_by_tier(self) -> "pd.Series[int]":
        """Prompt tokens by source: hit_device, hit_host, ..., computed tokens last."""
        import pandas as pd

        sources = ("hit_device", "hit_host", "hit_disk", "hit_shared_fs", "hit_remote", "recomputed_after_stop", "miss")
        tokens = self.report["tokens"]
        return pd.Series({name: tokens[name] for name in sources if name in tokens}, name="tokens")

    def draw_ttft(self) -> "Figure":
        """Draws the TTFT of all requests. Needs matplotlib: pip install kvtwin[figures]."""
        return self._draw("draw_ttft")

    def draw_tokens(self) -> "Figure":
        """Draws the sources of prompt tokens, for the whole run and over time."""
        return self._draw("draw_tokens")

    def draw_lanes(self) -> "Figure":
        """Draws the utilisation of each lane over time."""
        return self._draw("draw_lanes")

    def _draw(self, name: str) -> "Figure":
        from kvtwin import figures

        return getattr(figures, name)(figures.load_run(self.folder))

    def _table(self, name: str) -> "pd.DataFrame":
        import pandas as pd

        try:
            return pd.read_csv(self.folder / name)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / name}: {error}; is this the folder of a finished run?") from error


def load_json(path: Path) -> dict[str, Any]:
    """Returns the object of a JSON file of schema version 1. Raises InputError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; is this the folder of a finished run?") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: no JSON object")
    if content.get("schema_version") != 1:
        raise InputError(f"{path}: schema_version {content.get('schema_version')} where 1 is known")
    return content


def load(folder: str | os.PathLike[str]) -> Result:
    """Returns the Result of a run folder. Raises InputError if it has no report.json that this version can read.

    folder: of `kvtwin simulate --out` or `kvtwin run --out`.
    """
    return Result(folder)


def experiment_arguments(
    experiment: Experiment, sets: Mapping[str, Any] | None, world: str | None, sglang_flags: str | Sequence[str] | None
) -> list[str]:
    """Returns the program's arguments for an experiment."""
    if isinstance(experiment, Mapping):
        # The keys go to the command line, where relative paths count from the working folder.
        arguments = [str(Path(__file__).resolve().with_name("no_keys.toml"))]
        keys = {**_flat(experiment), **_flat(sets or {})}
    else:
        arguments = [str(program.data(os.fspath(experiment)))]
        keys = _flat(sets or {})
    arguments += set_arguments(keys)
    if world is not None:
        arguments += ["--world", world]
    if sglang_flags is not None:
        arguments += sglang_arguments(sglang_flags)
    return arguments


def set_arguments(keys: Mapping[str, Any]) -> list[str]:
    """Returns --set for each key."""
    return [word for name, value in _flat(keys).items() for word in ("--set", f"{name}={literal(value)}")]


def sglang_arguments(flags: str | Sequence[str]) -> list[str]:
    """Returns --from-sglang-flags for one command line, or for each of several."""
    return program.option_arguments({"from_sglang_flags": flags if isinstance(flags, str) else list(flags)})


def literal(value: Any) -> str:
    """Returns a value of a key as TOML."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # of numpy
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    raise InputError(f"{value!r} is no value of a key; give a text, a number, True or False")


def _flat(keys: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns {"tiers.host.gib": 64} for {"tiers": {"host": {"gib": 64}}}. Raises InputError if `keys` has no keys."""
    if not isinstance(keys, Mapping):
        raise InputError(f'{keys!r:.80} has no keys; give a dict, for example {{"tiers.host.gib": 64}}')
    flat: dict[str, Any] = {}
    for name, value in keys.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
