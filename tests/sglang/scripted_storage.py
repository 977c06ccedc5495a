"""One prefetch at a time on SGLang's own controller threads, over a storage whose answers come at scripted times.

The threads, queues, look-ups, reads by batches, reductions over ranks and the stop policies are SGLang's. The clock of
the wait is scripted too, so no time passes and a result does not depend on the machine.
"""

import hashlib
import logging
import random
import threading
import time
from array import array
from types import SimpleNamespace

import sequential_server
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache import unified_radix_cache
from sglang.srt.mem_cache import utils as mem_cache_utils
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams
from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller
from sglang.srt.mem_cache.radix_cache import RadixKey

try:
    from sglang.srt.utils import poll_timer
except ImportError:  # before 0.5.23
    poll_timer = None

PAGE_TOKENS = 4
BATCH_PAGES = 4
HOST_PAGES = 64
DEVICE_PAGES = 256
PATIENCE_S = 30  # for SGLang's threads, which need milliseconds


def page_hashes(tokens, prior_digest, page_tokens):
    """SGLang's chain of SHA-256. SGLang's own function needs a compiler and OpenSSL."""
    tokens = list(tokens)
    hashes, digest = [], prior_digest or b""
    for first in range(0, len(tokens), page_tokens):
        page = b"".join(token.to_bytes(4 if token < 1 << 32 else 8, "little") for token in tokens[first : first + page_tokens])
        digest = hashlib.sha256(digest + page).digest()
        hashes.append(digest.hex())
    return hashes


class Storage:
    """Answers each call when the script says so."""

    def __init__(self):
        self.changed = threading.Condition()
        self.answers, self.waiting, self.closed = [], 0, False

    def _call(self):
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.answers or self.closed)
            self.waiting -= 1
            return self.answers.pop(0) if self.answers else 0

    def batch_exists(self, keys, extra_info=None):
        return min(len(keys), self._call())

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        pages = self._call()
        return [page < pages for page in range(len(keys))]

    def is_called(self):
        return self.waiting > len(self.answers)

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def answer(self, pages):
        with self.changed:
            self.answers.append(pages)
            self.changed.notify_all()


class Clock:
    """Stands for the module `time` where SGLang times a wait."""

    def __init__(self):
        self.now_ms = 0

    def perf_counter(self):
        return self.now_ms / 1000

    monotonic = perf_counter

    def __getattr__(self, name):
        return getattr(time, name)


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "SGLang's threads do not answer"
        time.sleep(0.0002)


class Rank:
    """A cache with a host tier and storage threads."""

    def __init__(self, scenario, reduce_min, storage=None, device_pages=DEVICE_PAGES):
        server = sequential_server.Server(
            "rust", "lru", PAGE_TOKENS, device_pages * PAGE_TOKENS, scenario["host_pages"] * PAGE_TOKENS,
            load_back_min_tokens=1)
        self.cache, self.server = server.cache, server
        self.storage = storage or Storage()
        controller = self.controller = self.cache.cache_controller
        controller.enable_storage = True
        controller.storage_stop_event = threading.Event()
        controller.storage_backend = self.storage
        controller.page_get_func = controller._page_get_zero_copy
        controller.prefetch_tokens_occupied = 0
        controller.prefetch_capacity_limit = 1 << 60
        controller.pp_prefetch_decisions, controller.pp_prefetch_command_thread = {}, None
        controller.prefetch_hits_sync_groups = controller.prefetch_completion_sync_groups = []
        controller._all_reduce = lambda tensor, op, groups: tensor.copy_(reduce_min(self, tensor))
        controller.storage_config = SimpleNamespace(pp_rank=0)
        controller._start_storage_threads()
        self.operation, self.ended, self.acks = None, False, 0
        watch_ends(self)
        self.cache.enable_storage = True
        self.cache.prefetch_threshold = max(scenario["threshold"], PAGE_TOKENS)
        self.cache.prefetch_stop_policy = scenario["policy"]
        self.cache.prefetch_timeout_base = scenario["base_ms"] / 1000
        self.cache.prefetch_timeout_per_page = scenario["per_ki_ms"] / 1000 * PAGE_TOKENS / 1024

    def stop(self):
        self.storage.close()
        self.controller._stop_storage_threads()

    def tokens_on_host(self):
        self.cache.check_hicache_events()
        return self.server.host_tokens - self.controller.mem_pool_host.available_size()


def results(scenario, clock):
    """When the request was admitted, and tokens: `hit` by this request, `kept` on the host when all answers have come."""
    rank = Rank(scenario, lambda _, tensor: tensor.clone())
    try:
        return play(scenario, rank, clock)
    finally:
        rank.stop()


