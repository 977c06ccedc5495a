"""The work of tools/engine-parity sglang."""

import tempfile
from pathlib import Path

import cases
import golden
import sequences
from kvtwin_program import Kvtwin


# Read by tests/unit/policy/sglang_prefetch_test.cpp, sglang_waiting_test.cpp and sglang_writes_test.cpp.
PREFETCHES = golden.FILE.with_name("prefetch.tsv")
SCRIPTED_PREFETCHES = 800
SCRIPTED_PREFETCHES_OF_RANKS = 400
SCRIPTED_WAITS = 120
SCRIPTED_WRITES = 60


class Sequences:
    """Made when they are needed, once."""

    def __init__(self, kvtwin, folder, real_trace):
        self.kvtwin, self.folder, self.real_trace, self.made = kvtwin, folder, real_trace, {}

    def get(self, name):
        """(requests, path, digest), or None."""
        if name not in self.made:
            requests = sequences.make(name, self.kvtwin, self.folder, self.real_trace)
            path = self.folder / f"{name}.jsonl"
            self.made[name] = None if requests is None else (requests, path, sequences.write(requests, path))
            if requests is None:
                print(f"left out: every case of sequence '{name}', because {self.real_trace} is not there")
        return self.made[name]


def chosen(words):
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    return [case for case in cases.all_cases() if all(word in case.name for word in wanted)]


def serve_with_sglang(case, requests, tree):
    """Hit tokens by tier of each request, and the pages evicted from the device."""
    from sequential_server import Server

    if case.is_buffer:
        from buffer_server import Server
    elif case.is_linked:
        from linker_server import Server
    server = Server(tree, case.eviction, sequences.PAGE_TOKENS, case.device_tokens, case.host_tokens,
                    case.write_policy, case.chunk_tokens, session_radix=case.counts_sessions)
    hits = []
    for number, request in enumerate(requests):
        hits.append(server.serve(number, request.prompt(), request.answer_tokens,
                                 sequences.answer(number, request.answer_tokens), request.priority, request.session,
                                 request.closes_own))
        server.close_sessions(request.closes)
    server.check()
    server.stop()
    return hits, server.evicted_tokens // sequences.PAGE_TOKENS


def compare_with_stored(given, kvtwin, made):
    stored = golden.read()
    rows = {row["case"]: row for row in stored["cases"]}
    wrong = compared = unknown = by_hit_rate = 0
    for case in chosen(given.only):
        sequence = made.get(case.sequence)
        if sequence is None:
            continue
        if case.name not in rows:
            unknown += 1
            continue
        _, path, digest = sequence
        if stored["sequences"].get(case.sequence) != digest:
            problem = "the requests are not those of the stored results: run tools/engine-parity sglang --renew"
        else:
            hits, evicted = kvtwin.serve(case, path)
            problem = golden.check(rows[case.name], hits, evicted[0])
            totals = kvtwin.hit_rate(case, path)
            if totals is not None:
                by_hit_rate += 1
                problem = problem or golden.check_totals(rows[case.name], totals)
        compared += 1
        if problem:
            wrong += 1
            print(f"{case.name}: {problem}")
    print(f"kvtwin against SGLang {stored['sglang']}: {compared} cases compared, {by_hit_rate} of them with hitrate too, "
          f"{wrong} wrong"
          + (f"; {unknown} have no stored result" if unknown else ""))
    return 1 if wrong or not compared else 0


def trees_of(case, names):
    if case.counts_sessions:
        return ["python"]  # the only one that counts them
    return [tree for tree in names if not (tree == "radix" and (case.host_tokens or case.is_linked))]


