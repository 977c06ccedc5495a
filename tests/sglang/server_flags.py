#!/usr/bin/env python3
"""Every flag of SGLang's server, read from the argparse parser of its ServerArgs.

tools/sglang-parity --flags compares the flags of a release with server_flags.tsv in tests/fixtures/sglang/, or writes
that file. As a program, this module prints the table of the SGLang that is on Python's path. The parser needs no GPU:
an empty stand-in takes the place of each package that is not installed.
Columns, separated by a tab: field, flags (separated by a blank), takes (nothing, one, list), type, default (JSON),
choices (separated by a blank).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "fixtures/sglang/server_flags.tsv"
COLUMNS = ("field", "flags", "takes", "type", "default", "choices")


def table():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import absent_packages

    absent_packages.replace((), ("sglang.srt.entrypoints",))
    absent_packages.replace_missing("sglang")
    version = absent_packages.skip_init("sglang", "sglang", "sglang.srt.configs")
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    rows = []
    for action in parser._actions:
        if action.dest == "help":
            continue
        takes = "nothing" if action.nargs == 0 else "list" if action.nargs in ("+", "*") else "one"
        kind = getattr(action.type, "__name__", "") if action.type else ""
        default = "null" if action.default is None else json.dumps(action.default, default=lambda value: str(value))
        choices = " ".join(sorted(str(choice) for choice in action.choices or ()))
        rows.append("\t".join((action.dest, " ".join(action.option_strings), takes, kind, default, choices)))
    return "\n".join((f"# sglang {version}, ServerArgs.add_cli_args; see tests/sglang/server_flags.py", *sorted(rows)))


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


def compare(renew):
    """Prints the changes to the stored table. Returns their number, or 0 after the file was written."""
    run = subprocess.run([sys.executable, "-W", "ignore", __file__], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"tools/sglang-parity: the flags of this release cannot be read:\n{run.stderr}")
    stored, new = FILE.read_text(encoding="utf-8"), run.stdout
    lines = list(changes(stored, new))
    print(f"SGLang {version_of(stored)} -> {version_of(new)}: {len(rows_of(new))} flags, {len(lines)} changes")
    for line in lines:
        print(line)
    if renew:
        FILE.write_text(new, encoding="utf-8")
    return 0 if renew else len(lines)


if __name__ == "__main__":
    print(table())
