"""A storage back end (L3) of SGLang's HiCache on kvtwin's stores: local disk, a shared file system, Redis, or Mooncake.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{
      "backend_name": "kvtwin", "module_path": "kvtwin_sglang.storage", "class_name": "KvtwinStorage",
      "interface_v1": 1, "path": "/nvme/kvtwin", "capacity_gib": 500}'

Keys of the extra configuration:
    path          folder of the store; its parent must exist. For kinds disk and shared_fs
    kind          "disk" (default), "shared_fs" or "remote"
    url           of kind remote: redis://HOST:PORT or mooncake://HOST:PORT
    capacity_gib  GiB of one rank's KV, windows and states (disk), or of those of all ranks and servers together (shared_fs).
                  Required for these
    namespace     a name that separates this deployment's pages from those of others in the same store
    revision      of the model's weights; pages of other revisions are never read. Required if the model is no local
                  folder or cached model of Hugging Face; "fixed" if the weights of this model name never change
    timeout_ms    of kind remote: of one batch of commands (default 1000)
    eviction      of kind disk: the policy by which a full store evicts pages (default "lru")
    journal       a file that records each call and its time, for `kvtwin calibrate --from`
The environment variable KVTWIN_PAGE_KEY (at least 16 bytes) gives stored pages a keyed check; KVTWIN_REDIS_PASSWORD is
the password of the Redis server.

Each stored page has a check of its bytes and of everything that its KV depends on, as far as SGLang tells it: model,
fingerprint of its weights, dtype, kind of FP8, page size, layout, heads and layers of this rank, the rank, the draft model, and the
arguments that change KV (KV_ARGUMENTS). A damaged page, or a page of another configuration, is a miss. SGLang's own storage configuration has neither the dtype nor the page size.

Pools: KV of MHA, GQA and MLA models, packed draft layers, and every host pool of hybrid models that gives the addresses of its
pages (interface v2): sliding windows, Mamba states, indexers of sparse attention, drafts, DeepSeek-V4's compressed pools. A
pool without addresses is refused by its name when the server starts.

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
from kvtwin.store import Identity, LookUpError, Need, PageForm, PageStatus, Pool, Store
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from kvtwin_sglang import host_name

logger = logging.getLogger(__name__)
KEY_BYTES = 32
# Attributes of SGLang's host pools that decide what the bytes of a page mean.
GEOMETRY = ("layout", "dtype", "page_size", "layer_num", "target_layer_num", "start_layer", "end_layer", "head_num",
            "head_dim", "v_head_dim", "kv_cache_dim", "dcp_size", "dcp_rank", "head_group_num", "storage_format_tag")
POOL_GEOMETRY = (*GEOMETRY, "num_mamba_layers", "temporal_dtype", "temporal_state_shape", "conv_dtype", "conv_state_shapes",
                 "indexer_dtype", "indexer_page_stride_size", "item_bytes", "slot_page_size", "state_page_bytes", "ring_size",
                 "swa_page_size")
# Arguments of SGLang's server that change the KV of equal weights, with the values that change nothing. Host pools have one type for
# all kinds of FP8.
KV_ARGUMENTS = {"kv_cache_dtype": ("auto", "bf16", "bfloat16"), "json_model_override_args": ("{}",), "quantization": (None,),
                "modelopt_quant": (None,)}
MARK_BYTES = 64  # of a page whose pool has no bytes
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


def server_arguments():
    """The arguments of the server, if this is a process of one. SGLang's storage configuration has the served name only."""
    try:
        from sglang.srt.runtime_context import get_server_args

        return get_server_args()
    except (ImportError, AttributeError, RuntimeError, ValueError):
        return None


def revision(config, options):
    server = server_arguments()
    if server is None:
        return engine_store.revision(options, (config.model_name,))
    return engine_store.revision(options, (server.model_path,), served=server.revision or "main", cache=server.download_dir)


