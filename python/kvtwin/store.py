"""A store of KV pages: kvtwin's disk, shared file system and remote tiers, for programs that have GPU and host memory.

    form = kvtwin.PageForm(layers=32, planes=2, heads=8, head_bytes=256, page_tokens=64)
    identity = kvtwin.Identity(model="llama-3.1-8b", kv_dtype="bfloat16", revision=kvtwin.weights_fingerprint("/models/llama"))
    with kvtwin.Store("disk", "/nvme/kvtwin", form, identity, capacity_pages=10_000) as store:
        store.put_pages(keys, pages)        # bytes or numpy arrays
        found = store.look_up(keys)         # leading pages that are there
        pages = store.get_pages(keys)       # None for a page that is not there

A model with sliding windows or states needs more than its pages. Its store has pools:

    pools = [kvtwin.Pool(name="state", object_bytes=50_000_000)]
    store = kvtwin.Store("disk", "/nvme/kvtwin", form, identity, pools=pools, capacity_bytes=1 << 40)
    store.put_pages(keys[3:4], [state], pool="state")
    found = store.look_up_usable(keys, [kvtwin.Need("state")])      # found.usable[3]: the first four pages can be used

A page is one rank's KV of `page_tokens` tokens, in `Store.page_bytes` bytes. A page whose bytes, key or form are not the
stored ones is a miss: no call returns wrong bytes.
"""

import enum
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kvtwin import _core
from kvtwin.errors import InputError, WorkError

KEY_BYTES = 32

Keys = Sequence[bytes | str] | npt.NDArray[np.uint8]
"""Keys of pages: each 32 bytes, or 64 hex digits; or an array of uint8 with the shape (pages, 32)."""
Numbers = Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
Buffer = bytes | bytearray | memoryview | npt.NDArray[Any]


class PageStatus(enum.IntEnum):
    """The end of one page of a put, get or remove."""

    OK = 0
    MISSING = 1  # not there
    CORRUPT = 2  # there, but with other bytes than were stored; the page is now a miss
    IO_ERROR = 3  # the medium reported an error
    UNREACHABLE = 4  # the server did not answer
    FULL = 5  # no room
    NO_MEMORY = 17  # the store had no memory for the call


class LookUpError(WorkError):
    """The store could not look up all keys. `pages` is the number of leading pages that are certainly there."""

    def __init__(self, sentence: str, pages: int):
        super().__init__(sentence)
        self.pages = pages


class Transfer(NamedTuple):
    """A put or get that was started, and has ended."""

    job: int
    statuses: npt.NDArray[np.uint8] | None  # one PageStatus per page; None: the call failed, and no page was moved for sure
    seconds: float  # of the call itself


@dataclass(frozen=True, kw_only=True)
class PageForm:
    """The form of one rank's page. A page has layers * planes * heads * head_bytes * page_tokens bytes, at most 1 GiB."""

    layers: int  # of this rank
    planes: int = 2  # 2: K and V; 1: one latent vector a token (MLA)
    heads: int  # KV heads of this rank; 1 for MLA
    head_bytes: int  # bytes of one head of one token in one plane
    page_tokens: int  # tokens of a page
    layout: str = "layer_first"  # or page_first, page_first_direct, page_head: the order of the bytes


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What the KV was computed with. Stores with different identities or forms never see, replace or remove each other's
    pages. No text may contain a zero byte."""

    model: str
    kv_dtype: str  # for example "bfloat16"
    revision: str = ""  # required: a commit, weights_fingerprint(), or "fixed" if the weights of this name never change
    tp: int = 1  # parts into which tensor parallelism cuts a page; 1 if all ranks store equal bytes (MLA)
    pp: int = 1
    rank: int = 0  # number of this rank's part, below tp * pp
    name_space: str = ""  # a partition of your own


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Objects beside the pages: windows, states, keys of an indexer. An object has the key of its page, and a form (a window), or
    a number of bytes (a state)."""

    name: str  # 1 to 48 of a-z, 0-9, "_" and "-"; a store knows its pools by their names
    form: PageForm | None = None  # of an object
    object_bytes: int = 0  # without a form; at most 2047 MiB
    identity: str = ""  # what the meaning of the bytes depends on, beside the store's identity


