"""The options of a store inside an engine (SGLang, vLLM; docs/engines.md), as arguments of kvtwin.Store."""

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtwin.errors import InputError
from kvtwin.store import PageStatus, Store, weights_fingerprint

GIB = 1 << 30
OPTIONS = ("path", "kind", "url", "capacity_gib", "namespace", "revision", "timeout_ms", "eviction")
"""path: folder, of kinds disk and shared_fs. kind: "disk" (default), "shared_fs" or "remote". url: redis://HOST:PORT, of kind
remote. capacity_gib: GiB that the store may hold, of kinds disk and shared_fs. namespace: a partition of the store.
revision: of the model's weights. timeout_ms: of one batch of commands, of kind remote (default 1000). eviction: policy by which
a full store of kind disk evicts (default "lru")."""
MAX_CAPACITY_GIB = 1 << 40
MAX_TIMEOUT_MS = 4_000_000_000


def place(options: Mapping[str, Any], page_bytes: int, has_pools: bool = False) -> dict[str, Any]:
    """Returns the arguments of Store that say where the pages are: kind, location, capacity_pages, secret, and of kind remote
    password and timeout_s. The secret is that of KVTWIN_PAGE_KEY, the password that of KVTWIN_REDIS_PASSWORD. has_pools: a store
    with pools, with capacity_bytes in place of capacity_pages; page_bytes is then the size of the largest object.

    Raises InputError for a wrong option, with a sentence for the engine's log.
    """
    kind = text(options, "kind", "disk")
    secret = os.environ.get("KVTWIN_PAGE_KEY") or None
    eviction = text(options, "eviction") or None
    if eviction is not None and kind != "disk":
        raise InputError(f'kvtwin: "eviction" is an option of kind disk, and "kind" is {kind!r}; leave "eviction" out')
    if kind == "remote":
        if not text(options, "url"):
            raise InputError('kvtwin: kind remote needs "url", for example "redis://127.0.0.1:6379"')
        return {"kind": kind, "location": text(options, "url"), "capacity_pages": 0, "secret": secret,
                "password": os.environ.get("KVTWIN_REDIS_PASSWORD") or None,
                "timeout_s": number(options, "timeout_ms", 1000, 1, MAX_TIMEOUT_MS) / 1000}
    if kind not in ("disk", "shared_fs"):
        raise InputError(f'kvtwin: "kind" is {kind!r}; the kinds are disk, shared_fs and remote')
    if not text(options, "path"):
        raise InputError('kvtwin: "path" is missing; set it to a folder on a local disk or a shared file system')
    capacity = int(number(options, "capacity_gib", 0, 0, MAX_CAPACITY_GIB) * GIB)
    if capacity < page_bytes:
        raise InputError(f'kvtwin: "capacity_gib" is missing, or less than a page of {page_bytes} bytes; set it to the GiB that '
                         "the store may hold")
    room = {"capacity_bytes": capacity} if has_pools else {"capacity_pages": capacity // page_bytes}
    return {"kind": kind, "location": text(options, "path"), "secret": secret, "eviction": eviction, **room}


class FullStoreLog:
    """Writes a line to the engine's log when a store begins to evict pages, and when it first refuses one."""

    PUTS_PER_CHECK = 16  # the counters wait for the calls in progress

    def __init__(self, name: str, log: logging.Logger):
        self._name, self._log = name, log
        self._puts = 0
        self._evicts = self._refuses = False

    def after_put(self, store: Store, statuses: npt.NDArray[np.uint8], may_wait: bool = True, pool: str = "") -> None:
        """To be called after each put, by one thread at a time. may_wait: for a get in progress. pool: name of the pool; empty: the
        pages."""
        refused = int((statuses == PageStatus.FULL).sum())
        if refused and not self._refuses:
            self._refuses = True
            self._log.warning("kvtwin: %s: the medium is full, and %d pages were not stored; later ones are only counted", self._name,
                              refused)
        self._puts += 1
        if self._evicts or not may_wait or self._puts < self.PUTS_PER_CHECK:
            return
        self._puts = 0
        stats = store.stats()
        medium = next(one["medium"] for one in stats["pools"] if one["name"] == pool) if pool else stats["medium"]
        evicted = medium.get("pages_evicted", 0) + medium.get("evicted_pages", 0)
        if evicted:
            self._evicts = True
            self._log.info("kvtwin: %s: the store is full and evicts pages; %d so far, later ones are only counted", self._name,
                           evicted)


def revision(options: Mapping[str, Any], models: Iterable[str | None], served: str | None = None,
             cache: str | os.PathLike[str] | None = None) -> str:
    """Returns the revision of the store's identity: the option `revision`, and the fingerprint of the weights, if one of `models`
    is a folder with a checkpoint, or a model in the local cache of Hugging Face.

    served: the revision of that model which the engine serves; None: the engine does not say, so all cached revisions must have the
    same weights. cache: folder of the engine's downloads; None: that of Hugging Face.

    Raises InputError if option and fingerprint are missing: stored pages outlive the server, and the weights may change under their name.
    """
    given, found = text(options, "revision"), ""
    several = ""
    for model in models:
        names = _fingerprints(model, served, cache) if not found else set()
        several = several or (str(model) if len(names) > 1 else "")
        found = found or (names.pop() if len(names) == 1 else "")
    if not given and not found and several:
        raise InputError(f'kvtwin: "revision" is missing, the local cache has several revisions of {several}, and the engine does not '
                         'say which one it serves; set "revision" to it')
    if not given and not found:
        raise InputError('kvtwin: "revision" is missing, and the model is no local folder with weights; set "revision" to the '
                         'revision of the weights, or to "fixed" if the weights of this model name never change')
    return f"{given} {found}".strip()


def fingerprint(model: str | None, served: str | None, cache: str | os.PathLike[str] | None = None) -> str:
    """Returns the fingerprint of the weights of a model, or of what it is known by. Arguments as of revision()."""
    names = _fingerprints(model, served, cache)
    return names.pop() if len(names) == 1 else f"{model}@{served}"


def _fingerprints(model: str | None, served: str | None, cache: str | os.PathLike[str] | None) -> set[str]:
    if not model or "\0" in model:
        return set()
    found = set()
    for place in [Path(model)] if Path(model).exists() else _snapshots(model, served, cache):
        with contextlib.suppress(InputError):  # no weights there
            found.add(weights_fingerprint(place))
    return found


def _snapshots(model: str, served: str | None, cache: str | os.PathLike[str] | None) -> list[Path]:
    """The folders of a model of Hugging Face: of the served revision, or of all that are cached."""
    try:
        from huggingface_hub import constants, try_to_load_from_cache
        from huggingface_hub.file_download import repo_folder_name

        if served is not None:
            cached = try_to_load_from_cache(model, "config.json", cache_dir=cache, revision=served)
            return [Path(cached).parent] if isinstance(cached, str) else []
        names = (cache or constants.HF_HUB_CACHE, repo_folder_name(repo_id=model, repo_type="model"), "snapshots")
        folder = Path(*names) if all(isinstance(name, str | os.PathLike) for name in names) else None
        return sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []
    except (ImportError, ValueError):  # no such package; no name of a model
        return []


def text(options: Mapping[str, Any], name: str, default: str = "") -> str:
    """Returns an option that is a text or a whole number. Raises InputError for another one."""
    value = options.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f'kvtwin: "{name}" is {value!r:.80}; set it to a text')
    if "\0" in value:
        raise InputError(f'kvtwin: "{name}" contains a zero byte (\\0), which no name may have; leave it out')
    return value


def number(options: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    """Returns an option that is a number, also one in quotes. Raises InputError if it is none, or not within least..most."""
    value = options.get(name, default)
    try:
        if isinstance(value, bool):
            raise ValueError
        result = float(value)
        if not least <= result <= most:  # also NaN
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(f'kvtwin: "{name}" is {value!r:.80}; set it to a number from {least:,} to {most:,}') from None
    return result


def whole_number(options: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """Returns an option that is a whole number. Raises InputError if it is none, or not within least..most."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f'kvtwin: "{name}" is {value!r:.80}; set it to a whole number from {least:,} to {most:,}')
    return value


def flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool) and value not in (0, 1):
        raise InputError(f'kvtwin: "{name}" is {value!r:.80}; set it to true or false')
    return bool(value)
