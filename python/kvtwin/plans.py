"""Finds the cheapest hardware and settings that meet goals.

    plan = kvtwin.plan(model="qwen3-32b", workload="chat", requests_per_second=4, goal={"ttft_p90_s": 1, "tpot_p90_s": 0.05})
    plan.recommendation["parts"], plan.recommendation["price_month"]
    plan.tried[["price_per_month", "ttft_p90_s", "meets"]]                 # a pandas frame, one row per simulated setting
    plan.run.requests                                                  # the requests, as the recommendation serves them
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin import program
from kvtwin.errors import InputError
from kvtwin.simulation import (
    Experiment,
    Result,
    experiment_arguments,
    literal,
    load_json,
    set_arguments,
    sglang_arguments,
)
from kvtwin.sweeps import Vary, vary_arguments

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Goals = Mapping[str, float] | str | Sequence[str]
"""{"ttft_p90_s": 1, "tpot_p90_s": 0.05}, "ttft_p90_s=1", or a list of such texts. Times in seconds."""

NO_SETTING_MEETS_THE_GOALS = 3  # exit code of `kvtwin plan`


def plan(
    experiment: Experiment | None = None,
    *,
    goal: Goals = (),
    vary: Vary | None = None,
    set: Mapping[str, Any] | None = None,
    model: str | None = None,
    hardware: str | None = None,
    trace: str | os.PathLike[str] | None = None,
    prices: str | os.PathLike[str] | None = None,
    probability: float | None = None,
    seeds: int | None = None,
    draws: int = 0,
    questions: bool = True,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    jobs: int = 0,
    sglang_flags: str | Sequence[str] | None = None,
    **options: Any,
) -> "Plan":
    """Finds the cheapest hardware and settings that meet goals, with the same bytes in the folder as `kvtwin plan`. A
    search takes minutes.

    experiment: the path of a file with the workload, or its keys; or the workload by `trace` or `options`.
    goal: limits of figures. Times in seconds. Without a goal: good_share=0.9, if a limit of slo.* is set.
    vary: the values to choose from; {"cluster.engines": ["1..64"]} is a range. Without: GPUs, weights, tensor parallelism,
    host memory, drives, routes and the number of engines, unless the experiment sets them.
    set: keys that override those of the experiment. model, hardware: names of presets. trace: a trace file to serve.
    prices: a price list (TOML), over the built-in list.
    probability: with which each goal on a time must hold (0.5 to 0.95), by the errors of measured runs. None: the goals
    hold as simulated, and the probability is in plan.json.
    seeds: with which a recommendation must meet the goals, if the workload is generated; None: 3.
    draws: simulate the recommendation on this number of hardware variants too. questions: also answer the questions that
    follow (highest load, a spare engine, no tiers, ...). jobs: simulations at the same time; 0 = one per core.
    out: folder for the results. An interrupted plan continues in its folder. Without `out`, the folder is temporary, and
    disappears with the Plan. force: delete earlier results.
    sglang_flags: as of simulate().
    options: further options of `kvtwin plan`, for example workload="chat", users=50, turns="30-60", think_s=20,
    requests_per_second=4, prompt_tokens=4000, from_vllm_flags="vllm serve ...".

    Raises InputError for bad input, WorkError if the work fails. If no setting meets the goals, no exception is raised:
    Plan.recommendation is None. Notes of the program are warnings (kvtwin.Note).
    """
    temporary = None
    if out is None:
        temporary = program.TemporaryFolder()
        out = temporary.path / "plan"
    if experiment is None:
        arguments = ["plan", *set_arguments(set or {}), *sglang_arguments(sglang_flags or [])]
    else:
        arguments = ["plan", *experiment_arguments(experiment, set, None, sglang_flags)]
    arguments += vary_arguments(vary)
    arguments += program.option_arguments({
        "goal": goal_texts(goal), "model": model, "hardware": hardware,
        "trace": None if trace is None else program.data(os.fspath(trace)), "prices": prices, "probability": probability,
        "seeds": seeds, "draws": draws or None, "jobs": jobs or None, "no_questions": not questions, "force": force,
        **options, "out": out,
    })  # fmt: skip
    program.run(arguments, accept=(0, NO_SETTING_MEETS_THE_GOALS))
    return Plan(out, _temporary=temporary)


def goal_texts(goal: Goals) -> list[str]:
    """Returns FIGURE=VALUE for each goal."""
    if isinstance(goal, Mapping):
        return [f"{figure}={value if isinstance(value, str) else literal(value)}" for figure, value in goal.items()]
    texts = [goal] if isinstance(goal, str) else list(goal)
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f'goal is {goal!r:.80}; give a dict, for example {{"ttft_p90_s": 1}}')
    return texts


class Plan:
    """The folder of a plan: of plan(), or of an earlier `kvtwin plan --out`. Raises InputError if the folder has no
    plan.json that this version can read."""

    def __init__(self, folder: str | os.PathLike[str], *, _temporary: Any = None):
        self.folder = Path(folder).resolve()
        self._temporary = _temporary  # its folder is deleted with this object
        self.plan: dict[str, Any] = load_json(self.folder / "plan.json")
        """plan.json; docs/reference/report.md has its keys."""

    def __repr__(self) -> str:
        best = self.recommendation
        if best is None:
            return f"<kvtwin.Plan: none of {len(self.tried)} settings meets the goals>"
        parts = ", ".join(f"{part['count']:g} {part['name']}" for part in best.get("parts") or [])
        return f"<kvtwin.Plan: {parts or best['settings']}>"

    @property
    def recommendation(self) -> dict[str, Any] | None:
        """The cheapest setting that meets the goals; None if there is none. settings (keys), parts (name, count,
        price_month), price_month (in the currency of the prices), figures (times in seconds), servers (command lines)."""
        best: dict[str, Any] | None = self.plan.get("recommendation")
        return best

    @cached_property
    def tried(self) -> "pd.DataFrame":
        """One row per simulated setting: the varied keys, the figures (columns *_s in seconds, shares from 0 to 1), gpus,
        price_per_month, power_kw, meets, why_not (NaN if the setting meets the goals), stage ("full": all requests)."""
        return _frame(self.plan.get("tried") or [])

    @cached_property
    def steps(self) -> "pd.DataFrame":
        """One row per step from the recommendation to a neighbour: change (in words), then the columns of `tried`."""
        return _frame(self.plan.get("margins") or [])

    @cached_property
    def run(self) -> Result:
        """The run folder of the recommendation. Raises InputError if there is no recommendation."""
        if self.recommendation is None:
            raise InputError(f"{self.folder}: no setting meets the goals, so no run is recommended; see tried")
        return Result(self.folder / "recommended", _temporary=self._temporary)

    def draw(self) -> "Figure":
        """Draws the price of all tried settings against each goal's figure. Needs matplotlib: pip install kvtwin[figures]."""
        from kvtwin import figures

        return figures.draw_plan(figures.load_plan(self.folder))

    def what_if(self, set: Mapping[str, Any]) -> dict[str, Any]:
        """Simulates the recommendation with other values of keys, as `kvtwin plan --what-if` does. Returns the JSON
        object of the program: meets, why_not, and for each figure {"recommended": ..., "what_if": ...}. set: keys as of
        plan()."""
        changes = [f"{name}={literal(value)}" for name, value in set.items()]
        text = program.run(["plan", str(self.folder), *program.option_arguments({"what_if": changes}), "--json"],
                           accept=(0, NO_SETTING_MEETS_THE_GOALS))  # fmt: skip
        answer: dict[str, Any] = json.loads(text)
        return answer


def _frame(settings: list[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    nested = ("settings", "figures")
    rows = []
    for one in settings:
        words = {"change": one["change"]} if "change" in one else {}
        plain = {name: one.get(name) for name in ("gpus", "power_kw", "meets", "why_not", "stage")}
        plain["price_per_month"] = one.get("price_month")  # also of a setting without figures
        rows.append({**words, **{name: value for part in nested for name, value in (one.get(part) or {}).items()}, **plain})
    return pd.DataFrame(rows)