class Need(NamedTuple):
    """What a prefix needs of a pool to be usable."""

    pool: str  # name of the pool
    trailing: int = 1  # the objects of so many last pages: 1 of a state; 0: of all pages
    from_start: bool = False  # a prefix with fewer pages needs as many objects as it has; else it is not usable


class Usable(NamedTuple):
    """What a look-up with needs has found."""

    pages: int  # leading pages that are there
    usable: npt.NDArray[np.bool_]  # one element per key: the prefix up to this page and all that it needs are there
    longest: dict[str, int]  # by pool: the longest prefix for which this pool's need is met, whatever the others are


class Store:
    """An open store. Use it as a context manager, or call close().

    kind             location                                      capacity_pages
    "disk"           a folder; one store at a time                 of this store
    "shared_fs"      a folder on a local or network mount;         of all stores of the folder
                     any number of stores and machines
    "remote"         redis://HOST:PORT, mooncake://HOST:PORT or    0: the server has its own limit
                     library:FILE?TEXT (docs/storage.md)

    A full store of kind "disk" or "shared_fs" evicts pages, so that a put finds room.

    Raises InputError for a bad argument, WorkError if the medium cannot be used.

    Threads: any thread may call any method, also close(), which waits for the calls in progress. All calls release the
    GIL. One look-up, one get and one put or remove are served at a time. After os.fork(), only the parent may use the
    store.
    """

    def __init__(
        self,
        kind: str,
        location: str,
        form: PageForm,
        identity: Identity,
        capacity_pages: int = 0,
        *,
        secret: str | None = None,
        password: str | None = None,
        timeout_s: float = 1.0,
        eviction: str | None = None,
        pools: Sequence[Pool] = (),
        capacity_bytes: int = 0,
    ):
        """Opens the store.

        kind, location: as in the table above. form: the form of a page. identity: what the KV was computed with.
        capacity_pages: pages of one rank. secret: at least 16 bytes; stored pages carry a keyed check, and only such
        pages are accepted. password: of a remote store. timeout_s: of a remote store, seconds for one batch of commands,
        0.001 to 4,000,000.
        eviction: of kind disk, the eviction policy of a full store, one of kvtwin.policy.names(); None means "lru".
        pools: what the store has beside the pages. capacity_bytes: of pages and pools together, with their headers, in place of
        capacity_pages; a store with pools needs it, unless it is remote.
        """
        if not isinstance(form, PageForm) or not isinstance(identity, Identity):
            raise InputError("form must be a kvtwin.PageForm, and identity a kvtwin.Identity")
        if not _is_number(timeout_s, float | np.floating) or not 0.001 <= timeout_s <= 4_000_000:
            raise InputError(f"timeout_s is {timeout_s!r:.80}; it must be between 0.001 and 4,000,000 seconds")
        place = os.fspath(location) if isinstance(location, os.PathLike) else location
        values = {"kind": kind, "location": place, **asdict(form), **asdict(identity)}
        values |= {"capacity_pages": capacity_pages, "capacity_bytes": capacity_bytes, "secret": secret, "password": password,
                   "eviction": eviction}
        for name, value in values.items():
            if name in _COUNTS:
                values[name] = _count(name, value, 64 if name.startswith("capacity") else 32)
            elif value is not None or name not in ("secret", "password", "eviction"):
                _check_text(name, value)
        self._store = _core.Store(**values, timeout_ms=round(timeout_s * 1000), pools=[_pool_values(pool) for pool in pools])
        self.form, self.identity, self.pools = form, identity, tuple(pools)
        self._pool_numbers = {"": 0} | {pool.name: number for number, pool in enumerate(pools, 1)}

    @classmethod
    def open(cls, *arguments: Any, **options: Any) -> Self:
        """Opens a store. Arguments as of Store()."""
        return cls(*arguments, **options)

    def close(self) -> None:
        """Waits for the calls in progress, makes stored pages durable if the medium can, and ends the store's threads. Puts
        and gets that were started and have not begun fail."""
        self._store.close()

    @property
    def closed(self) -> bool:
        return self._store.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.object_bytes()

    def object_bytes(self, pool: str = "") -> int:
        """Returns the bytes of an object.

        pool: name of the pool; empty: the pages.
        """
        return self._store.object_bytes(self._number(pool))

    def look_up(self, keys: Keys) -> int:
        """Returns the number of leading keys whose pages are there. Raises LookUpError if the medium or the server fails;
        its `pages` is the number that is certain."""
        status, pages = self._store.look_up(_key_bytes(keys))
        if status:
            name = _core.status_name(status)
            raise LookUpError(f"the store could not look up {len(keys)} keys: {name}; {pages} pages are certain", pages)
        return pages

    def look_up_usable(self, keys: Keys, needs: Sequence[Need]) -> Usable:
        """Returns the leading pages that are there, and the lengths of a prefix that are usable. Raises LookUpError if the medium
        or the server fails.

        keys: of the pages of a prefix, in order. needs: what a prefix needs of the pools. Without needs, each length with all pages is usable.
        """
        wanted = [(self._number(need.pool), _count("trailing", need.trailing, 64), bool(need.from_start)) for need in needs]
        if any(number == 0 for number, _, _ in wanted):
            raise InputError("a need has no pool; give the name of a pool")
        status, pages, usable, longest = self._store.look_up_usable(_key_bytes(keys), wanted)
        if status:
            name = _core.status_name(status)
            raise LookUpError(f"the store could not look up {len(keys)} keys: {name}; {pages} pages are certain", pages)
        return Usable(pages, np.frombuffer(usable, np.bool_), {need.pool: length for need, length in zip(needs, longest)})

    def put(self, keys: Keys, addresses: Numbers, lengths: int | Numbers, *, pool: str = "") -> npt.NDArray[np.uint8]:
        """Stores pages, or objects of a pool, from memory of the caller, without a copy.

        addresses: of the pieces of all pages, in the order of the form's layout: an array with the shape (pages,) or
        (pages, pieces). lengths: in bytes, one for all pieces, or an array that broadcasts to this shape. The lengths of
        a page must sum to page_bytes. The memory must be readable, and must not change, until the call returns: a wrong
        address ends the process. pool: the name of a pool; without one, the pages. Lengths then sum to object_bytes(pool).

        Returns one PageStatus per page. OK: the page is stored, or was there already.
        """
        return _statuses(self._store.put(self._number(pool), _key_bytes(keys), *_pieces(addresses, lengths)))

    def get(self, keys: Keys, addresses: Numbers, lengths: int | Numbers, *, pool: str = "") -> npt.NDArray[np.uint8]:
        """Reads pages into memory of the caller. Arguments as of put(). Two pages must not share memory.

        Returns one PageStatus per page. After any status but OK, the memory of the page has undefined content.
        """
        return _statuses(self._store.get(self._number(pool), _key_bytes(keys), *_pieces(addresses, lengths)))

    def start_put(self, job: int, keys: Keys, addresses: Numbers, lengths: int | Numbers, *, pool: str = "") -> None:
        """Starts a put in a thread of the store, and returns at once. The memory must not change until ended() has its
        result. Puts run in their order, and beside gets. The other arguments are those of put().

        job: a number of your own, 0 to 2**64 - 1, that names the put in ended().

        For a program whose Python threads are busy, as an engine: a call of put() or get() in a thread of Python returns
        only when the other threads let this one go on, which takes 5 ms and more each time. These threads never wait for
        Python.
        """
        self._store.start(0, self._number(pool), _count("job", job, 64), _key_bytes(keys), *_pieces(addresses, lengths))

    def start_get(self, job: int, keys: Keys, addresses: Numbers, lengths: int | Numbers, *, pool: str = "") -> None:
        """Starts a get, as start_put() starts a put. Arguments as of start_put()."""
        self._store.start(1, self._number(pool), _count("job", job, 64), _key_bytes(keys), *_pieces(addresses, lengths))

    def ended(self) -> list[Transfer]:
        """Returns the started puts and gets that have ended since the last call. Does not wait."""
        return [Transfer(job, None if statuses is None else _statuses(statuses), seconds)
                for job, statuses, seconds in self._store.ended()]

    def wait(self) -> None:
        """Blocks until all started puts and gets have ended."""
        self._store.wait()

    def put_pages(self, keys: Keys, pages: Sequence[Buffer] | npt.NDArray[Any], *, pool: str = "") -> npt.NDArray[np.uint8]:
        """Stores pages, or objects of a pool. Returns one PageStatus per page.

        pages: one contiguous buffer of page_bytes bytes for each key, for example bytes or the rows of an array. pool: as of put();
        the buffers then have object_bytes(pool) bytes.
        """
        views = self._views(keys, pages, pool, False)
        return self.put(keys, [view.ctypes.data for view in views], self.object_bytes(pool), pool=pool)

    def get_pages(self, keys: Keys, *, pool: str = "") -> list[npt.NDArray[np.uint8] | None]:
        """Returns the bytes of each page, as an array of uint8 with page_bytes elements; None for a page that was not
        read, whatever the reason. pool: as of put_pages()."""
        size = self.object_bytes(pool)
        memory = np.empty((len(keys), size), np.uint8)
        statuses = self.get(keys, memory.ctypes.data + np.arange(len(keys)) * size, size, pool=pool)
        return [page if status == PageStatus.OK else None for page, status in zip(memory, statuses)]

    def get_pages_into(self, keys: Keys, pages: Sequence[Buffer] | npt.NDArray[Any], *, pool: str = "") -> npt.NDArray[np.uint8]:
        """Reads pages. Returns one PageStatus per page; after any status but OK, the buffer has undefined content.

        pages: one writable contiguous buffer of page_bytes bytes for each key. pool: as of put_pages().
        """
        views = self._views(keys, pages, pool, True)
        return self.get(keys, [view.ctypes.data for view in views], self.object_bytes(pool), pool=pool)

    def remove(self, keys: Keys, *, pool: str = "") -> npt.NDArray[np.uint8]:
        """Removes pages, or objects of a pool. Returns one PageStatus per page; OK also for a page that was not there. pool: as of
        put()."""
        return _statuses(self._store.remove(self._number(pool), _key_bytes(keys)))

    def stats(self) -> dict[str, Any]:
        """Returns the counters since the store was opened: kind; look_ups, gets, puts and removes with calls, pages,
        seconds and, but for look_ups, bytes and the pages of each status; medium. With pools, also pools: a list with the same of each
        pool. Waits for the calls in progress."""
        return json.loads(self._store.stats())

    def _number(self, pool: str) -> int:
        number = self._pool_numbers.get(pool) if isinstance(pool, str) else None
        if number is None:
            names = ", ".join(known.name for known in self.pools) or "none"
            raise InputError(f"pool is {pool!r:.80}; the pools of this store are: {names}")
        return number

    def _views(self, keys: Keys, pages: Sequence[Buffer] | npt.NDArray[Any], pool: str,
               writable: bool) -> list[npt.NDArray[np.uint8]]:
        size = self.object_bytes(pool)
        views = [self._view(page, size, writable) for page in pages]
        if len(views) != len(keys):
            raise InputError(f"{len(views)} pages for {len(keys)} keys; give one page for each key")
        return views

    def _view(self, page: Buffer, size: int, writable: bool) -> npt.NDArray[np.uint8]:
        buffer: Any = page
        view = memoryview(buffer)  # a TypeError names an object without memory
        if "O" in view.format:
            raise InputError("a page is an array of Python objects; give bytes, or an array of numbers")
        if not view.c_contiguous or view.nbytes != size:
            whole = "" if view.c_contiguous else "not contiguous, and "
            raise InputError(f"a page is {whole}{view.nbytes} bytes long; give {size} contiguous bytes")
        if writable and view.readonly:
            raise InputError("a page is read-only memory; give a bytearray or a writable array")
        return np.frombuffer(view, np.uint8)


