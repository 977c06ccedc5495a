"""kvtwin's storage back end on the threads of SGLang's own HiCacheController. Run in the environment of SGLang, with the
package kvtwin on the path (tools/sglang-storage does that)."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import sglang_imports

sglang_imports.prepare()

import storage_controller as sglang
import torch
from kvtwin import program
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
PAGES = 24


def flags(folder, **options):
    return {"backend_name": "kvtwin", "module_path": "kvtwin_sglang.storage", "class_name": "KvtwinStorage", "interface_v1": 1,
            "path": str(folder), "capacity_gib": 0.25, "revision": "1"} | options


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvtwin-sglang-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        sglang.of_one_rank()

    def engine(self, pool=None, mla=False, model="tiny/model", metrics=False, **options):
        pool = sglang.mha_pool("page_first", PAGES + 8) if pool is None else pool
        engine = sglang.Engine(pool, "dynamic", flags(self.folder, **options), model=model, mla=mla, metrics=metrics)
        self.addCleanup(engine.close)
        return engine

    def stored(self, engine, pages=PAGES, first=0):
        """Backs up pages of random bytes. Returns their tokens, slots and bytes."""
        tokens, indices = engine.tokens(pages, first), engine.pool.alloc(pages * engine.pool.page_size)
        bytes_ = sglang.fill(engine.pool, indices, first + 1)
        self.assertEqual(engine.back_up(tokens, indices), pages)
        return tokens, indices, bytes_

    def assert_prefetch(self, engine, tokens, indices, bytes_, pages):
        """A prefetch gives the first `pages` pages, with the bytes that were stored."""
        sglang.erase(engine.pool, indices)
        self.assertEqual(engine.prefetch(tokens, indices), pages)
        read = sglang.content(engine.pool, indices)
        self.assertTrue(torch.equal(read[:pages], bytes_[:pages]), "wrong bytes")


class Bytes(Case):
    def test_every_layout_of_mha_and_mla_comes_back(self):
        pools = [(sglang.mha_pool(layout, PAGES + 8), False) for layout in MHA_LAYOUTS]
        pools += [(sglang.mha_pool("page_first", PAGES + 8, draft_layers=2), False)]
        pools += [(sglang.mla_pool(layout, PAGES + 8), True) for layout in MLA_LAYOUTS]
        for number, (pool, mla) in enumerate(pools):
            with self.subTest(pool=type(pool).__name__, layout=pool.layout, layers=pool.layer_num):
                engine = self.engine(pool, mla, namespace=str(number), path=str(self.folder / str(number)))
                self.assert_prefetch(engine, *self.stored(engine), pages=PAGES)
                self.assertEqual(engine.storage.counters()["kv"]["medium"]["pages_written"], PAGES)

    def test_more_pages_than_a_batch(self):
        pool = sglang.mha_pool("page_first_direct", 420, layers=2, heads=1, page_tokens=4)
        engine = self.engine(pool)
        self.assert_prefetch(engine, *self.stored(engine, 300), pages=300)
        counters = engine.storage.counters()["kv"]
        self.assertEqual((counters["puts"]["calls"], counters["gets"]["calls"]), (3, 3))  # SGLang's batches of 128

    def test_a_restarted_server_finds_the_pages(self):
        first = self.engine()
        tokens, indices, bytes_ = self.stored(first)
        first.close()
        self.assert_prefetch(self.engine(), tokens, indices, bytes_, PAGES)

    def test_writes_and_reads_at_the_same_time(self):
        pool = sglang.mha_pool("page_first", 400)
        engine = self.engine(pool)
        written = [self.stored(engine, 16, first) for first in range(4)]
        for first in range(4, 12):
            tokens, indices = engine.tokens(16, first), engine.pool.alloc(16 * pool.page_size)
            bytes_ = sglang.fill(pool, indices, first + 1)
            engine.controller.write_storage(indices, tokens, hash_value=engine.keys(tokens))
            self.assert_prefetch(engine, *written[first - 4], pages=16)
            engine.controller.ack_backup_queue.get(timeout=sglang.PATIENCE_S)
            written.append((tokens, indices, bytes_))


class Identity(Case):
    def test_pages_of_another_configuration_are_misses(self):
        tokens, _, _ = self.stored(self.engine(kind="shared_fs"))
        others = {
            "another dtype of the same size": {"pool": sglang.mha_pool("page_first", PAGES + 8, dtype=torch.float16)},
            "another page size": {"pool": sglang.mha_pool("page_first", PAGES + 8, heads=4, page_tokens=8)},
            "heads and their size swapped": {"pool": sglang.mha_pool("page_first", PAGES + 8, heads=4, head_dim=32)},
            "another layout": {"pool": sglang.mha_pool("page_first_direct", PAGES + 8)},
            "packed draft layers": {"pool": sglang.mha_pool("page_first", PAGES + 8, layers=3, draft_layers=1)},
            "another order of the device's bytes": {"pool": sglang.mha_pool("page_first", PAGES + 8, device_layout=KVBufferLayout.HND)},
            "another model": {"model": "tiny/other"},
            "another revision": {"revision": "2"},
            "another namespace": {"namespace": "b"},
        }
        for what, options in others.items():
            with self.subTest(what):
                self.assertEqual(self.engine(kind="shared_fs", **options).look_up(tokens).hash_value, [])
        self.assertEqual(len(self.engine(kind="shared_fs").look_up(tokens).hash_value), PAGES)

    def served_by(self, **arguments):
        """States the arguments of the server, of which this process is none."""
        usual = dict(model_path="tiny/model", revision=None, download_dir=None, kv_cache_dtype="auto", json_model_override_args="{}",
                     quantization=None, quantization_param_path=None, modelopt_quant=None, load_format="auto",
                     speculative_draft_model_path=None, speculative_draft_model_revision=None)
        return mock.patch("kvtwin_sglang.storage.server_arguments", lambda: SimpleNamespace(**usual | arguments))

    def test_arguments_that_change_kv_make_other_pages(self):
        def engine():  # SGLang's host pools have one type for all kinds of FP8
            return self.engine(sglang.mha_pool("page_first", PAGES + 8, dtype=torch.uint8), kind="shared_fs", path=str(self.folder / "store"))

        for scales in ("a", "b"):
            (self.folder / scales).write_text(scales)
        usual = {"kv_cache_dtype": "fp8_e4m3", "quantization_param_path": str(self.folder / "a")}
        with self.served_by(**usual):
            tokens, _, _ = self.stored(engine())
        for others in ({"kv_cache_dtype": "fp8_e5m2"}, {"quantization_param_path": str(self.folder / "b")}, {"quantization": "fp8"},
                       {"json_model_override_args": '{"rope_theta": 7}'}, {"modelopt_quant": "fp8"}, {"load_format": "dummy"}):
            with self.subTest(others), self.served_by(**usual | others):
                self.assertEqual(engine().look_up(tokens).hash_value, [])
        with self.served_by(**usual, load_format="safetensors"):
            self.assertEqual(len(engine().look_up(tokens).hash_value), PAGES)

    def test_another_draft_model_has_other_pages(self):
        def engine(draft_layers):
            return self.engine(sglang.mha_pool("page_first", PAGES + 8, draft_layers=draft_layers), kind="shared_fs",
                               path=str(self.folder / "store"))

        for name in ("first", "second"):
            (self.folder / name).mkdir()
            (self.folder / name / "model.safetensors").write_text(name)
        first, second = ({"speculative_draft_model_path": str(self.folder / name)} for name in ("first", "second"))
        with self.served_by(**first):
            tokens, _, _ = self.stored(engine(1))
            alone, _, _ = self.stored(engine(0), first=1)
        with self.served_by(**second):
            self.assertEqual(engine(1).look_up(tokens).hash_value, [])
            self.assertEqual(len(engine(0).look_up(alone).hash_value), PAGES)  # the target's pages have nothing of the draft
        with self.served_by(**first):
            self.assertEqual(len(engine(1).look_up(tokens).hash_value), PAGES)

    def test_another_rank_is_another_page(self):
        sglang.of_one_rank(0, 2)
        tokens, indices, bytes_ = self.stored(self.engine(kind="shared_fs"))
        sglang.of_one_rank(1, 2)
        self.assertEqual(self.engine(kind="shared_fs").look_up(tokens).hash_value, [])
        sglang.of_one_rank(0, 2)
        self.assert_prefetch(self.engine(kind="shared_fs"), tokens, indices, bytes_, PAGES)

    def test_ranks_of_an_mla_model_share_pages(self):
        sglang.of_one_rank(0, 2)
        tokens, indices, bytes_ = self.stored(self.engine(sglang.mla_pool("page_first", PAGES + 8), True, kind="shared_fs"))
        sglang.of_one_rank(1, 2)
        second = self.engine(sglang.mla_pool("page_first", PAGES + 8), True, kind="shared_fs")
        self.assert_prefetch(second, tokens, indices, bytes_, PAGES)


class Failures(Case):
    def test_a_killed_server_leaves_right_pages_or_none(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                folder = self.folder / str(seed)
                writer = subprocess.Popen([sys.executable, __file__, "--write-until-killed", str(folder)], stdout=subprocess.PIPE,
                                          text=True)
                acknowledged = [int(writer.stdout.readline()) for _ in range(1 + seed)]
                writer.send_signal(signal.SIGKILL)
                rest = writer.stdout.read().split()
                writer.wait()
                engine = self.engine(path=str(folder))
                for first in range(acknowledged[-1] + 3):
                    tokens, indices = engine.tokens(8, first), engine.pool.alloc(8 * engine.pool.page_size)
                    bytes_ = sglang.fill(engine.pool, indices, first + 1)
                    sglang.erase(engine.pool, indices)
                    pages = engine.prefetch(tokens, indices)
                    self.assertTrue(torch.equal(sglang.content(engine.pool, indices)[:pages], bytes_[:pages]), "wrong bytes")
                    if first in acknowledged or str(first) in rest[:-1]:
                        self.assertEqual(pages, 8, "an acknowledged page is lost")
                    engine.pool.free(indices)
                engine.close()

    def test_a_damaged_segment_cuts_the_prefetch(self):
        first = self.engine()
        tokens, indices, bytes_ = self.stored(first)
        first.close()
        (segment,) = [p for p in self.folder.rglob("*") if p.is_file() and p.stat().st_size > 1 << 19][:1]
        with open(segment, "r+b") as file:  # block 0 is the segment's head; a slot is a block and the page
            file.seek(4096 + 5 * (4096 + 32768) + 4096 + 1000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 16]))
        engine = self.engine()
        self.assert_prefetch(engine, tokens, indices, bytes_, 5)
        self.assertEqual(engine.storage.counters()["kv"]["gets"]["corrupt"], 1)
        self.assertEqual(engine.back_up(tokens, indices) if sglang.fill(engine.pool, indices, 1) is not None else 0, PAGES)
        self.assert_prefetch(engine, tokens, indices, bytes_, PAGES)

    def test_a_full_store_evicts_the_oldest_pages(self):
        engine = self.engine(capacity_gib=8 * 32768 / (1 << 30))
        tokens, _, _ = self.stored(engine, 8)
        with self.assertLogs("kvtwin_sglang.storage", "INFO") as logged:
            for first in range(1, 20):
                more, more_indices, bytes_ = self.stored(engine, 8, first)
                engine.pool.free(more_indices)
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], "pool 'kv': the store is full and evicts pages")
        self.assertEqual(engine.look_up(tokens).hash_value, [])
        medium = engine.storage.counters()["kv"]["medium"]
        self.assertEqual((medium["pages_evicted"], medium["full"]), (19 * 8, 0))
        self.assert_prefetch(engine, more, engine.pool.alloc(8 * engine.pool.page_size), bytes_, 8)

    def test_a_full_disk_is_counted_and_loses_nothing(self):
        engine = self.engine(capacity_gib=64 * 32768 / (1 << 30))
        tokens, indices, bytes_ = self.stored(engine, 8)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # no file may grow, as on a full disk
            more, more_indices = engine.tokens(24, 1), engine.pool.alloc(24 * engine.pool.page_size)
            sglang.fill(engine.pool, more_indices, 2)
            self.assertEqual(engine.back_up(more, more_indices), 0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, old)
        self.assertGreater(engine.storage.counters()["kv"]["puts"]["full"], 0)
        self.assert_prefetch(engine, tokens, indices, bytes_, 8)

    def test_failures_that_sglang_injects(self):
        os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.3"
        self.addCleanup(os.environ.pop, "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE")
        engine = self.engine(sglang.mha_pool("page_first", 8 * 40))
        found = 0
        for first in range(30):
            tokens, indices = engine.tokens(8, first), engine.pool.alloc(8 * engine.pool.page_size)
            bytes_ = sglang.fill(engine.pool, indices, first + 1)
            engine.back_up(tokens, indices)
            sglang.erase(engine.pool, indices)
            pages = engine.prefetch(tokens, indices)
            self.assertTrue(torch.equal(sglang.content(engine.pool, indices)[:pages], bytes_[:pages]), "wrong bytes")
            found += pages
            engine.pool.free(indices)
        self.assertGreater(found, 0)

    def test_a_secret_keeps_others_out(self):
        os.environ["KVTWIN_PAGE_KEY"] = "sixteen characters and more"
        self.addCleanup(os.environ.pop, "KVTWIN_PAGE_KEY", None)
        tokens, indices, bytes_ = self.stored(self.engine(kind="shared_fs"))
        self.assert_prefetch(self.engine(kind="shared_fs"), tokens, indices, bytes_, PAGES)
        os.environ.pop("KVTWIN_PAGE_KEY")
        self.assertEqual(self.engine(kind="shared_fs").look_up(tokens).hash_value, [])


class Remote(Case):
    def test_redis_and_a_server_that_dies(self):
        program = shutil.which("redis-server")
        if program is None:
            self.fail("redis-server is not installed: apt-get install redis-server")
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
        tokens, indices, bytes_ = self.stored(engine)
        self.assert_prefetch(engine, tokens, indices, bytes_, PAGES)
        server.kill()
        server.wait()
        self.assert_prefetch(engine, tokens, indices, bytes_, 0)


class Pools(Case):
    def test_a_draft_pool_beside_the_kv_pool(self):
        engine = self.engine()
        draft = sglang.mha_pool("page_first", PAGES + 8, layers=1, heads=1)
        engine.storage.register_mem_host_pool_v2(draft, PoolName.DRAFT)
        tokens, _, _ = self.stored(engine)
        keys, slots = engine.keys(tokens), draft.alloc(PAGES * draft.page_size)
        bytes_ = sglang.fill(draft, slots, 9)

        def transfer(pages):
            return [PoolTransfer(PoolName.DRAFT, host_indices=slots[: pages * draft.page_size], keys=keys[:pages])]

        self.assertEqual(engine.storage.batch_exists_v2(keys, transfer(PAGES)).kv_hit_pages, 0)
        self.assertEqual(engine.storage.batch_set_v2(transfer(10)), {PoolName.DRAFT: [True] * 10})
        found = engine.storage.batch_exists_v2(keys, transfer(PAGES))
        self.assertEqual((found.kv_hit_pages, dict(found.extra_pool_hit_pages)), (10, {PoolName.KV: PAGES, PoolName.DRAFT: 10}))
        sglang.erase(draft, slots)
        self.assertEqual(engine.storage.batch_get_v2(transfer(12)), {PoolName.DRAFT: [True] * 10 + [False] * 2})
        self.assertTrue(torch.equal(sglang.content(draft, slots)[:10], bytes_[:10]))


class Options(Case):
    def refusal(self, *arguments, **options):
        with self.assertRaises(ValueError) as refused:
            self.engine(*arguments, **options)
        return str(refused.exception)

    def test_wrong_options_are_refused_with_a_sentence(self):
        self.assertIn("unknown option pth; the options are", self.refusal(pth="x"))
        self.assertIn('"capacity_gib" is missing', self.refusal(capacity_gib=0))
        self.assertIn('"capacity_gib" is \'many\'; set it to a number', self.refusal(capacity_gib="many"))
        self.assertIn('"path" is missing', self.refusal(path=""))
        self.assertIn("the kinds are disk, shared_fs and remote", self.refusal(kind="tape"))
        self.assertIn('kind remote needs "url"', self.refusal(kind="remote"))
        self.assertIn('set "interface_v1": 1', self.refusal(interface_v1=0))
        sglang.of_one_rank(0, 2)
        self.assertIn('set "kind" to "shared_fs"', self.refusal(sglang.mla_pool("page_first", 4), True))

    def test_metrics_are_sglangs(self):
        engine = self.engine(metrics=True)
        self.assert_prefetch(engine, *self.stored(engine), pages=PAGES)
        stats = engine.storage.get_stats()
        self.assertEqual((stats.backup_pgs, stats.prefetch_pgs), ([PAGES], [PAGES]))
        self.assertGreater(min(stats.backup_bandwidth + stats.prefetch_bandwidth), 0)
        self.assertEqual(engine.storage.get_stats().backup_pgs, [])

    def test_a_journal_calibrates_a_disk(self):
        journal, machine = self.folder / "calls.kvc", self.folder / "machine"
        engine = self.engine(sglang.mha_pool("page_first", 8 * 40), path=str(self.folder / "store"), journal=str(journal))
        for first in range(12):
            self.assert_prefetch(engine, *self.stored(engine, 1 + 2 * first, first), pages=1 + 2 * first)
        engine.close()
        found = subprocess.run([program.path(), "calibrate", "--from", journal, "--out", machine], capture_output=True, text=True)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertTrue(list(machine.rglob("*.json")) or list(machine.rglob("*.toml")), found.stdout)

    def test_clear_removes_all_pages(self):
        engine = self.engine()
        tokens, indices, bytes_ = self.stored(engine)
        self.assertTrue(engine.storage.clear())
        self.assertEqual(engine.look_up(tokens).hash_value, [])
        sglang.fill(engine.pool, indices, 1)
        self.assertEqual(engine.back_up(tokens, indices), PAGES)
        self.assert_prefetch(engine, tokens, indices, bytes_, PAGES)


def write_until_killed(folder):
    sglang.of_one_rank()
    engine = sglang.Engine(sglang.mha_pool("page_first", 40), "dynamic", flags(folder))
    indices = engine.pool.alloc(8 * engine.pool.page_size)
    first = 0
    while True:
        tokens = engine.tokens(8, first)
        sglang.fill(engine.pool, indices, first + 1)
        if engine.back_up(tokens, indices) == 8:
            print(first, flush=True)
        first += 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write-until-killed"]:
        write_until_killed(Path(sys.argv[2]))
    unittest.main()