def play(scenario, rank, clock):
    cache, storage = rank.cache, rank.storage
    clock.now_ms = 0
    prompt = array("q", range(1, scenario["asked"] * PAGE_TOKENS + 2))
    match = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1), req=None))
    handle = CacheRequestHandle("request", 0)
    cache.prefetch_from_storage(handle, match.last_host_node, prompt[: len(prompt) - 1],
                                cache.get_last_hash_value(match.last_host_node), None, matched_prefix_tokens=[])
    events = []
    if cache.has_ongoing_prefetch(handle):
        until(storage.is_called)  # the look-up is under way before the first step
        events = [(scenario["look_up_ms"], "look_up", scenario["found"]),
                  *((at, "get", pages) for at, pages in scenario["batches"])]
    admitted = hit = None
    for now in range(scenario["end_ms"] + 1):
        clock.now_ms = now
        while events and events[0][0] == now:
            answer(rank, *events.pop(0)[1:])
        cache.check_hicache_events()
        note_operation(rank, handle)
        if admitted is None and now >= scenario["polled_ms"] and cache.check_prefetch_progress(handle):
            admitted = now
            cache.check_hicache_events()
            hit = cache.match_prefix(
                MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1), req=None)).host_hit_length
    return {"admitted_ms": admitted, "hit": hit, "kept": rank.tokens_on_host()}


def answer(rank, verb, pages):
    """The storage's call ends. Returns when SGLang's threads have passed the answer on."""
    storage, controller = rank.storage, rank.controller
    if verb == "look_up":
        storage.answer(pages)
        until(lambda: controller.prefetch_hit_queue.qsize() > 0)
    elif rank.operation is not None:
        # After a stop or a short read the reading thread makes no further call.
        until(lambda: storage.is_called() or rank.ended)
        if storage.is_called():
            acks = rank.acks
            storage.answer(pages)
            until(lambda: rank.acks > acks and (storage.is_called() or rank.ended))


def note_operation(rank, handle):
    """Notes the operation when its pages begin to be read."""
    info = rank.cache.ongoing_prefetch.get(handle)
    if info is not None and info.host_indices is not None:
        rank.operation = info.operation


def watch_ends(rank):
    """Counts the acks that reach the scheduler's queue, and notes the last one of an operation."""
    put = rank.controller.ack_prefetch_queue.put

    def noted(ack, *args):
        put(ack, *args)
        rank.acks += 1
        if ack.completed_req:
            rank.ended = True

    rank.controller.ack_prefetch_queue.put = noted


def random_scenario(draw, policy, polled_ms):
    """Ends of waits fall between two milliseconds, so that no answer comes at the same time. Before `polled_ms`, requests
    ahead keep the scheduler from this request."""
    asked = draw.randint(1, 24)
    found = draw.choice([asked, draw.randint(0, asked), draw.randint(0, asked)])
    look_up_ms = draw.randint(1, 30)
    batches, at, left = [], look_up_ms, found
    short = draw.random() < 0.25
    while left > 0:
        at += draw.randint(1, 15)
        size = min(left, BATCH_PAGES)
        ends = short and draw.random() < 0.4
        batches.append([at, draw.randint(0, size - 1) if ends else size])
        left -= size
    return {
        "policy": policy, "threshold": draw.choice([1, 2, 3, 6]) * PAGE_TOKENS, "base_ms": draw.randint(0, 40) + 0.5,
        "per_ki_ms": draw.choice([0, 256, 512, 1024]), "asked": asked, "found": found, "look_up_ms": look_up_ms,
        "batches": batches, "host_pages": draw.choice([HOST_PAGES, HOST_PAGES, draw.randint(1, 24)]),
        "end_ms": max(at, polled_ms) + 60, "polled_ms": polled_ms,
    }


def scenarios(count, seed=1):
    """In the second half, the scheduler gets to the request later."""
    draw = random.Random(seed)
    policies = ("best_effort", "wait_complete", "timeout", "timeout")
    return [random_scenario(draw, policies[number % 4], draw.randint(1, 80) if number >= count / 2 else 0)
            for number in range(count)]


def prepare():
    """Replaces the clock of the wait, the hash that needs a compiler, and the size of a batch."""
    logging.disable(logging.WARNING)  # each page that a script leaves out
    clock = Clock()
    for module in (poll_timer,) if poll_timer else (hybrid_cache_controller, unified_radix_cache):
        module.time = clock
    mem_cache_utils.get_native_hash = page_hashes
    cache_controller.STORAGE_BATCH_SIZE = BATCH_PAGES
    return clock


COLUMNS = ("policy threshold base_us per_ki_us asked found look_up_ms host_pages polled_ms end_ms admitted_ms hit kept "
           "batches")


def line_of(scenario, result):
    """One line of prefetch.tsv. A batch is the millisecond of its end, and its pages."""
    batches = ",".join(f"{at}:{pages}" for at, pages in scenario["batches"]) or "-"
    s = scenario
    return "\t".join(map(str, (
        s["policy"], s["threshold"], round(s["base_ms"] * 1000), round(s["per_ki_ms"] * 1000), s["asked"], s["found"],
        s["look_up_ms"], s["host_pages"], s["polled_ms"], s["end_ms"], result["admitted_ms"], result["hit"], result["kept"], batches)))


def table(version, count):
    clock = prepare()
    lines = [f"# SGLang {version}: prefetches with scripted answers of the storage, and the results; pages of "
             f"{PAGE_TOKENS} tokens, batches of {BATCH_PAGES} pages; see tests/sglang/scripted_storage.py",
             "\t".join(COLUMNS.split())]
    lines += [line_of(s, results(s, clock)) for s in scenarios(count)]
    return "\n".join(lines) + "\n"
