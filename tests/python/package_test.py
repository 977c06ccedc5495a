"""Tests the installed Python package. Run by tools/python-package.

    package_test.py PROGRAM [unittest arguments]   PROGRAM: of build/, with which results are compared
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import warnings
from array import array
from pathlib import Path
from unittest import mock

import kvtwin
import numpy as np
from kvtwin import engine_store, policy, program

ROOT = Path(__file__).resolve().parents[2]
BUILT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/kvtwin"
EXPERIMENT = "experiments/quickstart.toml"
FEW = {"workload.limit": 60}
TRACE = "traces/chat_small.jsonl.zst"


class Scratch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)


class Package(Scratch):
    def test_is_the_installed_one(self):
        self.assertNotIn(str(ROOT / "python"), sys.path)
        self.assertTrue(Path(kvtwin.__file__).is_relative_to(sys.prefix))
        self.assertEqual(program.path(), Path(kvtwin.__file__).parent / "bin/kvtwin")
        self.assertTrue((Path(kvtwin.__file__).parent / "py.typed").exists())

    def test_import_loads_no_large_package(self):
        code = "import sys, kvtwin; print([name for name in sys.modules if name in {'numpy', 'pandas', 'matplotlib', 'distributed'}])"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout, "[]\n")

    def test_every_public_name_is_there_and_documented(self):
        for name in kvtwin.__all__:
            self.assertTrue(name == "__version__" or getattr(kvtwin, name).__doc__, name)
        with self.assertRaises(AttributeError):
            kvtwin.simulat  # noqa: B018

    def test_the_command_draws_with_this_python(self):
        folder = self.scratch / "run"
        kvtwin.simulate(EXPERIMENT, set=FEW, out=folder)
        command = Path(sys.prefix, "bin/kvtwin")
        environment = {name: value for name, value in os.environ.items() if name != "KVTWIN_PYTHON"}
        for arguments in (["figures", folder], ["report", folder]):
            subprocess.run([command, *arguments], check=True, capture_output=True, env=environment, cwd=self.scratch)
        drawn = sorted(path.name for path in (folder / "figures").iterdir())
        self.assertEqual(drawn, ["lanes.png", "tokens_by_tier.png", "ttft.png"])
        self.assertIn("TTFT", (folder / "report.html").read_text(encoding="utf-8"))


FORM = kvtwin.PageForm(layers=2, planes=2, heads=2, head_bytes=64, page_tokens=16)
IDENTITY = kvtwin.Identity(model="m", kv_dtype="bfloat16", revision="1")


class Stores(Scratch):
    def store(self, kind="disk", name="store", **options):
        options = {"capacity_pages": 100, **options}
        return kvtwin.Store(kind, str(self.scratch / name), FORM, IDENTITY, **options)

    def test_pages_come_back_also_after_a_close(self):
        random = np.random.default_rng(1)
        keys = [random.bytes(32) for _ in range(20)]
        for kind in ("disk", "shared_fs"):
            with self.store(kind, kind) as store:
                self.assertEqual(store.page_bytes, 8192)
                pages = random.integers(0, 256, (20, store.page_bytes), np.uint8)
                self.assertEqual(store.put_pages(keys, pages).tolist(), [0] * 20)
                self.assertEqual(store.look_up([*keys, bytes(32)]), 20)
            self.assertTrue(store.closed)
            with self.store(kind, kind) as store:
                self.assertEqual(store.look_up([key.hex() for key in keys]), 20)
                self.assertEqual(store.look_up(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)), 20)
                found = store.get_pages([*keys, bytes(32)])
                self.assertIsNone(found.pop())
                np.testing.assert_array_equal(np.array(found), pages)
                self.assertEqual(store.remove(keys[:5]).tolist(), [0] * 5)
                self.assertEqual(store.look_up(keys), 0)
                stats = store.stats()
                self.assertEqual((stats["kind"], stats["gets"]["ok"], stats["gets"]["missing"]), (kind, 20, 1))

    def test_addresses_are_read_and_written_in_place(self):
        keys = [bytes([number]) * 32 for number in range(4)]
        with self.store() as store:
            memory = np.random.default_rng(2).integers(0, 256, (4, 2, 4096), np.uint8)
            places = memory.ctypes.data + np.arange(8, dtype=np.uint64).reshape(4, 2) * 4096
            self.assertEqual(store.put(keys, places, 4096).tolist(), [0] * 4)
            back = np.zeros_like(memory)
            # The second piece of a page first: the lengths say where a page is cut.
            places = back.ctypes.data + np.arange(4, dtype=np.uint64)[:, None] * 8192 + np.array([0, 1000], np.uint64)
            self.assertEqual(store.get(keys, places, [1000, 7192]).tolist(), [0] * 4)
            np.testing.assert_array_equal(back, memory)
            buffer = bytearray(8192)
            self.assertEqual(store.get_pages_into(keys[2:3], [buffer]).tolist(), [0])
            self.assertEqual(bytes(buffer), memory[2].tobytes())

    def test_changed_bytes_are_a_miss(self):
        keys = [bytes([number]) * 32 for number in range(1, 4)]
        with self.store() as store:
            store.put_pages(keys, [bytes([number]) * 8192 for number in range(1, 4)])
        flipped = 0
        for path in (self.scratch / "store").rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            at = content.find(bytes([2]) * 8192)
            if at >= 0:
                path.write_bytes(content[: at + 100] + b"\xff" + content[at + 101 :])
                flipped += 1
        self.assertEqual(flipped, 1)
        with self.store() as store:
            pages = store.get_pages(keys)
            self.assertEqual([page is None for page in pages], [False, True, False])
            self.assertEqual(store.stats()["gets"]["corrupt"], 1)

    def test_a_store_with_pools(self):
        keys = [bytes([number]) * 32 for number in range(1, 9)]
        window = kvtwin.PageForm(layers=1, planes=2, heads=2, head_bytes=64, page_tokens=16)
        pools = [kvtwin.Pool(name="window", form=window), kvtwin.Pool(name="state", object_bytes=5001)]
        for kind in ("disk", "shared_fs"):
            options = {"capacity_pages": 0, "pools": pools, "capacity_bytes": 1 << 24}
            with self.store(kind, kind, **options) as store:
                self.assertEqual([store.object_bytes(name) for name in ("", "window", "state")], [8192, 4096, 5001])
                self.assertEqual(store.put_pages(keys, [bytes([number]) * 8192 for number in range(8)]).tolist(), [0] * 8)
                self.assertEqual(store.put_pages(keys[2:5], [b"w" * 4096] * 3, pool="window").tolist(), [0] * 3)
                store.start_put(7, keys[3:4], [np.frombuffer(b"s" * 5001, np.uint8).ctypes.data], 5001, pool="state")
                store.wait()
                self.assertEqual(store.ended()[0].statuses.tolist(), [0])
            with self.store(kind, kind, **options) as store:
                both = [kvtwin.Need("window", 2), kvtwin.Need("state")]
                found = store.look_up_usable(keys, both)
                self.assertEqual((found.pages, np.flatnonzero(found.usable).tolist(), found.longest), (8, [3], {"window": 5, "state": 4}))
                self.assertEqual(np.flatnonzero(store.look_up_usable(keys[2:], [kvtwin.Need("window", 0)]).usable).tolist(), [0, 1, 2])
                self.assertEqual(store.look_up_usable(keys, []).usable.tolist(), [True] * 8)
                self.assertEqual(bytes(store.get_pages(keys[3:4], pool="state")[0]), b"s" * 5001)
                self.assertEqual(store.get_pages(keys[:1], pool="window"), [None])
                self.assertEqual(store.remove(keys[3:4], pool="state").tolist(), [0])
                self.assertFalse(store.look_up_usable(keys, both).usable.any())
                self.assertEqual([pool["name"] for pool in store.stats()["pools"]], ["window", "state"])
                for call in (lambda: store.object_bytes("x"), lambda: store.get_pages(keys, pool="x"),
                             lambda: store.look_up_usable(keys, [kvtwin.Need("")]), lambda: store.put_pages(keys[:1], [b""], pool="state"),
                             lambda: store.put(keys[:1], [1 << 20], 8192, pool="state")):
                    with self.assertRaises(kvtwin.InputError):
                        call()
        for wrong, text in ((["state"], "a list of kvtwin.Pool"), ([kvtwin.Pool(name="a")], "give a form, or object_bytes"),
                            ([kvtwin.Pool(name="A/", object_bytes=1)], "a name has 1 to 48")):
            with self.assertRaisesRegex(kvtwin.InputError, text):
                self.store(capacity_pages=0, pools=wrong, capacity_bytes=1 << 24)

    def test_a_full_store_evicts_and_the_log_says_so(self):
        keys = [bytes([number]) * 32 for number in range(100)]
        for kind, evicted in (("disk", 90), ("shared_fs", 90)):
            log = kvtwin.engine_store.FullStoreLog(kind, logging.getLogger("kvtwin.test"))
            with self.store(kind, kind, capacity_pages=10) as store, self.assertLogs("kvtwin.test", "INFO") as logged:
                for key in keys:
                    statuses = store.put_pages([key], [key * 256])
                    self.assertEqual(statuses.tolist(), [0])
                    log.after_put(store, statuses)
                self.assertEqual(bytes(store.get_pages(keys[-1:])[0]), keys[-1] * 256)
                self.assertEqual(store.look_up(keys[:1]), 0)
                medium = store.stats()["medium"]
                self.assertEqual(medium["pages_evicted" if kind == "disk" else "evicted_pages"], evicted)
            self.assertEqual(len(logged.output), 1)
            self.assertIn(f"{kind}: the store is full and evicts pages", logged.output[0])
        with self.store("disk", "fifo", capacity_pages=2, eviction="fifo") as store:
            store.put_pages(keys[:2], [bytes(8192)] * 2)
            store.get_pages(keys[:1])
            store.put_pages(keys[2:3], [bytes(8192)])
            self.assertEqual([store.look_up([key]) for key in keys[:3]], [0, 1, 1])
        with self.assertRaisesRegex(kvtwin.InputError, 'eviction is "best"'):
            self.store("disk", "wrong", eviction="best")
        with self.assertRaisesRegex(kvtwin.InputError, "eviction is set, and only a store of kind disk"):
            self.store("shared_fs", "wrong", eviction="lru")

    def test_bad_arguments_are_refused(self):
        with self.store() as store:
            page, key = bytes(8192), bytes(32)
            for call, text in (
                (lambda: store.look_up([b"short"]), "32 bytes, or 64 hex digits"),
                (lambda: store.look_up(["g" * 64]), "32 bytes, or 64 hex digits"),
                (lambda: store.look_up(key), "give a list of keys"),
                (lambda: store.look_up(np.zeros((1, 31), np.uint8)), "shape (pages, 32)"),
                (lambda: store.put([key], [1, 2, 3], 1), "must sum to the 8192 bytes"),
                (lambda: store.put([key], [0], 8192), "no address may be 0"),
                (lambda: store.put([key, key], [1, 2, 3], 8192), "the same number of pieces"),
                (lambda: store.put([key], [-1], 8192), "whole numbers"),
                (lambda: store.put([key], [1], [1, 2, 3]), "whole numbers"),
                (lambda: store.put_pages([key], [page[:-1]]), "8191 bytes long"),
                (lambda: store.put_pages([key], [np.zeros((2, 8192), np.uint8).T[0:4096]]), "not contiguous"),
                (lambda: store.get_pages_into([key], [page]), "read-only"),
                (lambda: self.store("disc", "x"), "the kinds are disk, shared_fs and remote"),
                (lambda: self.store(capacity_pages=0, name="y"), "capacity_pages is 0"),
                (lambda: self.store(capacity_pages=-1, name="y"), "capacity_pages is -1"),
                (lambda: self.store(timeout_s=0, name="y"), "timeout_s"),
                (lambda: self.store(secret="short", name="y"), "fewer than 16 bytes"),
            ):
                with self.assertRaises(kvtwin.InputError) as refused:
                    call()
                self.assertIn(text, str(refused.exception))
            with self.assertRaisesRegex(kvtwin.WorkError, "store"):
                self.store()  # the folder is in use
        with self.assertRaisesRegex(kvtwin.InputError, "the store is closed"):
            store.look_up([key])
        store.close()  # again

    def test_many_threads_use_one_store(self):
        with self.store(capacity_pages=400) as store:
            wrong = []

            def work(number):
                keys = [bytes([number, place]) * 16 for place in range(20)]
                pages = [bytes([number, place]) * 4096 for place in range(20)]
                store.put_pages(keys, pages)
                found = store.get_pages(keys)
                wrong.extend(place for place in range(20) if found[place] is None or found[place].tobytes() != pages[place])

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])
            self.assertEqual(store.stats()["puts"]["ok"], 160)

    def test_names_with_a_zero_byte_are_refused(self):
        names = {"model": "m", "kv_dtype": "b", "revision": "1", "name_space": ""}
        for field in names:
            with self.assertRaisesRegex(kvtwin.InputError, f"{field} contains a zero byte"):
                kvtwin.Store("disk", str(self.scratch / "s"), FORM, kvtwin.Identity(**names | {field: "acme\0a"}), capacity_pages=9)
        for options in ({"kind": "disk\0"}, {"name": "x\0y"}, {"secret": "sixteen bytes\0and more"}):
            with self.assertRaisesRegex(kvtwin.InputError, "contains a zero byte"):
                self.store(**options)
        with self.assertRaisesRegex(kvtwin.InputError, "contains a zero byte"):
            kvtwin.simulate("a\0b")
        with self.assertRaisesRegex(kvtwin.InputError, "contains a zero byte"):
            kvtwin.weights_fingerprint("a\0b")
        keys = {policy.page_keys(array("q", range(4)), 4, extra_key=text) for text in ("acme", "acme\0a", "acme\0b")}
        self.assertEqual(len(keys), 3)
        with self.assertRaisesRegex(kvtwin.InputError, "contains a zero byte"):
            policy.Policy("lru\0x", 10)

    def test_the_name_of_a_policy_has_parameters(self):
        for name in ("slru(protected=3)", "tlru(threshold=4Ki, next_prompt=200)"):
            self.assertEqual(policy.Policy(name, 10).match(b"")[1], 0)
        with self.assertRaisesRegex(kvtwin.InputError, "slru: protected is 0; it must be at least 1"):
            policy.Policy("slru(protected=0)", 10)

    def test_a_store_needs_a_revision(self):
        with self.assertRaisesRegex(kvtwin.InputError, 'identity.revision is empty.*"fixed"'):
            kvtwin.Store("disk", str(self.scratch / "s"), FORM, kvtwin.Identity(model="m", kv_dtype="b"), capacity_pages=9)
        checkpoint = self.scratch / "model"
        checkpoint.mkdir()
        with self.assertRaisesRegex(kvtwin.InputError, "has no weights"):
            kvtwin.weights_fingerprint(checkpoint)
        found = set()
        for content in (b"one", b"two"):
            (checkpoint / "model.safetensors").write_bytes(content)
            found.add(kvtwin.weights_fingerprint(checkpoint))
        self.assertEqual(len(found), 2)

    def test_odd_arguments_are_refused(self):
        with self.store() as store:
            key, page = bytes(32), np.zeros(8192, np.uint8)
            place = page.ctypes.data
            for address in (1.7, float("nan"), -1, None, True, 1 << 64, "1", [place, 2.5], 1e300, np.float64(place)):
                for call in (store.put, store.get):
                    with self.assertRaises((ValueError, TypeError), msg=repr(address)):
                        call([key], [address], 8192)
                    with self.assertRaises((ValueError, TypeError), msg=repr(address)):
                        call([key], [place], address)
            for pages in ([], [page, page], [np.zeros(1024, object)], [None], [1.5], [np.zeros(16384, np.uint8)[::2]]):
                with self.assertRaises((ValueError, TypeError)):
                    store.put_pages([key], pages)
                with self.assertRaises((ValueError, TypeError)):
                    store.get_pages_into([key], pages)
            for keys in (None, 5, [None], [1.5], [True], [b""], [bytes(31)], np.zeros((1, 32))):
                with self.assertRaises((ValueError, TypeError)):
                    store.look_up(keys)
        for options in ({"capacity_pages": 1.5}, {"capacity_pages": True}, {"capacity_pages": 1 << 64}, {"timeout_s": float("nan")},
                        {"timeout_s": "1"}, {"timeout_s": None}, {"secret": 5}, {"kind": None}, {"password": b"x"}):
            with self.assertRaises(kvtwin.InputError, msg=options):
                self.store(**options)
        for location in (None, 5, b"x", "\udc80"):
            with self.assertRaises(kvtwin.InputError, msg=location):
                kvtwin.Store("disk", location, FORM, IDENTITY, capacity_pages=9)
        for wrong in (1.5, True, -1, None, "2", 1 << 32):
            with self.assertRaises(kvtwin.InputError, msg=wrong):
                kvtwin.Store("disk", "x", dataclasses.replace(FORM, layers=wrong), IDENTITY, capacity_pages=9)
        with self.assertRaises(TypeError):
            policy.page_keys(np.array([1.7, 2.0]), 1)
        for size in (float("nan"), 1.5, "1", None):
            with self.assertRaises(TypeError, msg=size):
                policy.page_keys(array("q", range(4)), size)

    def test_odd_arguments_of_the_program_are_refused(self):
        odd = (None, True, -1, 1.7, float("nan"), 10**400, "", "a\0b", "y" * 5000, b"x", [1], {"seed": None}, object(), np.float64(1.5))
        for value in odd:
            for call in (
                lambda value: kvtwin.traces.info(value), lambda value: kvtwin.load(value), lambda value: kvtwin.simulate(value),
                lambda value: kvtwin.simulate(EXPERIMENT, set=value or 5), lambda value: kvtwin.sweep(EXPERIMENT, value or 5),
                lambda value: kvtwin.compare(EXPERIMENT, {"seed": [1]}, goal=value or 5),
                lambda value: kvtwin.traces.generate(self.scratch / "made", value or 5),
                lambda value: kvtwin.hitrate(TRACE, 9, value or 5),
            ):
                with self.assertRaises((TypeError, ValueError, kvtwin.WorkError), msg=f"{value!r:.80}"):
                    call(value)

    def test_options_of_an_engine_are_checked(self):
        right = {"path": "/x", "capacity_gib": 1, "revision": "1"}
        self.assertEqual(engine_store.place(right, 1 << 20)["capacity_pages"], 1024)
        self.assertEqual(engine_store.place(right | {"capacity_gib": "0.5"}, 1 << 20)["capacity_pages"], 512)
        for name, values in {"capacity_gib": (float("nan"), float("inf"), 1e300, -1, True, None, "many", [1], 10**400),
                             "path": (5.5, None, ["x"], "a\0b"), "kind": (None, "disk\0")}.items():
            for value in values:
                with self.assertRaisesRegex(kvtwin.InputError, name):
                    engine_store.place(right | {name: value}, 1 << 20)
        for value in (float("nan"), 0, -5, 1e300, True, "soon"):
            with self.assertRaisesRegex(kvtwin.InputError, "timeout_ms"):
                engine_store.place({"kind": "remote", "url": "redis://x:1", "timeout_ms": value}, 1)
        self.assertEqual(engine_store.revision({"revision": 7}, ["no/model"]), "7")
        with self.assertRaisesRegex(kvtwin.InputError, '"revision" is missing.*"fixed"'):
            engine_store.revision({}, ["no/model", None])
        with self.assertRaisesRegex(kvtwin.InputError, "zero byte"):
            engine_store.revision({"revision": "a\0b"}, [])
        (self.scratch / "model.safetensors").write_bytes(b"weights")
        self.assertEqual(engine_store.revision({}, [str(self.scratch)]), kvtwin.weights_fingerprint(self.scratch))

    def test_the_served_revision_of_a_cached_model_counts(self):
        hub = self.scratch / "hub"
        snapshots = hub / "models--org--tiny/snapshots"
        for commit, weights in {"aaa": b"old", "bbb": b"new"}.items():
            (snapshots / commit).mkdir(parents=True)
            (snapshots / commit / "config.json").write_bytes(b"{}")
            (snapshots / commit / "model.safetensors").write_bytes(weights)

        def cached(model, name, cache_dir, revision):
            path = Path(cache_dir or hub, "models--" + model.replace("/", "--"), "snapshots", {"main": "aaa"}.get(revision, revision), name)
            return str(path) if path.exists() else None

        def repo_folder_name(*, repo_id, repo_type):
            return f"{repo_type}s--" + repo_id.replace("/", "--")

        modules = {"huggingface_hub": types.SimpleNamespace(try_to_load_from_cache=cached, constants=types.SimpleNamespace(HF_HUB_CACHE=hub)),
                   "huggingface_hub.file_download": types.SimpleNamespace(repo_folder_name=repo_folder_name)}
        old, new = (kvtwin.weights_fingerprint(snapshots / commit) for commit in ("aaa", "bbb"))
        with mock.patch.dict(sys.modules, modules):
            self.assertEqual(engine_store.revision({}, ["org/tiny"], served="main"), old)
            self.assertEqual(engine_store.revision({}, ["org/tiny"], served="bbb"), new)
            self.assertEqual(engine_store.revision({}, ["org/tiny"], served="bbb", cache=hub), new)
            with self.assertRaisesRegex(kvtwin.InputError, '"revision" is missing'):
                engine_store.revision({}, ["org/tiny"], served="ccc")
            with self.assertRaisesRegex(kvtwin.InputError, 'several revisions of org/tiny.*set "revision"'):
                engine_store.revision({}, ["org/tiny"])
            self.assertEqual(engine_store.revision({"revision": "b"}, ["org/tiny"]), "b")
            shutil.rmtree(snapshots / "aaa")
            self.assertEqual(engine_store.revision({}, ["org/tiny"]), new)

    def test_close_ends_while_others_keep_calling(self):
        threads = 8
        with self.store(capacity_pages=200) as store:
            refused, begun = [], threading.Barrier(threads + 1)

            def call(number):
                keys = [bytes([number, place]) * 16 for place in range(20)]
                store.get_pages(keys)
                begun.wait()
                for _ in range(20_000):
                    try:
                        store.get_pages(keys)
                    except kvtwin.InputError:
                        refused.append(number)
                        return

            running = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
            for thread in running:
                thread.start()
            begun.wait()
            store.close()
            for thread in running:
                thread.join()
            self.assertEqual(sorted(refused), list(range(threads)))

    def test_started_puts_and_gets_end_by_themselves(self):
        keys = np.random.default_rng(3).integers(0, 256, (40, 32), np.uint8)
        memory = np.random.default_rng(4).integers(0, 256, (40, 8192), np.uint8)
        back = np.zeros((41, 8192), np.uint8)

        def places(array):
            return array.ctypes.data + np.arange(len(array), dtype=np.uint64) * 8192

        for kind in ("disk", "shared_fs"):
            with self.store(kind, kind) as store:
                for job in range(8):
                    store.start_put(job, keys[job * 5 : job * 5 + 5], places(memory)[job * 5 : job * 5 + 5], 8192)
                store.wait()
                ended = store.ended()
                self.assertEqual([transfer.job for transfer in ended], list(range(8)), "puts end in their order")
                self.assertTrue(all(transfer.statuses.tolist() == [0] * 5 and transfer.seconds > 0 for transfer in ended))
                self.assertEqual(store.ended(), [])
                back[:] = 0
                store.start_get(2**64 - 1, [*(key.tobytes() for key in keys), bytes(32)], places(back), 8192)
                store.wait()
                ((job, statuses, _),) = store.ended()
                self.assertEqual((job, statuses.tolist()), (2**64 - 1, [0] * 40 + [kvtwin.PageStatus.MISSING]))
                np.testing.assert_array_equal(back[:40], memory)
                self.assertEqual(store.stats()["gets"]["ok"], 40)
                store.start_get(1, [], [], 8192)
                store.start_get(2, keys[:1], [0], 8192)  # address 0: the call fails
                store.wait()
                self.assertEqual([(job, statuses is None) for job, statuses, _ in store.ended()], [(1, False), (2, True)])
                for wrong in ([-1, keys[:1], [8], 8192], [1.5, keys[:1], [8], 8192], [1, keys[:2], [8], 8192], [1, [], [8], 8]):
                    with self.subTest(wrong), self.assertRaises(kvtwin.InputError):
                        store.start_get(*wrong)
            with self.assertRaisesRegex(kvtwin.InputError, "closed"):
                store.start_get(3, keys[:1], places(back)[:1], 8192)
            self.assertEqual(store.ended(), [])

    def test_a_started_get_ends_while_python_is_busy(self):
        keys, memory = [bytes([7]) * 32], np.ones(8192, np.uint8)
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        with self.store() as store:
            store.put_pages(keys, [memory])
            memory[:] = 0
            sys.setswitchinterval(1000)  # no other thread of Python runs from here on
            store.start_get(1, keys, [memory.ctypes.data], 8192)
            limit = time.monotonic() + 120
            while not (ended := store.ended()):
                self.assertLess(time.monotonic(), limit, "the get waits for Python")
            self.assertEqual((ended[0].statuses.tolist(), memory.sum()), ([0], 8192))

    def test_a_close_fails_what_has_not_begun(self):
        keys = np.random.default_rng(5).integers(0, 256, (64, 32), np.uint8)
        memory = np.zeros((64, 8192), np.uint8)
        for round in range(20):
            store = self.store("disk", f"close-{round}")
            for job in range(64):
                store.start_put(job, keys[job : job + 1], [memory[job].ctypes.data], 8192)
            store.close()
            ended = store.ended()
            self.assertEqual([transfer.job for transfer in ended], list(range(64)))
            done = [transfer.statuses is not None for transfer in ended]
            self.assertEqual(done, sorted(done, reverse=True), "a put ran after one that failed")
            with self.store("disk", f"close-{round}") as store:
                self.assertEqual(store.look_up(keys), sum(done))

    def test_a_forked_child_may_not_use_the_store(self):
        with self.store() as store:
            store.put_pages([bytes(32)], [bytes(8192)])
            store.start_get(1, [], [], 8192)  # a thread that the child does not have
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork of a process with threads
                child = os.fork()
            if child == 0:
                try:
                    store.look_up([bytes(32)])
                except kvtwin.WorkError:
                    try:
                        store.start_get(1, [], [], 8192)
                    except kvtwin.WorkError:
                        store.close()  # does nothing
                        store.wait()
                        del store  # so does this
                        os._exit(7)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
            self.assertEqual(store.look_up([bytes(32)]), 1)

    def test_an_absent_server_is_an_exception(self):
        with self.assertRaises(kvtwin.WorkError):
            store = kvtwin.Store("remote", "redis://127.0.0.1:9", FORM, IDENTITY, timeout_s=0.2)
            with store:
                store.look_up([bytes(32)])


class Simulations(Scratch):
    def built(self, *arguments):
        """Runs the program of build/, in the source folder."""
        command = [BUILT, *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    def test_the_run_folder_is_the_programs(self):
        timed = ("wall_seconds", "requests_per_wall_second", "peak_rss_bytes")
        for world in ("simgrid", "events"):
            self.assertEqual(
                self.built("simulate", EXPERIMENT, "--set", "workload.limit=60", "--world", world, "--out", self.scratch / f"built-{world}").returncode, 0)
            made = kvtwin.simulate(ROOT / EXPERIMENT, set=FEW, world=world, out=self.scratch / world)
            reports = []
            for folder in (self.scratch / f"built-{world}", self.scratch / world):
                report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
                self.assertTrue(all(name in report for name in timed))
                reports.append(json.dumps({name: value for name, value in report.items() if name not in timed}))
            self.assertEqual(*reports)
            for name in ("requests.csv", "lanes.csv"):
                self.assertEqual((self.scratch / f"built-{world}" / name).read_bytes(), (made.folder / name).read_bytes())

    def test_the_result_is_tables_and_figures(self):
        made = kvtwin.simulate(EXPERIMENT, set=FEW)
        folder = made.folder
        self.assertEqual(len(made.requests), made.report["requests"]["total"])
        self.assertAlmostEqual(made.requests["ttft_s"].mean(), made.report["ttft_seconds"]["mean"], 6)
        self.assertEqual(made.tokens_by_tier.sum(), made.report["tokens"]["prompt"])
        self.assertIn("busy_fraction", made.lanes.columns)
        for figure in (made.draw_ttft(), made.draw_tokens(), made.draw_lanes()):
            self.assertTrue(figure.axes)
        self.assertEqual(kvtwin.load(folder).report, made.report)
        del made
        self.assertFalse(folder.exists())
        with self.assertRaisesRegex(kvtwin.InputError, "is this the folder of a finished run"):
            kvtwin.load(folder)

    def test_keys_are_an_experiment(self):
        flat = kvtwin.simulate({"workload.limit": 20, "cache.eviction": "lru", "tiers.host.gib": np.float64(2)}, world="events")
        nested = kvtwin.simulate({"workload": {"limit": 20}, "tiers": {"host.gib": 2}, "cache.eviction": "lru"}, world="events")
        self.assertEqual(flat.report["decisions"], nested.report["decisions"])
        self.assertEqual(len(flat.requests), 20)

    def test_bad_input_is_the_programs_sentence(self):
        for sets in ({"tiers.hst.gib": 64}, {"workload.limit": "many"}, {"cache.eviction": "best"}):
            (name, value), = sets.items()
            text = json.dumps(value)
            said = self.built("simulate", EXPERIMENT, "--set", f"{name}={text}")
            with self.assertRaises(kvtwin.InputError) as refused:
                kvtwin.simulate(EXPERIMENT, set=sets)
            self.assertEqual(f"kvtwin: {refused.exception}\n", said.stderr)
        with self.assertRaisesRegex(kvtwin.InputError, "nope.toml: can't be read"):
            kvtwin.simulate("nope.toml")
        with self.assertRaisesRegex(kvtwin.InputError, "no value of a key"):
            kvtwin.simulate(EXPERIMENT, set={"workload.limit": [1]})

    def test_notes_are_warnings(self):
        with self.assertWarns(kvtwin.Note):
            kvtwin.simulate(EXPERIMENT, set=FEW, sglang_flags="--page-size 32 --max-running-requests 5 --log-level info")

    def fake(self, text):
        path = self.scratch / "fake"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return mock.patch.object(program, "path", lambda: path)

    def test_a_crash_of_the_child_is_an_exception(self):
        with self.fake("kill -SEGV $$"), self.assertRaisesRegex(kvtwin.WorkError, "ended by SIGSEGV"):
            kvtwin.simulate(EXPERIMENT)
        with self.fake("echo 'kvtwin: the disk is full' >&2; exit 1"), self.assertRaisesRegex(kvtwin.WorkError, "^the disk is full$"):
            kvtwin.simulate(EXPERIMENT)
        with mock.patch.object(program, "path", lambda: self.scratch), self.assertRaisesRegex(kvtwin.WorkError, "can't start"):
            kvtwin.simulate(EXPERIMENT)

    def test_an_interrupt_ends_the_child(self):
        # The child interrupts this process, and would never end by itself.
        children = self.scratch / "children"
        interrupting = f"tail -f /dev/null & echo $$ $! >{children}; kill -INT {os.getpid()}; wait"
        with self.fake(interrupting), self.assertRaises(KeyboardInterrupt):
            kvtwin.simulate(EXPERIMENT)
        child, grandchild = map(int, children.read_text().split())
        with self.assertRaises(ProcessLookupError):
            os.kill(child, 0)
        with contextlib.suppress(ProcessLookupError):  # gone, or about to die of its signal
            self.assertTrue(select.select([os.pidfd_open(grandchild)], [], [], 60)[0], "the child's child lives")


VARY = {"cache.eviction": ["lru", "tide"], "tiers.host.tokens": [50_000, 100_000]}


class Sweeps(Scratch):
    def test_a_sweep_is_the_programs(self):
        swept = kvtwin.sweep(EXPERIMENT, VARY, set=FEW, out=self.scratch / "swept")
        self.assertEqual(swept.rows["cache.eviction"].tolist(), ["lru", "lru", "tide", "tide"])
        self.assertTrue((swept.rows["completed"] == 60).all())
        words = ["--vary", "cache.eviction=lru,tide", "--vary", "tiers.host.tokens=50000,100000", "--set", "workload.limit=60"]
        subprocess.run([program.path(), "compare", "--cells", ROOT / EXPERIMENT, *words, "--out", self.scratch / "again"], check=True, capture_output=True)
        for name in ("sweep.csv", "sweep.jsonl"):
            self.assertEqual((swept.folder / name).read_bytes(), (self.scratch / "again" / name).read_bytes())
        with self.assertRaisesRegex(kvtwin.InputError, "give a list"):
            kvtwin.sweep(EXPERIMENT, {"cache.eviction": "lru"})
        with self.assertRaisesRegex(kvtwin.InputError, "has a comma"):
            kvtwin.sweep(EXPERIMENT, {"cache.eviction": ["lru,tide"]})
        policies = ["slru", "tlru(threshold=4096, next_prompt=200)"]
        swept = kvtwin.sweep(EXPERIMENT, {"cache.eviction": policies}, set=FEW)
        self.assertEqual(swept.rows["cache.eviction"].tolist(), policies)
        with self.assertRaisesRegex(kvtwin.InputError, "nothing varies|varies nothing|vary"):
            kvtwin.sweep(EXPERIMENT)

    def test_a_comparison_has_intervals(self):
        generated = {"workload.trace": "", **FEW}
        compared = kvtwin.compare(EXPERIMENT, {"cache.eviction": ["lru", "tide"]}, set=generated, seeds=2)
        self.assertEqual(compared.rows["cache.eviction"].tolist(), ["lru", "tide"])
        self.assertTrue((compared.rows["ttft_mean_s_ci95"] >= 0).all())
        self.assertTrue(compared.draw().axes)


class PolicyLibraries(Scratch):
    def test_the_example_is_built_against_the_wheel(self):
        prefix = kvtwin.cmake_prefix()
        project = self.scratch / "policy"
        shutil.copytree(prefix / "examples/policy", project)
        for arguments in (["-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}"],
                          ["--build", project / "build", "--target", "check"]):
            ran = subprocess.run(["cmake", *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        library = project / "build/role_age.so"
        self.assertEqual(policy.Policy(f"{library}(system=3)", 10).match(b"")[1], 0)
        with self.assertRaisesRegex(kvtwin.InputError, "system is 0; it must be at least 1"):
            policy.Policy(f"{library}(system=0)", 10)
        rows = kvtwin.hitrate(TRACE, 3000, ["lru", str(library)], limit=500)
        self.assertEqual(len(rows), 2)


class Traces(Scratch):
    def test_a_frame_has_the_requests(self):
        frame = kvtwin.traces.frame(TRACE, limit=500, blocks=True)
        info = kvtwin.traces.info(TRACE, limit=500)
        self.assertEqual(len(frame), info["requests"])
        self.assertEqual(frame["prompt_tokens"].sum(), info["input"]["total"])
        self.assertEqual(frame["output_tokens"].sum(), info["output"]["total"])
        self.assertEqual(sum(map(len, frame["blocks"])), info["blocks"])
        self.assertEqual(len(set(np.concatenate(frame["blocks"].to_numpy()).tolist())), info["unique_blocks"])
        self.assertAlmostEqual(frame["arrival_s"].max(), info["last_ns"] / 1e9)
        parts = list(kvtwin.traces.iterate(TRACE, rows=200, limit=500, blocks=True))
        self.assertEqual([len(part) for part in parts], [200, 200, 100])
        self.assertEqual(parts[1].index[0], 200)
        self.assertEqual(parts[2]["blocks"].iloc[-1].tolist(), frame["blocks"].iloc[-1].tolist())

    def test_generate_and_convert(self):
        first = kvtwin.traces.generate(self.scratch / "a.jsonl", requests=50, seed=3)
        second = kvtwin.traces.convert(first, self.scratch / "b.jsonl.zst", limit=40)
        self.assertTrue(kvtwin.traces.frame(first).head(40).equals(kvtwin.traces.frame(second)))
        with self.assertRaisesRegex(kvtwin.InputError, "exists; give another name"):
            kvtwin.traces.generate(first)
        with self.assertRaisesRegex(kvtwin.WorkError, "no/such"):
            kvtwin.traces.generate(self.scratch / "no/such/a.jsonl", requests=5)

    def test_bad_traces_are_refused(self):
        path = self.scratch / "bad.jsonl"
        path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 1}\n')
        with self.assertRaisesRegex(kvtwin.InputError, re.escape(str(path)) + ".*2"):
            kvtwin.traces.frame(path)
        with self.assertRaisesRegex(kvtwin.InputError, "the formats are auto"):
            kvtwin.traces.frame(path, format="parquet")
        with self.assertRaisesRegex(kvtwin.InputError, "cannot be opened"):
            kvtwin.traces.frame("nope")

    def test_hit_rates(self):
        rates = kvtwin.hitrate(TRACE, [1000, 3000], ["lru", "opt"], limit=300)
        self.assertEqual(rates["eviction"].tolist(), ["lru", "lru", "opt", "opt"])
        best = rates[rates["eviction"] == "opt"]["hit_blocks"].to_numpy()
        self.assertTrue((best >= rates[rates["eviction"] == "lru"]["hit_blocks"].to_numpy()).all())
        both = kvtwin.hitrate(TRACE, 1000, limit=300, host_capacity=2000, write_policy="write_back")
        self.assertEqual(both["write_policy"].tolist(), ["write_back"])
        with self.assertRaisesRegex(kvtwin.InputError, "--foo"):
            kvtwin.hitrate(TRACE, 1000, foo=1)


class Documentation(Scratch):
    def test_the_first_lines_run(self):
        text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        code = re.search(r"## The first lines\n\n```python\n(.*?)```", text, re.DOTALL)[1]
        names = {}
        exec(compile(code, "python.md", "exec"), names)
        self.assertEqual(len(names["result"].requests), 500)
        self.assertEqual(len(names["swept"].rows), 4)

    def test_the_notebook_prints_its_outputs(self):
        command = [sys.executable, ROOT / "tools/notebooks", "--check", "--python", sys.executable, "python_package"]
        run = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
    unittest.main()
