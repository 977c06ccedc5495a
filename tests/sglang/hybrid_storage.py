"""SGLang's own HybridCacheController with real host pools of hybrid models and a storage back end, on CPU.

The controller, its threads, the groups and classes of host pools, and the addresses of their pages are SGLang's, unchanged.
The device pools are left out, as in storage_controller.py.
"""

import threading
from array import array
from queue import Empty
from types import SimpleNamespace

import storage_controller as base
import torch
from scripted_storage import page_hashes
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool, DeepSeekV4StateHostPool, LogicalHostPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.host_pool_decl import HostPoolDecl, HostPoolStorageInfo
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

KV, SWA, MAMBA = PoolName.KV, PoolName.SWA, PoolName.MAMBA
LAYOUT = "page_first_direct"

hybrid_cache_controller.get_storage_hash_str = lambda tokens, prior, page_size=None: page_hashes(
    getattr(tokens, "token_ids", tokens), bytes.fromhex(prior) if prior else None, page_size)


def mamba_pool(slots, layers=3, temporal=(4, 8, 16), conv=(48, 3), temporal_dtype=torch.float32, conv_dtype=torch.bfloat16,
               extra=()):
    info = MambaStateBufferInfo(temporal=torch.zeros((layers, 1, *temporal), dtype=temporal_dtype),
                                conv=(torch.zeros((layers, 1, *conv), dtype=conv_dtype),), extra_checkpoint_buffers=extra)
    return MambaPoolHost(info, slots, 0, device_capacity=1, pin_memory=False, layout=LAYOUT)


def indexer_pool(anchor, layers=4, bytes_per_token=132):
    device = SimpleNamespace(store_dtype=torch.uint8, start_layer=0, end_layer=layers, layer_num=layers, device="cpu", layer_shard_enabled=False,
                             index_k_with_scale_buffer=[torch.zeros((2, bytes_per_token * anchor.page_size), dtype=torch.uint8)
                                                        for _ in range(layers)])
    decl = HostPoolDecl(pool_name=PoolName.INDEXER, device_pool=device, indices_from_pool=KV, layout_source=KV,
                        storage_info=HostPoolStorageInfo(bytes_per_token_per_layer=bytes_per_token, dtype=torch.uint8),
                        host_pool_builder=None)
    return DSAIndexerPoolHost(decl, anchor, pin_memory=False)


def v4_paged_pool(name, pages, page_tokens, layers=3, item_bytes=5_000):
    buffers = [torch.zeros((1, item_bytes), dtype=torch.uint8) for _ in range(layers)]
    return DeepSeekV4PagedHostPool(str(name), buffers, item_bytes, pages, page_tokens, layout=LAYOUT, pin_memory=False,
                                   page_aligned_only=True)


def v4_state_pool(name, pages, page_tokens, layers=2, ring=4, slot=96):
    states = [SimpleNamespace(ring_size=ring, kv_score_buffer=SimpleNamespace(kv_score=torch.zeros((2 * ring, slot))))
              for _ in range(layers)]
    return DeepSeekV4StateHostPool(str(name), states, pages, page_tokens, layout=LAYOUT, pin_memory=False)


def host_pools(kind, pages, page_tokens=16):
    """Host pools of a kind of model, the KV pool first. Returns them by name, and by name what a prefix needs: the trailing pages; 0:
    all; and the pool whose indices it uses."""
    mha = base.mha_pool(LAYOUT, pages, page_tokens=page_tokens)
    windows = base.mha_pool(LAYOUT, pages, layers=6, heads=1, page_tokens=page_tokens)
    if kind == "window":
        return {KV: mha, SWA: windows}, {SWA: (3, None)}
    if kind == "state":
        return {KV: mha, MAMBA: mamba_pool(pages)}, {MAMBA: (1, None)}
    if kind == "window and state":
        return {KV: mha, SWA: windows, MAMBA: mamba_pool(pages)}, {SWA: (2, None), MAMBA: (1, None)}
    if kind == "latent and state":
        return {KV: base.mla_pool(LAYOUT, pages, page_tokens=page_tokens), MAMBA: mamba_pool(pages)}, {MAMBA: (1, None)}
    if kind == "sparse attention":
        latent = base.mla_pool(LAYOUT, pages, page_tokens=page_tokens)
        return {KV: latent, PoolName.INDEXER: indexer_pool(latent)}, {PoolName.INDEXER: (0, KV)}
    if kind == "deepseek_v4":
        pools = {KV: LogicalHostPool(pages * page_tokens, page_tokens, LAYOUT), SWA: v4_paged_pool(SWA, pages, page_tokens)}
        needs = {SWA: (2, None)}
        for name in (PoolName.DEEPSEEK_V4_C4, PoolName.DEEPSEEK_V4_C4_INDEXER, PoolName.DEEPSEEK_V4_C128):
            pools[name], needs[name] = v4_paged_pool(name, pages, page_tokens, item_bytes=700), (0, KV)
        for name in (PoolName.DEEPSEEK_V4_C4_STATE, PoolName.DEEPSEEK_V4_C4_INDEXER_STATE):
            pools[name], needs[name] = v4_state_pool(name, pages, page_tokens), (2, SWA)
        return pools, needs
    raise ValueError(kind)


KINDS = ("window", "state", "window and state", "latent and state", "sparse attention", "deepseek_v4")


