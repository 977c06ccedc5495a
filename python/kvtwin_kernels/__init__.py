"""The kernels of kvtwin that move and check KV pages, for torch tensors, numpy arrays and other arrays.

    import kvtwin_kernels
    kvtwin_kernels.transfer(device_pool, host_pool, source_pages, target_pages, layout="page_first", page_tokens=64,
                            to_device=True)

docs/kernels.md describes them. An array is an object with DLPack, the buffer protocol or __cuda_array_interface__.

A device pool is always layer_first: an array of the shape [planes, layers, tokens, heads, head_dim], or a LayerPool of
one array [tokens, heads, head_dim] for each plane and layer. A host pool has one of these shapes:

    layer_first         [planes, layers, tokens, heads, head_dim]
    page_first          [planes, tokens, layers, heads, head_dim]
    page_first_direct   [planes, pages, layers, page_tokens, heads, head_dim]
    page_head           [planes, pages, heads, page_tokens, layers, head_dim]

Planes: 2 for K and V (MHA, GQA), 1 for the latent of MLA. tokens = pages * page_tokens. Both pools have one dtype.

Where the device pool is GPU memory, a kernel or the copy engine of this GPU moves the pages, and a call returns when the
work is submitted to `stream`. Then a host pool is pinned memory (torch: pin_memory=True) or memory of the same GPU. Where
all arrays are CPU memory, the CPU moves the pages, and a call returns when this is done.

Ownership: the caller keeps all arrays until the work is done, and nothing else writes to the pages meanwhile.
Errors: kvtwin.InputError, before any page has moved; kvtwin.WorkError if CUDA fails. Each has one sentence.
Thread: calls release the GIL, and may run at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvtwin.errors import InputError, WorkError
from kvtwin_kernels import _kernels

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "LAYOUTS",
    "PATHS",
    "Array",
    "Faults",
    "InputError",
    "LayerPool",
    "Stream",
    "WorkError",
    "WrongByte",
    "built_with_cuda",
    "check_pattern",
    "fill_pattern",
    "gather_checksum",
    "page_checksums",
    "relayout",
    "transfer",
]

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
PATHS = ("registers", "ring", "warp_per_row", "copies", "boxes")

# The axes of each layout, outermost first.
_AXES = {
    "layer_first": ("planes", "layers", "tokens", "heads", "head_dim"),
    "page_first": ("planes", "tokens", "layers", "heads", "head_dim"),
    "page_first_direct": ("planes", "pages", "layers", "page_tokens", "heads", "head_dim"),
    "page_head": ("planes", "pages", "heads", "page_tokens", "layers", "head_dim"),
}

Array = Any  # an object with DLPack, the buffer protocol or __cuda_array_interface__; type checkers have no name for it


class TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...


Stream = int | TorchStream


def built_with_cuda() -> bool:
    """Returns whether this build has the kernels for GPUs. Without them, every array must be CPU memory."""
    return _kernels.built_with_cuda


# ---- arrays ----------------------------------------------------------------------------------------------------------


class _Memory(NamedTuple):
    owner: object  # keeps the memory
    name: str
    address: int
    shape: tuple[int, ...]
    contiguous: bool
    dtype: str
    item_bytes: int
    writable: bool
    gpu: int | None  # None: CPU memory


_KINDS = {"i": "int", "u": "uint", "f": "float", "V": "opaque", "c": "complex", "b": "bool"}


def _memory_of(array: Array, name: str) -> _Memory:
    try:
        found = _kernels.Memory(array)
    except TypeError:
        if isinstance(described := getattr(array, "__cuda_array_interface__", None), dict):
            return _cuda_memory_of(described, array, name)
        raise InputError(
            f"{name} is a {type(array).__name__}; give a torch tensor, a numpy array, or another array with DLPack, the buffer protocol or __cuda_array_interface__"
        ) from None
    if found.device not in ("cpu", "gpu"):
        raise InputError(f"{name} is on a device of DLPack's kind {found.device}; give CPU memory or memory of an NVIDIA GPU")
    gpu = found.device_number if found.device == "gpu" else None
    return _Memory(found, name, found.address, found.shape, found.contiguous, found.dtype, found.item_bytes, found.writable, gpu)


def _cuda_memory_of(described: dict[str, Any], array: Array, name: str) -> _Memory:
    shape = tuple(described["shape"])
    kind, item_bytes = described["typestr"][1], int(described["typestr"][2:])
    address, read_only = described["data"]
    packed, step = [], item_bytes
    for size in reversed(shape):
        packed.append(step)
        step *= size
    strides = described.get("strides")
    contiguous = strides is None or tuple(strides) == tuple(reversed(packed))
    dtype = f"{_KINDS.get(kind, kind)}{8 * item_bytes}"
    # The interface does not name the GPU; CUDA knows the GPU of an address, but arrays of one call are on one GPU anyway.
    device = getattr(array, "device", None)
    number = getattr(device, "index", getattr(device, "id", 0))
    return _Memory(array, name, address, shape, contiguous, dtype, item_bytes, not read_only, number if isinstance(number, int) else 0)


def _check_packed(memory: _Memory, writable: bool) -> None:
    if not memory.contiguous:
        raise InputError(f"{memory.name} is not contiguous; give a contiguous array, in row-major order")
    if writable and not memory.writable:
        raise InputError(f"{memory.name} is read-only memory; give a writable array")


def _place(gpu: int | None) -> str:
    return "CPU memory" if gpu is None else f"memory of GPU {gpu}"


# ---- pools -----------------------------------------------------------------------------------------------------------


class LayerPool:
    """A device pool of one array for each plane and layer, as engines have it, for example SGLang's k_buffer and v_buffer.

    `blocks`: for each plane the arrays of its layers, [[K of layer 0, K of layer 1, ...], [V of layer 0, ...]]. Every
    array is contiguous, has the shape [tokens, heads, head_dim] and one dtype, and is memory of one GPU or of the CPU. A
    pool keeps the arrays, and a table of their addresses in the memory of this GPU: make it once, and keep it until the
    work of all calls is done.
    """

    def __init__(self, blocks: Sequence[Sequence[Array]]) -> None:
        planes = [
            [_memory_of(array, f"blocks[{plane}][{layer}]") for layer, array in enumerate(layers)] for plane, layers in enumerate(blocks)
        ]
        if len(planes) not in (1, 2) or not planes[0]:
            raise InputError("blocks are one list of layers for K and one for V, or one list for MLA")
        first = planes[0][0]
        for layers in planes:
            if len(layers) != len(planes[0]):
                raise InputError(f"the planes of blocks have {len(planes[0])} and {len(layers)} layers; give equally many")
            for memory in layers:
                _check_packed(memory, True)
                if len(memory.shape) != 3 or (memory.shape, memory.dtype, memory.gpu) != (first.shape, first.dtype, first.gpu):
                    raise InputError(
                        f"{memory.name} has shape {memory.shape}, {memory.dtype}, {_place(memory.gpu)}; "
                        f"every array has the shape (tokens, heads, head_dim), dtype and device of blocks[0][0], here {first.shape}, {first.dtype}, {_place(first.gpu)}"
                    )
        _require_cuda(first)
        addresses = [memory.address for layers in planes for memory in layers]
        self._memory = first._replace(
            owner=planes, name="device_pool", shape=(len(planes), len(planes[0]), *first.shape), contiguous=True, address=0
        )
        self._alignment = next(size for size in (16, 8, 4, 2, 1) if all(address % size == 0 for address in addresses))
        self._table = _kernels.PointerTable(addresses, -1 if first.gpu is None else first.gpu)


class _Pool(NamedTuple):
    memory: _Memory
    axes: dict[str, int]
    pages: int
    blocks: int = 0  # address of the table of a LayerPool
    alignment: int = 1

    def shape(self, page_tokens: int) -> Any:
        return _kernels.Shape(
            layers=self.axes["layers"],
            planes=self.axes["planes"],
            heads=self.axes["heads"],
            head_bytes=self.axes["head_dim"] * self.memory.item_bytes,
            page_tokens=page_tokens,
        )


def _pool_of(array: Array, name: str, layout: str, page_tokens: int, writable: bool) -> _Pool:
    layers = array if isinstance(array, LayerPool) else None
    if layers is not None and layout != "layer_first":
        raise InputError(f"{name} is a LayerPool and layout is {layout!r}; a LayerPool is layer_first")
    memory = layers._memory if layers is not None else _memory_of(array, name)
    names = _AXES[layout]
    if len(memory.shape) != len(names):
        raise InputError(f"{name} has the shape {memory.shape}; {layout} has the {len(names)} axes [{', '.join(names)}]")
    _check_packed(memory, writable)
    axes = dict(zip(names, memory.shape, strict=True))
    if 0 in memory.shape:
        raise InputError(f"{name} has the shape {memory.shape}; no axis may be 0")
    if axes["planes"] > 2:
        raise InputError(f"{name} has {axes['planes']} planes; give 2 for K and V, or 1 for MLA")
    if axes.setdefault("page_tokens", page_tokens) != page_tokens:
        raise InputError(f"{name} has pages of {axes['page_tokens']} tokens, and page_tokens is {page_tokens}; give the same")
    if "pages" not in axes:
        if axes["tokens"] % page_tokens:
            raise InputError(f"{name} has {axes['tokens']} tokens, which is no multiple of page_tokens {page_tokens}")
        axes["pages"] = axes["tokens"] // page_tokens
    if max(axes.values()) >= 2**32 or axes["head_dim"] * memory.item_bytes >= 2**32:
        raise InputError(f"{name} has an axis of 2^32 or more; give a smaller pool")
    if layers is not None:
        return _Pool(memory, axes, axes["pages"], layers._table.address, layers._alignment)
    return _Pool(memory, axes, axes["pages"])


def _check_same_kv(device: _Pool, host: _Pool) -> None:
    for axis in ("planes", "layers", "heads", "head_dim"):
        if device.axes[axis] != host.axes[axis]:
            raise InputError(f"device_pool has {axis}={device.axes[axis]} and {host.memory.name} has {host.axes[axis]}; give the same")
    if device.memory.dtype != host.memory.dtype:
        raise InputError(f"device_pool is {device.memory.dtype} and {host.memory.name} is {host.memory.dtype}; give one dtype")


# ---- other arguments -------------------------------------------------------------------------------------------------


def _check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}; give one of {', '.join(choices)}")


def _check_count(value: int, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
        raise InputError(f"{name} is {value!r}; give a whole number from 1")


def _layers_of(layers: tuple[int, int] | None, pool: _Pool) -> tuple[int, int]:
    if layers is None:
        return 0, pool.axes["layers"]
    try:
        begin, end = layers
        right = isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end <= pool.axes["layers"]
    except (TypeError, ValueError):
        right = False
    if not right:
        raise InputError(f"layers is {layers!r}; give (begin, end) with 0 <= begin <= end <= {pool.axes['layers']}")
    return begin, end


def _indices_of(array: Array, name: str) -> _Memory:
    memory = _memory_of(array, name)
    if len(memory.shape) != 1 or memory.dtype not in ("int32", "int64"):
        raise InputError(f"{name} is {memory.dtype} of the shape {memory.shape}; give int32 or int64 and one axis")
    _check_packed(memory, False)
    return memory


def _check_pages(memory: _Memory, pool: _Pool, distinct: bool) -> None:
    """Checks the values where the CPU can read them."""
    if memory.gpu is not None:
        return
    bad: Any = _kernels.bad_index(memory.address, memory.item_bytes, memory.shape[0], pool.pages, distinct)
    if bad is None:
        return
    at, value, twice = bad
    if twice:
        raise InputError(f"{memory.name}[{at}] is page {value}, which occurs before; the pages that are written to are distinct")
    raise InputError(f"{memory.name}[{at}] is {value}, and {pool.memory.name} has {pool.pages} pages; give 0 to {pool.pages - 1}, or -1 for a pair to skip")


def _require_cuda(memory: _Memory) -> None:
    if memory.gpu is not None and not _kernels.built_with_cuda:
        raise InputError(
            f"{memory.name} is memory of GPU {memory.gpu}, and this kvtwin_kernels was built without CUDA; build it with cmake.define.KVTWIN_CUDA=ON (docs/kernels.md), or give CPU memory"
        )


def _check_places(pool: _Memory, *others: _Memory, gpu_only: tuple[str, ...] = (), cpu_only: tuple[str, ...] = ()) -> None:
    """Checks that the device that works on `pool` can reach the other arrays. `cpu_only`: arrays that the CPU must read."""
    for memory in (pool, *others):
        _require_cuda(memory)
    for memory in others:
        if memory.gpu is not None and memory.gpu != pool.gpu:
            raise InputError(f"{memory.name} is {_place(memory.gpu)}, and {pool.name} is {_place(pool.gpu)}; give memory that the device of {pool.name} can reach")
        if memory.name in cpu_only and memory.gpu is not None:
            raise InputError(f"{memory.name} is {_place(memory.gpu)}; this path makes lists of copies on the CPU, so give CPU memory")
        if pool.gpu is None or memory.gpu is not None or memory.name in cpu_only:
            continue
        if memory.name in gpu_only:
            raise InputError(f"{memory.name} is CPU memory, and {pool.name} is {_place(pool.gpu)}; give memory of the same GPU")
        if memory.address and _kernels.kind_of(memory.address) == "pageable":
            raise InputError(f"{memory.name} is pageable memory, which a GPU cannot reach; give pinned memory (torch: pin_memory=True) or memory of GPU {pool.gpu}")


def _launch(pool: _Memory, stream: Stream, ctas: int) -> Any:
    _check_count(ctas, "ctas")
    number = stream if isinstance(stream, int) else getattr(stream, "cuda_stream", None)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise InputError(f"stream is {stream!r}; give a torch.cuda.Stream, or the number of a CUDA stream")
    if number and pool.gpu is None:
        raise InputError(f"stream is {stream!r}, and {pool.name} is CPU memory; leave stream at 0")
    return _kernels.Launch(-1 if pool.gpu is None else pool.gpu, number, ctas)


class _Prepared(NamedTuple):
    rows: Any
    launch: Any
    count: int  # type: ignore[assignment]  # hides tuple.count
    device: _Memory
    kept: tuple[object, ...]


def _prepare(
    device_pool: Array | LayerPool,
    host_pool: Array,
    host_name: str,
    source_pages: Array,
    target_pages: Array,
    layout: str,
    page_tokens: int,
    layers: tuple[int, int] | None,
    to_device: bool,
    stream: Stream,
    ctas: int,
    gpu_only: tuple[str, ...] = (),
    cpu_only: tuple[str, ...] = (),
) -> _Prepared:
    _check_choice(layout, "layout", LAYOUTS)
    _check_count(page_tokens, "page_tokens")
    device = _pool_of(device_pool, "device_pool", "layer_first", page_tokens, to_device)
    host = _pool_of(host_pool, host_name, layout, page_tokens, not to_device)
    _check_same_kv(device, host)
    begin, end = _layers_of(layers, device)
    source, target = _indices_of(source_pages, "source_pages"), _indices_of(target_pages, "target_pages")
    if source.dtype != target.dtype or source.shape != target.shape:
        raise InputError(
            f"source_pages are {source.shape[0]} of {source.dtype} and target_pages {target.shape[0]} of {target.dtype}; give equally many of one dtype"
        )
    _check_places(device.memory, host.memory, source, target, gpu_only=gpu_only, cpu_only=cpu_only)
    _check_pages(source, host if to_device else device, False)
    _check_pages(target, device if to_device else host, True)
    rows = _kernels.Rows(
        shape=device.shape(page_tokens),
        device=device.memory.address,
        blocks=device.blocks,
        block_alignment=device.alignment,
        device_pages=device.pages,
        host=host.memory.address,
        host_pages=host.pages,
        layout=LAYOUTS.index(layout),
        to_device=bool(to_device),
        source=source.address,
        target=target.address,
        index_bytes=source.item_bytes,
        count=source.shape[0],
        layer_begin=begin,
        layer_end=end,
    )
    return _Prepared(rows, _launch(device.memory, stream, ctas), source.shape[0], device.memory, (device, host, source, target))


# ---- the functions ---------------------------------------------------------------------------------------------------


def transfer(
    device_pool: Array | LayerPool,
    host_pool: Array,
    source_pages: Array,
    target_pages: Array,
    *,
    layout: str,
    page_tokens: int,
    to_device: bool,
    layers: tuple[int, int] | None = None,
    path: str = "registers",
    stream: Stream = 0,
    ctas: int = 4,
) -> None:
    """Copies page source_pages[i] of one pool to page target_pages[i] of the other, for the layers [begin, end).

    `layout`: of host_pool, one of LAYOUTS. `to_device`: the source is host_pool, else device_pool. `source_pages` and
    `target_pages`: int32 or int64, [count]; a pair with a -1 is skipped. Target pages are distinct. Indices in CPU memory
    are checked; a pair with an index in GPU memory that is out of range is skipped. `layers`: None is all.
    `path`, on a GPU:
        registers       a kernel that copies through registers; any alignment
        ring            a kernel with bulk copies through shared memory; compute capability 9.0, multiples of 16 bytes
        warp_per_row    a kernel with a warp per token's row, launched once per layer; a baseline for comparisons
        copies, boxes   the copy engine, by a list of contiguous or of strided copies; the indices are CPU memory, the
                        device pool is one array, and the stream is not 0
    On the CPU all paths copy the same bytes. `stream`: a torch.cuda.Stream, or the number of a CUDA stream of the GPU of
    device_pool. `ctas`: thread blocks of a kernel, at most; more leave less of the GPU to other work.
    """
    _check_choice(path, "path", PATHS)
    cpu_only = ("source_pages", "target_pages") if path in ("copies", "boxes") else ()
    prepared = _prepare(
        device_pool, host_pool, "host_pool", source_pages, target_pages, layout, page_tokens, layers, to_device, stream, ctas, cpu_only=cpu_only
    )
    _kernels.transfer(prepared.rows, getattr(_kernels.Path, path), prepared.launch)


def relayout(
    device_pool: Array | LayerPool,
    buffer: Array,
    source_pages: Array,
    target_pages: Array,
    *,
    layout: str,
    page_tokens: int,
    to_device: bool,
    layers: tuple[int, int] | None = None,
    stream: Stream = 0,
    ctas: int = 4,
) -> None:
    """Like transfer, between device_pool and a buffer on the same device that has the layout of a host pool."""
    prepared = _prepare(
        device_pool, buffer, "buffer", source_pages, target_pages, layout, page_tokens, layers, to_device, stream, ctas, gpu_only=("buffer",)
    )
    _kernels.transfer(prepared.rows, _kernels.Path.relayout, prepared.launch)


def gather_checksum(
    device_pool: Array | LayerPool,
    host_pool: Array,
    source_pages: Array,
    target_pages: Array,
    checksums: Array,
    *,
    layout: str,
    page_tokens: int,
    layers: tuple[int, int] | None = None,
    stream: Stream = 0,
    ctas: int = 4,
) -> None:
    """Copies pages of device_pool to host_pool like transfer, and writes the checksum of each.

    `checksums`: uint64 or int64, [count], on the device of device_pool. checksums[i] is the 64-bit checksum of page
    source_pages[i] over the moved layers, and 0 for a skipped pair. It does not depend on the layout, and the checksum of
    a page is the sum (modulo 2^64) of those of its layer ranges. It detects faults, not forgery.
    """
    prepared = _prepare(
        device_pool, host_pool, "host_pool", source_pages, target_pages, layout, page_tokens, layers, False, stream, ctas
    )
    sums = _memory_of(checksums, "checksums")
    if sums.dtype not in ("uint64", "int64") or sums.shape != (prepared.count,):
        raise InputError(f"checksums are {sums.dtype} of the shape {sums.shape}; give uint64 or int64 of the shape ({prepared.count},)")
    _check_packed(sums, True)
    _check_places(prepared.device, sums, gpu_only=("checksums",))
    _kernels.gather_checksum(prepared.rows, sums.address, prepared.launch)


def _prepare_pages(
    pool: Array | LayerPool, pages: Array, keys: Array | None, layout: str, page_tokens: int, layers: tuple[int, int] | None, writable: bool
) -> tuple[Any, _Pool, int, tuple[object, ...]]:
    _check_choice(layout, "layout", LAYOUTS)
    _check_count(page_tokens, "page_tokens")
    found = _pool_of(pool, "pool", layout, page_tokens, writable)
    memory = found.memory._replace(name="pool")
    found = found._replace(memory=memory)
    begin, end = _layers_of(layers, found)
    indices = _indices_of(pages, "pages")
    count = indices.shape[0]
    others = [indices]
    if keys is not None:
        key_memory = _memory_of(keys, "keys")
        if key_memory.dtype not in ("uint64", "int64") or key_memory.shape != (count, 4):
            raise InputError(f"keys are {key_memory.dtype} of the shape {key_memory.shape}; give uint64 or int64 of the shape ({count}, 4)")
        _check_packed(key_memory, False)
        others.append(key_memory)
    _check_places(memory, *others)
    _check_pages(indices, found, writable)
    if found.axes["head_dim"] * memory.item_bytes * found.axes["heads"] * page_tokens >= 2**32:
        raise InputError("a plane and layer of a page has 2^32 bytes or more; give smaller pages")
    packed = _kernels.Pages(
        shape=found.shape(page_tokens),
        pool=memory.address,
        blocks=found.blocks,
        block_alignment=found.alignment,
        pool_pages=found.pages,
        layout=LAYOUTS.index(layout),
        pages=indices.address,
        keys=others[1].address if keys is not None else 0,
        index_bytes=indices.item_bytes,
        count=count,
        layer_begin=begin,
        layer_end=end,
    )
    return packed, found, count, tuple(others)


def page_checksums(
    pool: Array | LayerPool, pages: Array, *, layout: str, page_tokens: int, layers: tuple[int, int] | None = None
) -> npt.NDArray[np.uint64]:
    """Returns the checksums of pages in CPU memory (see gather_checksum), as an array of uint64; 0 for a page -1."""
    import numpy as np

    packed, found, count, kept = _prepare_pages(pool, pages, None, layout, page_tokens, layers, False)
    if found.memory.gpu is not None:
        raise InputError(f"pool is {_place(found.memory.gpu)}; page_checksums reads CPU memory: use gather_checksum for pages on a GPU")
    if found.blocks:
        raise InputError("pool is a LayerPool; page_checksums reads one array: use gather_checksum")
    sums = np.zeros(count, np.uint64)
    _kernels.page_checksums(packed, sums.ctypes.data)
    del kept
    return sums


def fill_pattern(
    pool: Array | LayerPool,
    pages: Array,
    keys: Array,
    *,
    layout: str = "layer_first",
    page_tokens: int,
    layers: tuple[int, int] | None = None,
    stream: Stream = 0,
    ctas: int = 4,
) -> None:
    """Writes a pattern into pages: bytes that depend on the key of the page, the layer, the plane and the position.

    `pool`: of any layout, on a GPU or the CPU. `pages`: int32 or int64, [count], distinct; -1 is skipped. `keys`: uint64 or
    int64, [count, 4], the key of each page. check_pattern finds bytes that differ, wherever the page has been meanwhile.
    """
    packed, found, _, kept = _prepare_pages(pool, pages, keys, layout, page_tokens, layers, True)
    _kernels.fill_pattern(packed, _launch(found.memory, stream, ctas))
    del kept


class WrongByte(NamedTuple):
    index: int  # type: ignore[assignment]  # in `pages`; hides tuple.index
    plane: int
    layer: int
    offset: int  # bytes, in the block [page_tokens, heads, head_dim] of this plane and layer


class Faults(NamedTuple):
    wrong: int  # number of wrong bytes
    first: WrongByte | None  # the first of them, by index, plane, layer and offset


def check_pattern(
    pool: Array | LayerPool,
    pages: Array,
    keys: Array,
    *,
    layout: str = "layer_first",
    page_tokens: int,
    layers: tuple[int, int] | None = None,
    stream: Stream = 0,
    ctas: int = 4,
) -> Faults:
    """Returns the bytes that differ from those of fill_pattern with the same keys. On a GPU, waits for the stream."""
    packed, found, _, kept = _prepare_pages(pool, pages, keys, layout, page_tokens, layers, False)
    found_bytes: Any = _kernels.check_pattern(packed, _launch(found.memory, stream, ctas))
    del kept
    wrong, *first = found_bytes
    return Faults(wrong, WrongByte(*first) if wrong else None)
