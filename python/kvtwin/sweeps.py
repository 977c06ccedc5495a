"""Simulates an experiment under many settings.

    swept = kvtwin.sweep("experiments/termination.toml")
    swept.rows                                                       # a pandas frame, one row per simulation
    compared = kvtwin.compare("experiments/quickstart.toml", vary={"cache.eviction": ["lru", "tide"]}, seeds=5)
    compared.rows, compared.draw()

With client=dask.distributed.Client(...), each simulation of a sweep is a task of Dask.
"""

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin import program
from kvtwin.errors import InputError
from kvtwin.simulation import Experiment, experiment_arguments, literal, load_json

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client
    from matplotlib.figure import Figure

Vary = Mapping[str, Iterable[Any]]
"""Values of keys: {"cache.eviction": ["lru", "tide"], "tiers.host.gib": [64, 128]}; every combination is simulated.
"key+key" gives several keys the same value."""


def sweep(
    experiment: Experiment,
    vary: Vary | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    world: str | None = None,
    out: str | os.PathLike[str] | None = None,
    cases: Sequence[str] = (),
    jobs: int = 0,
    min_served: float | None = None,
    force: bool = False,
    sglang_flags: str | Sequence[str] | None = None,
    client: "Client | None" = None,
    retries: int = 2,
    **options: Any,
) -> "Sweep":
    """Simulates every combination of `vary` and of the [sweep] section of the experiment file, as `kvtwin compare` does.

    experiment, set, world, sglang_flags: as of simulate(). vary: values of keys. cases: only these cases of the file.
    out: folder for the results. An interrupted sweep continues with the simulations that are left. Without `out`,
    the folder is temporary, and disappears with the Sweep. force: delete earlier results.
    jobs: simulations at the same time; 0 = one per core. min_served: % of requests that a setting must complete.
    client: a Dask client. Each simulation is one task, which Dask repeats up to `retries` times if it fails, or if its
    worker dies. The workers need the same build of kvtwin, and files of the experiment at the same paths; `jobs` has no
    effect. The rows are the same bytes as without Dask. retries: of each task of Dask.
    options: further options of `kvtwin compare`, for example from_vllm_flags="vllm serve ...", workload="chat".

    Raises InputError for bad input, and WorkError if a simulation fails; the folder then has the rows of the others.
    """
    temporary, folder = _folder(out)
    arguments = [*experiment_arguments(experiment, set, world, sglang_flags), *vary_arguments(vary)]
    arguments += program.option_arguments({"case": list(cases), "min_served": min_served, **options})
    if client is not None:
        _run_on(client, arguments, folder, force, retries)
        force = False  # the rows are of this call
    elif jobs:
        arguments += ["--jobs", str(jobs)]
    program.run(["compare", "--cells", *arguments, "--out", str(folder), *(["--force"] if force else [])])
    return Sweep(folder, _temporary=temporary)


def compare(
    experiment: Experiment,
    vary: Vary,
    *,
    set: Mapping[str, Any] | None = None,
    world: str | None = None,
    out: str | os.PathLike[str] | None = None,
    seeds: int = 1,
    draws: int = 0,
    goal: str | None = None,
    jobs: int = 0,
    min_served: float | None = None,
    force: bool = False,
    sglang_flags: str | Sequence[str] | None = None,
    **options: Any,
) -> "Comparison":
    """Simulates every combination of `vary`, and marks the best settings, as `kvtwin compare --vary` does.

    seeds: simulations of each setting with other seeds, for 95 % intervals. draws: simulate each setting also on this
    number of hardware variants (0, or at least 2). goal: "FIGURE=VALUE", for example "ttft_p90_s=2" (seconds): find the
    smallest size that meets it. experiment, set, world, out, jobs, min_served, force, sglang_flags, options: as of sweep().

    Raises InputError for bad input, and WorkError if a simulation fails.
    """
    temporary, folder = _folder(out)
    arguments = ["compare", *experiment_arguments(experiment, set, world, sglang_flags), *vary_arguments(vary)]
    arguments += program.option_arguments({
        "draws": draws or None, "seeds": None if draws or seeds == 1 else seeds, "goal": goal, "jobs": jobs or None,
        "min_served": min_served, **options,
    })  # fmt: skip
    program.run([*arguments, "--out", str(folder), *(["--force"] if force else [])])
    return Comparison(folder, _temporary=temporary)


