"""One prefetch at a time on two ranks of SGLang, each with its own cache, controller threads and scripted storage.

SGLang's threads reduce the hits of the look-up and the tokens of each read over the ranks, and the scheduler reduces
what it takes from the queues. A meeting of two threads takes the place of torch.distributed here: the calls, their order
and the values are SGLang's.
"""

import random
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

import scripted_storage
import torch
from scripted_storage import BATCH_PAGES, HOST_PAGES, PAGE_TOKENS, Rank, until
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

RANKS = 2
OPERATIONS = {torch.distributed.ReduceOp.MIN: torch.minimum, torch.distributed.ReduceOp.MAX: torch.maximum}


class Meeting:
    """Reductions of one kind of thread. All ranks reduce in the same order, so one value for each rank is enough."""

    def __init__(self):
        self.changed = threading.Condition()
        self.values, self.results, self.done, self.closed = [[] for _ in range(RANKS)], [], 0, False

    def reduce(self, rank, tensor, operation):
        with self.changed:
            number = len(self.values[rank])
            self.values[rank].append(tensor.clone())
            if all(len(values) > number for values in self.values):
                result = self.values[0][number]
                for values in self.values[1:]:
                    result = OPERATIONS[operation](result, values[number])
                self.results.append(result)
                self.changed.notify_all()
            self.changed.wait_for(lambda: len(self.results) > number or self.closed)
            if not self.closed:
                tensor.copy_(self.results[number])

    def arrived(self, rank):
        return len(self.values[rank])

    def met(self):
        return len(self.results)

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Ranks:
    """Both ranks. `step` runs a part of the scheduler's loop on both at the same time."""

    def __init__(self, scenario):
        self.meetings = {name: Meeting() for name in ("hits", "completion", "scheduler")}
        self.ranks = []
        for number in range(RANKS):
            rank = Rank({**scenario, **scenario["ranks"][number]}, lambda _, tensor: tensor.clone())
            self.ranks.append(rank)
            self.join(number, rank)
        self.pool = ThreadPoolExecutor(RANKS)

    def join(self, number, rank):
        """The threads of the constructor wait for work, so they take the reductions of their next operation from here."""
        controller, cache = rank.controller, rank.cache
        controller.prefetch_hits_sync_groups, controller.prefetch_completion_sync_groups = ["hits"], ["completion"]
        controller._all_reduce = lambda tensor, op, groups: self.meetings[groups[0]].reduce(number, tensor, op)
        cache._all_reduce_attn_groups = lambda tensor, op: self.meetings["scheduler"].reduce(number, tensor, op)
        rank.read_acks = rank.read_ended = 0
        put = controller.prefetch_sync_queue.put

        def noted(ack, *args, **named):
            if ack is not None:  # None wakes the thread at the end
                rank.read_acks += ack.completed_tokens is not None
                rank.read_ended += bool(ack.completed_req)
            put(ack, *args, **named)

        controller.prefetch_sync_queue.put = noted

    def step(self, function):
        return list(self.pool.map(function, self.ranks))

    def settle(self):
        """Returns when SGLang's threads wait for the storage, for each other, or for the scheduler."""
        completion = self.meetings["completion"]
        until(lambda: all(rank.operation is None or rank.storage.is_called() or rank.read_ended for rank in self.ranks))
        until(lambda: completion.met() == min(rank.read_acks for rank in self.ranks))
        passed = [completion.met() + (rank.read_ended if completion.met() == rank.read_acks else 0) for rank in self.ranks]
        until(lambda: all(rank.acks == acks for rank, acks in zip(self.ranks, passed)))

    def answer(self, number, verb, pages):
        rank, hits = self.ranks[number], self.meetings["hits"]
        if verb == "look_up":
            rank.storage.answer(pages)
            until(lambda: hits.arrived(number) > 0)
            if hits.met():
                until(lambda: all(one.controller.prefetch_hit_queue.qsize() > 0 for one in self.ranks))
        elif rank.operation is not None:
            self.settle()
            if rank.storage.is_called():
                acks, ended = rank.read_acks, rank.read_ended
                rank.storage.answer(pages)
                until(lambda: (rank.read_acks, rank.read_ended) != (acks, ended))
                self.settle()

    def stop(self):
        for meeting in self.meetings.values():
            meeting.close()
        for rank in self.ranks:
            rank.stop()
        self.pool.shutdown()


def results(scenario, clock):
    ranks = Ranks(scenario)
    try:
        return play(scenario, ranks, clock)
    finally:
        ranks.stop()