def computed_with(server):
    """The arguments of the server that change the KV of equal weights."""
    if server is None:
        return {}
    found = {name: str(getattr(server, name)) for name, usual in KV_ARGUMENTS.items() if getattr(server, name, usual[0]) not in usual}
    if getattr(server, "quantization_param_path", None):
        found["kv_scales"] = hashlib.sha256(Path(server.quantization_param_path).read_bytes()).hexdigest()
    if getattr(server, "load_format", None) == "dummy":  # random weights; other formats have the same ones
        found["load_format"] = "dummy"
    return found


class PoolMemory:
    """A host pool: its objects, and the way from the pool's slots to addresses."""

    def __init__(self, name, pool):
        self.name, self.pool = name, pool
        try:
            place = pool.get_page_buffer_meta(torch.arange(self.indices_per_page()))
        except (AssertionError, AttributeError, NotImplementedError, ValueError) as error:
            raise InputError(
                f"kvtwin: pool '{name}' ({type(pool).__name__}, layout {getattr(pool, 'layout', 'unknown')}) gives no addresses "
                f"of its pages ({error or 'its layout has none'}); start the server with --hicache-mem-layout page_first, or take "
                "another storage back end for this model") from error
        self.has_bytes = place is not None  # DeepSeek-V4's KV pool has none: its pages are those of the pools beside it
        addresses, lengths = place if self.has_bytes else ([0], [MARK_BYTES])
        self.pieces = len(addresses)
        self.order = self._payload_order()
        self.page_bytes = sum(lengths)
        self.full_log = engine_store.FullStoreLog(f"pool '{name}'", logger)

    @property
    def store_name(self):
        """The name of the pool in the store; the KV pool has the store's pages."""
        return "" if self.name == PoolName.KV else str(self.name)

    def indices_per_page(self):
        return self.pool.page_size * getattr(self.pool, "dcp_size", 1)

    def _payload_order(self):
        """SGLang lists a layer_first page of K and V layer by layer; the stored page has all K first."""
        if self.pool.layout != "layer_first" or self.pieces != 2 * getattr(self.pool, "layer_num", 0):
            return None
        return np.arange(self.pieces).reshape(-1, 2).T.ravel()

    def form(self):
        if not self.has_bytes:
            return PageForm(layers=1, planes=1, heads=1, head_bytes=MARK_BYTES, page_tokens=1, layout="page_first")
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

    def _details(self, geometry):
        known = {key: str(getattr(self.pool, key)) for key in geometry if getattr(self.pool, key, None) is not None}
        # The host pool copies the device's order of the bytes of a page (SGLANG_USE_HND_KVCACHE, AITER's layouts).
        for info in getattr(self.pool, "_buffer_infos", ())[:1]:
            if info.buffers.layout.value not in ("nhd", "paged_nhd"):
                known["device_layout"] = info.buffers.layout.value
        server = server_arguments()
        draft = getattr(server, "speculative_draft_model_path", None)
        if draft and draft != server.model_path and self._has_draft():
            known["draft"] = engine_store.fingerprint(draft, server.speculative_draft_model_revision or "main", server.download_dir)
        return known | {"pool": str(self.name), "pool_class": type(self.pool).__name__}

    def _has_draft(self):
        """True if the pool has KV or states of a draft model, alone or behind those of the target."""
        pool = self.pool
        return (self.store_name.startswith("draft") or getattr(pool, "layer_num", 0) > getattr(pool, "target_layer_num", 1 << 32)
                or bool(getattr(pool, "mtp_draft_buffer_infos", ())))

    def identity(self, config, options):
        """The identity of the store whose pages are those of this pool."""
        # Ranks store equal pages of MLA models, so these are no parts of a page.
        tp, rank = (1, 0) if config.is_mla_model else (config.tp_size, config.tp_rank)
        details = self._details(GEOMETRY) | {"namespace": engine_store.text(options, "namespace"),
                                             "attn_cp": [config.attn_cp_rank, config.attn_cp_size]} | computed_with(server_arguments())
        return Identity(model=config.model_name or "unnamed", revision=revision(config, options),
                        kv_dtype=str(self.pool.dtype).removeprefix("torch."), tp=tp, pp=config.pp_size,
                        rank=config.pp_rank * tp + rank, name_space=json.dumps(details, sort_keys=True))

    def beside(self, config):
        """The pool of a store whose pages are those of the KV pool."""
        details = self._details(POOL_GEOMETRY) | {"dtype": str(self.pool.dtype)}
        if config.is_mla_model and self.name == PoolName.MAMBA:  # SGLang cuts states by rank even if all ranks have equal pages
            details["rank"] = [config.tp_rank, config.tp_size]
        return Pool(name=self.store_name, object_bytes=self.page_bytes, identity=json.dumps(details, sort_keys=True))

    def memory(self, pages, host_indices):
        """Addresses and lengths of the pieces of `pages` pages, as uint64 arrays of the shape [pages, pieces], and what must live as
        long as the call."""
        if host_indices.numel() != pages * self.indices_per_page():
            raise ValueError(f"{pages} keys come with {host_indices.numel()} host indices; a page has {self.indices_per_page()}")
        if not self.has_bytes:
            marks = np.zeros((pages, MARK_BYTES), np.uint8)
            return (marks.ctypes.data + np.arange(pages, dtype=np.uint64) * np.uint64(MARK_BYTES))[:, None], MARK_BYTES, marks
        addresses, lengths = self.pool.get_page_buffer_meta(host_indices)
        addresses = np.array(addresses, np.uint64).reshape(pages, self.pieces)
        lengths = np.array(lengths, np.uint64).reshape(pages, self.pieces)
        if self.order is not None:
            addresses, lengths = addresses[:, self.order], lengths[:, self.order]
        return addresses, lengths, None


