"""The work of tools/sglang-shadow: kvtwin's policies inside SGLang's cache, against SGLang's own core and kvtwin's."""

import tempfile
from pathlib import Path

import cases
import sequences
from cases import Case
from kvtwin_program import Kvtwin

# Evictions that kvtwin's engine decides in another way than SGLang, so that the same policy sees other calls. The number
# is that of the requests of all of the case whose hits may differ.
KNOWN_DIFFERENCES = {
    # Under write_back, kvtwin's engine chooses pages ahead of need, by a further instance of the policy
    # (Cache::choose_leaving in policy/cache/room.cpp, PolicyRole::candidates). SGLang chooses when it needs room
    # (_evict_components in unified_radix_cache.py). The histories of the two instances differ.
    "chat tide device=4000 host=8000 write_back": 4,
    # marconi takes the difference of two stamps as an age in requests (rank() in policy/eviction/marconi.cpp). SGLang stamps
    # each match and each node that an insert walks (_match_post_processor and _touch_node in unified_tree_core.py), and the
    # mirror does so too. kvtwin's engine stamps an admission and an insert.
    "chat marconi device=4000": 2,
    "chat marconi device=4000 host=8000 write_through": 3,
}
# Of tests/fixtures/sglang/shadow_tide.kvc: 30 requests. kvtwin's engine would reject longer prompts of the sequence.
RECORDED = Case("chat", "tide", 400, 400)


def cases_of_kvtwin():
    """With policies that SGLang does not have."""
    for sequence, tokens in (("chat", 4000), ("chat", 12000), ("agentic", 40000), ("tools", 4000), ("answers", 8000),
                             ("again", 8000)):
        yield Case(sequence, "tide", tokens)
    for eviction in ("gdsf", "arc", "s3fifo", "lhd", "2q", "sieve", "lruk", "marconi"):
        yield Case("chat", eviction, 4000)
    for eviction in ("tide", "gdsf", "arc", "marconi"):
        yield Case("chat", eviction, 4000, 8000)
    yield Case("chat", "tide", 4000, 8000, "write_back")
    for tokens in (12000, 40000):
        yield Case("real", "tide", tokens)


def evictions_of(server):
    """Lets the server keep its evictions: (request, tier, first token, tokens)."""
    core, kept = server.cache.tree_core, []
    original = core._evict_component_and_detach_lru

    def recorded(node, comp, *arguments, **named):
        data = node.component_data[0]
        before = data.value is not None, data.host_value is not None
        token, tokens = node.key.token_ids[0], len(node.key)
        target = named.get("target")
        freed = original(node, comp, *arguments, **named)
        bits = 1 if target is None else target.value
        kept.extend((server.now_serving, tier, token, tokens) for tier in (0, 1) if before[tier] and bits >> tier & 1)
        return freed

    core._evict_component_and_detach_lru = recorded
    return kept


def serve_all(server, requests):
    """(hits of each request, evictions)"""
    kept, hits = evictions_of(server), []
    for number, request in enumerate(requests):
        server.now_serving = number
        hits.append(server.serve(number, request.prompt(), request.answer_tokens,
                                 sequences.answer(number, request.answer_tokens), request.priority))
    server.check()
    return hits, kept


def server_arguments(case):
    return (case.eviction, sequences.PAGE_TOKENS, case.device_tokens, case.host_tokens, case.write_policy, case.chunk_tokens)


def compare_with_own_core(case, requests):
    """None, or how the shadow's hits and evictions differ from those of SGLang's Python core."""
    from sequential_server import Server
    from shadow_server import ShadowServer

    hits, evicted = serve_all(Server("python", *server_arguments(case)), requests)
    server = ShadowServer(*server_arguments(case))
    shadow_hits, shadow_evicted = serve_all(server, requests)
    counters = {name: count for name, count in server.core.counters().items() if count}
    if counters:
        return f"the mirror and SGLang disagreed: {counters}"
    for number, (own, ours) in enumerate(zip(hits, shadow_hits)):
        if own != ours:
            return f"request {number} hits {ours} tokens instead of {own}"
    for own, ours in zip(evicted, shadow_evicted):
        if own != ours:
            return f"evicts (request, tier, first token, tokens) {ours} instead of {own}"
    if len(evicted) != len(shadow_evicted):
        return f"{len(shadow_evicted)} evictions instead of {len(evicted)}"
    return None


def compare_with_simulate(case, requests, path, kvtwin):
    """(requests whose hits differ from those of `kvtwin simulate`, tokens that hit in all, what is wrong or None)"""
    from shadow_server import ShadowServer

    hits, _, times = kvtwin.serve_with_times(case, path)
    server = ShadowServer(*server_arguments(case), times=times)
    shadow_hits, _ = serve_all(server, requests)
    differ = [number for number, (ours, shadow) in enumerate(zip(hits, shadow_hits)) if ours != shadow]
    counters = {name: count for name, count in server.core.counters().items() if count}
    wrong = None
    if counters:
        wrong = f"the mirror and SGLang disagreed: {counters}"
    elif len(differ) > KNOWN_DIFFERENCES.get(case.name, 0):
        wrong = (f"request {differ[0]} hits {shadow_hits[differ[0]]} tokens instead of {hits[differ[0]]}, and "
                 f"{len(differ) - 1} others differ too")
    return len(differ), sum(map(sum, shadow_hits)), wrong


def record(case, requests, file):
    """Records the calls of a case."""
    from shadow_server import ShadowServer

    server = ShadowServer(*server_arguments(case), journal=file, times=[(n * 10**9, n * 10**9 + 10**6) for n in range(len(requests))])
    serve_all(server, requests)
    server.core.journal.close()
    print(f"{file}: {case.name}, {len(requests)} requests, {file.stat().st_size:,} bytes")


def run(given):
    import sglang_imports
    from parity import Sequences

    version = sglang_imports.prepare()
    import shadow_server

    shadow_server.prepare()
    words = [word.strip() for word in given.only.split(",") if word.strip()]

    def chosen(all_cases):
        return [case for case in all_cases if all(word in case.name for word in words)]

    with tempfile.TemporaryDirectory() as scratch:
        kvtwin = Kvtwin(given.program.absolute(), Path(scratch))
        made = Sequences(kvtwin, Path(scratch), given.real_trace)
        if given.speed:
            import speed

            return speed.measure(kvtwin, made, with_kvtwins_core=True)
        if given.journal:
            case = chosen([RECORDED, *cases.all_cases(), *cases_of_kvtwin()])[0]
            record(case, made.get(case.sequence)[0][: given.requests or None], given.journal)
            return 0
        print(f"SGLang {version}, kvtwin's tree core against SGLang's own Python core: hits and evictions")
        compared = wrong = 0
        for case in chosen(cases.all_cases()):
            if made.get(case.sequence) is None:
                continue
            problem = compare_with_own_core(case, made.get(case.sequence)[0][: given.requests or None])
            compared += 1
            wrong += problem is not None
            print(f"{case.name}: {problem or 'equal'}", flush=True)
        print("kvtwin's tree core against kvtwin simulate: requests that differ; tokens that hit")
        for case in chosen(cases_of_kvtwin()):
            if made.get(case.sequence) is None:
                continue
            requests, path, _ = made.get(case.sequence)
            differ, tokens, problem = compare_with_simulate(case, requests, path, kvtwin)
            compared += 1
            wrong += problem is not None
            print(f"{case.name}: {differ} of {len(requests)}; {tokens}" + (f": {problem}" if problem else ""), flush=True)
    print(f"{compared} cases compared, {wrong} wrong")
    return 1 if wrong or not compared else 0
