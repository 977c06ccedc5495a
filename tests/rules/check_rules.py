"""Checks in the source text which module includes which, and that pure modules do not use forbidden constructs.

check_rules.py SOURCE_DIR prints `path:line: rule: text` for each offence and exits with code 1.
check_symbols.py checks the symbols of the libraries. This script finds offences that leave no symbol.
"""

import re
import sys
from pathlib import Path

SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh"}

# module -> how its includes in quotes may begin. In policy/, only the headers of PUBLIC_POLICY are public.
PUBLIC_POLICY = r"policy/((base|seam|index|transfer)/)?\w+\.hpp"
CATALOG = r"policy/storage/catalog\.hpp"  # which pages a store has, for stores that evict by themselves
MAY_INCLUDE = {
    "policy": r"policy/",
    "models": rf"models/|{PUBLIC_POLICY}",
    "traces": rf"traces/|{PUBLIC_POLICY}",
    "sim": rf"sim/|{PUBLIC_POLICY}|models/",
    "impl": rf"impl/|{PUBLIC_POLICY}|{CATALOG}|models/|kernels/|kvtwin/store_library\.h",
    "kernels": r"kernels/|policy/transfer/(layout|boxes)\.hpp",
    "include": r"kvtwin/",
    "capi": rf"capi/|kvtwin/|{PUBLIC_POLICY}|policy/hosted/|models/(json|weights)\.hpp|impl/",
    "lab": r"(?!cli/|tests/|capi/|python/|kvtwin/)",
    "python": r"python/src/|kvtwin/|traces/",
    "cli": r"",
    "tests": r"",
}
# Rooms: folders that may include less than their module.
ROOMS = {
    "policy/base/": r"policy/base/",
    "policy/transfer/": r"policy/(base|transfer)/",
    "policy/index/": r"policy/(base|index)/|policy/eviction\.hpp",
    "policy/seam/": r"policy/(base|transfer|seam)/|policy/index/page_key\.hpp",
    "policy/hosted/": r"policy/(base|index|seam|hosted)/|policy/(eviction|choices)\.hpp",
    "sim/bounds/": rf"sim/bounds/|{PUBLIC_POLICY}",
    "impl/runtime/": rf"impl/runtime/|{PUBLIC_POLICY}",
    "python/src/kernels/": r"python/src/kernels/|kernels/|policy/transfer/",
    "impl/disk/": rf"impl/(disk|runtime|storage)/|{PUBLIC_POLICY}|{CATALOG}|kernels/",
}
# Headers that belong to some folders only.
OWNED_HEADERS = [
    (r"simgrid/|xbt", r"sim/|tests/\w+/sim/", "only sim/ includes SimGrid"),
    (r"cuda|cufile|cub/|cooperative_groups", r"impl/|kernels/|python/src/kernels/|tests/gpu(_sim)?/|tests/cuda_twin/|tests/\w+/cuda/", "only impl/, kernels/ and python/src/kernels/ include CUDA"),
    (r"liburing|hiredis|infiniband/|rdma/|ucp/|ucs/", r"impl/|tests/\w+/impl/", "only impl/ includes I/O libraries"),
    (r"mpi\.h", r"impl/runtime/mpi_(?:ranks|mail|call)\.cpp", "only impl/runtime/mpi_*.cpp includes MPI"),
    (r"CLI/|CLI11", r"cli/|tests/\w+/cli/", "only cli/ parses commands"),
    (r"toml\+\+", r"lab/|tests/\w+/cli/|models/", "only lab/ parses experiments"),
    (r"nlohmann", r"models/json\.cpp|tests/unit/lab/kv_events_test\.cpp", "only models/json.cpp includes the JSON library: compilers need seconds for it"),
    (r"lab/version\.hpp", r"lab/|cli/", "only lab/ and cli/ know the version"),
]
POLICY_HEADERS = set(
    """algorithm array bit bitset charconv climits cmath compare concepts cstddef cstdint cstdlib cstring deque exception
    functional initializer_list iterator limits list map memory memory_resource new numeric optional queue ranges
    set source_location span stack stdexcept string string_view tuple type_traits typeinfo unordered_map unordered_set
    utility variant vector version xxhash.h""".split()
)
TRANSCENDENTAL = r"\b(std::)?(exp2?|expm1|log(2|10|1p)?|pow|cbrt|hypot|a?(sin|cos|tan)h?|atan2|erfc?|[lt]gamma|fma)f?\s*\("
# (modules, pattern, rule), matched against the text without comments and strings.
WORDS = [
    ("policy", r"\bstd::hash\b", "std::hash differs between libraries"),
    ("policy", r"\b(float|double)\b", "only policy/offload/arc_chunk_order.cpp has floating-point numbers, as the rule of vLLM that it repeats"),
    ("policy", r"\bstd::function\b", "the engine is explicit state machines"),
    ("policy", r"\bco_(await|yield|return)\b", "the engine is explicit state machines"),
    ("policy", r"\bthread_local\b|\bvolatile\b|\batomic\b", "policy is single-threaded"),
    ("policy", r"\basm\b|\b_*rdtscp?\b|\b__builtin_ia32_\w+", "policy has no clock and no machine code"),
    ("policy", r"\bstd::(c(out|err|log)|f?printf|puts)\b|\bf?printf\s*\(", "policy does no I/O"),
    ("policy", r"(map|set|less|greater)<\s*(const\s+)?[\w:]+(\s+const)?\s*\*", "no order by pointer"),
    ("policy", r"\bu?intptr_t\b", "no order by pointer"),
    ("policy models traces sim", r"__(DATE|TIME|TIMESTAMP)__", "same bytes from every build"),
    ("policy traces", TRANSCENDENTAL, "no libm function but sqrt"),
    ("policy models traces sim", r"\b\w+_distribution\b|\brandom_device\b|\bs?rand\s*\(", "no hidden or library-made chance"),
    ("policy models traces sim impl kernels include capi lab python", r"\b(secure_)?getenv\b|\bisatty\b|\bargv\b|\benviron\b", "only cli/ reads the environment, arguments and terminals"),
    ("policy models traces sim impl kernels include capi lab python", r"\b(set|put)env\b", "only impl/remote/library_settings.cpp sets the environment, for libraries"),
    (
        "lab",
        r"\b(v?f?d?printf|f?put[cs]|putchar|puts|perror)\s*\(|\bstd(out|err)\b|\bSTD(OUT|ERR)_FILENO\b|\bc(out|err|log)\b",
        "lab/ prints nothing: it returns values, or tells a listener",
    ),
    ("lab", r"\b(exit|quick_exit|_Exit|abort)\s*\(", "lab/ ends no program (a forked child leaves by _exit)"),
    ("policy models traces", r"\bstd::chrono\b|\bclock_gettime\b|\bgettimeofday\b", "no clock"),
]
# In these modules, unordered containers may only be used for look-ups: the order of an iteration could reach a result.
ORDERED = ("policy", "models", "traces", "sim")
VAGUE_NAMES = re.compile(r"(^|_)(utils?|common|helpers?|managers?|misc)$", re.IGNORECASE)