def place(config, options, largest_bytes, has_pools):
    """The arguments of Store that say where the pages are. A store of kind disk belongs to one process."""
    place = engine_store.place(options, largest_bytes, has_pools)
    if place["kind"] == "disk":
        if config.is_mla_model and config.tp_size > 1:
            raise InputError(
                f"kvtwin: the {config.tp_size} ranks of an MLA model share their pages, and a store of kind disk belongs "
                'to one process; set "kind" to "shared_fs"')
        folder = Path(place["location"])
        folder.mkdir(exist_ok=True)
        place["location"] = str(folder / (
            f"kv-tp{config.tp_rank}of{config.tp_size}-pp{config.pp_rank}of{config.pp_size}"
            f"-cp{config.attn_cp_rank}of{config.attn_cp_size}-dp{config.dp_rank}"))
    return place


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
        self.pools = {}
        self.store = None
        self.journal = CallJournal(engine_store.text(options, "journal"), host_name()) if options.get("journal") else None
        self.metrics_lock = threading.Lock()
        self.metrics = None
        if storage_config.enable_storage_metrics:
            self._new_metrics()

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._add(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._add(host_pool_name, host_pool)

    def on_host_pools_registered(self):
        self._open()

    def _add(self, name, pool):
        """A pool that comes after the others, as a draft's: the store is opened again. Calls in the meantime find nothing."""
        known = self.pools.get(name)
        if known is not None and known.pool is pool:
            return
        self.pools[name] = PoolMemory(name, pool)
        if self.store is not None:
            self.store.close()
            self._open()

    def _open(self):
        kv = self.pools[PoolName.KV]
        others = [pool.beside(self.config) for name, pool in sorted(self.pools.items()) if name != PoolName.KV]
        where = place(self.config, self.options, max(pool.page_bytes for pool in self.pools.values()), bool(others))
        self.store = Store(form=kv.form(), identity=kv.identity(self.config, self.options), pools=others, **where)

    def _unless_closed(self, store, call, otherwise):
        """What `call` returns; `otherwise`, if the store was closed meanwhile."""
        try:
            return call()
        except InputError:
            if not store.closed:
                raise
            return otherwise

    # ---- interface v1: the KV pool

    def batch_exists(self, keys, extra_info=None):
        return self._look_up(keys, [])[0] if keys else 0

    def _look_up(self, keys, needs):
        """The leading pages; the lengths that are usable; by pool, the longest length that its need allows."""
        begin, store = time.perf_counter_ns(), self.store
        try:
            if needs:
                found = self._unless_closed(store, lambda: store.look_up_usable(page_keys(keys), needs), None)
                pages, usable, longest = found or (0, np.zeros(0, bool), {})
            else:
                pages, longest = self._unless_closed(store, lambda: store.look_up(page_keys(keys)), 0), {}
                usable = np.ones(pages, bool)
        except LookUpError as error:  # a dead server: what is certain counts
            pages, usable, longest = error.pages, np.full(0 if needs else error.pages, True), {}
        self._record(LOOK_UP, len(keys), pages, 0, time.perf_counter_ns() - begin)
        return pages, [int(page) + 1 for page in np.flatnonzero(usable)], longest

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._move(PoolName.KV, "get", keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._move(PoolName.KV, "put", keys, host_indices)

    def _move(self, name, verb, keys, host_indices):
        if not keys:
            return []
        begin = time.perf_counter_ns()
        pool, store = self.pools[name], self.store
        addresses, lengths, _memory = pool.memory(len(keys), host_indices)
        statuses = self._unless_closed(
            store, lambda: getattr(store, verb)(page_keys(keys), addresses, lengths, pool=pool.store_name),
            np.full(len(keys), PageStatus.MISSING, np.uint8))
        if verb == "put" and not store.closed:
            pool.full_log.after_put(store, statuses, pool=pool.store_name)
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
        if not keys:
            return PoolTransferResult(0, {}, [])
        needs = []
        for transfer in pool_transfers or []:
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                needs.append(Need(str(transfer.name), 0))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                needs.append(Need(str(transfer.name), max(1, len(transfer.keys or [])), from_start=True))
            else:
                raise InputError(f"kvtwin: pool '{transfer.name}' has the hit policy {transfer.hit_policy.value}; served are all_pages and "
                                 "trailing_pages")
        pages, usable, longest = self._look_up(keys, needs)
        found = {PoolName.KV: pages} | {t.name: longest.get(str(t.name), 0) for t in pool_transfers or []}
        return PoolTransferResult(usable[-1] if usable else 0, {name: count for name, count in found.items() if count}, usable)

    def batch_get_v2(self, transfers, extra_info=None):
        return self._move_v2("get", transfers)

    def batch_set_v2(self, transfers, extra_info=None):
        return self._move_v2("put", transfers)

    def _move_v2(self, verb, transfers):
        return {transfer.name: self._move_transfer(verb, transfer) for transfer in transfers}

    def _move_transfer(self, verb, transfer):
        keys = list(transfer.keys or [])
        indices = 0 if transfer.host_indices is None else transfer.host_indices.numel()
        if indices != len(keys) * self.pools[transfer.name].indices_per_page():
            logger.error("kvtwin: pool '%s': %d keys come with %d host indices; nothing is moved", transfer.name, len(keys), indices)
            return [False] * len(keys)
        return self._move(transfer.name, verb, keys, transfer.host_indices)

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
        """The counters of each pool (kvtwin.Store.stats): why pages were not stored or not read."""
        stats = self.store.stats()
        return {str(PoolName.KV): stats} | {one["name"]: one for one in stats.pop("pools", [])}

    def clear(self):
        """Removes all pages. Of kind disk only: other stores hold pages of other servers."""
        if self.options.get("kind", "disk") != "disk":
            raise InputError("kvtwin: clear is served for kind disk only, because other kinds are shared with other servers")
        self.store.close()
        shutil.rmtree(place(self.config, self.options, 1, False)["location"])
        self._open()
        return True

    def close(self):
        if self.store is not None:
            self.store.close()
        if self.journal is not None:
            self.journal.close()
            self.journal = None

    # ---- SGLang's older interface, which it does not call with "interface_v1"

    def exists(self, key):
        return self.batch_exists([key]) == 1

    def _not_served(self, *arguments, **named):
        raise NotImplementedError('kvtwin: pages move by batch_get_v1 and batch_set_v1; start the server with "interface_v1": 1')

    get = set = batch_get = batch_set = _not_served
