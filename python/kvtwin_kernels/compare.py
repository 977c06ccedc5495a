"""Compares kvtwin_kernels with the transfer kernels of SGLang and vLLM, in your environment, on your GPU.

Every function moves the same pages of the same pools, one after another, on one stream of torch. The bytes of each are
compared with those of the CPU before a time is taken. GB/s: bytes of the moved pages (10^9) over the time between two
events of the stream, all layers, the median of --repeats. Run it with the Python of the engine.

The functions of an engine are called as its own code calls them: SGLang moves one layer per call to the GPU, and all
layers in one call from it; vLLM moves a list of pieces. `launches` is the number of calls.

Exit codes: 0 all bytes are equal, 1 some differ or a function failed, 2 bad arguments, no GPU, or an engine is missing.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

import kvtwin_kernels as kernels

PROGRAM = "kvtwin_kernels.compare"


class NotHere(Exception):
    """An engine is not installed. One sentence."""


class Work:
    """Two pools and pages to move between them, in one layout and direction."""

    def __init__(self, torch: Any, gpu: str, options: argparse.Namespace, layout: str, to_device: bool) -> None:
        self.torch, self.layout, self.to_device = torch, layout, to_device
        self.layers, self.heads, self.head_dim, self.page_tokens = options.layers, options.heads, options.head_dim, options.page_tokens
        self.pool_pages, self.pages = options.pool_pages, options.pages
        tokens = self.pool_pages * self.page_tokens
        shape = {
            "layer_first": (2, self.layers, tokens, self.heads, self.head_dim),
            "page_first": (2, tokens, self.layers, self.heads, self.head_dim),
            "page_first_direct": (2, self.pool_pages, self.layers, self.page_tokens, self.heads, self.head_dim),
            "page_head": (2, self.pool_pages, self.heads, self.page_tokens, self.layers, self.head_dim),
        }[layout]
        dtype = getattr(torch, options.dtype)
        device_shape = (2, self.layers, tokens, self.heads, self.head_dim)
        random = torch.Generator().manual_seed(options.seed)
        pinned = gpu != "cpu"

        def filled(shape: tuple[int, ...]) -> Any:
            item = dtype.itemsize
            values = torch.randint(0, 256, (*shape[:-1], shape[-1] * item), dtype=torch.uint8, generator=random)
            return values.view(dtype)

        first_device, first_host = filled(device_shape), filled(shape)
        self.source_pages = torch.randperm(self.pool_pages, generator=random)[: self.pages]
        self.target_pages = torch.randperm(self.pool_pages, generator=random)[: self.pages]
        self.device = first_device.to(gpu, copy=True)
        self.host = torch.empty(shape, dtype=dtype, pin_memory=pinned)
        self.host.copy_(first_host)
        target, first = (self.device, first_device) if to_device else (self.host, first_host)
        self.reset: Callable[[], Any] = lambda: target.copy_(first)
        expected = (first_device.clone(), first_host.clone())
        kernels.transfer(*expected, self.source_pages, self.target_pages, layout=layout, page_tokens=self.page_tokens, to_device=to_device)
        self.target, self.expected = target, expected[0] if to_device else expected[1]
        self.source_pages_gpu, self.target_pages_gpu = self.source_pages.to(gpu), self.target_pages.to(gpu)
        offsets = torch.arange(self.page_tokens)
        self.source_tokens = (self.source_pages[:, None] * self.page_tokens + offsets).flatten()
        self.target_tokens = (self.target_pages[:, None] * self.page_tokens + offsets).flatten()
        self.source_tokens_gpu, self.target_tokens_gpu = self.source_tokens.to(gpu), self.target_tokens.to(gpu)
        self.row_bytes = self.heads * self.head_dim * dtype.itemsize
        self.bytes = 2 * self.layers * self.pages * self.page_tokens * self.row_bytes

    def pointers(self, blocks: Any) -> Any:
        return self.torch.tensor([block.data_ptr() for block in blocks], dtype=self.torch.uint64, device=self.device.device)

    def right(self) -> bool:
        as_bytes = self.torch.uint8
        return bool(self.torch.equal(self.target.cpu().view(as_bytes), self.expected.view(as_bytes)))


class Mover(NamedTuple):
    name: str
    launches: int
    move: Callable[[], None]


# ---- kvtwin ----------------------------------------------------------------------------------------------------------


def kvtwin_movers(work: Work, stream: Any) -> Iterator[Mover]:
    common = {"layout": work.layout, "page_tokens": work.page_tokens, "to_device": work.to_device, "stream": stream}

    def mover(path: str, ctas: int) -> Mover:
        on_cpu = path in ("copies", "boxes")
        indices = (work.source_pages, work.target_pages) if on_cpu else (work.source_pages_gpu, work.target_pages_gpu)
        name = path if on_cpu else f"{path}, {ctas} CTAs"
        launches = work.layers if path == "warp_per_row" else 1
        return Mover(f"kvtwin {name}", launches, lambda: kernels.transfer(work.device, work.host, *indices, path=path, ctas=ctas, **common))

    for path in ("registers", "ring"):
        for ctas in (4, 16):
            yield mover(path, ctas)
    yield mover("copies", 1)
    yield mover("boxes", 1)


# ---- SGLang ----------------------------------------------------------------------------------------------------------


def sglang_movers() -> Callable[[Work], Iterator[Mover]]:
    """The operators of sgl_kernel.kvcacheio that HiCache calls for MHA (mem_cache/pool_host/mha.py of SGLang 0.5.23)."""
    try:
        from sgl_kernel import kvcacheio
    except ImportError as error:
        raise NotHere(f"sglang: sgl_kernel.kvcacheio cannot be imported ({error}); run this with the Python of SGLang") from error
    return lambda work: _sglang_movers(kvcacheio, work)


def _sglang_movers(io: Any, work: Work) -> Iterator[Mover]:
    (device_k, device_v), (host_k, host_v) = work.device, work.host
    layers, row, layout_bytes = range(work.layers), work.row_bytes, work.row_bytes * work.layers
    on_gpu = {"src_indices": work.source_tokens_gpu, "dst_indices": work.target_tokens_gpu}
    on_cpu = {"src_indices": work.source_tokens, "dst_indices": work.target_tokens}
    page, heads = {"page_size": work.page_tokens}, {"page_size": work.page_tokens, "head_num": work.heads}

    def each_layer(move: Callable[[int], None]) -> Callable[[], None]:
        def all_layers() -> None:
            for layer in layers:
                move(layer)

        return all_layers

    def per_layer(name: str, move: Callable[[int], None]) -> Mover:
        return Mover(f"sglang {name}", work.layers, each_layer(move))

    def to_layer(layer: int) -> dict[str, Any]:
        return {"dst_k": device_k[layer], "dst_v": device_v[layer], "item_size": row}

    if work.to_device and work.layout == "layer_first":
        yield per_layer(
            "transfer_kv_per_layer",
            lambda layer: io.transfer_kv_per_layer(src_k=host_k[layer], src_v=host_v[layer], **to_layer(layer), **on_gpu),
        )
        yield per_layer(
            "transfer_kv_direct",
            lambda layer: io.transfer_kv_direct(src_layers=[host_k[layer], host_v[layer]], dst_layers=[device_k[layer], device_v[layer]], **on_cpu, **page),
        )
    elif work.to_device and work.layout == "page_first":
        yield per_layer(
            "transfer_kv_per_layer_pf_lf",
            lambda layer: io.transfer_kv_per_layer_pf_lf(src_k=host_k, src_v=host_v, layer_id=layer, src_layout_dim=layout_bytes, **to_layer(layer), **on_gpu),
        )
    elif work.to_device and work.layout == "page_head":
        yield per_layer(
            "transfer_kv_per_layer_ph_lf",
            lambda layer: io.transfer_kv_per_layer_ph_lf(
                src_k=host_k, src_v=host_v, layer_id=layer, src_layout_dim=layout_bytes, **to_layer(layer), **on_gpu, **heads
            ),
        )
    elif work.to_device:
        yield per_layer(
            "transfer_kv_per_layer_direct_pf_lf",
            lambda layer: io.transfer_kv_per_layer_direct_pf_lf(
                src_ptrs=[host_k, host_v], dst_ptrs=[device_k[layer], device_v[layer]], layer_id=layer, **on_cpu, **page
            ),
        )
    else:
        device_layers = [*device_k, *device_v]
        from_layers = {"src_k_layers": work.pointers(device_k), "src_v_layers": work.pointers(device_v), "item_size": row, "num_layers": work.layers}
        if work.layout == "layer_first":
            to_layers = {"dst_k_layers": work.pointers(host_k), "dst_v_layers": work.pointers(host_v)}
            yield Mover("sglang transfer_kv_all_layer", 1, lambda: io.transfer_kv_all_layer(**from_layers, **to_layers, **on_gpu))
            host_layers = [*host_k, *host_v]
            yield Mover("sglang transfer_kv_direct", 1, lambda: io.transfer_kv_direct(src_layers=device_layers, dst_layers=host_layers, **on_cpu, **page))
        elif work.layout == "page_first":
            to_host = {"dst_k": host_k, "dst_v": host_v, "dst_layout_dim": layout_bytes}
            yield Mover("sglang transfer_kv_all_layer_lf_pf", 1, lambda: io.transfer_kv_all_layer_lf_pf(**from_layers, **to_host, **on_gpu))
        elif work.layout == "page_head":
            to_host = {"dst_k": host_k, "dst_v": host_v, "dst_layout_dim": layout_bytes}
            yield Mover("sglang transfer_kv_all_layer_lf_ph", 1, lambda: io.transfer_kv_all_layer_lf_ph(**from_layers, **to_host, **on_gpu, **heads))
        else:
            yield Mover(
                "sglang transfer_kv_all_layer_direct_lf_pf",
                1,
                lambda: io.transfer_kv_all_layer_direct_lf_pf(src_ptrs=device_layers, dst_ptrs=[host_k, host_v], **on_cpu, **page),
            )


# ---- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_movers() -> Callable[[Work], Iterator[Mover]]:
    """vllm._custom_ops.swap_blocks_batch and swap_blocks, which KV offloading calls (vLLM 0.33.0)."""
    try:
        from vllm import _custom_ops
    except ImportError as error:
        raise NotHere(f"vllm: vllm._custom_ops cannot be imported ({error}); run this with the Python of vLLM") from error
    return lambda work: _vllm_movers(_custom_ops, work)


def _vllm_movers(ops: Any, work: Work) -> Iterator[Mover]:
    # vLLM's pools have a page of a layer in one piece, as these two layouts have it.
    if work.layout not in ("layer_first", "page_first_direct"):
        return
    torch, piece = work.torch, work.page_tokens * work.row_bytes
    planes, layers, pages = torch.arange(2)[:, None, None], torch.arange(work.layers)[:, None], work.pool_pages

    def on_device(index: Any) -> Any:
        return work.device.data_ptr() + ((planes * work.layers + layers) * pages + index) * piece

    def on_host(index: Any) -> Any:
        number = (planes * work.layers + layers) * pages + index if work.layout == "layer_first" else (planes * pages + index) * work.layers + layers
        return work.host.data_ptr() + number * piece

    source, target = (on_host, on_device) if work.to_device else (on_device, on_host)
    sources, targets = source(work.source_pages).flatten().contiguous(), target(work.target_pages).flatten().contiguous()
    sizes = torch.full_like(sources, piece)
    yield Mover("vllm swap_blocks_batch", 1, lambda: ops.swap_blocks_batch(sources, targets, sizes, is_src_access_order_any=work.to_device))
    if work.layout == "layer_first":
        mapping = torch.stack([work.source_pages, work.target_pages], dim=1).contiguous()
        blocks = [(device, host) for device, host in zip(work.device.flatten(0, 1), work.host.flatten(0, 1), strict=True)]

        def swap() -> None:
            for device, host in blocks:
                ops.swap_blocks(host if work.to_device else device, device if work.to_device else host, piece, mapping)

        yield Mover("vllm swap_blocks", len(blocks), swap)


ENGINES = {"sglang": sglang_movers, "vllm": vllm_movers}


# ---- the program -----------------------------------------------------------------------------------------------------


def fail(sentence: str) -> NoReturn:
    print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def arguments_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", action="append", choices=sorted(ENGINES), help="an engine; may be given twice (default: those installed)")
    parser.add_argument("--layouts", default=",".join(kernels.LAYOUTS), help="layouts of the host pool, with commas (default: all)")
    sizes = {
        "layers": (32, "layers"),
        "heads": (8, "KV heads"),
        "head-dim": (128, "elements of a head"),
        "page-tokens": (64, "tokens of a page"),
        "pages": (64, "pages to move"),
        "pool-pages": (256, "pages of each pool"),
        "repeats": (20, "timed repetitions"),
    }
    for name, (default, help_text) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help_text} (default: {default})")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "uint8"], help="of the pools (default: bfloat16)")
    parser.add_argument("--seed", type=int, default=1, help="of the bytes and the pages (default: 1)")
    parser.add_argument("--json", action="store_true", help="a JSON object per line in place of the table")
    options = parser.parse_args(arguments)
    for name in sizes:
        if getattr(options, name.replace("-", "_")) < 1:
            fail(f"--{name} is {getattr(options, name.replace('-', '_'))}; give a whole number from 1")
    options.layouts = options.layouts.split(",")
    for layout in options.layouts:
        if layout not in kernels.LAYOUTS:
            fail(f"--layouts names {layout!r}; give some of {', '.join(kernels.LAYOUTS)}")
    if options.pages > options.pool_pages:
        fail(f"--pages is {options.pages}, more than --pool-pages {options.pool_pages}; give at most these")
    return options


def measure(torch: Any, mover: Mover, work: Work, stream: Any, repeats: int) -> dict[str, Any]:
    """Returns a row: whether the bytes are right and, if so, the speed; or why the function failed."""
    row: dict[str, Any] = {
        "layout": work.layout,
        "direction": "to GPU" if work.to_device else "from GPU",
        "function": mover.name,
        "launches": mover.launches,
        "bytes": work.bytes,
    }
    work.reset()
    torch.cuda.synchronize()
    try:
        mover.move()
        torch.cuda.synchronize()
    except kernels.InputError as error:  # this path does not fit, for example `ring` on an older GPU
        return row | {"not_run": str(error)}
    except Exception as error:
        return row | {"equal": False, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    row["equal"] = work.right()
    if not row["equal"]:
        return row
    seconds = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        mover.move()
        end.record(stream)
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return row | {"gbps": work.bytes / statistics.median(seconds) / 1e9}


def text_of(row: dict[str, Any]) -> str:
    speed = f"{row['gbps']:9.2f}" if "gbps" in row else f"{'-':>9}"
    state = row.get("not_run") or row.get("error") or ("equal" if row["equal"] else "DIFFERENT BYTES")
    return f"{row['layout']:18} {row['direction']:9} {row['function']:42} {row['launches']:8} {speed}  {state}"


def main(arguments: list[str] | None = None) -> NoReturn:
    options = arguments_of(arguments)
    try:
        import torch
    except ImportError:
        fail("torch is not installed; run it with the Python of SGLang or vLLM on a machine with a GPU")
    if not torch.cuda.is_available():
        fail("torch finds no GPU; run it on a machine with an NVIDIA GPU")
    if not kernels.built_with_cuda():
        fail("this kvtwin_kernels was built without CUDA; build it with cmake.define.KVTWIN_CUDA=ON (docs/kernels.md)")
    engines = []
    for name in options.against or sorted(ENGINES):
        try:
            engines.append(ENGINES[name]())
        except NotHere as error:
            if options.against:
                fail(str(error))
            print(f"{PROGRAM}: {error}: not compared", file=sys.stderr)
    if not options.json:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
        print(f"{'layout':18} {'direction':9} {'function':42} {'launches':>8} {'GB/s':>9}  bytes")
    failed = False
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for layout in options.layouts:
            for to_device in (True, False):
                work = Work(torch, "cuda", options, layout, to_device)
                movers = [*kvtwin_movers(work, stream), *(mover for engine in engines for mover in engine(work))]
                for mover in movers:
                    row = measure(torch, mover, work, stream, options.repeats)
                    failed |= row.get("equal") is False
                    print(json.dumps(row) if options.json else text_of(row), flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