class _Folder:
    """A folder with NAME.json and NAME.jsonl."""

    _name = ""

    def __init__(self, folder: str | os.PathLike[str], *, _temporary: Any = None):
        self.folder = Path(folder).resolve()
        self._temporary = _temporary  # its folder is deleted with this object
        self.plan: dict[str, Any] = load_json(self.folder / self._plan_file())

    def _plan_file(self) -> str:
        # An earlier version called the plan of simulations sweep.json.
        return "sweep.json" if (self.folder / "sweep.json").exists() else "compare.json"

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """One row per simulation (of a comparison: per setting): the varied keys, then the figures. Times in seconds
        (*_s), shares from 0 to 1 (*_share, *_ratio), sizes in bytes (*_bytes). None or NaN: no value."""
        import pandas as pd

        with open(self.folder / f"{self._name}.jsonl", encoding="utf-8") as file:
            return pd.DataFrame([json.loads(line) for line in file])


class Sweep(_Folder):
    """The folder of a sweep. `plan` is compare.json: axes, cases, crossovers."""

    _name = "sweep"

    def draw(self) -> "Figure":
        """Draws the shown figures. Needs matplotlib: pip install kvtwin[figures]."""
        from kvtwin import figures

        return figures.draw_sweep(figures.load_sweep(self.folder))


class Comparison(_Folder):
    """The folder of a comparison. `plan` is compare.json. In `rows`, NAME_standing is "best", "equal" or absent, and
    NAME_ci95 is half the 95 % interval of the mean over the seeds."""

    _name = "compare"

    def draw(self) -> "Figure":
        """Draws the figures of all settings. Needs matplotlib: pip install kvtwin[figures]."""
        from kvtwin import figures

        return figures.draw_compare(figures.load_compare(self.folder))


def _folder(out: str | os.PathLike[str] | None) -> tuple[Any, Path]:
    if out is not None:
        return None, Path(out)
    temporary = program.TemporaryFolder()
    return temporary, temporary.path / "sweep"


def vary_arguments(vary: Vary | None) -> list[str]:
    arguments = []
    if not isinstance(vary or {}, Mapping):
        raise InputError(f'vary is {vary!r:.80}; give a dict, for example {{"tiers.host.gib": [64, 128]}}')
    for keys, values in (vary or {}).items():
        if isinstance(values, str):
            raise InputError(f"vary {keys}: {values!r} is one value; give a list")
        texts = [value if isinstance(value, str) else literal(value) for value in values]
        for text in texts:
            if "," in re.sub(r"\([^()]*\)", "", text) or not text:  # a policy may have several parameters
                raise InputError(f"vary {keys}: {text!r} is empty or has a comma; a sweep cannot vary such texts")
        arguments += ["--vary", f"{keys}={','.join(texts)}"]
    return arguments


def _run_on(client: "Client", arguments: list[str], folder: Path, force: bool, retries: int) -> None:
    """Runs the simulations that have no row in `folder` yet, as tasks of Dask, and writes their rows there. A simulation
    is a shard of one cell; the command without --shard merges the shards."""
    from distributed import as_completed

    arguments = [os.path.abspath(arguments[0]), *arguments[1:]]  # a worker has a working folder of its own
    names = json.loads(program.run(["compare", "--cells", *arguments, "--list"]))
    # The program makes the folder, deletes earlier rows for --force, and refuses folders that are no sweep's.
    shards = {f"{number}/{len(names)}": name for number, name in enumerate(names, 1)}
    files = {shard: folder / f"sweep.shard-{shard.replace('/', '-of-')}.jsonl" for shard in shards}
    if force:
        for path in [*folder.glob("sweep*.json*"), *folder.glob("compare.json")]:
            path.unlink()
    if (folder / "sweep.jsonl").exists():
        return  # a finished sweep, or one without Dask: the program continues it, and checks its rows
    folder.mkdir(parents=True, exist_ok=True)
    run = uuid.uuid4().hex[:8]
    futures = {}
    for shard, name in shards.items():
        if files[shard].exists() and files[shard].stat().st_size > 0:
            continue
        future = client.submit(run_shard, arguments, shard, key=f"kvtwin {name}-{run}", retries=retries, pure=False)
        futures[future] = shard
    try:
        for future, rows in as_completed(futures, with_results=True):
            part = files[futures[future]].with_suffix(".part")
            part.write_bytes(rows)
            part.rename(files[futures[future]])
    finally:
        client.cancel([future for future in futures if not future.done()])


def run_shard(arguments: list[str], shard: str) -> bytes:
    """Runs a shard of a sweep, and returns its rows as JSON lines. Runs in a worker of Dask."""
    with tempfile.TemporaryDirectory(prefix="kvtwin-") as folder:
        program.run(["compare", "--cells", *arguments, "--jobs", "1", "--shard", shard, "--out", f"{folder}/sweep"])
        return Path(folder, "sweep", f"sweep.shard-{shard.replace('/', '-of-')}.jsonl").read_bytes()
