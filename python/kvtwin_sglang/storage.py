"""A storage back end (L3) of SGLang's HiCache on kvtwin's stores: local disk, a shared file system, Redis, or Mooncake.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
      "backend_name": "kvtwin", "module_path": "kvtwin_sglang.storage", "class_name": "KvtwinStorage",
      "interface_v1": 1, "path": "/nvme/kvtwin", "capacity_gib": 500}'

Keys of the extra configuration:
    path          folder of the store; its parent must exist. For kinds disk and shared_fs
    kind          "disk" (default), "shared_fs" or "remote"
    url           of kind remote: redis://HOST:PORT or mooncake://HOST:PORT
    capacity_gib  GiB of one rank's KV (disk), or of all ranks and servers together (shared_fs). Required for these
    namespace     a name that separates this deployment's pages from those of others in the same store
    revision      of the model's weights; pages of other revisions are never read. Required if the model is no local
                  folder or cached model of Hugging Face; "fixed" if the weights of this model name never change
    timeout_ms    of kind remote: of one batch of commands (default 1000)
    eviction      of kind disk: the policy by which a full store evicts pages (default "lru")
    journal       a file that records each call and its time, for `kvtwin calibrate --from`
The environment variable KVTWIN_PAGE_KEY (at least 16 bytes) gives stored pages a keyed check; KVTWIN_REDIS_PASSWORD is
the password of the Redis server.

Each stored page has a check of its bytes and of everything that its KV depends on, as far as SGLang tells it: model,
fingerprint of its weights, dtype, page size, layout, heads and layers of this rank, and the rank. A damaged page, or a page of another
configuration, is a miss. SGLang's own storage configuration has neither the dtype nor the page size.

Pools: KV of MHA, GQA and MLA models, packed draft layers, and the pools `draft` and `indexer` (interface v2). Models with
another pool (sliding window, Mamba, DeepSeek-V4's compressed pools) are refused by the pool's name when the server
starts.

Threads: SGLang calls from one thread for look-ups, one for reads, one for writes. KvtwinStorage may be called by any.
"""

import hashlib
import json
import logging
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import torch
from kvtwin import engine_store
from kvtwin.errors import InputError
from kvtwin.policy import GET, LOOK_UP, PUT, CallJournal
from kvtwin.store import Identity, LookUpError, PageForm, PageStatus, Store
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from kvtwin_sglang import host_name

logger = logging.getLogger(__name__)
KEY_BYTES = 32
SERVED_POOLS = (PoolName.KV, PoolName.DRAFT, PoolName.INDEXER)
# Attributes of SGLang's host pools that decide what the bytes of a page mean.
GEOMETRY = ("layout", "dtype", "page_size", "layer_num", "target_layer_num", "start_layer", "end_layer", "head_num",
            "head_dim", "v_head_dim", "kv_cache_dim", "dcp_size", "dcp_rank", "head_group_num", "storage_format_tag")
OPTIONS = {*engine_store.OPTIONS, "journal"}
SGLANG_OPTIONS = {"backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size", "prefetch_threshold",
                  "prefetch_timeout_base", "prefetch_timeout_per_ki_token", "hicache_storage_pass_prefix_keys"}


def page_keys(keys):
    """SGLang's keys are SHA-256 digests in hex; any other text is hashed. Returns an array of uint8, [keys, 32]."""
    try:
        digests = bytes.fromhex("".join(keys))
        if len(digests) != KEY_BYTES * len(keys) or any(len(key) != 2 * KEY_BYTES for key in keys):
            raise ValueError
    except ValueError:
        digests = b"".join(hashlib.sha256(key.encode()).digest() for key in keys)
    return np.frombuffer(digests, np.uint8).reshape(-1, KEY_BYTES)


