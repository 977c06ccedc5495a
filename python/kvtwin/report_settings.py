"""The sections of comparisons."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtwin.chart_kinds import MAX_ROWS
from kvtwin.charts import Table
from kvtwin.charts_of_settings import (
    Choice,
    choice_of,
    compare_charts,
    compared_figures,
    main_figures,
    settings_of,
    some,
)
from kvtwin.charts_of_sweeps import best_cells, sweep_charts, swept_name
from kvtwin.errors import InputError
from kvtwin.figure_words import (
    better_of,
    exact,
    figure_name,
    figure_text,
    finite,
    judged_text,
    limit_words,
    percent,
    sentence_case,
    setting_words,
    value_text,
)
from kvtwin.report_sections import (
    VARIED_NOTE,
    Commands,
    Section,
    origin_text,
    server_parts,
    set_words,
    vary_words,
    warning_counts,
)
from kvtwin.result_folders import Compared, Sweep

YES_NO: dict[Any, str] = {True: "yes", False: "no"}
STANDING = {"best": " ★", "equal": " ="}


def compared_cell(row: dict[str, Any], key: str, goal: dict[str, Any] | None, standing: bool = True) -> str:
    text = (
        judged_text(key, row[key], goal["value"], 4)
        if goal and goal["figure"] == key
        else figure_text(key, row[key], 4)
    )
    if finite(row.get(f"{key}_low")):
        text += f" [{figure_text(key, row[f'{key}_low'])} to {figure_text(key, row[f'{key}_high'])}]"
    elif finite(row.get(f"{key}_ci95")):
        text += f" ± {figure_text(key, row[f'{key}_ci95'])}"
    return text + (STANDING.get(row.get(f"{key}_standing") or "", "") if standing else "")


def compare_table(compared: Compared, figures: Sequence[str], choice: Choice) -> Table:
    axes, goal = compared.plan["axes"], compared.plan.get("goal")
    away = [key for key in ("rejected_share", "failed_share") if any(row.get(key) for row in compared.rows)]
    head = [axis["name"] for axis in axes] + [figure_name(key) for key in [*figures, *away]]
    head += ["meets the goal"] if goal else []
    rows: list[list[Any]] = []
    marked = set()
    for row in compared.rows[:MAX_ROWS]:
        cells = [value_text(row[axis["name"]], axis["unit"]) for axis in axes] + [compared_cell(row, key, goal) for key in figures]
        cells += [percent(row[key]) for key in away]
        cells += [YES_NO.get(row.get("meets_goal"), "–")] if goal else []
        if row is choice.row:
            marked.add(len(rows))
        rows.append(cells)
    more = f" The first {MAX_ROWS} of {len(compared.rows)} settings." if len(compared.rows) > MAX_ROWS else ""
    note = f"{'Highlighted: the recommendation. ' if marked else ''}★ best under equal circumstances, = as good as the best.{more}"
    return Table("", head, rows, marked, note)


def other_figures_table(compared: Compared, figures: Sequence[str]) -> Table:
    """The figures that compare_table does not have, and the warnings."""
    axes = compared.plan["axes"]
    rows = []
    for row in compared.rows[:MAX_ROWS]:
        cells = [value_text(row[axis["name"]], axis["unit"]) for axis in axes] + [compared_cell(row, key, None) for key in figures]
        rows.append([*cells, row.get("warnings") or "–"])
    head = [*(axis["name"] for axis in axes), *map(figure_name, figures), "warnings"]
    return Table("", head, rows, note="★ best, = as good as the best, under equal circumstances.", folded=True)


def goal_words(compared: Compared) -> tuple[str, list[list[Any]]]:
    goal = compared.plan["goal"]
    found = []
    unit = next((axis["unit"] for axis in compared.plan["axes"] if axis["name"] == goal["along"]), "")
    for line in goal["lines"]:
        size = f"from {value_text(line['from'], unit)} on" if line["from"] is not None else "not even at the largest"
        found.append([setting_words(line["settings"]) or "all", size])
    return f"{figure_name(goal['figure'])} {limit_words(goal['figure'], goal['value'], better_of(compared.plan, goal['figure']))}", found


def compare_section(folder: Path | str, compared: Compared) -> Section:
    plan = compared.plan
    if not compared.rows:
        raise InputError(f"{compared.folder / 'compare.jsonl'}: no settings; is the comparison finished?")
    wanted = math.prod(len(axis["values"]) for axis in plan["axes"])
    if len(compared.rows) < wanted:
        raise InputError(
            f"{compared.folder / 'compare.jsonl'}: {len(compared.rows)} settings where compare.json has {wanted}; is the file cut?"
        )
    goal = plan.get("goal")
    section = Section(f"{compared.folder.name}: comparison", "")
    choice = choice_of(compared)
    deciding = choice.row or choice.nearest
    gets = f"{figure_name(choice.key)} {compared_cell(deciding, choice.key, goal, False)}" if deciding else ""
    at = setting_words(settings_of(compared, deciding)) if deciding else ""
    if goal:
        words, found = goal_words(compared)
        gets += f" ({limit_words(choice.key, goal['value'], better_of(plan, choice.key))})" if gets else ""
    if choice.row:
        section.lead = f"Recommendation: {at}: {gets}."
        options = set_words(settings_of(compared, choice.row))
        experiment = shlex.quote(str(plan.get("experiment", "EXPERIMENT.toml")))
        again = Commands([f"kvtwin simulate {experiment} {options}"])
        reason = f"{sentence_case(choice.reason)}."
        section.verdict.append(("Why, and the command that simulates the recommendation", [reason, again, VARIED_NOTE]))
        section.verdict += server_parts(choice.servers)
    elif "recommendation" not in plan:
        section.lead = "No recommendation: compare.json has none."
    elif goal:
        section.lead = f"No recommendation: no setting meets the goal, {words}." + (f" Nearest: {at}: {gets}." if at else "")
    else:
        section.lead = "No recommendation: no setting completes enough requests."
    if goal and goal.get("along"):
        table = Table("", ["setting", f"needs {goal['along']}"], found)
        section.verdict.append((f"Smallest size that meets the goal: {words}", [table]))
    section.facts = [
        ("experiment", plan.get("experiment", "–")),
        ("settings", f"{len(compared.rows)}"),
        (
            "repeats",
            f"{plan['draws']} hardware variants"
            if "draws" in plan
            else f"{plan['seeds']} seed{'s' if plan['seeds'] > 1 else ''}",
        ),
    ]
    section.warnings = warning_counts(compared.rows)
    figures = main_figures(compared.rows, goal)
    section.verdict.append(("All settings", [compare_table(compared, figures, choice)]))
    section.parts = [("Figures", compare_charts(compared, choice))]
    others = [key for key in compared_figures(compared.rows) if some(compared.rows, key) and key not in figures]
    section.parts.append(("Other figures", [other_figures_table(compared, others)]))
    options = (f" --seeds {plan['seeds']}" if plan["seeds"] > 1 else "") + (
        f" --draws {plan['draws']}" if "draws" in plan else ""
    )
    options += f" --goal {goal['figure']}={exact(goal['value'])}" if goal else ""
    section.commands = [
        f"kvtwin compare {shlex.quote(str(plan.get('experiment', 'EXPERIMENT.toml')))} {vary_words(plan['axes'])}{options} --out out/again"
    ]
    section.commands_note = VARIED_NOTE
    section.origin = origin_text(plan)
    return section


def sweep_table(sweep: Sweep) -> Table:
    plan, rows = sweep.plan, sweep.rows
    shown = list(dict.fromkeys([*plan["show"], "hit_ratio", "rejected_share", "failed_share"]))
    shown = [key for key in shown if any(row.get(key) is not None for row in rows)]
    best = {key: best_cells(sweep, key) if not key.endswith("ed_share") else set() for key in shown}
    failures = any(row.get("failure") for row in rows)
    cases = ["case"] if plan["cases"] else []
    head = (
        cases
        + [axis["name"] for axis in plan["axes"]]
        + [figure_name(key) for key in shown]
        + (["failure"] if failures else [])
    )
    cells = []
    for index, row in enumerate(rows[:MAX_ROWS]):
        setting = [str(row.get("case") or "–") for _ in cases] + [
            value_text(row[axis["name"]], axis["unit"]) if row.get(axis["name"]) is not None else "–" for axis in plan["axes"]
        ]
        figures = [
            figure_text(key, row.get(key), 4) + (" ★" if index in best[key] and len(rows) > 1 else "") for key in shown
        ]
        cells.append(setting + figures + ([row.get("failure") or "–"] if failures else []))
    more = f" The first {MAX_ROWS} of {len(rows)} cells; all are in sweep.csv." if len(rows) > MAX_ROWS else ""
    first = plan["show"][0] if plan["show"] else "ttft_mean_s"
    return Table(
        "",
        head,
        cells,
        best.get(first, set()),
        f"★ best of all cells; highlighted: best {figure_name(first)}. Only cells that complete {plan.get('min_served_percent', 99):g} % of the most requests count.{more}",
    )


def sweep_section(folder: str, sweep: Sweep) -> Section:
    plan = sweep.plan
    if not isinstance(plan["show"], list):
        raise TypeError("show is no list")
    if len(sweep.rows) < plan["cells"] or not sweep.rows:
        raise InputError(
            f"{sweep.folder / 'sweep.jsonl'}: {len(sweep.rows)} cells where its plan has {plan['cells']}; is it finished?"
        )
    first = plan["show"][0] if plan["show"] else "ttft_mean_s"
    best = sorted(best_cells(sweep, first))
    lead = plan.get("sentence") or (
        f"Best {figure_name(first)}: {swept_name(sweep, sweep.rows[best[0]])}, {figure_text(first, sweep.rows[best[0]][first])}."
        if len(best) == 1
        else f"{len(best)} cells have the best {figure_name(first)}."
        if best
        else f"No cell has a {figure_name(first)}."
    )
    title = plan.get("title") or "sweep"
    section = Section(f"{sweep.folder.name}: {title}", lead)
    failed = sum(bool(row.get("failure")) for row in sweep.rows)
    section.facts = [
        ("experiment", plan.get("experiment", "–")),
        ("cells", f"{len(sweep.rows)}" + (f", {failed} failed" if failed else "")),
    ]
    section.warnings = warning_counts(sweep.rows)
    section.verdict = [("All cells", [sweep_table(sweep)])]
    section.parts = [("Figures", sweep_charts(sweep))]
    varied = "" if plan["cases"] else " " + vary_words(plan["axes"])
    section.commands = [
        f"kvtwin compare {shlex.quote(str(plan.get('experiment', 'EXPERIMENT.toml')))}{varied} --out out/again"
    ]
    section.commands_note = VARIED_NOTE
    section.origin = origin_text(plan)
    return section
