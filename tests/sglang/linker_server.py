"""Serves requests one after another on SGLang's own prefix cache with storage that the device is linked to, without a host.

As sequential_server.py; SGLang's UnifiedCacheLinkerWrapper is unchanged too. The store is a set of page hashes that keeps everything,
and answers at once.
"""

from types import SimpleNamespace

import scripted_storage
import scripted_waiting
import sequential_server
from sglang.srt.mem_cache import unified_radix_cache
from sglang.srt.mem_cache import utils as mem_cache_utils
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache import unified_cache_linker

unified_radix_cache.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
mem_cache_utils.get_native_hash = scripted_storage.page_hashes
unified_cache_linker.get_storage_hash_str = lambda key, prior, page_size: scripted_storage.page_hashes(
    key.token_ids, bytes.fromhex(prior) if prior else None, page_size)


class Store(unified_cache_linker.UnifiedCacheLinker):
    pools, layer_done_counter = (PoolName.KV,), None

    def __init__(self):
        self.keys, self.offloads, self.batches = set(), 0, 0

    def lookup(self, rid, transfers):
        (keys,) = [transfer.keys for transfer in transfers]
        pages = next((at for at, key in enumerate(keys) if key not in self.keys), len(keys))
        return list(range(1, pages + 1))

    def load(self, rid, transfers):
        return True

    def start_layer_wise_loading(self):
        self.batches += 1
        return self.batches

    def finish_layer_wise_loading(self, counter_index):
        return True

    def cancel_queued_load(self, rid):
        return False

    def offload(self, transfers, session_id=None):
        for transfer in transfers:
            self.keys.update(transfer.keys)
        self.offloads += 1
        return True

    def num_completed_offloads(self):
        return self.offloads

    def pop_completed_offload(self):
        self.offloads -= 1
        return True

    def reset(self):
        pass

    def close(self):
        pass


class Server(sequential_server.Server):
    """`serve` returns the prompt tokens that hit on the device and in storage."""

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.store = Store()
        self.cache.init_cache_linker(self.store)

    def _events(self):
        self.cache.check_hicache_events()

    def serve(self, rid, prompt, answer_tokens, answer, priority=0, session=0, closes=False):
        cache = self.cache
        request = scripted_waiting.Request(rid, prompt, 0)
        request.rid, request.priority = str(rid), priority
        self.arrive(request, session, closes)
        request.swa_branching_seqlen = None
        request.init_next_round_input(cache)
        device, loaded = request.prefix_len, 0
        request.lock = cache.lock(request.last_node)
        if request.host_hit_length:
            loaded, request.last_node = cache.init_load_back(
                InitLoadBackParams(request.best_match_node, request.host_hit_length, req=request))
        request.prefix_len = device + loaded
        request.kv.req_pool_idx = self.rows.alloc_rows(1)[0]
        request.kv.cache_protected_len, request.kv.kv_allocated_len = device, request.prefix_len
        if request.prefix_len:
            path = cache.prefix_device_indices(request)
            self.rows.write((request.kv.req_pool_idx, slice(0, request.prefix_len)), path)
        cache.ready_to_load_host_cache()
        self.loads = request
        self._prefill(request, prompt, request.prefix_len, answer_tokens == 1)
        self._decode(request, prompt + answer[: answer_tokens - 1])
        request.output_ids = answer[:answer_tokens]
        self._release(request, len(prompt) + answer_tokens - 1)
        self._events()
        return device, loaded

    def _take(self, request, end, spare):
        """The loads of a batch end after its pass."""
        super()._take(request, end, spare)
        if self.loads is not None:
            self.loads = None
            assert not self.cache.finish_external_linker_loads([request]), "the store has every page that it found"
