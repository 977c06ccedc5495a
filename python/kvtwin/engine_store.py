"""The options of a store inside an engine (SGLang, vLLM; docs/engines.md), as arguments of kvtwin.Store."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtwin.errors import InputError
from kvtwin.store import PageStatus, Store

GIB = 1 << 30
OPTIONS = ("path", "kind", "url", "capacity_gib", "namespace", "timeout_ms", "eviction")
"""path: folder, of kinds disk and shared_fs. kind: "disk" (default), "shared_fs" or "remote". url: redis://HOST:PORT, of kind
remote. capacity_gib: GiB that the store may hold, of kinds disk and shared_fs. namespace: a partition of the store.
timeout_ms: of one batch of commands, of kind remote (default 1000). eviction: policy by which a full store of kind disk evicts
(default "lru")."""


def place(options: Mapping[str, Any], page_bytes: int) -> dict[str, Any]:
    """Returns the arguments of Store that say where the pages are: kind, location, capacity_pages, secret, and of kind remote
    password and timeout_s. The secret is that of KVTWIN_PAGE_KEY, the password that of KVTWIN_REDIS_PASSWORD.

    Raises InputError for a wrong option, with a sentence for the engine's log.
    """
    kind = options.get("kind", "disk")
    secret = os.environ.get("KVTWIN_PAGE_KEY") or None
    eviction = options.get("eviction")
    if eviction is not None and kind != "disk":
        raise InputError(f'kvtwin: "eviction" is an option of kind disk, and "kind" is {kind!r}; leave "eviction" out')
    if kind == "remote":
        if not options.get("url"):
            raise InputError('kvtwin: kind remote needs "url", for example "redis://127.0.0.1:6379"')
        return {"kind": kind, "location": options["url"], "capacity_pages": 0, "secret": secret,
                "password": os.environ.get("KVTWIN_REDIS_PASSWORD") or None,
                "timeout_s": _number(options, "timeout_ms", 1000) / 1000}
    if kind not in ("disk", "shared_fs"):
        raise InputError(f'kvtwin: "kind" is {kind!r}; the kinds are disk, shared_fs and remote')
    if not options.get("path"):
        raise InputError('kvtwin: "path" is missing; set it to a folder on a local disk or a shared file system')
    capacity = int(_number(options, "capacity_gib", 0) * GIB)
    if capacity < page_bytes:
        raise InputError(f'kvtwin: "capacity_gib" is missing, or less than a page of {page_bytes} bytes; set it to the GiB that '
                         "the store may hold")
    return {"kind": kind, "location": str(options["path"]), "capacity_pages": capacity // page_bytes, "secret": secret,
            "eviction": eviction}


class FullStoreLog:
    """Writes a line to the engine's log when a store begins to evict pages, and when it first refuses one."""

    PUTS_PER_CHECK = 16  # the counters wait for a get in progress

    def __init__(self, name: str, log: logging.Logger):
        self._name, self._log = name, log
        self._puts = 0
        self._evicts = self._refuses = False

    def after_put(self, store: Store, statuses: npt.NDArray[np.uint8]) -> None:
        """To be called after each put, by one thread at a time."""
        refused = int((statuses == PageStatus.FULL).sum())
        if refused and not self._refuses:
            self._refuses = True
            self._log.warning("kvtwin: %s: the medium is full, and %d pages were not stored; later ones are only counted", self._name,
                              refused)
        self._puts += 1
        if self._evicts or self._puts % self.PUTS_PER_CHECK:
            return
        medium = store.stats()["medium"]
        evicted = medium.get("pages_evicted", 0) + medium.get("evicted_pages", 0)
        if evicted:
            self._evicts = True
            self._log.info("kvtwin: %s: the store is full and evicts pages; %d so far, later ones are only counted", self._name,
                           evicted)


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    try:
        return float(options.get(name, default))
    except (TypeError, ValueError):
        raise InputError(f'kvtwin: "{name}" is {options[name]!r}; set it to a number') from None