def play(scenario, ranks, clock):
    clock.now_ms = 0
    prompt = array("q", range(1, scenario["asked"] * PAGE_TOKENS + 2))
    handle = CacheRequestHandle("request", 0)

    def match(rank):
        return rank.cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1), req=None))

    def ask(rank):
        node = match(rank).last_host_node
        rank.cache.prefetch_from_storage(handle, node, prompt[: len(prompt) - 1], rank.cache.get_last_hash_value(node),
                                         None, matched_prefix_tokens=[])
        return rank.cache.has_ongoing_prefetch(handle)

    def turn(rank):
        rank.cache.check_hicache_events()
        scripted_storage.note_operation(rank, handle)

    events = []
    if all(ranks.step(ask)):
        for rank in ranks.ranks:
            until(rank.storage.is_called)
        for number, script in enumerate(scenario["ranks"]):
            events += [(script["look_up_ms"], number, "look_up", script["found"]),
                       *((at, number, "get", pages) for at, pages in script["batches"])]
        events.sort(key=lambda event: event[:2])
    admitted = hit = None
    for now in range(scenario["end_ms"] + 1):
        clock.now_ms = now
        while events and events[0][0] == now:
            ranks.answer(*events.pop(0)[1:])
        ranks.step(turn)
        if admitted is None:
            admits = ranks.step(lambda rank: rank.cache.check_prefetch_progress(handle))
            assert len(set(admits)) == 1, "the ranks disagree"
            if admits[0]:
                admitted = now
                ranks.step(lambda rank: rank.cache.check_hicache_events())
                (hit,) = {match(rank).host_hit_length for rank in ranks.ranks}
    (kept,) = set(ranks.step(lambda rank: rank.tokens_on_host()))
    return {"admitted_ms": admitted, "hit": hit, "kept": kept}


def random_scenario(draw, policy):
    asked = draw.randint(1, 24)
    found = [draw.choice([asked, draw.randint(0, asked)]) for _ in range(RANKS)]
    ranks = [{"look_up_ms": draw.randint(1, 30), "found": pages, "batches": []} for pages in found]
    at = [max(rank["look_up_ms"] for rank in ranks)] * RANKS
    left = min(found)
    short = draw.random() < 0.25
    while left > 0:
        size = min(left, BATCH_PAGES)
        ends = short and draw.random() < 0.4
        for number, rank in enumerate(ranks):
            at[number] += draw.randint(1, 15)
            rank["batches"].append([at[number], draw.randint(0, size) if ends else size])
        left -= size
    return {
        "policy": policy, "threshold": draw.choice([1, 2, 3]) * PAGE_TOKENS, "base_ms": draw.randint(0, 40) + 0.5,
        "per_ki_ms": draw.choice([0, 256, 512, 1024]), "asked": asked, "ranks": ranks,
        "host_pages": draw.choice([HOST_PAGES, HOST_PAGES, draw.randint(1, 24)]), "end_ms": max(at) + 60,
    }


def scenarios(count, seed=1):
    draw = random.Random(seed)
    policies = ("best_effort", "wait_complete", "timeout", "timeout")
    return [random_scenario(draw, policies[number % 4]) for number in range(count)]


COLUMNS = "policy threshold base_us per_ki_us asked host_pages end_ms admitted_ms hit kept rank_0 rank_1"


def line_of(scenario, result):
    """One line. A rank is its look-up and its batches: the millisecond of the end, and the pages."""
    ranks = [",".join(f"{at}:{pages}" for at, pages in [(rank["look_up_ms"], rank["found"]), *rank["batches"]])
             for rank in scenario["ranks"]]
    s = scenario
    return "\t".join(map(str, (
        s["policy"], s["threshold"], round(s["base_ms"] * 1000), round(s["per_ki_ms"] * 1000), s["asked"],
        s["host_pages"], s["end_ms"], result["admitted_ms"], result["hit"], result["kept"], *ranks)))


def table(version, count):
    clock = scripted_storage.prepare()
    lines = [f"# SGLang {version}: prefetches on two ranks with scripted answers of each rank's storage, and the results; "
             f"pages of {PAGE_TOKENS} tokens, batches of {BATCH_PAGES} pages; see tests/sglang/scripted_ranks.py",
             "\t".join(COLUMNS.split())]
    lines += [line_of(s, results(s, clock)) for s in scenarios(count)]
    return "\n".join(lines) + "\n"
