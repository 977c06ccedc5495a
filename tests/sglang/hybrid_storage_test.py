"""kvtwin's storage back end for hybrid models, on the threads of SGLang's own HybridCacheController and its host pools, beside
SGLang's file back end. Run by tools/engine-storage sglang."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from array import array
from pathlib import Path

import sglang_imports

sglang_imports.prepare()

import hybrid_storage as hybrid
import hybrid_tree
import storage_controller as sglang
import torch
from kvtwin.errors import InputError
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

KV, SWA, MAMBA = PoolName.KV, PoolName.SWA, PoolName.MAMBA
PAGES = 12
# Settings of a server, by kind of model.
SHAPES = {"window": dict(window=64, window_tokens=2048, host_window_tokens=4096),
          "state": dict(states=40, host_states=80, state_chunk=64, track_interval=64),
          "window and state": dict(window=64, window_tokens=2048, host_window_tokens=4096, states=40, host_states=80, state_chunk=64,
                                   track_interval=64)}


def flags(folder, **options):
    return {"backend_name": "kvtwin", "module_path": "kvtwin_sglang.storage", "class_name": "KvtwinStorage", "interface_v1": 1,
            "path": str(folder), "capacity_gib": 0.25, "revision": "1"} | options


def held_by(kind_needs, generator, pages=PAGES):
    """Random pages that have a window or state; the last one always."""
    drawn = {}
    for name, (trailing, source) in kind_needs.items():
        if source is None:
            some = {page for page in range(pages) if generator.random() < 0.6}
            drawn[name] = sorted(some | set(range(max(0, pages - trailing), pages)))
    return drawn


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvtwin-hybrid-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        sglang.of_one_rank()

    def engine(self, model_kind, model="tiny/hybrid", folder="store", pools=None, **options):
        engine = hybrid.Engine(model_kind, "dynamic", flags(self.folder / folder, **options), model=model, pools=pools)
        self.addCleanup(engine.close)
        return engine

    def file_engine(self, kind):
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(self.folder / f"files {kind}")
        self.addCleanup(os.environ.pop, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
        engine = hybrid.Engine(kind, "file", {})
        self.addCleanup(engine.close)
        return engine

    def assert_read(self, engine, tokens, stored, held, pages=PAGES):
        """A prefetch reads `pages` pages and what they need, with the bytes that were stored."""
        read, hits, content = engine.prefetch(tokens)
        self.assertEqual(read, pages)
        for name, (trailing, source) in engine.needs.items():
            if source == KV:
                self.assertTrue(torch.equal(content[name][:pages], stored[name][:pages]), f"wrong bytes of {name}")
                continue
            # The objects of the last pages of what was read.
            first = max(0, pages - trailing)
            self.assertEqual(hits[name], pages - first, name)
            at = held[source or name].index(first)
            self.assertTrue(torch.equal(content[name][: pages - first], stored[name][at : at + pages - first]), f"wrong bytes of {name}")
        if engine.pools[KV].get_page_buffer_meta(torch.arange(engine.page)) is not None:
            self.assertTrue(torch.equal(content[KV][:pages], stored[KV][:pages]), "wrong bytes")


class Kinds(Case):
    def test_every_kind_of_model_comes_back(self):
        for kind in hybrid.KINDS:
            for store in ("disk", "shared_fs"):
                with self.subTest(kind=kind, store=store):
                    engine = self.engine(kind, folder=f"{kind} {store}", kind=store)
                    held = held_by(engine.needs, random.Random(kind))
                    stored, ended = engine.back_up(engine.tokens(PAGES), held, 1)
                    self.assertEqual(ended.completed_tokens, PAGES * engine.page)
                    self.assert_read(engine, engine.tokens(PAGES), stored, held)
                    engine.close()
                    restarted = self.engine(kind, folder=f"{kind} {store}", kind=store)
                    self.assert_read(restarted, restarted.tokens(PAGES), stored, held)
                    counters = restarted.storage.counters()
                    self.assertEqual(sorted(counters), sorted(map(str, restarted.pools)))
                    self.assertEqual({name: one["gets"]["corrupt"] for name, one in counters.items()}, dict.fromkeys(counters, 0))

    def test_usable_lengths_are_those_of_sglangs_files(self):
        for kind in hybrid.KINDS:
            ours, theirs = self.engine(kind, folder=kind), self.file_engine(kind)
            for number in range(12):
                with self.subTest(kind=kind, number=number):
                    generator = random.Random(f"{kind} {number}")
                    held = held_by(ours.needs, generator, generator.randint(3, PAGES))
                    pages = max(max(own, default=0) for own in held.values()) + 1 if held else generator.randint(3, PAGES)
                    for engine in (ours, theirs):
                        tokens = engine.tokens(PAGES, number)
                        engine.back_up(tokens[: pages * engine.page], held, number + 1)
                    lengths, longest, boundaries = ours.usable(ours.tokens(PAGES, number))
                    expected = theirs.usable(theirs.tokens(PAGES, number))
                    self.assertEqual((lengths, longest), expected[:2])
                    self.assertEqual({name: boundaries.get(name) for name in expected[2]}, expected[2])
            theirs.close()

    def test_a_prefetch_ends_at_the_longest_usable_length(self):
        for store in ("disk", "shared_fs"):
            engine = self.engine("window and state", folder=store, kind=store)
            held = {SWA: [3, 4, 5, 9], MAMBA: [1, 5, 8]}
            stored, _ = engine.back_up(engine.tokens(PAGES), held, 1)
            self.assertEqual(engine.usable(engine.tokens(PAGES))[:2], ([6], 6))
            self.assert_read(engine, engine.tokens(PAGES), stored, held, pages=6)

    def test_the_largest_state_and_the_smallest(self):
        for temporal in ((1, 1, 1), (16, 128, 256)):  # 12 bytes to 50 MB
            layers = 1 if temporal == (1, 1, 1) else 24
            with self.subTest(temporal=temporal):
                kv = sglang.mha_pool(hybrid.LAYOUT, 64)
                pools = {KV: kv, MAMBA: hybrid.mamba_pool(4, layers=layers, temporal=temporal, conv=(4, 3))}, {MAMBA: (1, None)}
                engine = self.engine("state", folder=str(layers), pools=pools)
                stored, _ = engine.back_up(engine.tokens(PAGES), {MAMBA: [PAGES - 1]}, 3)
                self.assert_read(engine, engine.tokens(PAGES), stored, {MAMBA: [PAGES - 1]})


class Trees(Case):
    """SGLang's tree, controller and host pools: requests are served, written to the host and to storage, and after a restart
    prefetched."""

    def served(self, kind, core, backend, extra, given=None):
        """Serves conversations. Returns each request's loaded and hit tokens, and the storage."""
        server = hybrid_tree.Server(backend, extra, given, core=core, page=16, full_tokens=4096, host_tokens=8192, chunk=256,
                                    **SHAPES[kind])
        draw, outcomes = random.Random(kind), []
        shared = [draw.randrange(1000) for _ in range(200)]
        for number in range(24):
            length = draw.randint(40, 300)
            prompt = array("q", (shared if number % 3 else []) + [draw.randrange(1000) for _ in range(length)])
            loaded = server.fetch(f"r{number}", prompt) if given is not None else 0
            request, outcome = server.start(f"r{number}", prompt)
            server.finish(request, array("q", [draw.randrange(1000) for _ in range(20)]))
            server.settle()
            outcomes.append((loaded, outcome["hit"], outcome["device"], outcome["host"]))
        server.close()
        return outcomes, server.storage

    def test_a_restarted_server_hits_as_over_sglangs_files(self):
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(self.folder / "files")
        self.addCleanup(os.environ.pop, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", None)
        for kind in SHAPES:
            for core in ("python", "rust"):
                results = []
                for backend, extra in (("dynamic", flags(self.folder / f"{kind} {core}")), ("file", {})):
                    shutil.rmtree(self.folder / "files", ignore_errors=True)
                    first, storage = self.served(kind, core, backend, extra)
                    second, again = self.served(kind, core, backend, extra, storage.given)
                    results.append((first, second, again.compared))
                with self.subTest(kind=kind, core=core):
                    self.assertEqual(results[0][:2], results[1][:2])  # SGLang moves KV pages of its files in another way
                    self.assertGreater(sum(loaded for loaded, *_ in results[0][1]), 2000)
                    self.assertGreater(sum(hit for _, hit, *_ in results[0][1]), sum(hit for _, hit, *_ in results[0][0]) + 1000)
                    self.assertGreater(min(results[0][2].values()), 5, results[0][2])


class Identity(Case):
    def test_objects_of_another_configuration_are_misses(self):
        held = {MAMBA: [PAGES - 1]}
        engine = self.engine("state", kind="shared_fs")
        engine.back_up(engine.tokens(PAGES), held, 1)
        self.assertEqual(engine.usable(engine.tokens(PAGES))[1], PAGES)
        kv = sglang.mha_pool(hybrid.LAYOUT, 64)
        others = {"another dtype of the states": hybrid.mamba_pool(64, temporal_dtype=torch.int32),
                  "another shape of equal size": hybrid.mamba_pool(64, temporal=(8, 4, 16)),
                  "another number of layers": hybrid.mamba_pool(64, layers=2)}
        for what, states in others.items():
            with self.subTest(what):
                other = self.engine("state", kind="shared_fs", pools=({KV: kv, MAMBA: states}, {MAMBA: (1, None)}))
                self.assertEqual(other.usable(other.tokens(PAGES))[:2], ([], 0))
                self.assertEqual(other.storage.batch_exists(other.keys(other.tokens(PAGES))), PAGES)  # the pages are the same
        for options in ({"namespace": "b"}, {"revision": "2"}):
            other = self.engine("state", kind="shared_fs", **options)
            self.assertEqual(other.storage.batch_exists(other.keys(other.tokens(PAGES))), 0)

    def test_ranks_of_a_latent_model_share_pages_and_not_states(self):
        sglang.of_one_rank(0, 2)
        engine = self.engine("latent and state", kind="shared_fs")
        engine.back_up(engine.tokens(PAGES), {MAMBA: [PAGES - 1]}, 1)
        self.assertEqual(engine.usable(engine.tokens(PAGES))[1], PAGES)
        sglang.of_one_rank(1, 2)
        second = self.engine("latent and state", kind="shared_fs")
        self.assertEqual(second.usable(second.tokens(PAGES))[1], 0)
        self.assertEqual(second.storage.batch_exists(second.keys(second.tokens(PAGES))), PAGES)
        second.back_up(second.tokens(PAGES), {MAMBA: [PAGES - 1]}, 2)  # writes its states only
        self.assertEqual(second.usable(second.tokens(PAGES))[1], PAGES)


class Failures(Case):
    def test_a_killed_server_leaves_right_objects_or_none(self):
        for seed in range(3):
            with self.subTest(seed=seed):
                folder = self.folder / str(seed)
                writer = subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--write-until-killed", str(folder)],
                                          stdout=subprocess.PIPE, text=True)
                acknowledged = [int(writer.stdout.readline()) for _ in range(2 + seed)]
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                engine = self.engine("window and state", folder=str(seed))
                held = {SWA: [PAGES - 2, PAGES - 1], MAMBA: [PAGES - 1]}
                for first in range(acknowledged[-1] + 3):
                    expected = self.engine("window and state", folder=f"{seed}-{first}")
                    stored, _ = expected.back_up(expected.tokens(PAGES, first), held, first + 1)
                    expected.close()
                    usable = engine.usable(engine.tokens(PAGES, first))[1]
                    if first in acknowledged:
                        self.assertEqual(usable, PAGES, "an acknowledged state is lost")
                    if usable:
                        self.assert_read(engine, engine.tokens(PAGES, first), stored, held)
                engine.close()

    def test_flipped_bits_are_misses_of_their_pool(self):
        for name in (KV, SWA, MAMBA):
            with self.subTest(pool=name):
                held = {SWA: list(range(PAGES)), MAMBA: [5, PAGES - 1]}
                first = self.engine("window and state", folder=str(name), kind="shared_fs")
                first.back_up(first.tokens(PAGES), held, 1)
                size = 128 + first.storage.pools[name].page_bytes
                first.close()
                flipped = 0
                for path in (self.folder / str(name)).rglob("*"):
                    if path.is_file() and path.stat().st_size == size:
                        content = bytearray(path.read_bytes())
                        content[size // 2] ^= 8
                        path.write_bytes(content)
                        flipped += 1
                self.assertGreater(flipped, 0)
                engine = self.engine("window and state", folder=str(name), kind="shared_fs")
                pages, hits, _ = engine.prefetch(engine.tokens(PAGES))
                self.assertEqual(pages, 0 if name == KV else PAGES)
                self.assertEqual(hits.get(name, 0), 0)
                counters = engine.storage.counters()
                self.assertGreater(counters[str(name)]["gets"]["corrupt"], 0)
                engine.back_up(engine.tokens(PAGES), held, 1)
                stored, _ = engine.back_up(engine.tokens(PAGES), held, 1)
                if name == MAMBA:
                    self.assert_read(engine, engine.tokens(PAGES), stored, held)

    def test_a_full_store_keeps_all_pools_in_step(self):
        for store in ("disk", "shared_fs"):
            with self.subTest(store=store):
                engine = self.engine("window and state", folder=store, kind=store, capacity_gib=8 / 1024)
                held = {SWA: [PAGES - 2, PAGES - 1], MAMBA: [PAGES - 1]}
                for first in range(40):
                    stored, ended = engine.back_up(engine.tokens(PAGES, first), held, first + 1)
                    self.assertEqual(ended.completed_tokens, PAGES * engine.page)
                    self.assert_read(engine, engine.tokens(PAGES, first), stored, held)
                self.assertEqual(engine.usable(engine.tokens(PAGES, 0))[1], 0)
                self.assertGreater(sum(engine.usable(engine.tokens(PAGES, first))[1] > 0 for first in range(40)), 4)

    def test_failures_that_sglang_injects(self):
        os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.3"
        self.addCleanup(os.environ.pop, "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE")
        engine = self.engine("window and state")
        held = {SWA: [PAGES - 2, PAGES - 1], MAMBA: [PAGES - 1]}
        for first in range(20):
            stored, _ = engine.back_up(engine.tokens(PAGES, first), held, first + 1)
            pages, hits, content = engine.prefetch(engine.tokens(PAGES, first))
            if pages:
                self.assertTrue(torch.equal(content[KV][:pages], stored[KV][:pages]), "wrong bytes")
            for name in (SWA, MAMBA):
                if pages == PAGES and hits.get(name):
                    self.assertTrue(torch.equal(content[name][: hits[name]], stored[name][: hits[name]]), "wrong bytes")


class Refusals(Case):
    def test_pools_without_addresses_are_refused_by_name(self):
        kv = sglang.mha_pool(hybrid.LAYOUT, 64)
        states = hybrid.mamba_pool(4, extra=(torch.zeros((1, 8)),))  # side states, which SGLang gives no address of
        with self.assertRaisesRegex(ValueError, "pool 'mamba' .MambaPoolHost, layout page_first_direct. gives no addresses"):
            self.engine("state", pools=({KV: kv, MAMBA: states}, {MAMBA: (1, None)}))

    def test_block_groups_are_refused(self):
        engine = self.engine("state")
        with self.assertRaisesRegex(InputError, "hit policy block_groups; served are all_pages and trailing_pages"):
            engine.storage.batch_exists_v2(["0" * 64], [PoolTransfer(MAMBA, hit_policy=PoolHitPolicy.BLOCK_GROUPS)])

    def test_a_wrong_number_of_indices_moves_nothing(self):
        engine = self.engine("state")
        transfer = PoolTransfer(MAMBA, host_indices=torch.arange(3), keys=["0" * 64, "1" * 64])
        self.assertEqual(engine.storage.batch_set_v2([transfer]), {MAMBA: [False, False]})
        self.assertEqual(engine.storage.batch_get_v2([PoolTransfer(MAMBA, keys=["0" * 64])]), {MAMBA: [False]})


def write_until_killed(folder):
    sglang.of_one_rank()
    engine = hybrid.Engine("window and state", "dynamic", flags(folder))
    first = 0
    while True:
        _, ended = engine.back_up(engine.tokens(PAGES, first), {SWA: [PAGES - 2, PAGES - 1], MAMBA: [PAGES - 1]}, first + 1)
        if ended.completed_tokens == PAGES * engine.page:
            print(first, flush=True)
        first += 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write-until-killed"]:
        write_until_killed(Path(sys.argv[2]))
    unittest.main()
