"""kvtwin's tier under vLLM's own TieringOffloadingManager. Run in the environment of vLLM, with the package kvtwin on the
path (tools/engine-storage does that)."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import vllm_imports

vllm_imports.prepare()

import numpy as np
import torch
from kvtwin_vllm.host_offload import HostTieringSpec
from vllm.v1.kv_offload import base, config
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

BLOCK_BYTES = 32768
HOST_BLOCKS = 64
PATIENCE_S = 120


class Engine:
    """vLLM's manager with its CPU tier and kvtwin's tier. The scheduler's calls are made here; the bytes of a block are
    written to and read from the CPU tier's memory, as the GPU's copies would."""

    def __init__(self, folder, model="tiny", dtype="bfloat16", tokens=16, layout="LBNHC", **tier):
        tier = {"type": "KvtwinTier", "module_path": "kvtwin_vllm.tier", "path": str(folder), "capacity_gib": 1, "revision": "1"} | tier
        engine_id = f"kvtwin-test-{os.getpid()}-{time.monotonic_ns()}"  # names a region of shared memory
        self.spec = TieringOffloadingSpec(config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(tokens, ("layer.0", "layer.1"), 0),), worker_kv_bytes_per_block=BLOCK_BYTES,
            enable_kv_cache_events=True,
            extra_config={"cpu_bytes_to_use": HOST_BLOCKS * BLOCK_BYTES, "secondary_tiers": [tier]}, engine_id=engine_id,
            model=config.OffloadingModelConfig(model, dtype), cache=config.OffloadingCacheConfig(tokens, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False), kv_cache_layout=layout))
        self.manager = self.spec.get_manager()
        (self.tier,) = self.manager.secondary_tiers
        self.memory = np.frombuffer(self.manager.primary_tier.get_kv_memoryview().cast("B"), np.uint8).reshape(HOST_BLOCKS, -1)
        self.requests = 0

    def _context(self):
        self.requests += 1
        context = base.ReqContext(f"request {self.requests}")
        self.manager.on_new_request(context)
        return context

    def _step(self):
        self.manager.on_schedule_end(base.ScheduleEndContext(new_req_ids=[], preempted_req_ids=[]))

    def _until(self, condition):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "vLLM's manager does not answer"
            self._step()
            time.sleep(0.0005)

    def store(self, numbers):
        """Stores blocks of these numbers, as after a prefill. Returns when the tier has them or has failed."""
        context, keys = self._context(), [key_of(n) for n in numbers]
        prepared = self.manager.prepare_store(keys, context)
        assert prepared is not None and len(prepared.keys_to_store) == len(keys), "the CPU tier has no room"
        for key, slot in zip(prepared.keys_to_store, slots_of(prepared.store_spec)):
            self.memory[slot] = bytes_of(number_of(key))
        self.manager.complete_store(keys, context)
        self._until(lambda: not self.manager.has_pending_work())
        self.manager.on_request_finished(context)

    def forget(self):
        """Empties the CPU tier, so that blocks can only come from kvtwin's."""
        self.manager.reset_cache()
        self.memory[:] = 0
        self.manager.on_reset_flushed()

    def load(self, numbers):
        """Loads the longest prefix of blocks through the CPU tier. Returns its length; checks every byte."""
        context, keys = self._context(), [key_of(n) for n in numbers]
        results = [base.LookupResult.RETRY] * len(keys)

        def settled():
            for i, key in enumerate(keys):
                if results[i] not in (base.LookupResult.HIT, base.LookupResult.MISS):
                    results[i] = self.manager.lookup(key, context)
            return all(r in (base.LookupResult.HIT, base.LookupResult.MISS) for r in results)

        self._until(settled)
        hits = next((i for i, r in enumerate(results) if r is not base.LookupResult.HIT), len(keys))
        if hits:
            spec = self.manager.prepare_load(keys[:hits], context)
            for number, slot in zip(numbers, slots_of(spec)):
                assert np.array_equal(self.memory[slot], bytes_of(number)), f"wrong bytes of block {number}"
            self.manager.complete_load(keys[:hits], context)
        self.manager.on_request_finished(context)
        return hits

    def close(self):
        del self.memory  # vLLM unmaps it
        self.manager.shutdown()


def key_of(number):
    return base.make_offload_key(number.to_bytes(32, "little"), 0)


def number_of(key):
    return int.from_bytes(base.get_offload_block_hash(key), "little")


def slots_of(spec):
    return [int(slot) for slot in spec.chunk_ids]


def bytes_of(number):
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, np.uint8)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvtwin-vllm-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def engine(self, **options):
        engine = Engine(self.folder / "store", **options)
        self.addCleanup(lambda: engine.close() if hasattr(engine, "memory") else None)
        return engine


