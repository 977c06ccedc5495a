"""Tests kvtwin_kernels on CPU memory against slow models. Run by tools/python-package.

    kernels_test.py [--torch] [unittest arguments]   --torch: the arrays are torch tensors in place of numpy's
"""

import ast
import ctypes
import importlib.util
import io
import itertools
import sys
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import kvtwin
import kvtwin_kernels as kernels
import numpy as np
from kvtwin_kernels import compare

TORCH = "--torch" in sys.argv
if TORCH:
    sys.argv.remove("--torch")
    import torch

WORD = 2**64 - 1


def array_of(values):
    """The array that a test gives: the same memory as `values`."""
    return torch.from_numpy(values) if TORCH else values


def row(pool, layout, page_tokens, page, plane, layer, token, head):
    """The row of one head, by the definition of the layouts."""
    if layout == "layer_first":
        return pool[plane, layer, page * page_tokens + token, head]
    if layout == "page_first":
        return pool[plane, page * page_tokens + token, layer, head]
    if layout == "page_first_direct":
        return pool[plane, page, layer, token, head]
    return pool[plane, page, head, token, layer]


class Case:
    """Two pools of random bytes, and pairs of pages of which some are padding."""

    def __init__(self, seed, layout):
        random = np.random.default_rng(seed)
        self.random, self.layout = random, layout
        self.planes, self.layers, self.heads = random.integers(1, 3), random.integers(1, 5), random.choice([1, 2, 3, 8])
        self.page_tokens = int(random.choice([1, 2, 5, 16]))
        self.dtype = np.dtype(random.choice(["u1", "f2", "f4"]))
        self.head_dim = random.choice([1, 3, 8, 24, 64])
        self.device_pages, self.host_pages = random.integers(1, 7, 2)
        self.device = self.pool("layer_first", self.device_pages)
        self.host = self.pool(layout, self.host_pages)
        self.count = int(random.integers(0, 7))
        self.index_type = random.choice([np.int32, np.int64])
        begin, end = sorted(random.integers(0, self.layers + 1, 2))
        self.range = (int(begin), int(end)) if seed % 3 else None

    def pool(self, layout, pages):
        tokens = pages * self.page_tokens
        shape = {
            "layer_first": (self.planes, self.layers, tokens, self.heads, self.head_dim),
            "page_first": (self.planes, tokens, self.layers, self.heads, self.head_dim),
            "page_first_direct": (self.planes, pages, self.layers, self.page_tokens, self.heads, self.head_dim),
            "page_head": (self.planes, pages, self.heads, self.page_tokens, self.layers, self.head_dim),
        }[layout]
        size = int(np.prod(shape)) * self.dtype.itemsize
        return np.frombuffer(self.random.bytes(size), self.dtype).reshape(shape).copy()

    def pairs(self, sources, targets):
        """Distinct targets, and sources that may repeat; a third of the pairs has a -1 on one side or on both."""
        count = min(self.count, targets)
        pairs = np.stack([self.random.integers(0, sources, count), self.random.permutation(targets)[:count]])
        for side in (0, 1):
            pairs[side][self.random.random(count) < 0.2] = -1
        return [np.ascontiguousarray(side).astype(self.index_type) for side in pairs]

    def rows(self):
        begin, end = self.range or (0, self.layers)
        return itertools.product(range(self.planes), range(begin, end), range(self.page_tokens), range(self.heads))

    def model(self, sources, targets, to_device):
        """The pools after the transfer, copied row by row."""
        device, host = self.device.copy(), self.host.copy()
        for source, target in zip(sources, targets, strict=True):
            if source == -1 or target == -1:
                continue
            for at in self.rows():
                if to_device:
                    row(device, "layer_first", self.page_tokens, target, *at)[:] = row(host, self.layout, self.page_tokens, source, *at)
                else:
                    row(host, self.layout, self.page_tokens, target, *at)[:] = row(device, "layer_first", self.page_tokens, source, *at)
        return device.tobytes(), host.tobytes()

    def block(self, pool, layout, page, plane, layer):
        """The bytes of a page in one plane and layer, [page_tokens, heads, head_dim]."""
        at = itertools.product(range(self.page_tokens), range(self.heads))
        return b"".join(row(pool, layout, self.page_tokens, page, plane, layer, token, head).tobytes() for token, head in at)

    def blocks(self):
        begin, end = self.range or (0, self.layers)
        return itertools.product(range(self.planes), range(begin, end))


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def pattern(key, layer, plane, size):
    """The bytes of a block, by kernels/page_pattern.hpp."""
    key = [int(word) for word in key]
    block = layer << 32 | plane
    seed = mix(mix(key[0] ^ mix(key[1] + 1 & WORD)) ^ mix(key[2] ^ mix(key[3] + 2 & WORD)) ^ mix(block + 3))
    found = bytearray()
    for index in range((size + 3) // 4):
        x = (seed + index * 0x9E3779B9) & 0xFFFFFFFF
        x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        found += (x ^ (seed >> 32)).to_bytes(4, "little")
    return bytes(found[:size])


def checksum(case, pool, layout, page):
    """By kernels/page_checksum.hpp."""
    total = 0
    for plane, layer in case.blocks():
        block = case.block(pool, layout, page, plane, layer)
        for word in range((len(block) + 3) // 4):
            weight = mix(((plane << 24 | layer) << 32 | word) + 1) | 1
            total += int.from_bytes(block[4 * word : 4 * word + 4], "little") * weight
    return total & WORD


def cases(seeds):
    for seed, layout in itertools.product(range(seeds), kernels.LAYOUTS):
        yield seed, Case(1000 * seed + kernels.LAYOUTS.index(layout), layout)


class Transfers(unittest.TestCase):
    def move(self, case, call, to_device, **options):
        """Makes a transfer, and compares both pools with the model."""
        ends = (case.host_pages, case.device_pages) if to_device else (case.device_pages, case.host_pages)
        sources, targets = case.pairs(*ends)
        expected = case.model(sources, targets, to_device)
        device, host = case.device.copy(), case.host.copy()
        call(
            array_of(device), array_of(host), array_of(sources), array_of(targets),
            layout=case.layout, page_tokens=case.page_tokens, to_device=to_device, layers=case.range, **options,
        )  # fmt: skip
        self.assertEqual((device.tobytes(), host.tobytes()), expected)
        return len(sources)

    def test_every_layout_path_and_direction_copies_the_bytes_of_the_model(self):
        moved = dict.fromkeys(kernels.PATHS, 0)
        for seed, case in cases(12):
            for to_device, path in itertools.product((True, False), kernels.PATHS):
                with self.subTest(seed=seed, layout=case.layout, path=path, to_device=to_device):
                    try:
                        moved[path] += self.move(case, kernels.transfer, to_device, path=path)
                    except kernels.InputError as error:
                        self.assertEqual(path, "ring")
                        self.assertRegex(str(error), "moves multiples of 16 bytes")
        self.assertGreater(min(moved.values()), 30)

    def test_relayout_copies_the_bytes_of_the_model(self):
        for seed, case in cases(8):
            for to_device in (True, False):
                with self.subTest(seed=seed, layout=case.layout, to_device=to_device):
                    self.move(case, kernels.relayout, to_device)

    def test_a_pool_of_one_array_per_layer(self):
        for seed, case in cases(6):
            for to_device in (True, False):
                blocks = [[layer.copy() for layer in plane] for plane in case.device]
                pool = kernels.LayerPool([[array_of(layer) for layer in plane] for plane in blocks])

                def move(device, *arguments, blocks=blocks, pool=pool, **options):
                    kernels.transfer(pool, *arguments, **options)
                    device[:] = array_of(np.stack([np.stack(plane) for plane in blocks]))

                with self.subTest(seed=seed, layout=case.layout, to_device=to_device):
                    self.move(case, move, to_device)

    def test_checksums_are_those_of_the_moved_pages(self):
        for seed, case in cases(4):
            with self.subTest(seed=seed, layout=case.layout):
                sources, targets = case.pairs(case.device_pages, case.host_pages)
                expected = [
                    0 if -1 in pair else checksum(case, case.device, "layer_first", pair[0])
                    for pair in zip(sources, targets, strict=True)
                ]
                model = case.model(sources, targets, False)
                sums = np.full(len(sources), 7, np.int64)
                common = {"layout": case.layout, "page_tokens": case.page_tokens, "layers": case.range}
                kernels.gather_checksum(array_of(case.device), array_of(case.host), array_of(sources), array_of(targets), array_of(sums), **common)
                self.assertEqual(list(sums.view(np.uint64)), expected)
                self.assertEqual(case.host.tobytes(), model[1])
                landed = np.where(sources == -1, -1, targets)
                self.assertEqual(list(kernels.page_checksums(array_of(case.host), array_of(landed), **common)), expected)

    def test_patterns_are_those_of_the_model_and_wrong_bytes_are_found(self):
        for seed, case in cases(4):
            with self.subTest(seed=seed, layout=case.layout):
                pages = case.random.permutation(case.host_pages)[: max(1, case.count)].astype(case.index_type)
                keys = case.random.integers(0, WORD, (len(pages), 4), np.uint64, endpoint=True).view(np.int64)
                before, arguments = case.host.copy(), (array_of(case.host), array_of(pages), array_of(keys))
                common = {"layout": case.layout, "page_tokens": case.page_tokens, "layers": case.range}
                kernels.fill_pattern(*arguments, **common)
                self.assertEqual(kernels.check_pattern(*arguments, **common), (0, None))
                for index, page in enumerate(pages):
                    for plane, layer in itertools.product(range(case.planes), range(case.layers)):
                        block = case.block(case.host, case.layout, page, plane, layer)
                        if (plane, layer) in set(case.blocks()):
                            self.assertEqual(block, pattern(keys.view(np.uint64)[index], layer, plane, len(block)))
                        else:
                            self.assertEqual(block, case.block(before, case.layout, page, plane, layer))
                for plane, layer in case.blocks():
                    index, token, head = len(pages) - 1, case.page_tokens - 1, case.heads - 1
                    wrong = row(case.host, case.layout, case.page_tokens, pages[index], plane, layer, token, head)
                    wrong.view(np.uint8)[0] ^= 1
                    offset = (token * case.heads + head) * wrong.nbytes
                    self.assertEqual(kernels.check_pattern(*arguments, **common), (1, (index, plane, layer, offset)))
                    wrong.view(np.uint8)[0] ^= 1


class GpuArray:
    """An array in the memory of a GPU, for code that does not read it."""

    def __init__(self, shape, typestr="<f2", strides=None):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": strides, "version": 3}


class Refusals(unittest.TestCase):
    def setUp(self):
        self.arguments = {
            "device_pool": np.zeros((2, 3, 8, 2, 4), np.float16),
            "host_pool": np.zeros((2, 12, 3, 2, 4), np.float16),
            "source_pages": np.array([0, 2, -1]),
            "target_pages": np.array([1, 0, -1]),
            "layout": "page_first",
            "page_tokens": 4,
            "to_device": True,
        }

    def refused(self, sentence, call=kernels.transfer, **changes):
        arguments = {**self.arguments, **changes}
        for name in ("device_pool", "host_pool", "source_pages", "target_pages"):
            if name in arguments and isinstance(arguments[name], np.ndarray) and arguments[name].flags.writeable:
                arguments[name] = array_of(arguments[name])
        with self.assertRaises(kvtwin.InputError) as caught:
            call(**arguments)
        text = str(caught.exception)
        self.assertRegex(text, sentence)
        self.assertNotIn("\n", text)

    def test_each_bad_argument_is_one_sentence_and_nothing_is_moved(self):
        pools, sources = self.arguments, np.array([0, 2, -1])
        read_only = np.zeros((2, 3, 8, 2, 4), np.float16)
        read_only.flags.writeable = False
        for sentence, changes in [
            (r"^host_pool is a list; give a torch tensor", {"host_pool": [1, 2]}),
            (r"^host_pool has the shape \(2, 3\); page_first has the 5 axes \[planes, tokens,", {"host_pool": np.zeros((2, 3))}),
            (r"^host_pool is not contiguous", {"host_pool": np.zeros((2, 24, 3, 2, 4), np.float16)[:, ::2]}),
            (r"^host_pool has the shape \(2, 0, 3, 2, 4\); no axis may be 0", {"host_pool": np.zeros((2, 0, 3, 2, 4), np.float16)}),
            (r"^device_pool is read-only memory", {"device_pool": read_only}),
            (r"^device_pool has 3 planes", {"device_pool": np.zeros((3, 3, 8, 2, 4), np.float16)}),
            (r"^device_pool has heads=2 and host_pool has 3", {"host_pool": np.zeros((2, 12, 3, 3, 4), np.float16)}),
            (r"^device_pool is float16 and host_pool is int16", {"host_pool": np.zeros((2, 12, 3, 2, 4), np.int16)}),
            (r"^device_pool has 8 tokens, which is no multiple of page_tokens 3", {"page_tokens": 3}),
            (r"^host_pool has pages of 2 tokens, and page_tokens is 4", {"layout": "page_first_direct", "host_pool": np.zeros((2, 6, 3, 2, 2, 4), np.float16)}),
            (r"^layout is 'paged'; give one of layer_first, page_first,", {"layout": "paged"}),
            (r"^path is 'kernel'; give one of registers, ring,", {"path": "kernel"}),
            (r"^page_tokens is 0; give a whole number from 1", {"page_tokens": 0}),
            (r"^ctas is 0; give a whole number from 1", {"ctas": 0}),
            (r"^layers is \(2, 4\); give \(begin, end\) with 0 <= begin <= end <= 3", {"layers": (2, 4)}),
            (r"^layers is 2; give \(begin, end\)", {"layers": 2}),
            (r"^source_pages is float64 of the shape \(3,\); give int32 or int64", {"source_pages": np.zeros(3)}),
            (r"^source_pages are 2 of int64 and target_pages 3 of int64", {"source_pages": np.array([0, 1])}),
            (r"^source_pages are 3 of int32 and target_pages 3 of int64", {"source_pages": sources.astype(np.int32)}),
            (r"^source_pages\[1\] is 3, and host_pool has 3 pages; give 0 to 2, or -1", {"source_pages": np.array([0, 3, 1])}),
            (r"^source_pages\[2\] is -2, and host_pool has 3 pages", {"source_pages": np.array([0, 2, -2])}),
            (r"^target_pages\[0\] is 2, and device_pool has 2 pages", {"target_pages": np.array([2, 0, -1])}),
            (r"^target_pages\[2\] is page 1, which occurs before", {"target_pages": np.array([1, 0, 1])}),
            (r"^stream is 5, and device_pool is CPU memory", {"stream": 5}),
            (r"^stream is 'a'; give a torch.cuda.Stream", {"stream": "a"}),
            (r"^path='ring' moves multiples of 16 bytes, and .* multiples of 8 only", {"path": "ring", "layout": "page_head", "host_pool": np.zeros((2, 3, 2, 4, 3, 4), np.float16)}),
        ]:
            with self.subTest(sentence):
                pools["device_pool"][:] = 1
                pools["host_pool"][:] = 2
                self.refused(sentence, **changes)
                self.assertTrue((pools["device_pool"] == 1).all() and (pools["host_pool"] == 2).all())

    def test_a_pool_of_layers_is_checked(self):
        good = np.zeros((8, 2, 4), np.float16)
        for sentence, blocks in [
            ("^blocks are one list of layers for K and one for V", [[]]),
            ("^the planes of blocks have 1 and 2 layers", [[good], [good, good]]),
            (r"^blocks\[1\]\[0\] has shape \(8, 2, 3\), float16, CPU memory; every array", [[good], [np.zeros((8, 2, 3), np.float16)]]),
            (r"^blocks\[0\]\[0\] is not contiguous", [[good[::2]]]),
        ]:
            with self.subTest(sentence):
                self.refused(sentence, lambda blocks=blocks, **_: kernels.LayerPool(blocks))
        pool = kernels.LayerPool([[good.copy() for _ in range(3)] for _ in range(2)])
        for path in ("copies", "boxes"):
            self.refused("^path='copies' and path='boxes' need a device pool that is one array", device_pool=pool, path=path)
        self.refused("^pool is a LayerPool and layout is 'page_first'", lambda **_: kernels.page_checksums(pool, np.array([0]), layout="page_first", page_tokens=4))

    def test_the_results_arrays_are_checked(self):
        def gather(**arguments):
            del arguments["to_device"]
            kernels.gather_checksum(**arguments)

        swapped = {"source_pages": self.arguments["target_pages"], "target_pages": self.arguments["source_pages"]}
        self.refused(r"^checksums are float64 of the shape \(3,\); give uint64 or int64", gather, checksums=np.zeros(3), **swapped)
        self.refused(r"^checksums are int64 of the shape \(2,\)", gather, checksums=np.zeros(2, np.int64), **swapped)
        self.refused(
            r"^keys are int64 of the shape \(3, 3\); give uint64 or int64 of the shape \(3, 4\)",
            lambda **_: kernels.fill_pattern(self.arguments["host_pool"], np.arange(3), np.zeros((3, 3), np.int64), layout="page_first", page_tokens=4),
        )

    @unittest.skipIf(kernels.built_with_cuda(), "this build has the kernels")
    def test_a_build_without_cuda_refuses_gpu_memory(self):
        on_gpu = GpuArray((2, 3, 8, 2, 4))
        sentence = "is memory of GPU 0, and this kvtwin_kernels was built without CUDA; build it with"
        self.refused(f"^device_pool {sentence}", device_pool=on_gpu)
        self.refused(f"^host_pool {sentence}", host_pool=GpuArray((2, 12, 3, 2, 4)))
        self.refused(f"^source_pages {sentence}", source_pages=GpuArray((3,), "<i8"))
        self.refused(rf"^blocks\[0\]\[0\] {sentence}", lambda **_: kernels.LayerPool([[GpuArray((8, 2, 4))]]))
        self.refused("^device_pool is not contiguous", device_pool=GpuArray((2, 3, 8, 2, 4), strides=(2, 4, 6, 8, 10)))


class Comparison(unittest.TestCase):
    """The script that needs a GPU, as far as it goes without one."""

    def run_main(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), self.assertRaises(SystemExit) as ended:
            compare.main(list(arguments))
        return ended.exception.code, out.getvalue(), err.getvalue()

    def test_refuses_politely_without_a_gpu(self):
        code, out, err = self.run_main()
        self.assertEqual((code, out), (2, ""))
        if importlib.util.find_spec("torch") is None:
            self.assertEqual(err, "kvtwin_kernels.compare: torch is not installed; run it with the Python of SGLang or vLLM on a machine with a GPU\n")
        else:
            self.assertEqual(err, "kvtwin_kernels.compare: torch finds no GPU; run it on a machine with an NVIDIA GPU\n")

    def test_bad_arguments_are_refused(self):
        for sentence, arguments in [
            ("--pages is 0", ["--pages", "0"]),
            ("invalid choice: 'lmcache'", ["--against", "lmcache"]),
            ("--layouts names 'paged'; give some of layer_first", ["--layouts", "page_first,paged"]),
            ("--pages is 5, more than --pool-pages 4", ["--pages", "5", "--pool-pages", "4"]),
        ]:
            code, out, err = self.run_main(*arguments)
            self.assertEqual((code, out), (2, ""))
            self.assertIn(sentence, err)

    @unittest.skipUnless(TORCH, "needs torch")
    def test_the_calls_of_engines_have_the_engines_own_names_and_arguments(self):
        """The sources of the engine that is installed name every function and argument that the script gives."""
        called = {}

        class Recorder:
            def __getattr__(self, name):
                def function(*positional, **keywords):
                    called.setdefault(name, set()).add((len(positional), *sorted(keywords)))

                return function

        options = compare.arguments_of(["--layers=3", "--heads=2", "--head-dim=4", "--page-tokens=4", "--pages=3", "--pool-pages=5"])
        installed = 0
        for package, movers, source in [
            ("sglang", compare._sglang_movers, "srt/mem_cache/pool_host/mha.py"),
            ("vllm", compare._vllm_movers, "_custom_ops.py"),
        ]:
            place = importlib.util.find_spec(package)
            if place is None:
                continue
            installed += 1
            called.clear()
            for layout, to_device in itertools.product(kernels.LAYOUTS, (True, False)):
                for mover in movers(Recorder(), compare.Work(torch, "cpu", options, layout, to_device)):
                    mover.move()
            tree = ast.parse((Path(place.origin).parent / source).read_text())
            if package == "sglang":
                own = {
                    (node.func.id, *sorted(keyword.arg for keyword in node.keywords))
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith("transfer_kv_")
                }
                ours = {(name, *call[1:]) for name, calls in called.items() for call in calls}
                of_mha = {name for name, *_ in own if "_mla" not in name and name != "transfer_kv_dim_exchange"}
                self.assertEqual({name for name, *_ in ours}, of_mha)
                self.assertLessEqual(ours, own)
            else:
                own = {node.name: [argument.arg for argument in node.args.args] for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
                self.assertEqual(set(called), {"swap_blocks", "swap_blocks_batch"})
                for name, calls in called.items():
                    for positional, *keywords in calls:
                        self.assertLessEqual(set(keywords), set(own[name][positional:]))
                        self.assertLessEqual(set(own[name][:3]), set(own[name][:positional]) | set(keywords))
        self.assertGreater(installed, 0)

    @unittest.skipUnless(TORCH, "needs torch")
    def test_pieces_for_vllm_are_those_of_the_layouts(self):
        """A stand-in of vLLM's functions that copies on the CPU gives the expected bytes."""

        class OnCpu:
            @staticmethod
            def swap_blocks_batch(sources, targets, sizes, is_src_access_order_any):
                for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
                    ctypes.memmove(target, source, size)

            @staticmethod
            def swap_blocks(source, target, block_bytes, mapping):
                for first, second in mapping.tolist():
                    ctypes.memmove(target.data_ptr() + second * block_bytes, source.data_ptr() + first * block_bytes, block_bytes)

        options = compare.arguments_of(["--layers=3", "--heads=2", "--head-dim=4", "--page-tokens=4", "--pages=3", "--pool-pages=5"])
        names = []
        for layout, to_device in itertools.product(kernels.LAYOUTS, (True, False)):
            work = compare.Work(torch, "cpu", options, layout, to_device)
            self.assertFalse(work.right())
            for mover in compare._vllm_movers(OnCpu(), work):
                mover.move()
                self.assertTrue(work.right(), (layout, to_device, mover.name))
                work.reset()
                self.assertFalse(work.right())
                names.append(mover.name)
        self.assertEqual((names.count("vllm swap_blocks_batch"), names.count("vllm swap_blocks")), (4, 2))

    def test_an_engine_that_is_not_there_is_named(self):
        with mock.patch.dict(sys.modules, {"sgl_kernel": None, "vllm": None}):
            for name, engine in compare.ENGINES.items():
                with self.assertRaisesRegex(compare.NotHere, f"^{name}: "):
                    engine()


if __name__ == "__main__":
    unittest.main()
