"""Checks the undefined symbols of a static library: the functions that it needs from outside.

check_symbols.py pure ARCHIVE    for the policy: no clock, threads, files, environment, CUDA or SimGrid, and no libm
                                 function except sqrt. C symbols are allowed by name. Symbols of the C++ library are
                                 allowed, except for time, threads, files, streams and random numbers.
check_symbols.py maths ARCHIVE   for code that must compute the same bytes on every machine: no libm function except
                                 sqrt and exact rounding, because the last bits of others differ between machines.
Prints each offender and exits with code 1.
"""

import re
import subprocess
import sys

# The C symbols that the policy may need. All others are offences.
PURE_C = re.compile(
    r"""(_?_?(mem(cpy|move|set|cmp|chr)|str(len|cmp|ncmp|chr))(_chk)?
      | malloc | calloc | realloc | free | abort | sqrtf?
      | __assert_fail | __stack_chk_fail | __dso_handle | _GLOBAL_OFFSET_TABLE_ | _Unwind_Resume
      | __cxa_\w+ | __gxx_personality_v0 | __dynamic_cast
      | __u?divti3 | __u?modti3  # the compiler's division of 128-bit integers
      | (EVP|SHA256|OPENSSL|CRYPTO|OSSL|ERR)_\w+        # kept hash libraries
      | XXH(32|64|3|128|_)\w*
    )$""",
    re.VERBOSE,
)
IMPURE_STD = re.compile(
    r"""chrono | thread | mutex | condition_variable | future | promise | semaphore | latch | barrier | stop_token
      | random_device | filesystem | locale | std::(__cxx11::)?basic_\w*(stream|buf|ios)\b | std::ios
      | std::(cin|cout|cerr|clog|wcout)\b""",
    re.VERBOSE,
)
MATHS = re.compile(
    r"""_*(a?(sin|cos|tan)h? | atan2 | sincos | exp(2|10|m1)? | log(2|10|1p|b)? | pow | cbrt | hypot | erfc? | [lt]gamma | fma
      | fmod | remainder | j[01n] | y[01n])[fl]?(_finite)?$""",
    re.VERBOSE,
)


def nm(archive, *options):
    lines = subprocess.run(["nm", *options, archive], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if line.strip() and not line.endswith(":")]


def symbols_of(archive):
    """Returns (mangled, demangled) of each symbol that the library needs and does not define."""
    name = re.compile(r"^[0-9a-fA-F ]*\s[A-Za-z]\s(.*)$")
    defined = {name.match(line).group(1) for line in nm(archive, "--defined-only")}
    needed = sorted({name.match(line).group(1) for line in nm(archive, "--undefined-only")} - defined)
    readable = subprocess.run(["c++filt"], input="\n".join(needed), check=True, capture_output=True, text=True).stdout
    return list(zip(needed, readable.splitlines()))


def is_pure(mangled, readable):
    mangled = mangled.split("@")[0]
    if not mangled.startswith("_Z"):
        return bool(PURE_C.match(mangled))
    if IMPURE_STD.search(readable):
        return False
    if re.match(r"operator (new|delete)", readable):
        return True
    # Search the whole name: a template begins with its return type, and "vtable for" comes before the class.
    return mangled.startswith(("_ZS", "_ZNS", "_ZNKS", "_ZT")) and bool(
        re.search(r"\b(std|__gnu_cxx|__cxxabiv1)::", readable)
    )


def offenders(kind, archive):
    if kind == "pure":
        return [readable for mangled, readable in symbols_of(archive) if not is_pure(mangled, readable)]
    return [readable for mangled, readable in symbols_of(archive) if MATHS.match(mangled.split("@")[0])]


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("pure", "maths"):
        sys.exit(__doc__)
    found = offenders(sys.argv[1], sys.argv[2])
    for symbol in found:
        print(f"{sys.argv[2]} needs {symbol}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