def model_path():
    """The place of the weights, if this is a process of a server. SGLang's storage configuration has the served name only."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args().model_path
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return None


class PoolStore:
    """The store of one host pool, and the way from the pool's slots to addresses."""

    def __init__(self, name, pool, config, options):
        self.pool = pool
        try:
            addresses, lengths = pool.get_page_buffer_meta(torch.arange(self._indices_per_page()))
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise InputError(
                f"kvtwin: pool '{name}' ({type(pool).__name__}, layout {getattr(pool, 'layout', 'unknown')}) gives no addresses "
                f"of its pages ({error}); start the server with --hicache-mem-layout page_first") from error
        self.pieces = len(addresses)
        self.order = self._payload_order()
        self.page_bytes = sum(lengths)
        self.full_log = engine_store.FullStoreLog(f"pool '{name}'", logger)
        self.store = Store(form=self._form(), identity=self._identity(name, config, options), **self.place(name, config, options))

    def _indices_per_page(self):
        return self.pool.page_size * getattr(self.pool, "dcp_size", 1)

    def _payload_order(self):
        """SGLang lists a layer_first page of K and V layer by layer; the stored page has all K first."""
        if self.pool.layout != "layer_first" or self.pieces != 2 * self.pool.layer_num:
            return None
        return np.arange(self.pieces).reshape(-1, 2).T.ravel()

    def _form(self):
        pool, item = self.pool, self.pool.dtype.itemsize
        layout = pool.layout if pool.layout in ("layer_first", "page_first", "page_first_direct", "page_head") else "page_first"
        if getattr(pool, "kv_cache_dim", None):
            planes, heads, head_bytes = 1, 1, pool.kv_cache_dim * item
        else:
            planes, heads, head_bytes = 2, getattr(pool, "head_num", 0), getattr(pool, "head_dim", 0) * item
        layers, tokens = pool.layer_num, pool.page_size
        if layers * planes * heads * head_bytes * tokens != self.page_bytes:
            # A pool of another shape is stored as rows of one token. The identity has the pool's geometry.
            if self.page_bytes % tokens != 0:
                raise InputError(
                    f"kvtwin: a page of {type(pool).__name__} has {self.page_bytes} bytes, which {tokens} tokens do not divide; "
                    "this pool is not served")
            layers, planes, heads, head_bytes = 1, 1, 1, self.page_bytes // tokens
        return PageForm(layers=layers, planes=planes, heads=heads, head_bytes=head_bytes, page_tokens=tokens, layout=layout)

    def _identity(self, name, config, options):
        # Ranks store equal pages of MLA models, so these are no parts of a page.
        tp, rank = (1, 0) if config.is_mla_model else (config.tp_size, config.tp_rank)
        details = {key: str(getattr(self.pool, key)) for key in GEOMETRY if getattr(self.pool, key, None) is not None}
        details |= {"pool": str(name), "pool_class": type(self.pool).__name__, "namespace": engine_store.text(options, "namespace"),
                    "attn_cp": [config.attn_cp_rank, config.attn_cp_size]}
        return Identity(model=config.model_name or "unnamed", revision=engine_store.revision(options, (model_path(), config.model_name)),
                        kv_dtype=str(self.pool.dtype).removeprefix("torch."), tp=tp, pp=config.pp_size,
                        rank=config.pp_rank * tp + rank, name_space=json.dumps(details, sort_keys=True))

    def place(self, name, config, options):
        """The arguments of Store that say where the pages are. A store of kind disk belongs to one process."""
        place = engine_store.place(options, self.page_bytes)
        if place["kind"] == "disk":
            if config.is_mla_model and config.tp_size > 1:
                raise InputError(
                    f"kvtwin: the {config.tp_size} ranks of an MLA model share their pages, and a store of kind disk belongs "
                    'to one process; set "kind" to "shared_fs"')
            folder = Path(place["location"])
            folder.mkdir(exist_ok=True)
            place["location"] = str(folder / (
                f"{name}-tp{config.tp_rank}of{config.tp_size}-pp{config.pp_rank}of{config.pp_size}"
                f"-cp{config.attn_cp_rank}of{config.attn_cp_size}-dp{config.dp_rank}"))
        return place

    def memory(self, pages, host_indices):
        """Addresses and lengths of the pieces of `pages` pages, as uint64 arrays of the shape [pages, pieces]."""
        if host_indices.numel() != pages * self._indices_per_page():
            raise ValueError(f"{pages} keys come with {host_indices.numel()} host indices; a page has {self._indices_per_page()}")
        addresses, lengths = self.pool.get_page_buffer_meta(host_indices)
        addresses = np.array(addresses, np.uint64).reshape(pages, self.pieces)
        lengths = np.array(lengths, np.uint64).reshape(pages, self.pieces)
        return (addresses, lengths) if self.order is None else (addresses[:, self.order], lengths[:, self.order])


