"""The sections of runs."""

import shlex
from collections.abc import Sequence
from typing import Any

from kvtwin.chart_kinds import effect_chart
from kvtwin.charts import Table
from kvtwin.charts_of_runs import lanes_chart, latencies_chart, parts_chart, side_by_side_charts, tokens_chart
from kvtwin.figure_words import (
    LATENCIES,
    bytes_text,
    count,
    figure_name,
    figure_text,
    finite,
    joined,
    number_text,
    percent,
    seconds,
)
from kvtwin.report_sections import Section, origin_text
from kvtwin.result_folders import SOURCES, Run, check_complete, parts_of, resolved


def run_facts(run: Run) -> list[tuple[str, str]]:
    report = run.report
    requests, throughput = report["requests"], report.get("throughput", {})
    facts = [
        (
            "requests",
            f"{requests['completed']:,} of {requests['total']:,} completed, {requests['rejected']:,} rejected, "
            f"{requests['failed']:,} failed, in {seconds(report.get('simulated_seconds'))}",
        )
    ]
    if finite(throughput.get("requests_per_second")):
        window = throughput.get("window_seconds")  # absent in reports of older versions
        part = finite(window) and window != report.get("simulated_seconds")
        facts.append(
            (
                "throughput",
                f"{number_text(throughput['requests_per_second'])} requests/s, {count(throughput['prompt_tokens_per_second'])} prompt "
                f"tokens/s, {count(throughput['output_tokens_per_second'])} output tokens/s"
                + (f", in the measured window of {seconds(window)}" if part else ""),
            )
        )
    slo = report.get("slo")
    if slo:
        limits = [
            f"{LATENCIES.get(key.split('_')[0], key)} {figure_text(key, slo[key])}"
            for key in slo
            if key.endswith("_s") and slo[key]
        ]
        facts.append(
            (
                "good requests",
                f"{slo['good']:,}, {percent(slo['good_share'])} of all, {figure_text('per_second', slo['goodput_per_second'])} per second"
                + (f" (within {joined(limits)})" if limits else ""),
            )
        )
    tokens = report["tokens"]
    total = sum(tokens.get(key, 0) for key, _, _ in SOURCES)
    if total:
        facts.append(
            (
                "prompt tokens",
                f"{count(total)}: "
                + ", ".join(f"{label} {percent(tokens[key] / total)}" for key, label, _ in SOURCES if tokens.get(key)),
            )
        )
    hand_overs = report.get("hand_overs")
    if hand_overs:
        facts.append(
            (
                "roles",
                f"{hand_overs['prefill_engines']} prefill and {hand_overs['decode_engines']} decode engines: "
                f"{hand_overs['requests']:,} hand-overs of {bytes_text(hand_overs['bytes'])}; {hand_overs['fell_back']:,} "
                f"prompts computed by their decode engine, {hand_overs['sent_again']:,} requests sent again",
            )
        )
    facts.append(("where the time goes", binding_text(report["ttft_parts_seconds"], report.get("lanes", []))))
    if report.get("model_kv"):
        facts.append(("KV of the model", report["model_kv"]))
    world = {"real": "a real run", "simgrid": "a simulation (SimGrid)", "events": "a simulation (event heap)"}.get(
        report["world"], report["world"]
    )
    facts.append(("world", f"{world}, device {report.get('device', '–')}, seed {report.get('seed', '–')}"))
    return facts


def binding_text(parts: dict[str, Any], lanes: Sequence[dict[str, Any]]) -> str:
    """Names the largest part of the mean TTFT and the busiest kind of lane."""
    words = []
    known = {key: parts.get(key) or 0 for key, _, _ in parts_of(parts)}
    total = sum(known.values())
    if total > 0:
        largest = max(known, key=lambda key: known[key])
        words.append(
            f"{percent(known[largest] / total)} of the mean TTFT is {dict((key, label) for key, label, _ in parts_of(parts))[largest]}"
        )
    if lanes:
        busiest = max(lanes, key=lambda lane: lane["busy_fraction"])
        words.append(
            f"the busiest lane is {busiest['name']}: {percent(busiest['busy_fraction'])} busy, "
            f"{percent(busiest.get('busy_fraction_p99'))} in its 99th-percentile window"
        )
    return "; ".join(words) or "no request completed"