def _key_bytes(keys: Keys) -> bytes:
    if isinstance(keys, np.ndarray):
        if keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES:
            raise InputError(f"keys are an array of {keys.dtype}, shape {keys.shape}; give uint8 and the shape (pages, 32)")
        return keys.tobytes()
    if isinstance(keys, bytes | bytearray | str):
        raise InputError("keys are one text; give a list of keys")
    parts = []
    for key in keys:
        try:
            part = bytes.fromhex(key) if isinstance(key, str) else bytes(memoryview(key))
        except ValueError:
            part = b""
        if len(part) != KEY_BYTES:
            raise InputError(f"key {key!r}: a key has 32 bytes, or 64 hex digits")
        parts.append(part)
    return b"".join(parts)


def _pieces(addresses: Numbers, lengths: int | Numbers) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    try:
        places = _whole_numbers(addresses)
        sizes = np.broadcast_to(_whole_numbers(lengths), places.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"addresses or lengths: {error}; give whole numbers, and lengths for all pieces") from error
    return np.ascontiguousarray(places.ravel()), np.ascontiguousarray(sizes.ravel())


def _whole_numbers(values: int | Numbers) -> npt.NDArray[np.uint64]:
    """Unlike np.asarray(values, np.uint64), refuses 1.7, -1, True, and what does not fit."""
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.uint64)
    if array.dtype.kind not in "iu" or array.min() < 0:
        raise ValueError(f"{values!r:.80} are no whole numbers from 0 to 2^64 - 1")
    return array.astype(np.uint64)


