#!/usr/bin/env python3
"""Every flag of SGLang's server, read from the argparse parser of its ServerArgs.

tools/engine-parity sglang --flags compares the flags of a release with server_flags.tsv in tests/fixtures/sglang/, or writes
that file. As a program, this module prints the table of the SGLang that is on Python's path. The parser needs no GPU:
an empty stand-in takes the place of each package that is not installed.
tests/flag_list.py has the columns.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import flag_list

FILE = Path(__file__).resolve().parents[1] / "fixtures/sglang/server_flags.tsv"


def table():
    import absent_packages

    absent_packages.replace((), ("sglang.srt.entrypoints",))
    absent_packages.replace_missing("sglang")
    version = absent_packages.skip_init("sglang", "sglang", "sglang.srt.configs")
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return flag_list.table(f"# sglang {version}, ServerArgs.add_cli_args; see tests/sglang/server_flags.py", parser)


def compare(renew):
    return flag_list.compare("SGLang", "tools/engine-parity sglang", __file__, FILE, renew)


if __name__ == "__main__":
    print(table())
