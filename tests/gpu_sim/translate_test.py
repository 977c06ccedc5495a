#!/usr/bin/env python3
"""Tests of translate.py: PTX that it does not know is an error that names the instruction, the kernel and the line."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TRANSLATE = Path(__file__).resolve().with_name("translate.py")
HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry one(.param .u64 out)
{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	ld.param.u64 %rd1, [out];
"""
FIRST_LINE = HEAD.count("\n") + 1


def translate(text, *more):
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "one.ptx", Path(folder) / "one.cpp"
        path.write_text(text)
        files = []
        for number, other in enumerate(more):
            (Path(folder) / f"more{number}.ptx").write_text(other)
            files.append(f"{100 + number}={folder}/more{number}.ptx")
        done = subprocess.run([sys.executable, TRANSLATE, "--name", "one", "--out", out, f"90={path}", *files],
                              capture_output=True, text=True)
        return done.returncode, done.stderr, out.read_text() if out.exists() else ""


def kernel(*lines):
    return HEAD + "".join(f"\t{line}\n" for line in lines) + "\tret;\n}\n"


class Translate(unittest.TestCase):
    def refuses(self, *lines, at=0):
        code, error, _ = translate(kernel(*lines))
        self.assertEqual(code, 2, error)
        self.assertIn(f"one.ptx:{FIRST_LINE + at}: ", error)
        self.assertIn("of kernel one", error)
        self.assertIn(lines[at].rstrip(";").split("//")[0].strip()[:40], error)

    def test_names_an_unknown_instruction(self):
        self.refuses("add.s32 %r1, %r2, 1;", "frobnicate.u32 %r1, %r2;", at=1)
        self.refuses("prmt.b32 %r1, %r2, %r3, 0x3210;")
        self.refuses("membar.gl;")

    def test_names_an_unknown_form_of_a_known_instruction(self):
        for line in ("add.sat.s32 %r1, %r2, 1;", "ld.global.acquire.gpu.u32 %r1, [%rd1];", "ld.local.u32 %r1, [%rd1];",
                     "cvt.rn.f32.u32 %r1, %r2;", "setp.eq.and.s32 %p1, %r1, %r2, %p2;", "add.f64 %rd1, %rd2, %rd3;",
                     "bar.sync 1;", "mad.hi.u32 %r1, %r2, %r3, %r4;", "shfl.sync.bfly.b64 %r1, %r1, 1, 31, -1;",
                     "atom.global.cas.b32 %r1, [%rd1], 0, 1;", "ld.global.v8.u32 {%r1}, [%rd1];",
                     "mov.u32 %r1, %clock;", "cp.async.bulk.wait_all;", "bra $nowhere;", "add.s32 %r1, %r2;"):
            with self.subTest(line):
                self.refuses(line)

    def test_refuses_functions_and_variables(self):
        code, error, _ = translate(".func one()\n{\n\tret;\n}\n")
        self.assertEqual(code, 2, error)
        code, error, _ = translate(kernel(".local .align 8 .b8 depot[16];"))
        self.assertEqual(code, 2, error)
        self.assertIn(f"one.ptx:{FIRST_LINE}: unknown declaration `.local", error)

    def test_the_same_text_for_two_architectures_is_one_function(self):
        text = kernel("add.s32 %r1, %r2, 1;")
        code, error, out = translate(text, text.replace("sm_90", "sm_100"))
        self.assertEqual(code, 0, error)
        self.assertEqual(len(re.findall(r"^void run", out, re.MULTILINE)), 1)
        self.assertEqual(out.count('"one", '), 2)
        code, error, out = translate(text, kernel("add.s32 %r1, %r2, 2;"))
        self.assertEqual(len(re.findall(r"^void run", out, re.MULTILINE)), 2)

    def test_a_kernel_without_code_for_the_architecture_is_left_out(self):
        text = ".visible .entry two()\n{\n\t// begin inline asm\n\ttrap;\n\t// end inline asm\n\tret;\n}\n"
        code, error, out = translate(kernel("add.s32 %r1, %r2, 1;") + text)
        self.assertEqual(code, 0, error)
        self.assertNotIn('"two"', out)


if __name__ == "__main__":
    unittest.main()