class Blocks(Case):
    def test_a_thousand_blocks_come_back(self):
        engine = self.engine()
        parts = [range(first, first + 50) for first in range(0, 1000, 50)]
        for numbers in parts:
            engine.store(numbers)
            engine.forget()
        for numbers in parts:
            self.assertEqual(engine.load(numbers), 50)
            engine.forget()
        counters = engine.tier.counters()
        self.assertEqual((counters["puts"]["ok"], counters["gets"]["ok"]), (1000, 1000))

    def test_groups_of_kv_have_blocks_of_their_own(self):
        engine = self.engine()
        engine.store(range(3))
        context = base.ReqContext("request")
        groups = [base.make_offload_key((1).to_bytes(32, "little"), group) for group in range(3)]
        found = [engine.tier.lookup(key, context) for key in groups]
        self.assertEqual([result.name for result in found], ["HIT", "MISS", "MISS"])

    def test_a_restarted_server_finds_the_blocks(self):
        engine = self.engine()
        engine.store(range(40))
        engine.close()
        self.assertEqual(self.engine().load(range(50)), 40)

    def test_shared_folder_and_look_ups_in_vllms_thread(self):
        first, second = self.engine(kind="shared_fs"), self.engine(kind="shared_fs")
        first.store(range(30))
        self.assertEqual(second.load(range(40)), 30)

    def test_blocks_of_another_configuration_are_misses(self):
        self.engine(kind="shared_fs").store(range(8))
        for other in ({"dtype": "float16"}, {"model": "another"}, {"tokens": 32}, {"namespace": "b"}, {"layout": "LBHNC"}):
            with self.subTest(other):
                self.assertEqual(self.engine(kind="shared_fs", **other).load(range(8)), 0)
        self.assertEqual(self.engine(kind="shared_fs").load(range(8)), 8)

    def test_events_name_the_stored_blocks(self):
        engine = self.engine(enable_kv_events=True)
        engine.store(range(5))
        events = [event for event in engine.tier.take_events()]
        self.assertEqual(sorted(number_of(key) for event in events for key in event.keys), list(range(5)))