def run_both(given, kvtwin, made):
    import sglang_imports

    version = sglang_imports.prepare()
    rows, used, wrong = [], {}, 0
    print(f"SGLang {version}; tokens that hit on the device and on the host; evicted pages; requests that differ")
    for case in chosen(given.only):
        sequence = made.get(case.sequence)
        if sequence is None:
            continue
        requests, path, used[case.sequence] = sequence
        kvtwin_hits, kvtwin_evicted = kvtwin.serve(case, path)
        row = None
        for tree in trees_of(case, given.trees.split(",")):
            hits, evicted = serve_with_sglang(case, requests, tree)
            new = golden.row_of(case, hits, evicted, kvtwin_hits, kvtwin_evicted[0])
            if row is not None and (new["digest"], new["evicted_pages"]) != (row["digest"], row["evicted_pages"]):
                wrong += 1
                print(f"{case.name}: SGLang's trees differ: {tree} hits {new['hit_device']}, {new['hit_host']}")
            row = row or new
        if row is None:
            continue
        rows.append(row)
        ours = [sum(column) for column in zip(*kvtwin_hits)]
        print(f"{case.name}: SGLang {row['hit_device']} {row['hit_host']}, kvtwin {ours[0]} {ours[1]}; "
              f"{row['evicted_pages']}, {kvtwin_evicted[0]}; {row['differ']} of {row['requests']}", flush=True)
    if given.renew and not given.release:
        renew(version, used, rows)
    if all(word.strip() in "prefetch" for word in given.only.split(",")):
        wrong += prefetches(version, given)
    return 1 if wrong else 0


def prefetches(version, given):
    """Prefetches by SGLang on one rank and on two, requests that wait, and writes to storage that wait. Returns the lines that
    are not as stored, or writes the files."""
    import scripted_ranks
    import scripted_storage
    import scripted_waiting
    import scripted_writes

    tables = {"prefetch": scripted_storage.table(version, SCRIPTED_PREFETCHES),
              "waiting": scripted_waiting.table(version, SCRIPTED_WAITS)}
    if not given.release:
        tables["writes"] = scripted_writes.table(version, SCRIPTED_WRITES)
        tables["prefetch_two_ranks"] = scripted_ranks.table(version, SCRIPTED_PREFETCHES_OF_RANKS)
    changed = 0
    for name, table in tables.items():
        file = PREFETCHES.with_stem(f"{name}_{given.release}" if given.release else name)
        stored = file.read_text(encoding="utf-8") if file.is_file() else ""
        new = sum(line not in set(stored.splitlines()) for line in table.splitlines())
        print(f"prefetches by scripted answers: {new} lines of {file.name} change")
        changed += new
        if given.renew:
            file.write_text(table, encoding="utf-8")
    return 0 if given.renew else changed


def renew(version, used, rows):
    """Cases that were left out keep their rows, so that a machine without the real trace does not lose them."""
    old = golden.read() if golden.FILE.is_file() else {"sglang": "none", "sequences": {}, "cases": []}
    before, now = {row["case"]: row for row in old["cases"]}, {row["case"]: row for row in rows}
    known = [case.name for case in cases.all_cases()]
    kept = {**before, **now}
    golden.write(version, {**old["sequences"], **used}, [kept[name] for name in known if name in kept])
    print(f"tests/fixtures/sglang/parity.json: SGLang {old['sglang']} -> {version}")
    for name in known:
        if name in now and name in before and now[name]["digest"] != before[name]["digest"]:
            print(f"changed: {name}: hits {before[name]['hit_device']} {before[name]['hit_host']} -> "
                  f"{now[name]['hit_device']} {now[name]['hit_host']}")
        elif name in now and name not in before:
            print(f"new: {name}")
    for name in before:
        if name not in known:
            print(f"gone: {name}")


def run(given):
    with tempfile.TemporaryDirectory() as scratch:
        kvtwin = Kvtwin(given.program.absolute(), Path(scratch))
        made = Sequences(kvtwin, Path(scratch), given.real_trace)
        if given.speed:
            import speed

            return speed.measure(kvtwin, made)
        return (compare_with_stored if given.golden else run_both)(given, kvtwin, made)
