"""Tests tools/notebooks on small notebooks."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Notebooks(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = Path(scratch.name, "small.ipynb")

    def write(self, *cells):
        """Writes a notebook of code cells: a source, or (source, tag)."""
        cells = [cell if isinstance(cell, tuple) else (cell, None) for cell in cells]
        code = [
            {"cell_type": "code", "execution_count": None, "outputs": [], "source": source.splitlines(keepends=True),
             "metadata": {"tags": [tag]} if tag else {}} for source, tag in cells
        ]  # fmt: skip
        text = {"cell_type": "markdown", "metadata": {}, "source": ["# Title"]}
        self.path.write_text(json.dumps({"cells": [text, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))

    def run_tool(self, *arguments, code=0, environment=None):
        command = [sys.executable, ROOT / "tools/notebooks", "--python", sys.executable, *arguments, self.path]
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def outputs(self):
        return [cell["outputs"] for cell in json.loads(self.path.read_text())["cells"] if cell["cell_type"] == "code"]

    def test_outputs_are_text_tables_and_images(self):
        self.write(
            "%matplotlib inline\nimport matplotlib.pyplot as plt\nprint('one')\n(1, 'two')",
            "x = 3",
            "class Table:\n    def _repr_html_(self):\n        return '<table></table>'\n    def __repr__(self):\n        return 'table'\nTable()",
            "from matplotlib.figure import Figure\nfigure = Figure()\nfigure.subplots().plot([1, 2])\nfigure",
            "plt.plot([1, 2])\nNone",
        )
        self.run_tool()
        text, nothing, table, figure, drawn = self.outputs()
        self.assertEqual(text[0], {"name": "stdout", "output_type": "stream", "text": ["one\n"]})
        self.assertEqual(text[1]["data"], {"text/plain": ["(1, 'two')"]})
        self.assertEqual((text[1]["execution_count"], nothing), (1, []))
        self.assertEqual(table[0]["data"], {"text/html": ["<table></table>"], "text/plain": ["table"]})
        self.assertEqual(set(figure[0]["data"]), {"image/png", "text/plain"})
        self.assertEqual([(one["output_type"], set(one["data"])) for one in drawn], [("display_data", {"image/png", "text/plain"})])
        before = self.path.read_bytes()
        self.run_tool("--check")
        self.run_tool()
        self.assertEqual(self.path.read_bytes(), before)

    def test_an_output_that_differs_is_found(self):
        self.write("a = 5\na")
        self.assertIn("+5", self.run_tool("--check", code=1))
        self.run_tool()
        self.path.write_text(self.path.read_text().replace("a = 5", "a = 6"))
        before = self.path.read_bytes()
        found = self.run_tool("--check", code=1)
        self.assertIn("-5\n+6", found)
        self.assertEqual(self.path.read_bytes(), before)

    def test_folders_of_this_machine_are_refused(self):
        self.write("import os\nos.getcwd() + '/file'")
        self.assertIn("names a folder of this machine", self.run_tool(code=1))
        self.assertEqual(self.outputs(), [[]])

    def test_a_cell_that_fails_is_named(self):
        self.write("1 / 0")
        self.assertIn("small.ipynb, cell 1", self.run_tool(code=1))

    def test_builds_are_left_out_and_results_are_temporary(self):
        self.write(
            "from pathlib import Path\nwork = Path('here')",
            ("work.mkdir()\n(work / 'program').write_text('built')\nprogram = work / 'program'", "build"),
            "print(work == Path('here'), program.name)",
        )
        self.run_tool("--program", "given")
        self.assertEqual(self.outputs()[2][0]["text"], ["False given\n"])
        self.assertFalse((self.path.parent / "here").exists())
        self.path.write_text(self.path.read_text().replace("work.mkdir()", "work.mkdir(exist_ok=True)"))
        self.run_tool("--build")
        self.assertEqual(self.outputs()[2][0]["text"], ["False program\n"])
        self.run_tool("--check", environment={"KVTWIN_DEEP": "1"})

    def test_what_is_absent_is_named(self):
        self.assertIn("which does not exist", self.run_tool(code=2))


if __name__ == "__main__":
    unittest.main()
