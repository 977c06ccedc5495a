#!/usr/bin/env python3
"""Drives vLLM's managers of offloaded KV with drawn calls, and records every answer.

`tools/engine-parity vllm --offloading` calls it. As a program in the environment of `tools/engine-env vllm`:

  offloading.py FOLDER SEED...   writes FOLDER/CONFIGURATION-SEED.jsonl for each configuration and seed, and prints the
                                 paths; with the seed "golden", FOLDER/CONFIGURATION.jsonl of the configurations GOLDEN

vLLM's own classes, unchanged: CPUOffloadingManager with its cache policies, TieringOffloadingManager, the tier for file
systems with its look-ups, and the detectors of back-pressure. This file stands for the threads (a copy and a look-up
end when a call says so), for the clock, and for the files. offload_server.cpp describes the calls.
"""

import itertools
import json
import queue
import random
import secrets
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
import vllm_imports

TICK = 1_953_125  # ns, 1/512 s: sums of such times are exact in floating point
CHUNK_BYTES = 1 << 20
TOKENS = 16
GOLDEN_CALLS, CALLS = 160, 1500
GOLDEN = {"lru-groups": 1, "arc-threshold": 13, "tiers": 35, "throttle": 38}  # with the seeds
STORED = Path(__file__).resolve().parents[1] / "golden/offload"
PRESSURE = dict(high=0.010, low=0.002, warm_up=2)

CONFIGURATIONS = {
    "lru": dict(chunks=10, eviction="lru"),
    "arc": dict(chunks=10, eviction="arc"),
    "lru-groups": dict(chunks=8, eviction="lru", groups=[1, 2]),
    "arc-threshold": dict(chunks=8, eviction="arc", threshold=2, remembered=12, groups=[1, 1]),
    "lru-threshold": dict(chunks=8, eviction="lru", threshold=3, remembered=10),
    "tier": dict(chunks=8, eviction="lru", tiers=[{}]),
    "tiers": dict(chunks=8, eviction="arc", tiers=[{"pressure": {**PRESSURE, "action": "drop"}}, {}], groups=[1, 2]),
    "throttle": dict(chunks=7, eviction="lru", tiers=[{"pressure": {**PRESSURE, "action": "throttle"}}]),
}


class Clock:
    def __init__(self):
        self.ticks = 512

    def monotonic(self):
        return self.ticks / 512


CLOCK = Clock()


class NoThread:
    def __init__(self, **_):
        pass

    def start(self):
        pass


def vllm():
    """The modules, with this file's clock and without threads."""
    version = vllm_imports.prepare_core()
    from vllm.v1.kv_offload import base
    from vllm.v1.kv_offload.cpu import manager as host
    from vllm.v1.kv_offload.tiering import async_lookup, backpressure, manager
    from vllm.v1.kv_offload.tiering.fs import manager as fs

    backpressure.time = CLOCK
    async_lookup.threading = SimpleNamespace(Thread=NoThread)
    fs._HAS_BATCH_LOOKUP_C = False
    fs.os = SimpleNamespace(path=SimpleNamespace(exists=lambda name: name[1] in name[0]))
    return SimpleNamespace(version=version, base=base, host=host, backpressure=backpressure, tiering=manager, fs=fs)


class Pool:
    """Of the tier's threads: copies that have not ended, and those that have."""

    def __init__(self):
        self.ended = []

    def enqueue_store(self, *_):
        pass

    enqueue_load = enqueue_store

    def get_finished(self):
        ended, self.ended = self.ended, []
        return ended


class Batches(queue.SimpleQueue):
    """Look-ups on their way to the tier. Keeps those of this step."""

    def __init__(self):
        self.waiting = 0
        self.new = []

    def put(self, batch):
        if batch is not None:
            self.new += [key for key, _, _ in batch]
            self.waiting += 1
        super().put(batch)


