"""The flags of an inference server as a table, and the differences of two such tables.

Columns, separated by a tab: field, flags (separated by a blank), takes (nothing, one, list), type, default (JSON),
choices (separated by a blank).
"""

import argparse
import json
import subprocess
import sys

COLUMNS = ("field", "flags", "takes", "type", "default", "choices")


def type_of(action):
    """The name of an option's type. A type that also takes the text None counts as the type."""
    kind = action.type
    if getattr(kind, "__name__", "") == "_optional_type":
        (kind,) = (cell.cell_contents for cell in kind.__closure__)
    name = getattr(kind, "__name__", "") if kind else ""
    return "" if name == "<lambda>" else name


def table(head, parser):
    """The table of an argparse parser, as text. `head`: its first line."""
    rows = []
    for action in parser._actions:
        if action.dest == "help" or not action.option_strings:
            continue
        takes = "nothing" if action.nargs == 0 else "list" if action.nargs in ("+", "*", "?") else "one"
        none = action.default is None or action.default == argparse.SUPPRESS
        default = "null" if none else json.dumps(action.default, default=str)
        choices = " ".join(sorted(str(choice) for choice in action.choices or () if choice is not None))
        rows.append("\t".join((action.dest, " ".join(action.option_strings), takes, type_of(action), default, choices)))
    return "\n".join((head, *sorted(rows)))


def rows_of(text):
    """The rows by field and first flag: two flags can have one field."""
    lines = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return {(cells[0], cells[1].split()[0]): dict(zip(COLUMNS, cells, strict=True)) for cells in lines}


def version_of(text):
    return text.split()[2].rstrip(",")


def change(column, was, is_):
    if column not in ("flags", "choices"):
        return f"{column} {was or 'none'} -> {is_ or 'none'}"
    before, now = was.split(), is_.split()
    return " ".join([column, *(f"+{word}" for word in now if word not in before),
                     *(f"-{word}" for word in before if word not in now)])


def changes(old, new):
    """One line for each difference of two tables."""
    before, now = rows_of(old), rows_of(new)
    for key in sorted(before.keys() | now.keys()):
        was, is_ = before.get(key), now.get(key)
        if was is None:
            yield f"new: {is_['flags']}: {is_['takes']} {is_['type']}".rstrip() + f", default {is_['default']}" + (
                f", of {is_['choices']}" if is_["choices"] else "")
        elif is_ is None:
            yield f"gone: {was['flags']}"
        else:
            for column in COLUMNS[1:]:
                if was[column] != is_[column]:
                    yield f"changed: {key[1]}: {change(column, was[column], is_[column])}"


def compare(engine, tool, program, file, renew):
    """Prints the changes of the engine's flags, as `program` prints them, to the stored table. Returns their number, or 0
    after the file was written. `tool`: for errors."""
    run = subprocess.run([sys.executable, "-W", "ignore", program], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{tool}: the flags of this release cannot be read:\n{run.stderr}")
    stored, new = file.read_text(encoding="utf-8") if file.exists() else f"# {engine} 0", run.stdout
    lines = list(changes(stored, new))
    print(f"{engine} {version_of(stored)} -> {version_of(new)}: {len(rows_of(new))} flags, {len(lines)} changes")
    for line in lines:
        print(line)
    if renew:
        file.write_text(new, encoding="utf-8")
    return 0 if renew else len(lines)
