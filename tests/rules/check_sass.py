"""Checks the machine code that nvcc generated for the kernels.

check_sass.py CUOBJDUMP LIBRARY ARCH..., for example sm_80 sm_90. Checks for each architecture that every kernel which
moves 16-byte vectors through registers issues eight 128-bit loads before its first 128-bit store; and from sm_90 on,
that the ring kernel uses bulk copies in both directions. Prints each offence and exits with code 1.
"""

import re
import subprocess
import sys

LOADS = 8
REGISTER_KERNEL = re.compile(r"gather_scatterILj16E")
RING_KERNEL = re.compile(r"4ringE")


def functions(sass):
    """Yields (name, instructions) of each kernel in the output of `cuobjdump -sass`."""
    parts = re.split(r"^\s*Function\s*:\s*(\S+)\s*$", sass, flags=re.MULTILINE)
    for name, body in zip(parts[1::2], parts[2::2]):
        yield name, re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)", body)


def offences(sass, arch):
    found = []
    register_kernels = ring_kernels = 0
    for name, instructions in functions(sass):
        if REGISTER_KERNEL.search(name):
            register_kernels += 1
            loads = 0
            for instruction in instructions:
                if re.match(r"STG\.E(\.\w+)*\.128", instruction):
                    break
                loads += bool(re.match(r"LDG\.E(\.\w+)*\.128", instruction))
            else:
                found.append(f"{arch}: {name} has no 128-bit store")
            if loads < LOADS:
                found.append(f"{arch}: {name} issues {loads} 128-bit loads before its first store, not {LOADS}")
        elif RING_KERNEL.search(name):
            ring_kernels += 1
            for way in ("UBLKCP.S.G", "UBLKCP.G.S"):
                if int(arch[3:]) >= 90 and way not in instructions:
                    found.append(f"{arch}: {name} has no {way}")
    if register_kernels == 0:
        found.append(f"{arch}: no kernel that moves 16-byte vectors")
    if ring_kernels == 0:
        found.append(f"{arch}: no ring kernel")
    return found


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    found = []
    for arch in sys.argv[3:]:
        command = [sys.argv[1], "-sass", "-arch", arch, sys.argv[2]]
        found += offences(subprocess.run(command, check=True, capture_output=True, text=True).stdout, arch)
    for offence in found:
        print(offence)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