class KvtwinStorage(HiCacheStorage):
    def __init__(self, storage_config, kwargs=None):
        options = dict(storage_config.extra_config or {})
        unknown = sorted(set(options) - OPTIONS - SGLANG_OPTIONS)
        if unknown:
            raise InputError(f"kvtwin: unknown option {', '.join(unknown)}; the options are {', '.join(sorted(OPTIONS))}")
        if not options.get("interface_v1"):
            raise InputError('kvtwin: set "interface_v1": 1; without it SGLang copies each page once more')
        if storage_config.should_split_heads:
            raise InputError("kvtwin: tp_lcm_size, which cuts pages by heads, is not served; leave it out")
        self.config, self.options = storage_config, options
        self.stores = {}
        self.journal = CallJournal(engine_store.text(options, "journal"), host_name()) if options.get("journal") else None
        self.metrics_lock = threading.Lock()
        self.metrics = None
        if storage_config.enable_storage_metrics:
            self._new_metrics()

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._open(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        if host_pool_name not in SERVED_POOLS:
            raise InputError(
                f"kvtwin: the model has a host pool '{host_pool_name}', which this back end does not store; it serves models "
                f"with the pools {', '.join(map(str, SERVED_POOLS))}. Take another storage back end for this model")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._open(host_pool_name, host_pool)

    def _open(self, name, pool):
        known = self.stores.get(name)
        if known is not None and known.pool is pool:
            return
        if known is not None:
            known.store.close()
        self.stores[name] = PoolStore(name, pool, self.config, self.options)

    # ---- interface v1: the KV pool

    def batch_exists(self, keys, extra_info=None):
        return self._look_up(PoolName.KV, keys)

    def _look_up(self, name, keys):
        if not keys:
            return 0
        begin = time.perf_counter_ns()
        try:
            pages = self.stores[name].store.look_up(page_keys(keys))
        except LookUpError as error:  # a dead server: what is certain counts
            pages = error.pages
        self._record(LOOK_UP, len(keys), pages, 0, time.perf_counter_ns() - begin)
        return pages

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._move(PoolName.KV, "get", keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._move(PoolName.KV, "put", keys, host_indices)

    def _move(self, name, verb, keys, host_indices):
        if not keys:
            return []
        begin = time.perf_counter_ns()
        pool = self.stores[name]
        addresses, lengths = pool.memory(len(keys), host_indices)
        statuses = getattr(pool.store, verb)(page_keys(keys), addresses, lengths)
        if verb == "put":
            pool.full_log.after_put(pool.store, statuses)
        right = statuses == PageStatus.OK
        ok, duration = int(right.sum()), time.perf_counter_ns() - begin
        self._record(GET if verb == "get" else PUT, len(keys), ok, ok * pool.page_bytes, duration)
        if self.metrics is not None:
            self._count(verb, len(keys), ok * pool.page_bytes, duration / 1e9)
        return right.tolist()

    def _record(self, verb, pages, ok, moved_bytes, duration_ns):
        if self.journal is not None:
            self.journal.storage_call(verb, pages, ok, moved_bytes, duration_ns)

    # ---- interface v2: all served pools

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        kv_pages = self.batch_exists(keys)
        found = {PoolName.KV: kv_pages} if kv_pages else {}
        pages = kv_pages
        for transfer in pool_transfers or []:
            if transfer.hit_policy != PoolHitPolicy.ALL_PAGES:
                raise InputError(f"kvtwin: pool '{transfer.name}' has the hit policy {transfer.hit_policy}; only all_pages is served")
            hits = self._look_up(transfer.name, keys[:pages])
            if hits:
                found[transfer.name] = hits
            pages = min(pages, hits)
        return PoolTransferResult(pages, found, list(range(1, pages + 1)))

    def batch_get_v2(self, transfers, extra_info=None):
        return self._move_v2("get", transfers)

    def batch_set_v2(self, transfers, extra_info=None):
        return self._move_v2("put", transfers)

    def _move_v2(self, verb, transfers):
        return {t.name: self._move(t.name, verb, list(t.keys or []), t.host_indices) for t in transfers}

    # ---- metrics, end

    def _new_metrics(self):
        from sglang.srt.observability.metrics_collector import StorageMetrics

        old, self.metrics = self.metrics, StorageMetrics()
        return old

    def _count(self, verb, pages, moved_bytes, seconds):
        with self.metrics_lock:
            prefix = "prefetch" if verb == "get" else "backup"
            getattr(self.metrics, f"{prefix}_pgs").append(pages)
            getattr(self.metrics, f"{prefix}_bandwidth").append(moved_bytes / engine_store.GIB / max(seconds, 1e-9))

    def get_stats(self):
        """SGLang's StorageMetrics since the last call: pages and GiB/s of each batch. None if metrics are off."""
        if self.metrics is None:
            return None
        with self.metrics_lock:
            return self._new_metrics()

    def counters(self):
        """The counters of each pool's store (kvtwin.Store.stats): why pages were not stored or not read."""
        return {str(name): pool.store.stats() for name, pool in self.stores.items()}

    def clear(self):
        """Removes all pages. Of kind disk only: other stores hold pages of other servers."""
        if self.options.get("kind", "disk") != "disk":
            raise InputError("kvtwin: clear is served for kind disk only, because other kinds are shared with other servers")
        for name, pool in list(self.stores.items()):
            place = pool.place(name, self.config, self.options)
            pool.store.close()
            shutil.rmtree(place["location"])
            self.stores[name] = PoolStore(name, pool.pool, self.config, self.options)
        return True

    def close(self):
        for pool in self.stores.values():
            pool.store.close()
        self.stores.clear()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    # ---- SGLang's older interface, which it does not call with "interface_v1"

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def _not_served(self, *arguments, **named):
        raise NotImplementedError('kvtwin: pages move by batch_get_v1 and batch_set_v1; start the server with "interface_v1": 1')

    get = set = batch_get = batch_set = _not_served
