#!/usr/bin/env python3
"""Plants bugs into a copy of the tree, one at a time, and runs the tests that should find them.

  tests/mutants/mutate.py planted [--only WORD]
      Plants each bug of planted.txt. The test named in the block must fail with the bug and pass without the bug.
  tests/mutants/mutate.py sample [--count 300] [--seed 1] [--minutes M] [--under FOLDER]...
      Draws one-line bugs (an operator, a number, a condition, a dropped statement) in the folders of FOLDERS, or in
      those of --under. For each bug, runs the suites of the folder until one fails or takes too long. A bug that does
      not compile, or that does not change the object file, does not count. KV_CHECKs are not changed, because they
      are tests themselves. Headers that many sources include are not changed, because each change needs a long build.
      Bugs that survive are written to OUT/survivors.txt, in the format of survivors.txt.
  tests/mutants/mutate.py check
      Builds nothing. Checks that each bug of both lists fits the tree in exactly one place, and that each test exists.

A list consists of blocks: a comment line (#), the file, the lines before (-) and after (+), and a verdict. The verdict
of a planted bug is the test that kills the bug. The verdict of a survivor is "equivalent: REASON" or "open: REASON".
Exit codes: 0 success; 1 a planted bug lives, or less than 85 % of the sample was killed (not counting equivalent
bugs); 2 bad input, or the tests fail without a bug.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("policy", "impl/storage", "impl/disk", "impl/remote", "capi", "models", "lab/plan", "lab/report")
MIN_KILLED_SHARE = 0.85
MAX_INCLUDING_SOURCES = 12  # a header with more is not changed
REPORT_TESTS = ":".join(f"{name}*" for name in ("CompareSettings", "Draft", "DurationHistogram", "Explain", "HitBounds",
                                                "LaneMeter", "LargePages", "Metrics", "PrefetchBounds", "Timeline",
                                                "WaitTrend", "Warnings"))
# A suite is a test program and its arguments. In the order of their runs. The swarm is last, because it needs a second
# build of the policy.
SUITES = {
    "policy": ("unit_policy", "property_policy", "swarm_of_mutants --gtest_filter=*/0"),
    "impl": ("unit_impl", "conformance_impl", "crash_impl", "property_impl"),
    "capi": ("unit_capi", "crash_capi"),
    "models": ("unit_models", "property_models"),
    "lab/plan": ("property_lab", "property_cli --gtest_filter=Plan*"),
    "lab/report": ("unit_lab --gtest_filter=PageHistory*:SharedPrefixes*:" + REPORT_TESTS, "unit_cli --gtest_filter=" + REPORT_TESTS,
                   "golden_cli --gtest_filter=Golden.*:Report.*",
                   "property_cli --gtest_filter=Accounts.*:ReportBounds.*"),
}
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "KVTWIN_DEEP"}  # no long forms of tests
# ccache finds the object of a file again when its bug has been taken out. It must read the file each time, because bug
# and repair follow each other within milliseconds.
ENVIRONMENT |= {"KVTWIN_MUTANT": "0", "KVTWIN_SWARM_SEED": "0:60", "CCACHE_NOINODECACHE": "1"}
CONFIGURATION = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-DKVTWIN_SIMGRID=OFF",
                 "-DKVTWIN_BENCH=OFF", "-DKVTWIN_CUDA=OFF", "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"]


class BadInput(Exception):
    pass


Bug = collections.namedtuple("Bug", "file before after verdict comment")  # before, after: lists of lines
Site = collections.namedtuple("Site", "file line before after")  # line: number of the changed line, from 0


# ---- lists -----------------------------------------------------------------------------------------------------------


def read_list(path):
    bugs = []
    for block in re.split(r"\n{2,}", path.read_text().strip("\n")):
        comment, file, before, after, verdict = [], None, [], [], []
        for line in block.split("\n"):
            if line.startswith("#"):
                comment.append(line[1:].strip())
            elif file is None:
                file = line
            elif line[:2] in ("- ", "-"):
                before.append(line[2:])
            elif line[:2] in ("+ ", "+"):
                after.append(line[2:])
            else:
                verdict.append(line.strip())
        if file is None:
            continue  # a block of comments only
        if not before or not verdict:
            raise BadInput(f"{path.name}: the block of {file} needs lines that begin with '-' and a verdict.")
        bugs.append(Bug(file, before, after, " ".join(verdict), " ".join(comment)))
    return bugs


def stripped(lines):
    return [line.strip() for line in lines]


def places_of(lines, before):
    wanted = stripped(before)
    text = stripped(lines)
    return [i for i in range(len(text) - len(wanted) + 1) if text[i : i + len(wanted)] == wanted]


def planted_text(root, bug):
    """Returns the text of the file with the bug. Indentation does not matter."""
    path = root / bug.file
    if not path.is_file():
        raise BadInput(f"There is no {bug.file}.")
    lines = path.read_text().split("\n")
    places = places_of(lines, bug.before)
    if len(places) != 1:
        raise BadInput(f"{bug.file}: these lines are there {len(places)} times, and should be once: "
                       f"{' / '.join(stripped(bug.before))}")
    lines[places[0] : places[0] + len(bug.before)] = bug.after
    return "\n".join(lines)


def test_of(bug):
    """Returns (program, suite.test) from the verdict of a planted bug: 'killed by: PROGRAM SUITE.TEST'."""
    found = re.fullmatch(r"killed by: (\w+) ([\w/]+\.[\w/]+)", bug.verdict)
    if not found:
        raise BadInput(f"planted.txt: '{bug.verdict}' should be 'killed by: PROGRAM SUITE.TEST'.")
    return found.groups()


def check(root=ROOT, here=HERE):
    planted, survivors = read_list(here / "planted.txt"), read_list(here / "survivors.txt")
    for bug in planted + survivors:
        planted_text(root, bug)
    for bug in survivors:
        if not re.match(r"(equivalent|open): \S", bug.verdict):
            raise BadInput(f"survivors.txt: '{bug.verdict}' should be 'equivalent: REASON' or 'open: REASON'.")
    for bug in planted:
        program, test = test_of(bug)
        suite, name = [part.split("/")[-1 if i == 0 else 0] for i, part in enumerate(test.split("."))]
        kind, _, module = program.partition("_")
        texts = (path.read_text() for path in (root / "tests" / kind / module).glob("*_test.cpp"))
        if not any(re.search(rf"TEST(_F|_P)?\({suite},\s*{name}\)", text) for text in texts):
            raise BadInput(f"planted.txt: there is no test {suite}.{name} in tests/{kind}/{module}.")
    return len(planted), len(survivors)


# ---- one-line bugs ---------------------------------------------------------------------------------------------------


def masked(text):
    """Replaces comments, strings, characters and preprocessor lines by blanks. The length stays the same."""
    pattern = re.compile(r"//[^\n]*|/\*.*?\*/"
                         r'|"(?:\\.|[^"\\\n])*"'
                         r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'"  # but not the separator in 1'000
                         r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def blank_checks(text):
    """Replaces KV_CHECK(...) and functions that only check (void check_...() const) by blanks."""
    for pattern in (r"^void \w+::check_\w+\([^)]*\) const \{", r"\bKV_CHECK\("):
        for found in re.finditer(pattern, text, re.MULTILINE):  # the length stays, so positions stay valid
            end = closing(text, found.end() - 1)
            text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end + 1]) + text[end + 1 :]
    return text


def closing(text, at):
    pairs = {"(": ")", "{": "}"}
    depth = 0
    for i in range(at, len(text)):
        if text[i] == text[at]:
            depth += 1
        elif text[i] == pairs[text[at]]:
            depth -= 1
            if depth == 0:
                return i
    return len(text) - 1


SWAPS = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " && ": " || ",
         " || ": " && ", " + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " % ": " / ", " += ": " -= ",
         " -= ": " += ", "++": "--", "--": "++", "std::min": "std::max", "std::max": "std::min",
         "return true;": "return false;", "return false;": "return true;", "continue;": "break;", "break;": "continue;"}
TOKENS = re.compile("|".join(re.escape(token) for token in sorted(SWAPS, key=len, reverse=True)))
NUMBER = re.compile(r"(?<![\w.'])(0|[1-9][0-9]*)(?=[uUlL]*\b)(?![\w.']*[.'x])")
STATEMENT = re.compile(r"\s*(?:[\w:.\[\]*()-]|->)+(?:\(.*\)| [-+|&^*/%]?= .*);")
KEYWORDS = re.compile(r"\s*(return|break|continue|throw|using|case|default|static_assert|else|if|for|while|do)\b")
CONDITION = re.compile(r"\b(if|while) \(")


def sites_in(file, text):
    """Returns a list of one-line bugs for each line that has at least one."""
    code = blank_checks(masked(text))
    lines, masks = text.split("\n"), code.split("\n")
    result = []
    for number, (line, mask) in enumerate(zip(lines, masks)):
        after = []
        declares = re.match(r"\s*(template|using|friend|enum|struct|class|static_assert|namespace|virtual)\b", mask)
        if file.endswith(".hpp"):  # the initial value of a member
            declares = declares or re.fullmatch(r"  [\w:<>, ]+ = -?[\w:.]+(, \w+ = -?[\w:.]+)*;\s*", mask)
        if mask.strip() and not declares:
            for found in TOKENS.finditer(mask):
                after.append(line[: found.start()] + SWAPS[found.group()] + line[found.end() :])
            for found in NUMBER.finditer(mask):
                value = "1" if found.group() == "0" else "0" if found.group() == "1" else str(int(found.group()) + 1)
                after.append(line[: found.start()] + value + line[found.end() :])
            for found in CONDITION.finditer(mask):
                end = closing(mask, found.end() - 1)
                if mask[end] != ")" or ";" in mask[found.end() : end]:
                    continue
                for value in ("false",) if found.group(1) == "while" else ("false", "true"):
                    after.append(line[: found.end()] + value + line[end:])
            for found in re.finditer(r"!(?=[\w(])", mask):
                after.append(line[: found.start()] + line[found.end() :])
            begins = number == 0 or not masks[number - 1].strip() or masks[number - 1].rstrip()[-1:] in "{};:)"
            if begins and STATEMENT.fullmatch(mask.rstrip()) and not KEYWORDS.match(mask):
                after.append(line[: len(line) - len(line.lstrip())] + ";")
        unique = [it for it in dict.fromkeys(after) if it != line]
        if unique:
            result.append([Site(file, number, line, it) for it in unique])
    return result


def includers(root):
    """Returns, per header, the sources that include it, directly or through other headers."""
    direct = {}
    for top in ("policy", "models", "traces", "sim", "kernels", "impl", "capi", "lab", "cli", "tests"):
        for path in (root / top).rglob("*.[ch]pp"):
            direct[str(path.relative_to(root))] = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    result = collections.defaultdict(set)
    for file in direct:
        if file.endswith(".cpp"):
            seen, open_ = set(), [file]
            while open_:
                for header in set(direct.get(open_.pop(), [])) - seen:
                    seen.add(header)
                    open_.append(header)
            for header in seen:
                result[header].add(file)
    return result


def sources(root, folders):
    files = []
    for folder in folders:
        if not (root / folder).exists():
            raise BadInput(f"There is no {folder}.")
        files += sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.[ch]pp"))
    of = includers(root)
    return [file for file in files if len(of[file]) <= MAX_INCLUDING_SOURCES]


def draw(root, folders, seed):
    """Returns all lines that have bugs, in random order, with one random bug each."""
    lines = [sites for file in sources(root, folders) for sites in sites_in(file, (root / file).read_text())]
    rng = random.Random(seed)
    rng.shuffle(lines)
    return [rng.choice(sites) for sites in lines]


# ---- copies of the tree ----------------------------------------------------------------------------------------------


class Copy:
    """A copy of the tree, with its own build folder."""

    def __init__(self, folder):
        self.root = folder
        self.build = folder / "build"
        self.patience = {}  # program -> seconds; a program that takes longer counts as hanging
        self.log = folder / "last.log"

    def refresh(self):
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                stdout=subprocess.PIPE, check=True).stdout.decode().split("\0")
        wanted = {name for name in listed if name and (ROOT / name).is_file()}
        for name in wanted:
            source, target = ROOT / name, self.root / name
            if target.is_file() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
        kept = self.root / "files"
        for name in (set(kept.read_text().split("\n")) if kept.is_file() else set()) - wanted - {""}:
            (self.root / name).unlink(missing_ok=True)
        kept.write_text("\n".join(sorted(wanted)))
        if not (self.build / "build.ninja").is_file():
            linker = ["-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld"] if shutil.which("ld.lld") else []
            self.command(["cmake", "-S", self.root, "-B", self.build, *CONFIGURATION, *linker], 600)

    def command(self, words, patience):
        """Returns True if the exit code is 0 within the time limit. Ends all processes of the command, and removes its
        temporary files."""
        with open(self.log, "w") as log, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            os.chmod(scratch, 0o755)  # some tests switch to another user
            process = subprocess.Popen([str(word) for word in words], cwd=self.root, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, env=ENVIRONMENT | {"TMPDIR": scratch},
                                       start_new_session=True)
            try:
                return process.wait(timeout=patience) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def make(self, *suites, jobs=1):
        return self.command(["ninja", "-C", self.build, f"-j{jobs}", *(suite.split()[0] for suite in suites)], 3600)

    def run(self, suite, *arguments):
        program, *options = suite.split()
        folder = self.build / ("tests/mutants" if program == "swarm_of_mutants" else "tests")
        options += ["--gtest_brief=1", "--gtest_fail_fast", *arguments]
        return self.command([folder / program, *options], self.patience.get(suite, 600))

    def prove(self, suites):
        """Builds and runs the suites without a bug, and sets their time limits."""
        if not self.make(*suites, jobs=os.cpu_count()):
            raise BadInput(f"The copy does not build; see {self.log}.")
        for suite in suites:
            begin = time.monotonic()
            if not self.run(suite):
                raise BadInput(f"{suite} fails without a bug; see {self.log}.")
            self.patience[suite] = 20 + 5 * (time.monotonic() - begin)

    def object_of(self, file):
        """Returns a hash of the object file, or None for a header."""
        top = file.split("/")[0]
        found = sorted(self.build.glob(f"{top}/CMakeFiles/*/{file.split('/', 1)[1]}.o"))
        return hashlib.sha256(found[0].read_bytes()).digest() if found else None

    def with_text(self, file, text):
        return Planted(self.root / file, text)


class Planted:
    """A context in which a file has another text."""

    def __init__(self, path, text):
        self.path, self.text = path, text

    def __enter__(self):
        self.before = self.path.read_text()
        self.path.write_text(self.text)

    def __exit__(self, *_):
        self.path.write_text(self.before)


# ---- planted ---------------------------------------------------------------------------------------------------------


def only(test):
    return f"--gtest_filter={test}:*/{test}/*"


def run_planted(arguments):
    check()
    bugs = read_list(HERE / "planted.txt")
    bugs = [bug for bug in bugs if arguments.only in f"{bug.comment} {bug.file} {bug.verdict}"]
    copy = Copy(arguments.out / "copy-0")
    copy.root.mkdir(parents=True, exist_ok=True)
    copy.refresh()
    if not copy.make(*sorted({test_of(bug)[0] for bug in bugs}), jobs=os.cpu_count()):
        raise BadInput(f"The copy does not build; see {copy.log}.")
    for program, test in sorted({test_of(bug) for bug in bugs}):
        if not copy.run(program, only(test)) or " 0 tests from" in copy.log.read_text():
            raise BadInput(f"{program} {test} fails without a bug, or does not run; see {copy.log}.")
    lives = 0
    for bug in bugs:
        program, test = test_of(bug)
        with copy.with_text(bug.file, planted_text(copy.root, bug)):
            built = copy.make(program, jobs=os.cpu_count())
            killed = built and not copy.run(program, only(test))
        if not built:
            raise BadInput(f"The bug '{bug.comment}' does not compile; see {copy.log}.")
        print(f"{'killed' if killed else 'LIVES '}  {bug.comment}  ({program} {test})", flush=True)
        lives += not killed
    print(f"{len(bugs) - lives} of {len(bugs)} planted bugs killed")
    return 1 if lives else 0


# ---- sampled ---------------------------------------------------------------------------------------------------------


def suites_of(file):
    for folder, suites in SUITES.items():
        if file.startswith(folder + "/"):
            return suites
    raise BadInput(f"No suites are known for {file}; they are known below {', '.join(SUITES)}.")


def judge(copy, site):
    """Returns (verdict, suite). invalid: does not compile; same: the object file does not change; survived; killed."""
    text = (copy.root / site.file).read_text().split("\n")
    text[site.line] = site.after
    library = f"kvtwin_{site.file.split('/')[0]}"
    before = copy.object_of(site.file)
    with copy.with_text(site.file, "\n".join(text)):
        if not copy.make(library):
            return "invalid", ""
        if before is not None and copy.object_of(site.file) == before:
            return "same", ""
        for suite in suites_of(site.file):
            if not copy.make(suite):  # the library compiles with the changed header, and a test does not
                return "invalid", ""
            if not copy.run(suite):
                return "killed", suite
    return "survived", ""


def block(site, verdict):
    return f"{site.file}\n- {site.before.strip()}\n+ {site.after.strip()}\n{verdict}\n"


def known_survivors():
    return {(bug.file, *stripped(bug.before + bug.after)): bug for bug in read_list(HERE / "survivors.txt")}


def run_sample(arguments):
    check()
    folders = arguments.under or list(FOLDERS)
    order = collections.deque(draw(ROOT, folders, arguments.seed))
    known = known_survivors()
    copies = queue.Queue()
    needed = sorted({suite for folder in folders for suite in suites_of(folder + "/")})
    for number in range(arguments.jobs):
        copy = Copy(arguments.out / f"copy-{number}")
        copy.root.mkdir(parents=True, exist_ok=True)
        copy.refresh()
        copy.prove(needed)
        copies.put(copy)
    ends = time.monotonic() + arguments.minutes * 60
    results = []  # (site, verdict, suite), in the order drawn

    def one(site):
        copy = copies.get()
        try:
            return (site, *judge(copy, site))
        finally:
            copies.put(copy)

    # In rounds, so that the sample is the same for any number of jobs.
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        counted = 0
        while order and counted < arguments.count and time.monotonic() < ends:
            size = min(len(order), arguments.count - counted, 4 * arguments.jobs)
            for result in pool.map(one, [order.popleft() for _ in range(size)]):
                results.append(result)
                site, verdict, suite = result
                counted += verdict in ("killed", "survived")
                print(f"{counted:4} {verdict:8} {site.file}:{site.line + 1} {suite.split(' ')[0]}", flush=True)
    return report(arguments, folders, results, known)


def report(arguments, folders, results, known):
    survivors = [site for site, verdict, _ in results if verdict == "survived"]
    text = [f"# Seed {arguments.seed}. Known ones keep their verdict.\n"]
    equivalent = collections.Counter()
    for site in survivors:
        bug = known.get((site.file, site.before.strip(), site.after.strip()))
        text.append(block(site, bug.verdict if bug else "open: not looked at yet"))
        if bug and bug.verdict.startswith("equivalent"):
            equivalent[site] += 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "survivors.txt").write_text("\n".join(text))
    all_killed = all_counted = 0
    print(f"\n{'folder':14} {'killed':>7} {'survived':>9} {'equivalent':>11} {'no bug':>7} {'killed':>7}")
    for folder in folders:
        of = [(site, verdict) for site, verdict, _ in results if site.file.startswith(folder + "/")]
        killed = sum(verdict == "killed" for _, verdict in of)
        same = sum(equivalent[site] for site, _ in of)
        survived = sum(verdict == "survived" for _, verdict in of) - same
        nothing = sum(verdict in ("invalid", "same") for _, verdict in of)
        share = f"{100 * killed / (killed + survived):5.1f} %" if killed + survived else "-"
        print(f"{folder:14} {killed:7} {survived:9} {same:11} {nothing:7} {share:>7}")
        all_killed += killed
        all_counted += killed + survived
    share = all_killed / all_counted if all_counted else 0
    print(f"{all_killed} of {all_counted} bugs killed ({100 * share:.1f} %; {100 * MIN_KILLED_SHARE:.0f} % wanted), "
          f"{sum(equivalent.values())} equivalent ones left out. Survivors: {arguments.out / 'survivors.txt'}")
    return 0 if share >= MIN_KILLED_SHARE else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["planted", "sample", "check"])
    parser.add_argument("--only", default="", metavar="WORD", help="planted: bugs with WORD in comment, file or test")
    parser.add_argument("--count", type=int, default=300, help="sample: number of bugs that count (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="sample: the seed (default: 1)")
    parser.add_argument("--minutes", type=float, default=1e6, help="sample: stop after M minutes (default: no limit)")
    parser.add_argument("--under", action="append", metavar="FOLDER", help=f"default: {' '.join(FOLDERS)}")
    parser.add_argument("--jobs", type=int, default=1, help="number of copies of the tree (default: 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "out/mutation", help="default: out/mutation")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    try:
        if arguments.what == "check":
            print("{} planted bugs and {} survivors fit the tree".format(*check()))
            return 0
        return run_planted(arguments) if arguments.what == "planted" else run_sample(arguments)
    except BadInput as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