def tier_class(of):
    class Tier(of.fs.FileSystemTierManager):
        def __init__(self, detector):
            self._bp_detector, self.tier_type, self.locality, self.events = detector, "fs", None, None
            self._block_size_bytes = self._block_size = CHUNK_BYTES
            self._store_job_keys, self._load_job_keys, self._job_block_counts, self._load_progress = {}, {}, {}, {}
            self._use_o_direct, self._primary_kv_view = False, None
            self.present, self.jobs, self.new_jobs = set(), {}, []
            self.file_mapper = SimpleNamespace(get_file_name=lambda key: (self.present, key))
            self._pool = Pool()
            self._lookup_manager = of.fs.FsAsyncLookupManager(self, "fs")
            self.batches = self._lookup_manager._lookup_queue = Batches()

        def submitted(self, job):
            job.submit_time = CLOCK.monotonic()
            self.jobs[job.job_id] = job
            self.new_jobs.append(job)

        def submit_store(self, job):
            self.submitted(job)
            super().submit_store(job)

        def submit_load(self, job):
            self.submitted(job)
            super().submit_load(job)

        def end(self, number, copied):
            job = self.jobs.pop(number)
            done = copied == len(job.keys)
            if job.is_promotion and not done:
                self._load_progress[number] = copied
            elif done and not job.is_promotion:
                self.present.update(job.keys)
            self._pool.ended.append((number, done, 0.0))

        def answer(self):
            """The look-ups of all steps so far. Returns the chunks and the answers."""
            self.batches.waiting = 0
            self.batches.put(None)
            manager, answered = self._lookup_manager, []
            keep = manager._pending_results
            manager._pending_results = SimpleNamespace(put=lambda batch: (keep.put(batch), answered.extend(batch)))
            manager._worker()
            manager._pending_results = keep
            return [(key, found) for key, _, found in answered]

    return Tier


def detector_of(of, tier):
    pressure = tier.get("pressure")
    if pressure is None:
        return None
    policy = {"drop": of.backpressure.DropStorePolicy, "throttle": of.backpressure.ThrottledDropPolicy}[pressure["action"]]
    return of.backpressure.EMABackpressureDetector(
        pressure["high"], pressure["low"], warmup_completions=pressure["warm_up"], failure_threshold=3, policy=policy())


class Managers:
    """The managers of one configuration."""

    def __init__(self, of, config):
        self.of = of
        self.tiers = [tier_class(of)(detector_of(of, tier)) for tier in config.get("tiers", ())]
        if self.tiers:
            region = SimpleNamespace(create_kv_memoryview=lambda: SimpleNamespace(strides=(CHUNK_BYTES,)))
            self.host = of.tiering.CPUPrimaryTierOffloadingManager(
                config["chunks"], region, cache_policy=config["eviction"], enable_events=True)
            self.manager = of.tiering.TieringOffloadingManager(self.host, self.tiers)
        else:
            self.host = self.manager = of.host.CPUOffloadingManager(
                config["chunks"], cache_policy=config["eviction"], enable_events=True,
                store_threshold=config.get("threshold", 0), max_tracker_size=config.get("remembered", 64_000))

    def changes(self):
        """What has happened to the chunks of the host tier, and the jobs that have been submitted."""
        kinds = {(True, False): "evicted", (True, True): "failed", (False, False): "stored"}
        events, self.host.events = self.host.events, []  # take_events() leaves out what was stored again meanwhile
        changes = [[kinds[event.removed, event.metadata_only], [named(key) for key in event.keys]] for event in events]
        jobs = sorted((job for tier in self.tiers for job in tier.new_jobs), key=lambda job: job.job_id)
        at = {job.job_id: number for number, tier in enumerate(self.tiers) for job in tier.new_jobs}
        for tier in self.tiers:
            tier.new_jobs = []
        lines = [[job.job_id, at[job.job_id], job.is_promotion, [named(key) for key in job.keys], job.chunk_ids.tolist()]
                 for job in jobs]
        host = self.host
        usage = [host._get_num_free_chunks(), host._num_evictable_cache_chunks, host._num_write_pending_chunks]
        return {"changes": changes, "jobs": lines, "usage": usage}


def named(key):
    return [int.from_bytes(key[:-4], "big"), int.from_bytes(key[-4:], "big")]


