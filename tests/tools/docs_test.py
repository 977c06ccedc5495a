"""Tests tools/docs: what a console block is, which output matches, and that outdated pages and wrong commands are
found. A shell script takes the place of kvtwin."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
LOADER = SourceFileLoader("tools_docs", str(ROOT / "tools/docs"))
docs = module_from_spec(spec_from_loader("tools_docs", LOADER))
LOADER.exec_module(docs)  # also finds the modules of tools/
import docs_of_python

KVTWIN = """#!/bin/sh
case "$*" in
"simulate --help-keys") echo "seed  of what is drawn [0 - 9]; default 1"; echo "model.name  a preset" ;;
"--help") printf 'kvtwin: caches\\n\\nSubcommands:\\n  simulate      Serve\\n' ;;
"simulate --help") echo "Usage: $0 simulate" ;;
"presets --json") echo '{"figures": {"ttft_p90_s": {"words": "TTFT p90", "unit": "seconds"}}}' ;;
*) echo "served $*"; echo "took 3 s" ;;
esac
"""


class Parsing(unittest.TestCase):
    def test_blocks_have_a_line_a_mark_and_lines(self):
        text = "a\n```console\n$ x\n```\n```sh\n$ y\n```\n```console gpu\n$ z\n```\n"
        self.assertEqual(list(docs.blocks_of(text)), [(2, "", ["$ x"]), (8, "gpu", ["$ z"])])

    def test_commands_go_on_after_a_backslash(self):
        commands = docs.commands_of(["$ a \\", "    b", "out", "$ c"])
        self.assertEqual(commands, [["a \\\n    b", ["out"]], ["c", []]])
        with self.assertRaises(ValueError):
            docs.commands_of(["output without a command"])

    def test_three_points_match_lines_and_parts_of_a_line(self):
        for expected, got, right in [
            (["a"], ["a"], True), (["a"], ["a", "b"], False), (["a", "..."], ["a"], True),
            (["...", "b", "..."], ["a", "b", "c"], True), (["...", "d"], ["a", "b"], False),
            (["took ... s"], ["took 3.2 s"], True), (["took ... s"], ["took 3.2 ms"], False), ([], ["a"], False),
        ]:
            self.assertEqual(docs.matches(expected, got), right, (expected, got))

    def test_keys_with_and_without_range_and_default(self):
        text = "seed  of what is drawn [0 - 9]; default 1\nmodel.name   a preset\ncache.x  [a] b; default "
        self.assertEqual(list(docs.parse_keys(text)), [
            ("seed", "of what is drawn", "0 - 9", "1"), ("model.name", "a preset", "", ""), ("cache.x", "[a] b", "", "")])
        self.assertEqual(list(docs.parse_keys("cache.x  b; default a\n  a(n=...)  count [one of 1, 2]; default 1")), [
            ("cache.x", "b", "", "a"), ("a(n=...)", "count", "one of 1, 2", "1")])


class Docstrings(unittest.TestCase):
    def function(self, text, aliases=()):
        (node,) = ast.parse(text).body
        return docs_of_python.function_lines(node, node.name, 3, aliases)

    def test_arguments_are_rows(self):
        lines = self.function('''def f(a: int, b: str | None = None, *, rest: "X" = 0, **options: float) -> "Y":
            """Does it. Columns: a_* and <b>.

            a, b: two. They go
            on. rest: one with a colon: here.
            options: others.

            Raises InputError.
            """''')
        self.assertEqual(lines, [
            "### f", "", "```python", "f(a, b=None, rest=0, **options) -> Y", "```", "",
            "Does it. Columns: a_\\* and &lt;b>.", "", "Raises InputError.", "",
            "| argument | type | default | meaning |", "|---|---|---|---|",
            "| `a` | `int` |  | two. They go on. |",
            "| `b` | `str \\| None` | `None` | two. They go on. |",
            "| `rest` | `X` | `0` | one with a colon: here. |",
            "| `**options` | `float` |  | others. |", "",
        ])

    def test_an_argument_without_description_is_refused(self):
        with self.assertRaisesRegex(docs.Undescribed, "f: the docstring does not describe b, c"):
            self.function('''def f(a, b, c):
                """Does it. a: one."""''')
        self.function('''def f(a, b):
            """Does it. Arguments as of g()."""''')
        self.assertIn("| `b` | `Keys` |  | Keys, above |", self.function('''def f(b: Keys):
            """Does it."""''', {"Keys"}))


class Tree(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.tree = Path(scratch.name)
        (self.tree / "tools").mkdir()
        (self.tree / "docs/reference").mkdir(parents=True)
        (self.tree / "build").mkdir()
        for name in ("docs", "docs_of_python.py"):
            shutil.copy(ROOT / "tools" / name, self.tree / "tools" / name)
        shutil.copytree(ROOT / "python/kvtwin", self.tree / "python/kvtwin", ignore=shutil.ignore_patterns("*.json", "__pycache__"))
        (self.tree / "build/kvtwin").write_text(KVTWIN)
        (self.tree / "build/kvtwin").chmod(0o755)

    def docs(self, *arguments):
        environment = {k: v for k, v in os.environ.items() if k != "KVTWIN_PROGRAM"}
        return subprocess.run([self.tree / "tools/docs", *arguments], env=environment, capture_output=True, text=True)

    def readme(self, text):
        (self.tree / "README.md").write_text(text)

    def test_a_page_that_differs_is_named(self):
        run = self.docs("--check")
        self.assertEqual(run.returncode, 1)
        for file in ("docs/reference/keys.md", "docs/reference/python.md", "python/kvtwin/run_figures.json"):
            self.assertIn(f"{file}: differs", run.stdout)

    def test_commands_write_below_a_temporary_folder(self):
        self.readme("```console\n$ build/kvtwin run --out out/a\nserved run --out out/a\n...\n$ touch out/b && ls out/\n"
                    "b\n```\n```console slow\n$ false\n```\n")
        run = self.docs("--run")
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertRegex(run.stdout, r"^2 commands run in \d+ s of processor time, 0 failed; not run: 1 slow$")
        self.assertFalse((self.tree / "out").exists())

    def test_wrong_output_exit_codes_and_marks_fail(self):
        for block, said in [("console\n$ build/kvtwin x\nserved y\n...", "expected:"), ("console\n$ false", "exit code 1"),
                            ("console fast\n$ true", "unknown mark 'fast'")]:
            self.readme(f"```{block}\n```\n")
            run = self.docs("--run")
            self.assertEqual(run.returncode, 1, block)
            self.assertIn(said, run.stdout)


class Pages(unittest.TestCase):
    def test_links_of_the_readme_lead_somewhere(self):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / "README.md").read_text(encoding="utf-8")):
            self.assertTrue((ROOT / target).exists(), target)

    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()), 200)

    def test_every_block_can_be_read(self):
        for page in docs.pages([]):
            for number, mark, lines in docs.blocks_of(page.read_text(encoding="utf-8")):
                self.assertIn(mark, docs.MARKS | {""}, f"{page}:{number}")
                self.assertTrue(docs.commands_of(lines), f"{page}:{number}")


if __name__ == "__main__":
    unittest.main()
