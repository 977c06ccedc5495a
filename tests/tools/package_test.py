"""Tests tools/package and tools/simgrid without a build: which libraries may be in a wheel, and what is said where the source of
SimGrid cannot be had. tools/test --deep builds and tries the packages."""

import os
import subprocess
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
METADATA = "Metadata-Version: 2.4\nName: kvtwin\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\n\nLicense-File: text\n"


def load_tool():
    loader = SourceFileLoader("package_tool", str(ROOT / "tools/package"))
    module = module_from_spec(spec_from_loader("package_tool", loader))
    loader.exec_module(module)
    return module


class Package(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.info = self.scratch / "wheel/kvtwin-1.dist-info"
        self.info.mkdir(parents=True)
        (self.info / "METADATA").write_text(METADATA)

    def library(self, name):
        path = self.scratch / "wheel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def test_a_library_without_a_known_license_is_refused(self):
        tool = load_tool()
        self.library("kvtwin.libs/libgsl-0123abcd.so.27")
        with self.assertRaisesRegex(tool.Failed, r"libgsl-0123abcd\.so\.27 would be in the wheel, and BUNDLED"):
            tool.add_licenses(self.scratch / "wheel")

    def test_the_metadata_names_the_licenses_inside(self):
        tool = load_tool()
        self.library("kvtwin/lib/libsimgrid.so.3.32")
        self.assertEqual(tool.add_licenses(self.scratch / "wheel"), ["libsimgrid.so.3.32"])
        self.assertEqual((self.info / "METADATA").read_text(), METADATA.replace(
            "Expression: Apache-2.0\nLicense-File: LICENSE\n",
            "Expression: Apache-2.0 AND LGPL-2.1-only\nLicense-File: LICENSE\nLicense-File: libraries/README.txt\n"))
        self.assertIn("kvtwin/lib/libsimgrid.so.3.32: LGPL-2.1-only", (self.info / "licenses/libraries/README.txt").read_text())

    def test_a_path_of_the_source_folder_in_a_program_is_refused(self):
        tool = load_tool()
        program = self.scratch / "program"
        for text in (f"{ROOT}/.venv", ROOT):
            program.write_bytes(f"\0{text}\0".encode())
            with self.assertRaisesRegex(tool.Failed, "has the path"):
                tool.check_program(program)
        program.write_bytes(f"\0share{ROOT}\0".encode())  # of an installation, where the source folder is /kvtwin
        with self.assertRaisesRegex(tool.Failed, "check_program.py"):  # it is no program
            tool.check_program(program)

    def test_without_the_source_of_simgrid_nothing_is_built(self):
        apt = self.scratch / "bin/apt-get"
        apt.parent.mkdir()
        apt.write_text("#!/bin/sh\nexit 100\n")
        apt.chmod(0o755)
        environment = {**os.environ, "PATH": f"{apt.parent}:{os.environ['PATH']}", "HOME": str(self.scratch)}
        for words in (["simgrid"], ["package", "wheel"]):
            done = subprocess.run([ROOT / "tools" / words[0], *words[1:]], env=environment, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
            self.assertIn("tools/simgrid: apt-get could not get the source package simgrid", done.stderr)
        self.assertFalse((self.scratch / ".cache/kvtwin/simgrid/3.32-2/made").exists())

    def test_unknown_words_are_refused(self):
        done = subprocess.run([ROOT / "tools/package", "rpm"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (2, "tools/package: unknown arguments: rpm; see --help\n"))


if __name__ == "__main__":
    unittest.main()
