"""Checks that check_program.py finds each offence that is planted into the readelf output of a real program."""

import unittest

import check_program

HEADER = "  Type:                              DYN (Position-Independent Executable file)\n"
SEGMENTS = """  GNU_STACK      0x000000 0x0000000000000000 0x0000000000000000 0x000000 0x000000 RW  0x10
  GNU_RELRO      0xaf6000 0x0000000000af6000 0x0000000000af6000 0x00f000 0x00f000 R   0x1
"""
DYNAMIC = """ 0x000000000000001d (RUNPATH)            Library runpath: [/usr/lib/x86_64-linux-gnu/openmpi/lib]
 0x000000000000001e (FLAGS)              BIND_NOW
 0x000000006ffffffb (FLAGS_1)            Flags: NOW PIE
"""
SYMBOLS = """   103: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND __stack_chk_fail@GLIBC_2.4 (14)
   140: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND __memcpy_chk@GLIBC_2.3.4 (7)
"""


class Offences(unittest.TestCase):
    def found(self, header=HEADER, segments=SEGMENTS, dynamic=DYNAMIC, symbols=SYMBOLS):
        return check_program.offences(header, segments, dynamic, symbols)

    def test_a_good_program_has_none(self):
        self.assertEqual(self.found(), [])

    def test_each_is_found(self):
        planted = {
            "position-independent": {"header": HEADER.replace("DYN", "EXEC")},
            "executable stack": {"segments": SEGMENTS.replace("RW  0x10", "RWE 0x10")},
            "no GNU_STACK": {"segments": SEGMENTS.splitlines()[1]},
            "full RELRO": {"dynamic": DYNAMIC.replace("NOW", "")},
            "GNU_RELRO segment": {"segments": SEGMENTS.splitlines()[0]},
            "stack protector": {"symbols": SYMBOLS.splitlines()[1]},
            "FORTIFY": {"symbols": SYMBOLS.splitlines()[0]},
        }
        for words, change in planted.items():
            found = self.found(**change)
            self.assertEqual(len(found), 1, words)
            self.assertIn(words, found[0])

    def test_elements_that_are_the_current_folder(self):
        for path in ("/usr/lib/openmpi/lib:", ":/usr/lib", "/a::/b", "lib", "./lib:/usr/lib", ""):
            found = self.found(dynamic=DYNAMIC.replace("/usr/lib/x86_64-linux-gnu/openmpi/lib", path))
            self.assertEqual(len(found), 1, path)
            self.assertIn("current folder", found[0])
        self.assertEqual(self.found(dynamic=DYNAMIC.replace("/usr/lib/x86", "$ORIGIN/../lib:/usr/lib/x86")), [])


if __name__ == "__main__":
    unittest.main()