def time_text(report: dict[str, Any], key: str, name: str) -> str:
    """A time with its 80 % interval, if the report has one: a simulation's."""
    text = seconds(report.get(f"{key}_seconds", {}).get(name))
    interval = report.get("intervals", {}).get(f"{key}_{name}_s")
    return f"{text} ({seconds(interval[0])} to {seconds(interval[1])})" if interval else text


def intervals_text(report: dict[str, Any]) -> str:
    """What the intervals are made of."""
    of = report.get("intervals_of")
    if not of:
        return ""
    return f"In brackets: the interval of 80 %, by the errors of {'; '.join([of['runs'], *of['widened']])}."


def latency_table(report: dict[str, Any]) -> Table:
    columns = ["mean", "p50", "p90", "p95", "p99", "max"]
    rows = [
        [label, *(time_text(report, key, name) for name in columns)]
        for key, label in LATENCIES.items()
        if f"{key}_seconds" in report
    ]
    return Table("", ["latency", *columns], rows, note=intervals_text(report))


def tiers_table(report: dict[str, Any]) -> Table:
    rows = []
    for tier in report.get("tiers", []):
        if not tier["capacity_pages"]:
            continue
        dropped = ", ".join(f"{pages:,} ({reason})" for reason, pages in tier.get("dropped", {}).items())
        rows.append(
            [
                tier["name"],
                f"{tier['capacity_pages']:,}",
                percent(tier["used_pages_max"] / tier["capacity_pages"]),
                f"{tier['evicted_pages']:,}",
                bytes_text(tier["written_bytes"]),
                dropped or "0",
            ]
        )
    return Table("", ["tier", "capacity (pages)", "most used", "evicted pages", "written", "dropped pages"], rows)


def wear_table(report: dict[str, Any]) -> Table | None:
    """Writes to the disk tier; None if there are none."""
    disk = next((tier for tier in report.get("tiers", []) if tier["name"] == "disk"), None)
    if not disk or not disk["written_bytes"]:
        return None
    rows = [["written in the run", bytes_text(disk["written_bytes"])]]
    if finite(disk.get("written_bytes_per_day")):
        rows.append(["at the rate of the measured window", f"{bytes_text(disk['written_bytes_per_day'])} a day"])
    if finite(disk.get("writes_per_day")):
        rows.append(["drive writes per day, for drives as large as the tier", number_text(disk["writes_per_day"])])
    return Table("", ["disk tier, all engines", ""], rows, note="Without the write amplification of the drives.")


def bounds_table(report: dict[str, Any]) -> Table | None:
    bounds, tokens = report.get("bounds"), report.get("warm", report)["tokens"]  # bounds are of the warm part
    if not bounds:
        return None
    hit = sum(value for key, value in tokens.items() if key.startswith("hit_"))
    rows = [
        [name, f"{value:,}", percent(value / tokens["prompt"]) if tokens["prompt"] else "–"]
        for name, value in (
            ("this run", hit),
            ("LRU, single cache", bounds["lru_hit_tokens"]),
            ("optimal, single cache", bounds["eviction_opt_hit_tokens"]),
            ("upper bound with its states", bounds.get("states_opt_hit_tokens")),
        )
        if value is not None
    ]
    gap = bounds.get("gap_closed")
    return Table(
        "",
        ["", "hit tokens", "share of the prompt"],
        rows,
        note=f"Gap to optimal closed: {percent(gap)}." if finite(gap) else "",
    )