class Requests:
    """Draws prompts that share prefixes. A chunk is [number of the prefix, group, tokens of the prefix]."""

    def __init__(self, of, rnd, groups):
        self.of, self.rnd, self.groups = of, rnd, groups
        self.fresh, self.ids, self.paths = itertools.count(1), itertools.count(), []

    def draw(self):
        rnd, path = self.rnd, []
        if self.paths and rnd.random() < 0.75:
            path = rnd.choice(self.paths[-6:])
            path = path[: rnd.randrange(1, len(path) + 1)]
        path = path + [next(self.fresh) for _ in range(rnd.randrange(0 if path else 1, 4))]
        path = path[:7]
        self.paths.append(path)
        number = next(self.ids)
        context = self.of.base.ReqContext(req_id=str(number))
        chunks = []
        for group, pages in enumerate(self.groups):
            for end in range(pages, len(path) + 1, pages):
                chunks.append([path[end - 1], group, end * TOKENS])
        for chunk in chunks:
            context.set_offload_key_position(self.key(chunk), chunk[2])
        return SimpleNamespace(number=number, context=context, chunks=chunks, loads=[], stores=[])

    def key(self, chunk):
        return self.of.base.make_offload_key(chunk[0].to_bytes(32, "big"), chunk[1])


class Recording:
    def __init__(self, of, config, seed, calls):
        self.of, self.rnd, self.calls = of, random.Random(seed), calls
        CLOCK.ticks = 512
        self.managers = Managers(of, config)
        self.manager = self.managers.manager
        self.requests = Requests(of, self.rnd, config.get("groups", [1]))
        self.running, self.ended, self.lines = [], [], []

    def add(self, op, request=None, **fields):
        line = {"op": op, "id": None if request is None else request.number, **fields}
        self.lines.append({"now": CLOCK.ticks * TICK, **line, **self.managers.changes()})

    def keys(self, chunks):
        return [self.requests.key(chunk) for chunk in chunks]

    def some(self, request):
        """A run of chunks of one group, or of all groups."""
        chunks = request.chunks
        if self.rnd.random() < 0.6:
            group = self.rnd.choice(chunks)[1]
            chunks = [chunk for chunk in chunks if chunk[1] == group]
        first = self.rnd.choice((0, 0, self.rnd.randrange(len(chunks))))
        return chunks[first : first + self.rnd.randrange(1, 5)]

    def run(self):
        draws = {"begin": 12, "look_up": 26, "load": 12, "loaded": 12, "store": 20, "stored": 16, "touch": 4, "finish": 8,
                 "end_step": 14, "job": 18, "answer": 14}
        while len(self.lines) < self.calls:
            CLOCK.ticks += self.rnd.choice((0, 0, 1, 1, 2, 3, 8, 60, 300))
            getattr(self, self.rnd.choices(list(draws), draws.values())[0])()
        return self.lines

    def begin(self):
        if len(self.running) < 4:
            request = self.requests.draw()
            if request.chunks:
                self.running.append(request)
                self.manager.on_new_request(request.context)
                self.add("begin", request)

    def look_up(self):
        if not self.running:
            return
        request, chunks, answers = self.rnd.choice(self.running), [], []
        for chunk in self.some(request):
            chunks.append(chunk)
            answers.append(self.manager.lookup(self.requests.key(chunk), request.context).name)
            if answers[-1] == "MISS":
                break
        words = {"HIT": "hit", "HIT_PENDING": "pending", "RETRY": "retry", "MISS": "miss"}
        sources = [self.manager.get_load_source(self.requests.key(chunk), request.context).value for chunk in chunks]
        self.add("look_up", request, chunks=chunks, found=[words[answer] for answer in answers],
                 sources=[{"host": 0, "disk": 1}[source] for source in sources])

    def load(self):
        for request in self.rnd.sample(self.running, len(self.running)):
            chunks = [chunk for chunk in self.some(request) if self.is_hit(chunk)]
            if chunks:
                spec = self.manager.prepare_load(self.keys(chunks), request.context)
                request.loads.append(chunks)
                self.add("load", request, chunks=chunks, slots=spec.block_ids.tolist())
                return

    def is_hit(self, chunk):
        held = self.managers.host._policy.get(self.requests.key(chunk))
        return held is not None and held.is_ready

    def loaded(self):
        loading = [request for request in self.running + self.ended if request.loads]
        if loading:
            request = self.rnd.choice(loading)
            chunks = request.loads.pop(0)
            self.manager.complete_load(self.keys(chunks), request.context)
            self.add("loaded", request, chunks=chunks)

    def store(self):
        if not self.running:
            return
        request = self.rnd.choice(self.running)
        offered = self.some(request)
        store = self.manager.prepare_store(self.keys(offered), request.context)
        if store is None:
            self.add("store", request, chunks=offered, stored=None)
            return
        stored = [named(key) for key in store.keys_to_store]
        if stored:
            request.stores.append([chunk for chunk in offered if chunk[:2] in stored])
        self.add("store", request, chunks=offered, stored=stored, slots=store.store_spec.block_ids.tolist(),
                 evicted=[named(key) for key in store.evicted_keys])

    def stored(self):
        storing = [request for request in self.running + self.ended if request.stores]
        if storing:
            request = self.rnd.choice(storing)
            chunks, success = request.stores.pop(0), self.rnd.random() < 0.93
            self.manager.complete_store(self.keys(chunks), request.context, success)
            self.add("stored", request, chunks=chunks, success=success)

    def touch(self):
        if self.running:
            request = self.rnd.choice(self.running)
            chunks = self.some(request)
            self.manager.touch(self.keys(chunks), request.context)
            self.add("touch", request, chunks=chunks)

    def finish(self):
        if self.running and self.rnd.random() < 0.2 * len(self.running):
            request = self.running.pop(self.rnd.randrange(len(self.running)))
            self.ended.append(request)
            self.manager.on_request_finished(request.context)
            self.add("finish", request)

    def end_step(self):
        if not self.managers.tiers:
            return
        self.manager.on_schedule_end(self.of.base.ScheduleEndContext((), ()))
        asked = [[number, [named(key) for key in tier.batches.new]]
                 for number, tier in enumerate(self.managers.tiers) if tier.batches.new]
        for tier in self.managers.tiers:
            tier.batches.new = []
        self.add("end_step", asked=asked)

    def job(self):
        jobs = [(tier, job) for tier in self.managers.tiers for job in tier.jobs.values()]
        if not jobs:
            return
        tier, job = self.rnd.choice(jobs)
        # If several chunks of a promotion are lost and others are not, vLLM frees their slots in the order of a set.
        failed = self.rnd.random() < 0.2
        copied = len(job.keys) if not failed else self.rnd.choice((0, len(job.keys) - 1 if job.is_promotion else 0))
        tier.end(job.job_id, copied)
        self.add("job", number=job.job_id, copied=copied)

    def answer(self):
        tiers = [(number, tier) for number, tier in enumerate(self.managers.tiers) if tier.batches.waiting]
        if not tiers:
            return
        number, tier = self.rnd.choice(tiers)
        if tier.present and self.rnd.random() < 0.2:  # the store's own eviction
            tier.present.discard(self.rnd.choice(sorted(tier.present)))
        self.add("answer", tier=number, answers=[[*named(key), found] for key, found in tier.answer()])


