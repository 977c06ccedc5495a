"""Makes docs/reference/python.md from the docstrings and type hints of python/kvtwin, for tools/docs. Reads the source text and
imports nothing of the package.

In a docstring, `name: text.` at the start of a line or of a sentence describes an argument; several names may share a text.
Every argument of a public function must be described: in its docstring, by a sentence like "Arguments as of put()", or by the
text behind its type (`Keys`).
"""

import ast
import re
from pathlib import Path

# Module, and the title of its section.
SECTIONS = [
    ("simulation", "Simulations and real runs"),
    ("plans", "Plans"),
    ("sweeps", "Sweeps and comparisons"),
    ("reports", "Pages"),
    ("hits", "Hit ratios"),
    ("policy_libraries", "Policies of your own"),
    ("intervals", "Intervals"),
    ("traces", "Traces"),
    ("store", "Stores"),
    ("errors", "Exceptions and warnings"),
]
HEAD = """# Python package

The public names of `kvtwin`, with their arguments, units and errors. [Python](../python.md) is the introduction. `help(kvtwin.plan)`
prints the same texts. Times are in seconds (`*_s`), sizes in bytes or GiB as their names say, lengths in tokens, shares from 0 to 1.
"""


class Undescribed(Exception):
    """Arguments that no docstring describes."""


def public_names(source):
    """Returns the names of each module, from _NAMES of __init__.py."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_NAMES":
            return ast.literal_eval(node.value)
    raise ValueError("__init__.py has no _NAMES")


def type_text(node):
    """Returns a type hint without quotes."""
    return ast.unparse(node).replace("'", "").replace('"', "") if node is not None else ""


def plain(text):
    """Returns the text as Markdown in one line: outside of code, * and < are characters."""
    parts = re.sub(r"\s+", " ", text).strip().split("`")
    return "`".join(part if number % 2 else part.replace("*", "\\*").replace("<", "&lt;") for number, part in enumerate(parts))


def cell(text):
    return plain(text).replace("|", "\\|")


def code(text):
    return "`" + re.sub(r"\s+", " ", text).strip().replace("|", "\\|") + "`" if text else ""


def parameters_of(function):
    """Returns (name, type, default) of each argument; * and ** in front of the rest of the arguments."""
    of = function.args
    positional = [*of.posonlyargs, *of.args]
    defaults = [None] * (len(positional) - len(of.defaults)) + list(of.defaults)
    found = list(zip(positional, defaults)) + list(zip(of.kwonlyargs, of.kw_defaults))
    named = [
        (one.arg, type_text(one.annotation), ast.unparse(default) if default is not None else "")
        for one, default in found
        if one.arg not in ("self", "cls") and not one.arg.startswith("_")
    ]
    rest = [(mark + one.arg, type_text(one.annotation), "") for mark, one in (("*", of.vararg), ("**", of.kwarg)) if one]
    return named + rest


def split_docstring(text, names):
    """Returns the docstring without the descriptions of arguments, and the descriptions by name."""
    described, kept = {}, []
    one_of = "|".join(sorted(map(re.escape, names), key=len, reverse=True)) or "(?!)"
    start = re.compile(rf"(?:(?<=\A)|(?<=\n)|(?<=[.;)] ))((?:{one_of})(?:, (?:{one_of}))*): ")
    for paragraph in re.split(r"\n\s*\n", text):
        parts = start.split(paragraph)  # text, names, description, names, description, ...
        if parts[0].strip():
            kept.append(parts[0].rstrip())
        for group, description in zip(parts[1::2], parts[2::2]):
            for name in group.split(", "):
                described[name] = description.strip()
    return kept, described


def paragraphs(kept):
    """Returns Markdown. Paragraphs in columns, and indented ones, are code."""
    lines = []
    for paragraph in kept:
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            body = "\n".join(line[4:] for line in paragraph.splitlines())
            lines += ["```python", body, "```", ""]
        elif re.search(r"\S {3,}\S", paragraph):
            lines += ["```text", paragraph, "```", ""]
        else:
            lines += [plain(paragraph), ""]
    return lines


def function_lines(function, title, level, aliases):
    """Returns the section of a function or method. `aliases`: types that have a text."""
    parameters = parameters_of(function)
    names = [name.lstrip("*") for name, _, _ in parameters]
    kept, described = split_docstring(ast.get_docstring(function) or "", names)
    shared = re.search(r"[Aa]rguments(?: and errors)? (?:as|are those) of \w+\(\)", " ".join(kept))
    described |= {name: f"{hint}, above" for name, hint, _ in parameters if hint in aliases and name not in described}
    absent = [name for name in names if name not in described]
    if absent and not shared:
        raise Undescribed(f"{title}: the docstring does not describe {', '.join(absent)}")
    returns = type_text(function.returns)
    lines = [f"{'#' * level} {title}", ""]
    signature = ", ".join(name + (f"={default}" if default else "") for name, _, default in parameters)
    lines += ["```python", f"{title}({signature})" + (f" -> {returns}" if returns else ""), "```", "", *paragraphs(kept)]
    rows = [one for one in parameters if one[0].lstrip("*") in described]
    if rows:
        lines += ["| argument | type | default | meaning |", "|---|---|---|---|"]
        for name, hint, default in rows:
            lines.append(f"| `{name}` | {code(hint)} | {code(default)} | {cell(described[name.lstrip('*')])} |")
        lines.append("")
    return lines


def comment_of(node, source):
    """Returns the comment at the end of the line."""
    found = re.search(r"\s# (.*)$", source[node.end_lineno - 1])
    return found[1] if found else ""


def fields_of(node, source):
    """Returns (name, type, default, comment) of the fields of a data class, a named tuple or an enumeration."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign):
            default = ast.unparse(one.value) if one.value is not None else ""
            yield one.target.id, type_text(one.annotation), default, comment_of(one, source)
        elif isinstance(one, ast.Assign) and not one.targets[0].id.startswith("_"):
            yield one.targets[0].id, "", ast.unparse(one.value), comment_of(one, source)


