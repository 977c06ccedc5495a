"""Checks that a program is hardened, and that it loads libraries only from safe places.

check_program.py PROGRAM    prints each offence and exits with code 1. Offences: no position-independent executable, an
                            executable stack, partial RELRO, no stack protector, no FORTIFY, or a RUNPATH element that
                            is empty or relative. The loader would search such an element in the current folder, where
                            another user may have put a library.
"""

import re
import subprocess
import sys


def offences(header, segments, dynamic, symbols):
    """The arguments are the outputs of readelf: -hW, -lW, -dW, --dyn-syms -W. Returns sentences."""
    found = []
    if not re.search(r"Type:\s+DYN", header):
        found.append("is not position-independent (PIE)")
    stack = re.search(r"GNU_STACK\s.*", segments)
    if not stack:
        found.append("does not say that its stack is not executable (no GNU_STACK segment)")
    elif re.search(r"\bRWE\b", stack.group()):
        found.append("has an executable stack")
    if "GNU_RELRO" not in segments or not re.search(r"BIND_NOW|FLAGS_1.*\bNOW\b", dynamic):
        found.append("lacks full RELRO (a GNU_RELRO segment, and BIND_NOW)")
    if "__stack_chk_fail" not in symbols:
        found.append("lacks the stack protector (no __stack_chk_fail)")
    if not re.search(r"__(mem|str|s?n?printf|vs?n?printf|read|pread|recv|poll|fdelt|realpath)\w*_chk", symbols):
        found.append("lacks FORTIFY (no function that ends in _chk)")
    for tag, path in re.findall(r"\((RPATH|RUNPATH)\)[^\[]*\[(.*?)\]", dynamic):
        for element in path.split(":"):
            if not re.match(r"/|\$ORIGIN|\$\{ORIGIN\}", element):
                found.append(f"has a {tag} with the element '{element}', which is the current folder: {path}")
    return found


def main(program):
    texts = [
        subprocess.run(["readelf", *options, program], capture_output=True, text=True, check=True).stdout
        for options in (["-hW"], ["-lW"], ["-dW"], ["--dyn-syms", "-W"])
    ]
    found = offences(*texts)
    for offence in found:
        print(f"{program} {offence}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
