"""What the sections of a page consist of, and the blocks that several kinds of folder have."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtwin.charts import Chart
from kvtwin.figure_words import exact


@dataclass
class Commands:
    """Lines to paste into a shell. Each line is a block of its own, with a button that copies it."""

    lines: list[str]


@dataclass
class Section:
    """One folder, or the comparison of several. `verdict` and `parts`: [(heading, [block])]; a block is a text, a list of
    texts, a Table, a Chart or Commands."""

    title: str
    lead: str
    facts: list[tuple[str, str]] = field(default_factory=list)  # [(name, text)]
    warnings: list[str] = field(default_factory=list)
    verdict: list[tuple[str, list[Any]]] = field(default_factory=list)
    parts: list[tuple[str, list[Any]]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    commands_note: str = ""
    experiment: str = ""
    origin: str = ""
    name: str = ""  # set by the page

    def charts(self) -> list[Chart]:
        return [block for _, blocks in self.verdict + self.parts for block in blocks if isinstance(block, Chart)]


def origin_text(report: dict[str, Any]) -> str:
    return f"kvtwin {report.get('kvtwin_version', 'of unknown version')}, commit {report.get('git_commit', 'unknown')}"


def unit_of(key: str) -> str:
    """Returns the unit of a key's values that its name ends in; empty if there is none."""
    return "GiB" if key.endswith((".gib", "_gib")) else ""


def set_words(settings: dict[str, Any]) -> str:
    """Returns the options that give a run these settings. An axis can be several keys: a+b."""
    words = [
        f"--set {shlex.quote(f'{key}={exact(value)}')}" for keys, value in settings.items() for key in keys.split("+")
    ]
    return " ".join(words)


def vary_words(axes: Sequence[dict[str, Any]]) -> str:
    return " ".join(
        f"--vary {shlex.quote(axis['name'] + '=' + ','.join(exact(v) for v in axis['values']))}"
        for axis in axes
    )


VARIED_NOTE = "With the --set options of the original command, if there were any: the folder does not record them."
ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def server_parts(servers: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """The recommendation as the command of a server of each engine. `servers`: of compare.json or plan.json."""
    parts = []
    for engine, server in servers.items():
        notes = [str(note) for note in server.get("notes") or []]
        blocks = [Commands([str(server["command"])]), *(["The flags do not say everything:", notes] if notes else [])]
        parts.append((f"Command of a server: {ENGINES.get(engine, engine)}", blocks))
    return parts


def warning_counts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """`warnings` of a row: names, separated by blanks or commas."""
    names: dict[str, int] = {}
    for row in rows:
        for name in re.split(r"[,\s]+", row.get("warnings") or ""):
            if name:
                names[name] = names.get(name, 0) + 1
    return [f"{name}: {times} of {len(rows)} rows" for name, times in sorted(names.items())]
