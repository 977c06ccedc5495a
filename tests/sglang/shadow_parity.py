"""The work of tools/sglang-shadow: kvtwin's policies inside SGLang's cache, against SGLang's own core and kvtwin's."""

import sequences
from sequential_server import Server


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
    """(requests whose hits differ from those of `kvtwin simulate`, hits of both)."""
    from shadow_server import ShadowServer

    hits, _, table = kvtwin.serve_with_times(case, path)
    server = ShadowServer(*server_arguments(case), times=table)
    shadow_hits, _ = serve_all(server, requests)
    return [number for number, pair in enumerate(zip(hits, shadow_hits)) if pair[0] != pair[1]], hits, shadow_hits
