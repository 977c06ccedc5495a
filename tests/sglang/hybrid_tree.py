"""SGLang's own prefix cache of a hybrid model over a storage back end, on CPU: its tree, its hybrid controller with all threads, and
its host pools. Copies between the device and the host take no time and move no bytes. The host pools hold random bytes, and
every byte that storage gives back is compared with what it was given under the same key."""

import threading
import time
from types import SimpleNamespace

import hybrid_server
import hybrid_storage as hybrid
import sequential_server as base
import storage_controller
import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

KV, SWA, MAMBA = PoolName.KV, PoolName.SWA, PoolName.MAMBA


class Controller(HybridCacheController):
    def _l2_transfers(self, host_indices, device_indices, pool_transfers=None):
        return []

    def _transfer_num_bytes(self, op):
        return 0


class Checked:
    """A back end whose gets are compared with its sets."""

    def __init__(self, backend, pools):
        self.backend, self.pools = backend, pools
        self.given = {}  # (pool, key) -> bytes
        self.compared = dict.fromkeys(map(str, pools), 0)

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def bytes_of(self, name, indices):
        pool = self.pools[name]
        return [pool.get_data_page(int(index)).contiguous().view(torch.uint8).clone() for index in indices[:: pool.page_size]]

    def keep(self, name, keys, indices, done):
        for key, page, ok in zip(keys, self.bytes_of(name, indices), done, strict=True):
            if ok:
                self.given.setdefault((str(name), key), page)

    def compare(self, name, keys, indices, done):
        for key, page, ok in zip(keys, self.bytes_of(name, indices), done, strict=True):
            if ok:
                assert torch.equal(page, self.given[str(name), key]), f"wrong bytes of {name} {key}"
                self.compared[str(name)] += 1

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        done = self.backend.batch_set_v1(keys, host_indices, extra_info)
        self.keep(KV, keys, host_indices, done)
        return done

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        storage_controller.erase(self.pools[KV], host_indices)
        done = self.backend.batch_get_v1(keys, host_indices, extra_info)
        self.compare(KV, keys, host_indices, done)
        return done

    def batch_set_v2(self, transfers, extra_info=None):
        done = self.backend.batch_set_v2(transfers, extra_info)
        for transfer in transfers:
            self.keep(transfer.name, transfer.keys, transfer.host_indices, done[transfer.name])
        return done

    def batch_get_v2(self, transfers, extra_info=None):
        for transfer in transfers:
            storage_controller.erase(self.pools[transfer.name], transfer.host_indices)
        done = self.backend.batch_get_v2(transfers, extra_info)
        for transfer in transfers:
            self.compare(transfer.name, transfer.keys, transfer.host_indices, done[transfer.name])
        return done


class Server(hybrid_server.Server):
    """`backend` and `extra`: of the storage."""

    def __init__(self, backend, extra, given=None, **settings):
        self.backend, self.extra, self.given = backend, extra, given
        super().__init__(**settings)

    def _add_host(self, tokens, window_tokens, states, write_policy, load_back_min_tokens):
        pages, page = tokens // self.page, self.page
        pools = {KV: storage_controller.mha_pool(hybrid.LAYOUT, pages, page_tokens=page)}
        if self.window:
            pools[SWA] = storage_controller.mha_pool(hybrid.LAYOUT, window_tokens // page, layers=6, heads=1, page_tokens=page)
        if self.states:
            pools[MAMBA] = hybrid.mamba_pool(states)
        # What UnifiedRadixCache asks of host pools is what the slots of the parent class have, and the real pools too.
        made = iter(pools.values())
        old, hybrid_server.base.HostSlots = hybrid_server.base.HostSlots, lambda *arguments: next(made)
        old_controller, hybrid_server.base.Controller = hybrid_server.base.Controller, self._make_controller
        try:
            super()._add_host(tokens, window_tokens, states, write_policy, load_back_min_tokens)
        finally:
            hybrid_server.base.HostSlots, hybrid_server.base.Controller = old, old_controller
        for number, pool in enumerate(pools.values()):
            for piece in storage_controller.pieces(pool, torch.arange(pool.size // pool.page_size * pool.page_size)):
                piece.random_(0, 256, generator=torch.Generator().manual_seed(number))
        cache = self.cache
        self.storage = Checked(cache.cache_controller.storage_backend, pools)
        if self.given is not None:
            self.storage.given = self.given
        cache.cache_controller.storage_backend = self.storage
        cache.enable_storage, cache.prefetch_threshold, cache.prefetch_stop_policy = True, page, "wait_complete"
        cache.hicache_storage_pass_prefix_keys = False

    def _make_controller(self, allocator, group, write_policy):
        device = SimpleNamespace(device="cpu", layer_num=4, register_layer_transfer_counter=lambda counter: None)
        allocator._kvcache = getattr(allocator, "_kvcache", None) or device
        old = allocator.get_kvcache
        allocator.get_kvcache = lambda: device
        controller = Controller(allocator, group, self.page, None, load_cache_event=threading.Event(), write_policy=write_policy,
                                io_backend="direct", storage_backend=self.backend, model_name="tiny/tree",
                                storage_backend_extra_config=dict(self.extra))
        allocator.get_kvcache = old
        controller.l2_transfer_engine = base.NoCopies()
        return controller

    def settle(self):
        """Until storage has all that the tree gave it."""
        end = time.monotonic() + storage_controller.PATIENCE_S
        self._events()
        while self.cache.ongoing_backup or self.cache.ongoing_write_through:
            assert time.monotonic() < end, "SGLang's threads do not answer"
            self._events()

    def fetch(self, rid, prompt):
        """A prefetch of the prompt without its last token, as SGLang's scheduler asks for it before the admission. Returns the tokens that it
        loaded."""
        handle = CacheRequestHandle(rid, 0)
        request = hybrid_server.Request(rid, prompt)
        match = self._match(request, prompt)
        node = match.last_host_node if hasattr(match, "last_host_node") else match.best_match_node
        matched = match.device_prefix_len + match.host_hit_length
        self.cache.prefetch_from_storage(handle, node, prompt[matched:-1], self.cache.get_last_hash_value(node))
        end = time.monotonic() + storage_controller.PATIENCE_S
        while handle in self.cache.ongoing_prefetch:
            assert time.monotonic() < end, "SGLang's threads do not answer"
            self._events()
            self.cache.check_prefetch_progress(handle)
        return self.cache.prefetch_loaded_tokens_by_reqid.pop(handle, 0)

    def close(self):
        self.cache.cache_controller.detach_storage_backend()
