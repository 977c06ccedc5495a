"""Requests that wait behind others, on SGLang's own cache, storage threads and prefetch rules.

While a request waits, the requests ahead evict its cached prefix. SGLang's scheduler then looks up storage again. In a
part of the scripts it does not, as before 0.5.20 (the caches of these releases do not fit this file). RULES are methods of
SGLang's Scheduler, read from its file, because the import of the class needs a GPU's packages. This file stands for the
rest of the scheduler: one request runs at a time, a pass takes a millisecond, and the queue is looked through as in
Scheduler._get_new_batch_prefill_raw. A look-up and a read of a batch take a scripted number of milliseconds, one after
another. An idle thread begins its work before the scheduler goes on, so no result depends on the machine. No two inputs
come at once: look-ups end at multiples of 4 ms, reads 2 ms later or earlier, and requests come at odd milliseconds.
"""

import __future__
import ast
import logging
import random
import threading
from array import array
from pathlib import Path
from types import SimpleNamespace

import scripted_storage
import sequential_server
import sglang.srt.mem_cache
import torch
from scripted_storage import BATCH_PAGES, PAGE_TOKENS, CacheRequestHandle, Rank, page_hashes, until
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

RULES = ("_prefetch_kvcache", "_process_storage_prefetch_retries", "_retry_storage_prefetch",
         "_prefetch_after_device_hit_loss")
ENDS = {"look_up": 0, "get": 2}  # milliseconds, modulo 4
FIRST_ANSWER_TOKEN = 1 << 24


def scheduler_rules(memory):
    """The methods of SGLang's Scheduler that decide about prefetches."""
    file = Path(sglang.srt.mem_cache.__path__[0]).parent / "managers/scheduler.py"
    (scheduler,) = [node for node in ast.parse(file.read_text(encoding="utf-8")).body
                    if isinstance(node, ast.ClassDef) and node.name == "Scheduler"]
    methods = [node for node in scheduler.body if isinstance(node, ast.FunctionDef) and node.name in RULES]
    code = compile(ast.Module(methods, []), str(file), "exec", __future__.annotations.compiler_flag)
    names = {"logger": logging.getLogger("scheduler"), "get_memory": lambda: memory}
    exec(code, names)
    return {method.name: names[method.name] for method in methods}


class Storage:
    """Knows a fixed set of pages. A call returns when the script lets it."""

    def __init__(self, pages):
        self.changed = threading.Condition()
        self.pages, self.calls, self.closed = pages, {"look_up": None, "get": None}, False

    def _call(self, verb, keys):
        with self.changed:
            self.calls[verb] = object()
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.calls[verb] is None or self.closed)
        return next((at for at, key in enumerate(keys) if key not in self.pages), len(keys))

    def batch_exists(self, keys, extra_info=None):
        return self._call("look_up", keys)

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        pages = self._call("get", keys)
        return [page < pages for page in range(len(keys))]

    def answer(self, verb):
        with self.changed:
            self.calls[verb] = None
            self.changed.notify_all()

    def close(self):
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def count_puts(queue):
    """Counts what is put into the queue, in `queue.puts`, and the ends of operations among it."""
    put, queue.puts, queue.ends = queue.put, 0, 0

    def counted(item, *args, **named):
        put(item, *args, **named)
        if item is not None:  # None wakes a thread
            queue.puts += 1
            queue.ends += bool(getattr(item, "completed_req", False))

    queue.put = counted


class Request(sequential_server.Request):
    def __init__(self, number, prompt, answer_tokens):
        super().__init__(str(number), prompt, 0)
        self.cache_request_handle = CacheRequestHandle(self.rid, 0)
        first = FIRST_ANSWER_TOKEN + number * 1000
        self.answer = array("q", range(first, first + answer_tokens))
        self.storage_prefetch_retry_attempts, self.storage_prefetch_last_match_len = 0, None
        self.staged_prefetch_plan, self.admitted_ms, self.hits = None, None, None

    def _compute_max_prefix_len(self, tokens):
        return tokens - 1

    def init_next_round_input(self, cache, cow_mamba=None):
        match = cache.match_prefix(MatchPrefixParams(
            key=RadixKey(self.full_untruncated_fill_ids, limit=len(self.full_untruncated_fill_ids) - 1), req=self))
        self.prefix_len, self.host_hit_length = match.device_prefix_len, match.host_hit_length
        self.last_node, self.last_host_node, self.best_match_node = (
            match.last_device_node, match.last_host_node, match.best_match_node)