def draws_parts(report: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    draws = report.get("draws")
    if not draws:
        return []
    rows = [
        [figure_name(key), figure_text(key, one["value"]), figure_text(key, one["low"]), figure_text(key, one["high"])]
        for key, one in draws["figures"].items()
    ]
    blocks: list[Any] = [
        Table(
            "",
            ["figure", "as given", "2.5 %", "97.5 %"],
            rows,
            note=f"{draws['count']} hardware variants, {draws['numbers']} numbers drawn.",
        )
    ]
    causes = [
        (cause["number"], cause["ttft_mean_s"]["at_low"], cause["ttft_mean_s"]["at_high"])
        for cause in draws["hangs_on"]
    ]
    causes = [cause for cause in causes if finite(cause[1]) and finite(cause[2])]
    if causes:
        blocks.append(
            effect_chart(
                "Numbers of the hardware that the mean TTFT depends on",
                causes,
                "ttft_mean_s",
                report["ttft_seconds"]["mean"],
            )
        )
    return [("How sure: hardware variants", blocks)]


def run_section(folder: str, run: Run) -> Section:
    report = run.report
    check_complete(run)
    experiment, keys = resolved(folder)
    ttft = report["ttft_seconds"]
    what = joined(
        [word for word in (keys.get("model.name"), keys.get("hardware.file") or keys.get("hardware.name")) if word]
    )
    lead = (
        f"TTFT {time_text(report, 'ttft', 'mean')} on average, {time_text(report, 'ttft', 'p90')} at p90, "
        f"{time_text(report, 'ttft', 'p99')} at p99."
        if finite(ttft["mean"])
        else "No request completed."
    )
    section = Section(
        f"{run.folder.name}: {'real run' if report['world'] == 'real' else 'simulation'}"
        + (f" of {what}" if what else ""),
        lead,
    )
    section.facts = run_facts(run)
    section.warnings = report.get("notes", [])
    section.verdict = [("Latency", [latency_table(report)])]
    section.parts += [
        ("Time to first token, time per output token", [latencies_chart(run)]),
        ("Where the time goes", [parts_chart(run)]),
        ("Where the tokens came from", [tokens_chart(run)]),
        ("Distance to optimal", [bounds_table(report)]),
        ("Tiers and lanes", [tiers_table(report), lanes_chart(run)]),
        ("Drive wear", [wear_table(report)]),
        *draws_parts(report),
    ]
    if experiment:
        section.experiment = experiment
        again = shlex.quote(f"{folder}/experiment.resolved.toml")
        if report["world"] == "real":
            section.commands = [
                f"kvtwin replay {shlex.quote(str(folder))}",
                f"kvtwin run {again} --device {report.get('device', 'host')} --out out/again",
            ]
        else:
            draws = f" --draws {report['draws']['count']}" if report.get("draws") else ""
            section.commands = [f"kvtwin simulate {again} --world {report['world']}{draws} --out out/again"]
    section.origin = origin_text(report)
    return section


def runs_section(runs: Sequence[tuple[str, Run]]) -> Section:
    """Figures of several runs side by side."""
    names = [name for name, _ in runs]
    section = Section("Side by side", "")
    rows = []
    means = [run.report["ttft_seconds"]["mean"] for _, run in runs]
    same_world = len({run.report["world"] for _, run in runs}) == 1  # a simulation is not better than a real run
    best = min((mean for mean in means if finite(mean)), default=None) if same_world else None
    for name, run in runs:
        report = run.report
        hit = sum(value for key, value in report["tokens"].items() if key.startswith("hit_"))
        requests = report["requests"]
        rows.append(
            [
                name,
                report["world"],
                f"{requests['completed']:,} of {requests['total']:,}",
                *(time_text(report, "ttft", key) for key in ("mean", "p90", "p99")),
                time_text(report, "tpot", "mean"),
                percent(hit / report["tokens"]["prompt"]) if report["tokens"]["prompt"] else "–",
            ]
        )
    if best is not None:
        section.lead = f"Lowest mean TTFT: {names[means.index(best)]}, {seconds(best)}."
    elif any(finite(mean) for mean in means):
        each = (f"{name} {seconds(mean)} ({run.report['world']})" for (name, run), mean in zip(runs, means))
        section.lead = f"Mean TTFT: {', '.join(each)}."
    else:
        section.lead = "No run completed a request."
    head = ["run", "world", "completed", "TTFT mean", "TTFT p90", "TTFT p99", "TPOT mean", "prompt tokens hit"]
    section.verdict = [
        (
            "Runs",
            [
                Table("", head, rows, {means.index(best)}, "Highlighted: lowest mean TTFT.")
                if best is not None
                else Table("", head, rows)
            ],
        )
    ]
    section.parts = [("Figures of all runs", side_by_side_charts(runs))]
    return section