def without_comments(text, keep_strings):
    """Replaces comments (and the content of strings) by blanks. Newlines stay, so that lines keep their numbers."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\n]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'(?![0-9a-fA-F])', re.DOTALL
    )

    def blank(match):
        found = match.group(0)
        if found[0] == "/":
            return "".join(c if c == "\n" else " " for c in found)
        return found if keep_strings else '""' + "\n" * found.count("\n")

    return pattern.sub(blank, text)


def include_offence(module, path, quoted, target):
    for header, owners, rule in OWNED_HEADERS:
        if re.match(header, target) and not re.match(owners, path):
            return rule
    if quoted:
        if module in ("cli", "tests"):
            return None
        room = next((room for room in ROOMS if path.startswith(room)), None)
        if not re.match(ROOMS[room] if room else MAY_INCLUDE[module], target):
            return f"{room or module + '/'} may not include that"
    elif module == "policy" and target not in POLICY_HEADERS and not target.startswith("openssl/"):
        return "policy/ includes the plain parts of the C++ library and the hash libraries only"
    elif module in ("models", "traces") and target in ("chrono", "thread", "random", "ctime", "future"):
        return "no clock, thread or library-made chance"
    elif module == "sim" and target == "random":
        return "no library-made chance"
    elif re.match(r"(policy|models|traces|sim|impl|kernels|capi|kvtwin|lab|cli|python)/", target):
        return "own headers are included in quotes"
    return None


def mutual_rooms(root):
    """Finds two folders of lab/ that include headers of each other. Returns one offence for each include of the side with fewer."""
    includes = {}  # (folder, folder) -> [(path, number, line)]
    for file in sorted((root / "lab").rglob("*")):
        inner = file.relative_to(root / "lab").parts
        if file.suffix not in SUFFIXES or len(inner) < 2:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            target = re.match(r'#include "lab/(\w+)/', line)
            if target and target.group(1) != inner[0]:
                place = (file.relative_to(root).as_posix(), number, line)
                includes.setdefault((inner[0], target.group(1)), []).append(place)
    found = []
    for (a, b), there in includes.items():
        back = includes.get((b, a))
        if back and (len(there), a) < (len(back), b):
            found += [(path, number, f"lab/{b}/ includes lab/{a}/, so not the other way too", line) for path, number, line in there]
    return found


def names_twice(texts):
    """Finds types at the level of a namespace that two headers define: functions of the one may then run with the other."""
    found, places = [], {}
    for path, (_, text) in texts.items():
        if not path.endswith(".hpp"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            name = re.match(r"(?:struct|class|enum class) (\w+)(?: final)?(?: :[^;{]*)?\s*\{", line)
            if not name:
                continue
            first = places.setdefault(name.group(1), path)
            if first != path:
                found.append((path, number, f"{first} defines this name too", line.strip()))
    return found


def offences(root):
    root = Path(root)
    found = mutual_rooms(root)
    texts = {}
    unordered = {}  # module -> names of unordered containers
    for module in MAY_INCLUDE:
        for file in sorted((root / module).rglob("*")):
            path = file.relative_to(root).as_posix()
            if VAGUE_NAMES.search(file.stem):
                found.append((path, 0, "a name says what is in it", file.name))
            if file.suffix not in SUFFIXES:
                continue
            text = file.read_text(encoding="utf-8")
            for number, line in enumerate(without_comments(text, keep_strings=True).splitlines(), 1):
                include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
                rule = include and include_offence(module, path, include.group(1) == '"', include.group(2))
                if rule:
                    found.append((path, number, rule, line.strip()))
            if path.startswith("tests/"):
                continue
            texts[path] = (module, without_comments(text, keep_strings=False))
            names = re.findall(r"unordered_(?:multi)?(?:map|set)<[^;{}()]*>\s*&?\s*(\w+)\s*[;{=,)(]", texts[path][1])
            unordered.setdefault(module, set()).update(names)
    found += names_twice(texts)
    for path, (module, text) in texts.items():
        # A rule that begins with "only PATH" does not hold for this file.
        rules = [(re.compile(pattern), rule) for modules, pattern, rule in WORDS
                 if module in modules.split() and not rule.startswith(f"only {path} ")]
        if module in ORDERED and unordered[module]:
            names = "|".join(sorted(unordered[module]))
            walk = rf"for\s*\([^;)]*[^:]:\s*[\w.>-]*\b({names})\s*\)|\b({names})\s*\.\s*c?begin\s*\("
            rules.append((re.compile(walk), "an unordered container is never walked"))
        for number, line in enumerate(text.splitlines(), 1):
            for pattern, rule in rules:
                if pattern.search(line):
                    found.append((path, number, rule, line.strip()))
    for folder in (root / "tools", root / "cmake", root / "notebooks"):
        for file in sorted(folder.rglob("*")):
            if VAGUE_NAMES.search(file.stem):
                found.append((file.relative_to(root).as_posix(), 0, "a name says what is in it", file.name))
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = offences(sys.argv[1])
    for path, number, rule, text in found:
        print(f"{path}:{number}: {rule}: {text}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