class Engine:
    """SGLang's cache and this file's scheduler."""

    enable_hicache_storage, enable_lmcache = True, False

    def __init__(self, scenario):
        pages = set()
        for number, stored in enumerate(scenario["stored"]):
            pages.update(page_hashes(document(scenario, number)[: stored * PAGE_TOKENS], None, PAGE_TOKENS))
        self.rank = Rank(scenario, lambda _, tensor: tensor.clone(), Storage(pages), scenario["device_pages"])
        self.server, self.tree_cache, self.storage = self.rank.server, self.rank.cache, self.rank.storage
        controller = self.controller = self.rank.controller
        controller.prefetch_capacity_limit = scenario["host_pages"] * PAGE_TOKENS // 2
        controller.storage_config.is_storage_writer = False  # what requests compute is not stored
        if not hasattr(type(controller), "backup_skip"):  # before 0.5.23
            controller.backup_skip = True
        controller.storage_backend_type = "file"
        self.queues = (controller.prefetch_queue, controller.prefetch_hit_queue, controller.prefetch_buffer,
                       controller.prefetch_sync_queue, controller.ack_prefetch_queue, controller.backup_queue,
                       controller.ack_backup_queue)
        for queue in self.queues:
            count_puts(queue)
        self.tree_cache.hicache_storage_pass_prefix_keys = False
        memory = SimpleNamespace(
            hicache_host_memory_mode="cache", hicache_storage_prefetch_retry_poll_interval=scenario["retry_steps"],
            hicache_storage_prefetch_retry_max_attempts=scenario["retry_attempts"])
        for name, method in scheduler_rules(memory).items():
            setattr(self, name, method.__get__(self))
        self.issue, self._prefetch_kvcache = self._prefetch_kvcache, self.look_up
        self.waiting_queue, self.running, self.decoded = [], None, 0
        self.rechecks, self.lost = scenario["rechecks"], 0

    def settle(self):
        """Returns when SGLang's threads wait for the storage, or for the scheduler."""
        asked, hits, buffer, sync, acks, backups, backed = self.queues
        until(lambda: asked.puts == hits.puts or self.storage.calls["look_up"])
        until(lambda: buffer.puts == acks.ends or (self.storage.calls["get"] and sync.puts == acks.puts))
        until(lambda: sync.puts == acks.puts and backups.puts == backed.puts)

    def look_up(self, request, *args):
        """An idle thread begins the look-up before the scheduler can stop it."""
        self.issue(request, *args)
        self.settle()

    # ---- the scheduler's loop

    def step(self, now, arrivals):
        if self.running is not None:
            self.end_pass()
        for request in arrivals:
            self._prefetch_kvcache(request)
            self.waiting_queue.append(request)
        self.tree_cache.check_hicache_events()
        self.settle()  # an idle thread has begun to read
        self._process_storage_prefetch_retries()
        # An idle engine looks again at once at what it has just looked up again.
        while self.running is None and self.admit(now):
            pass
        if self.running is not None and self.decoded:
            self.server._take(self.running, self.running.kv.kv_allocated_len + 1, PAGE_TOKENS)

    def admit(self, now):
        """Returns whether storage is looked up again for a request."""
        looked_up_again = False
        for request in list(self.waiting_queue):
            if not self.tree_cache.check_prefetch_progress(request.cache_request_handle):
                continue
            self.tree_cache.pop_prefetch_loaded_tokens(request.cache_request_handle)
            request.init_next_round_input(self.tree_cache)
            if self.rechecks and self._prefetch_after_device_hit_loss(request):
                looked_up_again = True
                self.lost += 1
                continue
            self.waiting_queue.remove(request)
            self.tree_cache.storage_prefetch_retries.cancel(request.rid)
            self.prefill(request, now)
            break
        return looked_up_again

    def prefill(self, request, now):
        cache, prompt, server = self.tree_cache, request.origin_input_ids, self.server
        device, host = request.prefix_len, 0
        if request.host_hit_length:
            host, request.last_node = cache.init_load_back(
                InitLoadBackParams(request.best_match_node, request.host_hit_length, req=request))
        request.lock = cache.lock(request.last_node)
        request.kv.req_pool_idx = server.rows.alloc_rows(1)[0]
        request.kv.cache_protected_len = request.kv.kv_allocated_len = device + host
        if device + host:
            path = cache.path_device_indices(request.last_node)
            server.rows.write((request.kv.req_pool_idx, slice(0, device + host)), path[: device + host].to(torch.int32))
        cache.ready_to_load_host_cache()
        server._take(request, len(prompt), 0)
        request.admitted_ms, request.hits = now, (device, host)
        self.running, self.decoded = request, 0

    def end_pass(self):
        """One token: of the prefill, or of a decode step."""
        request, self.decoded = self.running, self.decoded + 1
        if self.decoded == 1 and len(request.answer) > 1:
            self.tree_cache.checkpoint(request, up_to=len(request.origin_input_ids))
        request.full_untruncated_fill_ids = request.origin_input_ids + request.answer[: self.decoded - 1]
        if self.decoded < len(request.answer):
            return
        request.output_ids = request.answer
        self.server._release(request, len(request.origin_input_ids) + len(request.answer) - 1)
        self.running = None