class Failures(Case):
    def test_a_killed_server_leaves_right_blocks_or_none(self):
        writer = subprocess.Popen([sys.executable, __file__, "--write-until-killed", str(self.folder / "store")],
                                  stdout=subprocess.PIPE, text=True)
        stored = [int(writer.stdout.readline()) for _ in range(3)]
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        for region in Path("/dev/shm").glob(f"vllm_offload_kvtwin-test-{writer.pid}-*"):
            region.unlink()  # vLLM's file of the killed process
        engine = self.engine()
        for first in range(0, stored[-1] + 48, 16):
            blocks = engine.load(range(first, first + 16))  # checks the bytes
            if first in stored:
                self.assertEqual(blocks, 16, "an acknowledged block is lost")
            engine.forget()

    def test_a_damaged_block_is_computed_again(self):
        engine = self.engine()
        engine.store(range(20))
        engine.close()
        (segment,) = [p for p in (self.folder / "store").rglob("*") if p.is_file() and p.stat().st_size > 1 << 19][:1]
        with open(segment, "r+b") as file:
            file.seek(4096 + 7 * (4096 + BLOCK_BYTES) + 4096 + 99)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        engine = self.engine()
        self.assertEqual(engine.load(range(20)), 7)
        self.assertEqual(engine.tier.counters()["gets"]["corrupt"], 1)
        engine.forget()
        engine.store(range(20))
        engine.forget()
        self.assertEqual(engine.load(range(20)), 20)

    def test_a_full_store_evicts_the_oldest_blocks(self):
        engine = self.engine(capacity_gib=8 * BLOCK_BYTES / (1 << 30), eviction="lru")
        engine.store(range(8))
        engine.store(range(100, 108))
        engine.forget()
        self.assertEqual(engine.load(range(100, 108)), 8)
        self.assertEqual(engine.load(range(8)), 0)
        self.assertEqual(engine.tier.counters()["medium"]["pages_evicted"], 8)

    def test_a_dead_redis_server_is_a_miss(self):
        program = shutil.which("redis-server")
        self.assertIsNotNone(program, "redis-server is not installed: apt-get install redis-server")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = subprocess.Popen([program, "--port", str(port), "--save", "", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        end = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            self.assertLess(time.monotonic(), end, "redis-server does not start")
        engine = self.engine(kind="remote", url=f"redis://127.0.0.1:{port}", timeout_ms=60_000)
        engine.store(range(12))
        engine.forget()
        self.assertEqual(engine.load(range(12)), 12)
        server.kill()
        server.wait()
        engine.forget()
        self.assertEqual(engine.load(range(12)), 0)


class HostCopies(unittest.TestCase):
    """kvtwin's copies of vLLM's offloading on a CPU, by vLLM's own worker and its own shared memory."""

    POOL_BLOCKS, CHUNKS, BLOCKS_PER_CHUNK = 40, 12, 3
    PAGES = (64, 96)  # bytes of a block in each tensor of the pool

    def setUp(self):
        groups = tuple(config.OffloadingGroupConfig(16, (f"layer.{i}",), i) for i in range(2))
        spec = HostTieringSpec(config.OffloadingConfig(
            groups=groups, worker_kv_bytes_per_block=sum(self.PAGES), enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": self.CHUNKS * 4096}, engine_id=f"kvtwin-copies-{os.getpid()}-{time.monotonic_ns()}",
            model=config.OffloadingModelConfig("tiny", "bfloat16"), cache=config.OffloadingCacheConfig(16, self.BLOCKS_PER_CHUNK),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)))
        self.pool = [torch.from_numpy(np.random.default_rng(i).integers(-128, 128, (self.POOL_BLOCKS, page), np.int8))
                     for i, page in enumerate(self.PAGES)]
        # The second group's layers use a part of the blocks of the first tensor, as layers with smaller pages do.
        refs = [[base.CanonicalKVCacheRef(0, 64), base.CanonicalKVCacheRef(1, 96)], [base.CanonicalKVCacheRef(0, 48)]]
        with mock.patch("vllm.v1.kv_offload.cpu.spec._all_workers_barrier"):
            self.worker = spec.get_worker(base.CanonicalKVCaches(
                [base.CanonicalKVCacheTensor(tensor, page) for tensor, page in zip(self.pool, self.PAGES)], refs))
        self.addCleanup(self.worker.shutdown)

    def chunks(self, groups):
        """Chunks that hold these groups, of which each is (blocks, index of the first one)."""
        counts = [-(-(len(blocks) + first % self.BLOCKS_PER_CHUNK) // self.BLOCKS_PER_CHUNK) if blocks else 0
                  for blocks, first in groups]
        return random.Random(sum(counts)).sample(range(self.CHUNKS), sum(counts))

    def spec_of(self, groups):
        return base.GPULoadStoreSpec([block for blocks, _ in groups for block in blocks], [len(blocks) for blocks, _ in groups],
                                     [first for _, first in groups])

    def test_stored_blocks_come_back_wherever_a_chunk_begins(self):
        cases = ([([7, 3, 9, 30, 2, 5], 0), ([], 0)], [([8, 1], 4), ([20, 21, 22, 23], 2)], [([], 0), ([39], 5)],
                 [([11, 12, 13, 14, 15], 1), ([31, 33], 3)])
        for number, groups in enumerate(cases):
            before = [tensor.clone() for tensor in self.pool]
            chunks = CPULoadStoreSpec(self.chunks(groups))
            self.assertTrue(self.worker.submit_store(number, self.spec_of(groups), chunks))
            moved = 160 * len(groups[0][0]) + 48 * len(groups[1][0])
            (ended,) = self.worker.get_finished()
            self.assertEqual((ended.job_id, ended.success, ended.transfer_size), (number, True, moved))
            for blocks, _ in groups:
                for tensor in self.pool:
                    tensor[blocks] = 0
            self.assertTrue(self.worker.submit_load(100 + number, chunks, self.spec_of(groups)))
            self.worker.wait({100 + number})
            self.assertEqual([ended.transfer_size for ended in self.worker.get_finished()], [moved])
            for blocks, pages in zip((groups[0][0], groups[1][0]), ((64, 96), (48, 0))):
                for tensor, old, page in zip(self.pool, before, pages):
                    self.assertTrue(torch.equal(tensor[blocks, :page], old[blocks, :page]))
            for tensor, old in zip(self.pool, before):
                tensor.copy_(old)


class Options(Case):
    def test_wrong_options_are_refused_with_a_sentence(self):
        for options, sentence in (({"kind": "tape"}, "the kinds are disk, shared_fs and remote"), ({"path": ""}, '"path" is missing'),
                                  ({"capacity_gib": "many"}, '"capacity_gib" is .many.; set it to a number'), ({"kind": "remote"}, 'needs "url"'),
                                  ({"capacity_gib": 0}, '"capacity_gib" is missing'), ({"pth": "x"}, "unknown key pth; the keys are")):
            with self.subTest(options), self.assertRaisesRegex(ValueError, sentence):
                self.engine(**options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write-until-killed"]:
        engine, first = Engine(sys.argv[2]), 0
        while True:
            engine.store(range(first, first + 16))
            print(first, flush=True)
            engine.forget()
            first += 16
    unittest.main()
