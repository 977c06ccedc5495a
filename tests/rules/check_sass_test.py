"""Checks that check_sass.py finds planted offences and accepts correct machine code."""

import unittest

import check_sass

LOAD = "        /*0010*/              @!P0 LDG.E.128.STRONG.SYS R4, desc[UR6][R52.64] ;   /* 0x0 */\n"
STORE = "        /*0020*/               @P0 STG.E.NA.128 desc[UR6][R70.64], R4 ;           /* 0x0 */\n"
NARROW = "        /*0030*/                   LDG.E.64 R4, desc[UR6][R52.64] ;               /* 0x0 */\n"
IN = "        /*0040*/                   UBLKCP.S.G [UR8], [UR4], UR7 ;                 /* 0x0 */\n"
OUT = "        /*0050*/                   UBLKCP.G.S [UR4], [UR8], UR7 ;                 /* 0x0 */\n"


def sass(registers=LOAD * 8 + STORE * 8, ring=IN + OUT):
    return f"\t\tFunction : _Z14gather_scatterILj16ELj8E\n{registers}\t\tFunction : _ZN4ringE\n{ring}"


class Sass(unittest.TestCase):
    def test_lets_the_right_pass(self):
        self.assertEqual(check_sass.offences(sass(), "sm_90"), [])
        self.assertEqual(check_sass.offences(sass(ring=""), "sm_80"), [])

    def test_catches_offences(self):
        for text in (
            sass(registers=LOAD * 7 + STORE + LOAD + STORE * 7),
            sass(registers=NARROW * 8 + STORE),
            sass(registers=LOAD * 8),
            sass(ring=IN),
            sass(ring=OUT),
            sass().replace("gather_scatter", "other"),
            sass().replace("ring", "other"),
            "",
        ):
            self.assertNotEqual(check_sass.offences(text, "sm_90"), [], text)


if __name__ == "__main__":
    unittest.main()
