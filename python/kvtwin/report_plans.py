"""The sections of plans."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtwin.chart_kinds import MAX_ROWS
from kvtwin.charts import Table
from kvtwin.charts_of_plans import (
    Plan,
    causes_chart,
    count_text,
    drives_chart,
    hits_chart,
    interval_chart,
    interval_text,
    lanes_chart,
    meets_limit,
    ttft_chart,
)
from kvtwin.figure_words import (
    bytes_text,
    exact,
    figure_name,
    figure_text,
    finite,
    joined,
    money,
    number_text,
    setting_words,
    unit_text,
    value_text,
)
from kvtwin.report_sections import Section, origin_text, server_parts, unit_of
from kvtwin.result_folders import resolved

MAX_NEAREST = 10  # settings that miss the goals, of a table of the nearest ones


def goal_table(plan: Plan, one: dict[str, Any]) -> Table:
    drawn = plan.confidence.get("ranges_of_draws") or {}
    rows = []
    for goal, text in zip(plan.goals, plan.goal_cells(one)):
        key = goal["figure"]
        value = (one.get("figures") or {}).get(key)
        met = ("yes" if meets_limit(goal, value) else "no") if finite(value) else "–"
        cells = [figure_name(key), plan.limit_text(goal), text, interval_text(key, plan.interval(key)), met]
        rows.append(cells + ([interval_text(key, drawn.get(key))] if drawn else []))
    head = ["goal", "limit", "expected", "80 % interval", "met"]
    return Table("", head + (["on drawn machines"] if drawn else []), rows)


def odds_text(plan: Plan) -> str:
    """Returns the probability that the goals hold; empty if no goal depends on a figure whose errors are published."""
    probability = plan.confidence.get("probability")
    # The blank before the sign does not break a line.
    return unit_text("share", probability, 2).replace(" ", "\u00a0") if finite(probability) else ""


def odds_sentences(plan: Plan) -> str:
    sure, words = plan.confidence, []
    if not sure:
        return ""
    if odds_text(plan):
        hold = "The goals hold" if plan.plan.get("recommendation") else "With the nearest setting, the goals hold"
        words.append(f"{hold} with a probability of {odds_text(plan)}, by the errors of {sure['errors_of']}.")
    elif plan.goals:
        words.append("No goal depends on TTFT or TPOT, whose errors are published, so there is no probability.")
    for key in sure.get("not_judged") or []:
        words.append(f"The probability leaves out {figure_name(key)}: no published run has this figure.")
    if sure.get("seeds", 1) > 1:
        words.append(f"The goals are met with {sure['seeds_meeting']} of {sure['seeds']} seeds of the traffic.")
    elif str((plan.plan.get("workload") or {}).get("source", "")).startswith("generated"):
        words.append("One seed of the traffic was simulated.")
    if sure.get("draws"):
        assumed = sure.get("assumed_spread_percent")
        spread = f", with an error of {number_text(assumed)} % assumed for each figure of the hardware" if assumed else ""
        words.append(f"The goals are met on {sure['draws_meeting']} of {sure['draws']} drawn machines{spread}.")
    return " ".join(words)


def changed_settings(plan: Plan, one: dict[str, Any]) -> str:
    """Returns the settings that differ from those of the recommendation, in words."""
    own = (plan.plan.get("recommendation") or {}).get("settings") or {}
    changed = {key: value for key, value in (one.get("settings") or {}).items() if own.get(key) != value}
    return setting_words(changed) or "as recommended"


def setting_rows_table(
    first: str,
    entries: Sequence[tuple[str, dict[str, Any]]],
    plan: Plan,
    with_settings: bool = True,
    with_reasons: bool = True,
) -> Table:
    """`entries`: [(text of the first column, TRIED)]. Settings that all entries share are in the note. `with_settings` and
    `with_reasons`: false if the first column says the settings, and why a setting is out."""
    settings = [one.get("settings") or {} for _, one in entries]
    keys = list(dict.fromkeys(key for setting in settings for key in setting))
    varied = [key for key in keys if any(setting.get(key) != settings[0].get(key) for setting in settings)]
    varied = varied if with_settings else []
    head = [
        first,
        *varied,
        "GPUs",
        *(figure_name(goal["figure"]) for goal in plan.goals),
        "price per month",
        "difference",
        "meets the goals",
    ]
    rows = [
        [
            text,
            *(value_text(setting.get(key, "–"), unit_of(key)) for key in varied),
            value_text(one.get("gpus", "–")),
            *plan.goal_cells(one),
            plan.price_text(one),
            plan.difference_text(one),
            plan.meets(one, with_reasons),
        ]
        for (text, one), setting in zip(entries, settings)
    ]
    shared = setting_words({key: settings[0][key] for key in keys if key not in varied}) if with_settings else ""
    return Table("", head, rows, note=f"{'All with' if len(entries) > 1 else 'With'} {shared}." if shared else "")


def question_text(name: str) -> str:
    """Returns the question of a member of `follow_ups`."""
    if name.startswith("load x "):
        return f"What does {name.removeprefix('load x ')} x the traffic need?"
    if name.startswith("GPU "):
        return f"Is {name.removeprefix('GPU ')} cheaper?"
    return {
        "load": "How much more traffic do the same parts serve?",
        "spare": "What if one engine is out of service?",
        "no tiers": "What are the KV tiers below the device worth?",
        "pool": "Is a remote pool cheaper?",
        "mixed chunks": "Are mixed chunks cheaper?",
    }.get(name, name)


def answer_text(plan: Plan, one: dict[str, Any]) -> str:
    """Returns the answer with the settings that differ from the recommendation, without the price: both have columns."""
    settings, answer = one.get("settings"), str(one.get("answer") or "–")
    if settings:
        full = " ".join(f"{name}={exact(value)}" for name, value in settings.items())
        answer = answer.replace(full, changed_settings(plan, one))
    return answer.replace(f": {plan.price_text(one)} a month ({plan.difference_text(one)})", "")


def questions_table(plan: Plan) -> Table | None:
    """The questions that follow the recommendation: more traffic, an engine less, other parts."""
    rows = [
        [question_text(str(one["name"])), answer_text(plan, one), plan.price_text(one), plan.difference_text(one)]
        for one in plan.plan.get("follow_ups") or []
    ]
    return Table("", ["question", "answer", "price per month", "difference"], rows) if rows else None


def nearest_table(plan: Plan) -> Table | None:
    """Of each combination of parts that never met the goals: the nearest setting. The nearest ones of all come first: those
    with the smallest miss of a goal. Settings that leave requests out, or that are out for another reason, come last."""

    def miss(one: dict[str, Any]) -> tuple[float, float]:
        figures = one.get("figures") or {}
        misses = [math.inf for key in ("rejected_share", "failed_share") if figures.get(key)]
        for goal in plan.goals:
            value = figures.get(goal["figure"])
            if not finite(value):
                misses.append(math.inf)
            elif not meets_limit(goal, value):
                low, high = sorted((value, goal["limit"]))
                misses.append(high / low if low > 0 else math.inf)
        return max(misses, default=math.inf), one.get("price_month") or 0

    out = sorted((plan.tried[index] for index in plan.plan.get("out") or []), key=miss)
    if not out:
        return None
    near = out[:MAX_NEAREST]
    table = setting_rows_table("", [(str(place), one) for place, one in enumerate(near, 1)], plan)
    if len(out) > len(near):
        table.note = f"The {len(near)} nearest settings; {len(out) - len(near)} more are in plan.json. {table.note}".strip()
    return table


def drives_table(plan: Plan) -> Table | None:
    rows = [
        [
            drive.get("write_policy", "–"),
            bytes_text(1e12 * drive["written_tb_per_day"]) if finite(drive.get("written_tb_per_day")) else "–",
            number_text(drive["dwpd"]) if finite(drive.get("dwpd")) else "–",
            figure_text("drive_years", drive["years"]) if finite(drive.get("years")) else "–",
        ]
        for drive in plan.plan.get("drives") or []
    ]
    return (
        Table("", ["write policy", "written a day", "drive writes per day", "life of the drives"], rows)
        if rows
        else None
    )


def plan_lead(plan: Plan, chosen: dict[str, Any] | None) -> str:
    if not chosen:
        return f"No recommendation: {plan.plan.get('reason') or 'no setting meets the goals'}."
    price = f" for {plan.price_text(chosen)} per month" if finite(chosen.get("price_month")) else ""
    lead = f"Recommendation: {plan.parts_text(chosen)}{price}."
    return lead + (f" The goals hold with a probability of {odds_text(plan)}." if odds_text(plan) else "")


def plan_facts(plan: Plan, chosen: dict[str, Any] | None) -> list[tuple[str, str]]:
    raw, facts = plan.plan, []
    if chosen:
        tokens = chosen.get("price_per_million_tokens")
        facts.append(("settings", setting_words(chosen.get("settings") or {})))
        facts += [
            (name, text)
            for name, text in (
                ("GPUs", value_text(chosen.get("gpus", ""))),
                ("power", figure_text("power_kw", chosen["power_kw"]) if finite(chosen.get("power_kw")) else ""),
                ("price per million tokens", money(tokens, plan.currency) if finite(tokens) else ""),
            )
            if text
        ]
    work = raw.get("workload") or {}
    words = [
        f"{work['requests']:,} requests" if work.get("requests") else "",
        f"{number_text(work['requests_per_second'])} requests/s" if finite(work.get("requests_per_second")) else "",
        f"{work['prompt_tokens_mean']:,.0f} prompt tokens and {work['output_tokens_mean']:,.0f} output tokens on average"
        if finite(work.get("prompt_tokens_mean")) and finite(work.get("output_tokens_mean"))
        else "",
        f"source: {work['source']}" if work.get("source") else "",
    ]
    facts += [("model", raw.get("model", "–")), ("traffic", ", ".join(word for word in words if word) or "–")]
    warm = (chosen or {}).get("warm")
    if warm:
        steady = "where hits and waits are steady" if warm["flat"] else f"not steady: {warm['not_flat']}"
        facts.append(("measured", f"the requests from {warm['from_s']:.0f} to {warm['to_s']:.0f} s, {steady}"))
    return facts


def plan_verdict(plan: Plan, chosen: dict[str, Any] | None) -> list[tuple[str, list[Any]]]:
    """What the recommendation is, and how sure: [(heading, [block])]."""
    raw = plan.plan
    goals = [goal_table(plan, chosen or {}), interval_chart(plan, chosen or {})] if plan.goals else []
    verdict: list[tuple[str, list[Any]]] = [("Goals", [odds_sentences(plan), *goals])]
    verdict += server_parts((chosen or {}).get("servers") or {})
    verdict.append(("Questions that follow", [questions_table(plan)]))
    if raw.get("alternatives"):
        reasons = [(one.get("because") or "–", one) for one in raw["alternatives"]]
        verdict.append(("Alternatives", [setting_rows_table("why", reasons, plan, with_reasons=False)]))
    if raw.get("ties"):
        ties = [(changed_settings(plan, one), one) for one in raw["ties"]]
        words = "These settings differ from the recommendation by less than the error of a choice between settings."
        verdict.append(("Ties", [words, setting_rows_table("differs in", ties, plan, with_settings=False)]))
    if (raw.get("binds") or {}).get("sentence"):
        verdict.append(("What binds", [str(raw["binds"]["sentence"])]))
    if raw.get("margins"):
        changes = [(one.get("change") or "–", one) for one in raw["margins"]]
        verdict.append(("One step more or less", [setting_rows_table("change", changes, plan, with_settings=False)]))
    if drives_table(plan):
        verdict.append(("Drive life", [drives_table(plan)]))
    prices = [str(name) for name in plan.prices.get("assumed") or []]
    assumed = [f"price list: {joined(prices)}"] if prices else []
    verdict.append(("Assumptions", [assumed + [str(sentence) for sentence in raw.get("assumed") or []]]))
    return verdict


def parts_table(plan: Plan, chosen: dict[str, Any] | None) -> Table | None:
    rows = [
        [
            str(part["name"]),
            count_text(part),
            money(part.get("price_month"), plan.currency),
            figure_text("power_kw", part["power_w"] / 1000) if finite(part.get("power_w")) else "–",
        ]
        for part in (chosen or {}).get("parts") or []
    ]
    return Table("", ["part", "count", "price per month", "power"], rows) if rows else None


def prices_table(plan: Plan) -> Table | None:
    assumed = plan.prices.get("assumed") or []
    rows = [
        [
            str(price["name"]),
            value_text(price["value"], price.get("unit", "")),
            "yes" if price["name"] in assumed else "no",
            str(price.get("source", "–")),
            str(price.get("date", "–")),
        ]
        for price in plan.prices.get("used") or []
    ]
    return Table("", ["name", "value", "assumed", "source", "date"], rows) if rows else None


def tried_table(plan: Plan, chosen: dict[str, Any] | None) -> Table | None:
    """All simulated settings, those of the recommendation first; None if there are none."""
    if not plan.tried:
        return None
    recommended = {
        index
        for index, one in enumerate(plan.tried)
        if chosen and (one.get("settings"), one.get("stage")) == (chosen.get("settings"), chosen.get("stage"))
    }
    shown = sorted([*recommended, *(i for i in range(len(plan.tried)) if i not in recommended)][:MAX_ROWS])
    entries = [(f"{index + 1}", plan.tried[index]) for index in shown]
    table = setting_rows_table("number", entries, plan)
    table.head.append("computed as")
    for cells, (_, one) in zip(table.rows, entries):
        cells.append(str(one.get("stage") or "–"))
    table.marked = {place for place, index in enumerate(shown) if index in recommended}
    search = plan.plan.get("search") or {}
    if "simulations" in search:
        table.note += f" {search['simulations']} simulations, {search.get('bounded', 0)} settings left out by bounds"
    if len(plan.tried) > MAX_ROWS:
        table.note += f"; {MAX_ROWS} of {len(plan.tried)} rows, all are in plan.json"
    table.folded = len(entries) > 20
    return table


def plan_section(folder: Path | str, raw: dict[str, Any]) -> Section:
    plan, chosen = Plan(folder, raw), raw.get("recommendation")
    section = Section(f"{plan.folder.name}: {raw.get('title') or 'plan'}", plan_lead(plan, chosen))
    section.facts = plan_facts(plan, chosen)
    section.warnings = raw.get("warnings") or []
    section.verdict = plan_verdict(plan, chosen)
    limits = {goal["figure"]: goal["limit"] for goal in plan.goals} or {"ttft_p90_s": None}
    goodput = [key for one in plan.tried for key in one.get("figures") or {} if key.startswith("good")]
    limits |= {key: None for key in goodput[:1] if key not in limits}
    section.parts = [
        ("Price and service", [plan.front(key, limit) for key, limit in limits.items()]),
        ("What binds", [ttft_chart(plan), lanes_chart(plan)]),
        ("Hits by capacity", [hits_chart(plan)]),
        ("Sensitivities", [causes_chart(plan)]),
        ("Drive wear", [drives_chart(plan)]),
        ("Parts of the recommendation", [parts_table(plan, chosen)]),
        ("Prices", [prices_table(plan)]),
        ("Other parts, which never met the goals", [nearest_table(plan)]),
        ("All settings", [tried_table(plan, chosen)]),
    ]
    name = (chosen or {}).get("experiment")
    if name and Path(str(name)).name == name:
        section.experiment, _ = resolved(folder, name)
    section.commands = [str(command) for command in [raw.get("command"), *(raw.get("reproduce") or [])] if command]
    section.origin = origin_text(raw)
    return section


def plans_section(plans: Sequence[tuple[str, Plan]]) -> Section:
    """Recommendations of several plans side by side."""
    section = Section("Plans side by side", "")
    figures = list(dict.fromkeys(goal["figure"] for _, plan in plans for goal in plan.goals))
    rows, priced = [], []
    for name, plan in plans:
        one = plan.plan.get("recommendation")
        if not one:
            rows.append([name, plan.plan.get("reason") or "no recommendation", "–", "–", "–", *["–"] * len(figures)])
            continue
        if finite(one.get("price_month")):
            priced.append((one["price_month"], len(rows)))
        rows.append(
            [
                name,
                plan.parts_text(one),
                value_text(one.get("gpus", "–")),
                plan.price_text(one),
                odds_text(plan) or "–",
                *(figure_text(key, (one.get("figures") or {}).get(key)) for key in figures),
            ]
        )
    comparable = len({plan.currency for _, plan in plans}) == 1 and priced
    cheapest = min(priced)[1] if comparable else -1
    section.lead = (
        f"Lowest price: {rows[cheapest][0]}, {rows[cheapest][3]} per month." if comparable else f"{len(plans)} plans."
    )
    section.verdict = [
        (
            "Recommendations",
            [
                Table(
                    "",
                    ["plan", "recommendation", "GPUs", "price per month", "goals hold with", *map(figure_name, figures)],
                    rows,
                    {cheapest} if comparable else set(),
                )
            ],
        )
    ]
    return section