def write(folder, seeds):
    of = vllm()
    for seed in seeds:
        golden = seed == "golden"
        for name in GOLDEN if golden else CONFIGURATIONS:
            config, number = CONFIGURATIONS[name], GOLDEN[name] if golden else int(seed)
            lines = Recording(of, config, number, GOLDEN_CALLS if golden else CALLS).run()
            head = {"engine": "vllm-offloading", "version": of.version, "seed": number,
                    "config": {**config, "chunk_bytes": CHUNK_BYTES}}
            path = folder / (f"{name}.jsonl" if golden else f"{name}-{seed}.jsonl")
            path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *lines)),
                            encoding="utf-8")
            print(path, flush=True)


def compare(renew, out, program):
    """The work of `tools/engine-parity vllm --offloading`."""
    first, count = secrets.randbelow(1 << 30), 4
    folder, seeds = (STORED, ["golden"]) if renew else (out, [str(first + i) for i in range(count)])
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    run = subprocess.run([sys.executable, "-W", "ignore", __file__, folder, *seeds], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"tools/engine-parity vllm: the calls of this release cannot be recorded:\n{run.stderr}")
    if renew:
        return 0
    paths = run.stdout.splitlines()
    differences = [line for line in subprocess.run([program, *paths], stdout=subprocess.PIPE, text=True).stdout.splitlines()
                   if not line.endswith(": equal")]
    for line in differences:
        print(line)
    print(f"seeds {first} to {first + count - 1}: {len(paths)} sequences of calls compared, {len(differences)} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2:])