def attributes_of(node):
    """Returns (name, type, text) of the attributes with a text behind them in __init__, and of the properties."""
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            for field, text in zip(one.body, one.body[1:]):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    yield field.target.attr, type_text(field.annotation), text.value.value
        elif isinstance(one, ast.FunctionDef) and any("property" in ast.unparse(by) for by in one.decorator_list):
            yield one.name, type_text(one.returns), ast.get_docstring(one) or ""


def class_lines(node, module, source, aliases):
    bases = [module[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in module]
    kept, _ = split_docstring(ast.get_docstring(node) or "", [])
    lines = [f"### {node.name}", "", *paragraphs(kept)]
    if fields := list(fields_of(node, source)):
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {code(hint)} | {code(default)} | {cell(text)} |" for name, hint, default, text in fields]
        lines.append("")
    private = [base for base in bases if base.name.startswith("_")]
    if attributes := [one for part in (*private, node) for one in attributes_of(part)]:
        lines += ["| attribute | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {code(hint)} | {cell(text)} |" for name, hint, text in attributes]
        lines.append("")
    for one in node.body:
        if not isinstance(one, ast.FunctionDef) or any("property" in ast.unparse(by) for by in one.decorator_list):
            continue
        if one.name == "__init__" and ast.get_docstring(one):
            lines += function_lines(one, node.name, 4, aliases)
        elif not one.name.startswith("_"):
            lines += function_lines(one, f"{node.name}.{one.name}", 4, aliases)
    return lines


def aliases_of(module):
    """Returns the name and the paragraph of each type that has a text behind it."""
    for one, text in zip(module.body, module.body[1:]):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if isinstance(one, ast.Assign) and is_text:
            yield one.targets[0].id, f"**{one.targets[0].id}**: `{type_text(one.value)}`. {plain(text.value.value)}"


def python_page(package: Path, generated: str) -> str:
    """Returns the page. Raises Undescribed."""
    names = public_names((package / "__init__.py").read_text(encoding="utf-8"))
    lines, aliases = [generated, HEAD], {}
    for name, title in SECTIONS:
        text = (package / f"{name}.py").read_text(encoding="utf-8")
        module, source = ast.parse(text), text.splitlines()
        defined = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
        public = names.get(name) or [one for one in defined if not one.startswith("_")]
        prefix = f"{name}." if name not in names else ""
        aliases |= dict(aliases_of(module))
        lines += [f"## {title}", "", *paragraphs(split_docstring(ast.get_docstring(module, clean=False) or "", [])[0])]
        lines += [line for _, paragraph in aliases_of(module) for line in (paragraph, "")]
        for one in sorted(public, key=lambda one: defined[one].lineno):
            node = defined[one]
            if isinstance(node, ast.ClassDef):
                lines += class_lines(node, defined, source, aliases)
            else:
                lines += function_lines(node, prefix + one, 3, aliases)
    return "\n".join(lines).rstrip("\n") + "\n"
