"""Runs notebooks/write_a_policy.ipynb in a temporary folder, with the program named on the command line, which was
built with the policy of the notebook. With KVTWIN_DEEP=1 the notebook builds the program itself, as for a reader."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks/write_a_policy.ipynb"
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/notebooks")]

import policy_notebook

PROGRAM = Path(sys.argv.pop(1)).resolve()
DEEP = os.environ.pop("KVTWIN_DEEP", "0") == "1"  # the program refuses names that it doesn't know


class WriteAPolicy(unittest.TestCase):
    def run_cells(self, work, builds):
        """Runs all cells. Returns the names that they define and the text that they print."""
        names, tags_seen = {}, []
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for text, tags, outputs, count in policy_notebook.code_cells(NOTEBOOK):
                self.assertEqual((outputs, count), ([], None), "strip the outputs")
                tags_seen += tags
                if "build" in tags and not builds:
                    names["program"] = PROGRAM
                    continue
                folder = Path.cwd()
                os.chdir(ROOT / "notebooks")  # as Jupyter does
                try:
                    exec(compile(text, "write_a_policy.ipynb", "exec"), names)
                finally:
                    os.chdir(folder)
                if "work" in names:
                    names["work"] = Path(work)
        self.assertEqual(tags_seen, ["build"])
        return names, out.getvalue()

    def check(self, builds):
        with tempfile.TemporaryDirectory() as work:
            names, printed = self.run_cells(work, builds)
            evictions = {row["eviction"] for row in names["rows"]}
            self.assertEqual(evictions, {"lru", "credit", "lfu", "s3fifo", "tide", "opt"})
            self.assertEqual(printed.count("credit closes"), 5)
            for (eviction, capacity), hit in names["hits"].items():
                self.assertLessEqual(hit, names["hits"]["opt", capacity], eviction)
            self.assertNotEqual([names["hits"]["credit", c] for c in (1000, 5000)], [names["hits"]["lru", c] for c in (1000, 5000)])
            self.assertRegex(printed, r"\n50000 +credit +\d")
            self.assertTrue((Path(work) / "compare/compare.json").exists())
            if builds:
                self.assertEqual(names["program"], Path(work) / "build/kvtwin")
        self.assertFalse((ROOT / "policy/eviction/credit.cpp").exists(), "the notebook leaves the tree alone")

    def test_runs_with_the_program_that_the_build_made(self):
        self.check(builds=False)

    if DEEP:
        def test_builds_its_program_itself(self):
            self.check(builds=True)


if __name__ == "__main__":
    unittest.main()