_COUNTS = ("layers", "planes", "heads", "head_bytes", "page_tokens", "tp", "pp", "rank", "capacity_pages", "capacity_bytes")


def _pool_values(pool: Pool) -> tuple[str, tuple[Any, ...] | None, int, str]:
    if not isinstance(pool, Pool) or not (pool.form is None or isinstance(pool.form, PageForm)):
        raise InputError("pools must be a list of kvtwin.Pool, and the form of a pool a kvtwin.PageForm")
    _check_text("name of a pool", pool.name)
    _check_text("identity of a pool", pool.identity)
    form = None
    if pool.form is not None:
        _check_text("layout", pool.form.layout)
        form = tuple(_count(name, value, 32) if name in _COUNTS else value for name, value in asdict(pool.form).items())
    return pool.name, form, _count("object_bytes", pool.object_bytes, 64), pool.identity


def _is_number(value: Any, more: Any = int) -> bool:
    return isinstance(value, int | np.integer | more) and not isinstance(value, bool)


def _count(name: str, value: Any, bits: int) -> int:
    if not _is_number(value) or not 0 <= value < 1 << bits:
        raise InputError(f"{name} is {value!r:.80}; it must be a whole number from 0 to 2^{bits} - 1")
    return int(value)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r:.80}; it must be a text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{name} is {value!r:.80}, which is no Unicode text; leave the bytes out that are none")


def weights_fingerprint(checkpoint: str | os.PathLike[str]) -> str:
    """Returns a name of the weights in a checkpoint folder, or in a file of weights, for Identity.revision: "weights-" and 32
    hex digits, a hash of the files' names, lengths and a sample of their bytes. Copies of a checkpoint have the same name on
    all machines. include/kvtwin/store.h has the sample.

    checkpoint: a folder of a checkpoint, or a file of weights.

    Raises InputError if the place has no weights, WorkError if a file cannot be read.
    """
    place = os.fspath(checkpoint)
    _check_text("checkpoint", place)
    return _core.weights_fingerprint(place)


def _statuses(statuses: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(statuses, np.uint8)