def document(scenario, number):
    """Tokens; the first `shared` pages are those of document 0."""
    shared = scenario["shared"][number] * PAGE_TOKENS
    own = scenario["documents"][number] * PAGE_TOKENS - shared
    return array("q", [*range(1, shared + 1), *range((number + 1) * 10000, (number + 1) * 10000 + own)])


def play(scenario, clock):
    engine = Engine(scenario)
    try:
        return serve(scenario, engine, clock)
    finally:
        engine.rank.stop()


def serve(scenario, engine, clock):
    requests = [Request(number, document(scenario, doc) + array("q", [number + 5_000_000]), answer)
                for number, (_, doc, answer) in enumerate(scenario["requests"])]
    due, storage, now = {}, engine.storage, 0
    while any(not request.finished() for request in requests):
        now += 1
        assert now < 100_000, "SGLang does not come to an end"
        clock.now_ms = now
        for verb in ("look_up", "get"):
            if storage.calls[verb] and due[verb] <= now:
                storage.answer(verb)
                engine.settle()
        note_starts(due, storage, scenario, now)
        engine.step(now, [request for request, (at, _, _) in zip(requests, scenario["requests"]) if at == now])
        engine.settle()
        note_starts(due, storage, scenario, now)
    return {"requests": [(request.admitted_ms, *request.hits) for request in requests],
            "issued": engine.queues[0].puts, "lost": engine.lost}


def note_starts(due, storage, scenario, now):
    """Sets the ends of calls that have begun since the last look."""
    for verb, call in storage.calls.items():
        if call is None or due.get((verb, "call")) is call:
            continue
        due[verb, "call"] = call
        end = now + scenario[verb + "_ms"]
        due[verb] = end + (ENDS[verb] - end) % 4


def random_scenario(draw, policy):
    documents = [draw.randint(2, 20) for _ in range(draw.randint(3, 7))]
    shared = [0] + [draw.choice([0, 0, draw.randint(0, min(pages - 1, documents[0]))]) for pages in documents[1:]]
    stored = [draw.choice([pages, pages, draw.randint(0, pages)]) for pages in documents]
    requests, at = [], 1
    for _ in range(draw.randint(3, 6)):
        for _ in range(draw.randint(1, 5)):
            requests.append((at, draw.randrange(len(documents)), draw.choice([1, 2, 5, draw.randint(1, 30)])))
            at += 2
        at += 2 * draw.randint(0, 40)
    return {
        "policy": policy, "threshold": draw.choice([1, 2, 3]) * PAGE_TOKENS, "base_ms": draw.randint(0, 30) + 0.5,
        "per_ki_ms": draw.choice([0, 256, 512]), "device_pages": draw.randint(32, 60),
        "host_pages": draw.choice([16, 24, 40, 64]), "look_up_ms": draw.randint(1, 12), "get_ms": draw.randint(1, 8),
        "rechecks": draw.random() < 0.75, "retry_steps": draw.choice([0, 1, 3, 8]),
        "retry_attempts": draw.choice([1, 2, 8]),
        "documents": documents, "shared": shared, "stored": stored, "requests": requests,
    }


def scenarios(count, seed=1):
    draw = random.Random(seed)
    policies = ("best_effort", "wait_complete", "timeout")
    return [random_scenario(draw, policies[number % 3]) for number in range(count)]


COLUMNS = ("policy threshold base_us per_ki_us device_pages host_pages look_up_ms get_ms rechecks retry_steps "
           "retry_attempts issued lost documents requests")


def line_of(scenario, result):
    """One line. A document: its pages, those shared with the first one, those stored. A request: the millisecond of its
    arrival, its document, its answer's tokens; the millisecond of its admission, its hits on the device and the host."""
    s = scenario
    documents = ",".join(":".join(map(str, words)) for words in zip(s["documents"], s["shared"], s["stored"]))
    requests = ",".join(":".join(map(str, (*asked, *got))) for asked, got in zip(s["requests"], result["requests"]))
    return "\t".join(map(str, (
        s["policy"], s["threshold"], round(s["base_ms"] * 1000), round(s["per_ki_ms"] * 1000), s["device_pages"],
        s["host_pages"], s["look_up_ms"], s["get_ms"], int(s["rechecks"]), s["retry_steps"], s["retry_attempts"],
        result["issued"], result["lost"], documents, requests)))


def table(version, count):
    clock = scripted_storage.prepare()
    lines = [f"# SGLang {version}: requests that wait behind others, with scripted times of the storage, and the results; "
             f"pages of {PAGE_TOKENS} tokens, batches of {BATCH_PAGES} pages; see tests/sglang/scripted_waiting.py",
             "\t".join(COLUMNS.split())]
    lines += [line_of(s, play(s, clock)) for s in scenarios(count)]
    return "\n".join(lines) + "\n"
