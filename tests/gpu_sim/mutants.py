#!/usr/bin/env python3
"""Plants the bugs of mutants.txt in the PTX of the kernels, one at a time, and runs the tests of the simulator.

  tests/gpu_sim/mutants.py [--build DIR] [--only WORD] [--jobs N]
  tests/gpu_sim/mutants.py --check [--build DIR]      only checks that each bug fits the PTX, and that each test exists

For each bug: translates the kernels whose text changes, compiles them to a shared library, and runs gpu_tests_on_twin
of the build folder with the library, at the small scale, with several seeds. A bug is killed if the test of its block
fails for a seed. An equivalent bug must pass all tests. Only PTX of sm_90 is changed.
Exit codes: 0 all as the file says; 1 a bug lives, or an equivalent one is killed; 2 bad input.
"""

import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MACHINES = ["seed=1 compute=9", "seed=2 compute=9 shared_bytes=98400", "seed=3 compute=9"]
SECONDS = 300  # a program that takes longer counts as hanging

Bug = collections.namedtuple("Bug", "comment file kernel which pattern replacement verdict")


class BadInput(Exception):
    pass


def read_bugs(path):
    bugs = []
    for block in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        lines = [line for line in block.strip().split("\n") if line]
        if all(line.startswith("#") for line in lines):
            continue  # the comment on top
        found = re.fullmatch(r"# (.+)\n(\w+) (\w+)\n- (\d+|all) (.+)\n\+ ?(.*)\n((?:killed by|equivalent): .+)", "\n".join(lines))
        if found is None:
            raise BadInput(f"{path.name}: unreadable block:\n{block}")
        bugs.append(Bug(*found.groups()))
    return bugs


def planted(text, bug):
    """Returns the PTX with the bug in the first kernel whose name has the word. The number of lines stays the same."""
    begin = re.search(rf"^(\.visible |\.weak )?\.entry \w*{bug.kernel}\w*\(", text, re.MULTILINE)
    if begin is None:
        raise BadInput(f"'{bug.comment}': {bug.file} has no kernel {bug.kernel}")
    end = text.index("\n}", begin.start())
    kernel = text[begin.start() : end]
    places = list(re.finditer(bug.pattern, kernel, re.DOTALL))
    wanted = places if bug.which == "all" else places[int(bug.which) - 1 : int(bug.which)]
    if not wanted:
        raise BadInput(f"'{bug.comment}': the pattern is not in kernel {bug.kernel} of {bug.file}")
    for place in reversed(wanted):
        kernel = kernel[: place.start()] + place.expand(bug.replacement) + kernel[place.end() :]
    return text[: begin.start()] + kernel + text[end:]


def run(program, arguments, machine, log):
    """Returns True if all tests pass."""
    with open(log, "a", encoding="utf-8") as out:
        print(f"== {machine}: {' '.join(map(str, arguments))}", file=out, flush=True)
        try:
            return subprocess.run([program, "--small", *arguments], stdout=out, stderr=subprocess.STDOUT, timeout=SECONDS,
                                  env=os.environ | {"KVTWIN_CUDA_TWIN": machine}).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def judge(bug, number, build, out):
    """Returns (as the file says, a sentence)."""
    before = build / f"tests/gpu_sim/{bug.file}.sm_90.ptx"
    after, code, library = (out / f"{number}{ending}" for ending in (".ptx", ".cpp", ".so"))
    log = out / f"{number}.log"
    log.write_text("")
    after.write_text(planted(before.read_text(encoding="utf-8"), bug), encoding="utf-8")
    with open(log, "a", encoding="utf-8") as file:
        for command in ([sys.executable, HERE / "translate.py", "--name", bug.file, "--out", code, "--instead", after,
                         f"90={before}"],
                        [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-I", ROOT, "-o", library, code]):
            if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
                raise BadInput(f"'{bug.comment}' does not compile; see {log}")
    program = build / "tests/gpu_tests_on_twin"
    expected, _, what = bug.verdict.partition(": ")
    arguments = ["--kernels", library]
    if expected == "killed by":
        arguments.append(f"--gtest_filter={what}")
    killed = not all(run(program, arguments, machine, log) for machine in MACHINES)
    if expected == "killed by":
        return killed, f"{'killed' if killed else 'LIVES '}      {bug.comment}  ({what})"
    return not killed, f"{'NOT EQUIVALENT' if killed else 'equivalent '} {bug.comment}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="default: build")
    parser.add_argument("--only", default="", metavar="WORD", help="bugs with WORD in the comment, the kernel or the test")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "out/ptx-mutants", help="default: out/ptx-mutants")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    try:
        bugs = [bug for bug in read_bugs(HERE / "mutants.txt") if arguments.only in f"{bug.comment} {bug.kernel} {bug.verdict}"]
        program = arguments.build.resolve() / "tests/gpu_tests_on_twin"
        tests = {bug.verdict.split(": ")[1] for bug in bugs if bug.verdict.startswith("killed")}
        listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
        for test in tests:
            if f"  {test.split('.')[1]}\n" not in listed:
                raise BadInput(f"there is no test {test}")
        for bug in bugs:
            before = (arguments.build.resolve() / f"tests/gpu_sim/{bug.file}.sm_90.ptx").read_text(encoding="utf-8")
            if planted(before, bug) == before:
                raise BadInput(f"'{bug.comment}' changes nothing")
        if arguments.check:
            print(f"{len(bugs)} bugs fit the PTX")
            return 0
        for machine in MACHINES:
            if not run(program, [], machine, out / "without.log"):
                raise BadInput(f"the tests fail without a bug; see {out}/without.log")
        right = 0
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for good, sentence in pool.map(lambda it: judge(it[1], it[0], arguments.build.resolve(), out), enumerate(bugs)):
                print(sentence, flush=True)
                right += good
    except (BadInput, OSError, subprocess.CalledProcessError) as error:
        print(f"mutants.py: {error}", file=sys.stderr)
        return 2
    print(f"{right} of {len(bugs)} bugs in the PTX are killed or equivalent, as mutants.txt says")
    return 0 if right == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