class Engine:
    """A hybrid controller. `backend` and `extra` as of storage_controller.Engine."""

    def __init__(self, kind, backend, extra, pages=64, model="tiny/hybrid", pools=None):
        self.kind = kind
        self.pools, self.needs = pools or host_pools(kind, pages)
        kv = self.pools[KV]
        self.page = kv.page_size
        layers = max(1, kv.layer_num)
        device = SimpleNamespace(device="cpu", layer_num=layers, register_layer_transfer_counter=lambda counter: None)
        if getattr(kv, "kv_cache_dim", None):  # SGLang looks at the class
            from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

            fields = vars(device)
            device = object.__new__(MLATokenToKVPool)
            vars(device).update(fields)
        allocator = PagedTokenToKVPoolAllocator(self.page, self.page, torch.bfloat16, "cpu", kvcache=device, need_sort=False)
        group = HostPoolGroup([PoolEntry(name, pool, None, lambda layer: layer, is_primary_index_anchor=name == KV)
                               for name, pool in self.pools.items()])
        self.controller = hybrid_cache_controller.HybridCacheController(
            allocator, group, self.page, None, load_cache_event=threading.Event(), write_policy="write_through",
            io_backend="direct", storage_backend=backend, model_name=model, storage_backend_extra_config=dict(extra))

    @property
    def storage(self):
        return self.controller.storage_backend

    def tokens(self, pages, first=0):
        return array("q", range(first * 1_000_000, first * 1_000_000 + pages * self.page))

    def keys(self, tokens):
        return page_hashes(tokens, None, self.page)

    def slots(self, name, objects):
        pool = self.pools[name]
        return pool.alloc(objects * pool.page_size)

    def release(self, name, slots):
        if slots is not None and slots.numel():
            self.pools[name].free(slots)

    def bytes_of(self, name, slots):
        pool = self.pools[name]
        return torch.stack([pool.get_data_page(int(slot)).contiguous().view(torch.uint8).clone() for slot in slots[:: pool.page_size]])

    def transfers(self, keys, held, beside):
        """What SGLang names of the pools beside the KV pool. held: the pages that have a window or state, of pools with slots of
        their own. beside: by name, the slots."""
        result = []
        for name, (trailing, source) in self.needs.items():
            policy = PoolHitPolicy.TRAILING_PAGES if trailing else PoolHitPolicy.ALL_PAGES
            own = None if source == KV else held[source or name]
            result.append(PoolTransfer(name, host_indices=beside.get(name), keys=None if own is None else [keys[i] for i in own],
                                       hit_policy=policy, indices_from_pool=source))
        return result

    def back_up(self, tokens, held, seed):
        """Stores pages with random bytes, and the windows and states of the pages in `held`, by name. Returns the bytes by pool, and
        SGLang's operation. The bytes of the KV pool, and of pools with its indices, are those of each page, else those of the pages
        that are held."""
        keys = self.keys(tokens)
        slots = {KV: self.slots(KV, len(keys))}
        for name, (_, source) in self.needs.items():
            if source is None:
                slots[name] = self.slots(name, len(held[name]))
        content = {}
        for number, name in enumerate(self.pools):
            source = self.needs.get(name, (0, None))[1]
            if getattr(self.pools[name], "kv_buffer", True) is not None or name != KV:
                base.fill(self.pools[name], slots[source or name], seed * 100 + number)
            content[name] = self.bytes_of(name, slots[source or name])
        operation = self.controller.write_storage(slots[KV], tokens, hash_value=keys, extra_pools=self.transfers(keys, held, slots))
        ended = self.controller.ack_backup_queue.get(timeout=base.PATIENCE_S)
        assert ended.id == operation
        for name, indices in slots.items():
            self.release(name, indices)
        return content, ended

    def look_up(self, tokens):
        """The first half of a prefetch. Returns SGLang's operation."""
        keys, held, beside = self.keys(tokens), {}, {}
        for name, (trailing, source) in self.needs.items():
            if source is None:
                held[name] = range(max(0, len(keys) - trailing), len(keys))
                beside[name] = self.slots(name, len(held[name]))
        self.controller.prefetch(CacheRequestHandle("request", 0), tokens, extra_pools=self.transfers(keys, held, beside))
        return self.controller.prefetch_hit_queue.get(timeout=base.PATIENCE_S), beside

    def prefetch(self, tokens):
        """Returns the pages that SGLang takes as read, by pool the objects that it takes as read, and the bytes by pool."""
        operation, beside = self.look_up(tokens)
        pages, hits, content = 0, {}, {}
        if operation.hash_value:
            slots = {KV: self.slots(KV, len(operation.hash_value))} | beside
            for name, indices in slots.items():
                if self.pools[name].get_page_buffer_meta(indices) is not None:
                    base.erase(self.pools[name], indices)
            operation.host_indices = slots[KV]
            self.controller.prefetch_buffer.put(operation)
            while True:
                try:
                    ack = self.controller.ack_prefetch_queue.get(timeout=base.PATIENCE_S)
                except Empty:
                    raise AssertionError("SGLang's threads do not answer") from None
                if ack.completed_req:
                    break
                if ack.completed_tokens is not None:
                    pages = ack.completed_tokens // self.page
                if ack.pool_hits is not None:
                    hits = {name: ack.pool_hits.get(name, 0) for name in self.needs if self.needs[name][1] != KV}
            for name in self.pools:
                source = self.needs.get(name, (0, None))[1]
                content[name] = self.bytes_of(name, slots[source or name])
            self.release(KV, slots[KV])
        for name, indices in beside.items():
            self.release(name, indices)
        return pages, hits, content

    def usable(self, tokens):
        """The lengths that are usable, the longest one, and each pool's own boundary."""
        keys = self.keys(tokens)
        held = {name: range(min(trailing, len(keys))) for name, (trailing, source) in self.needs.items() if source is None}
        transfers = self.transfers(keys, held, {})
        found = self.storage.batch_exists_v2(keys, transfers)
        return found.restorable_prefix_pages, found.kv_hit_pages, {str(k): v for k, v in found.extra_pool_hit_pages.items()}

    def close(self):
        self.controller.detach_storage_backend()
