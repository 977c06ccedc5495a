"""Serves requests one after another on SGLang's own prefix cache with a host that is only a buffer (buffer_only).

As sequential_server.py; SGLang's BufferModePipeline and the controller's storage threads are unchanged too. The storage is a
set of page hashes that keeps everything. A request waits for its prefetch, and all writes end before the next request.
"""

import threading
from types import SimpleNamespace

import scripted_storage
import scripted_waiting
import sequential_server
from kvtwin_program import PREFETCH_MIN_TOKENS
from sglang.srt.mem_cache import utils as mem_cache_utils
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

mem_cache_utils.get_native_hash = scripted_storage.page_hashes


class Storage:
    def __init__(self):
        self.keys, self.writes = set(), 0

    def batch_exists(self, keys, extra_info=None):
        return next((at for at, key in enumerate(keys) if key not in self.keys), len(keys))

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return [key in self.keys for key in keys]

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        self.writes += len(keys)
        self.keys.update(keys)
        return [True] * len(keys)


class Server(sequential_server.Server):
    """`serve` returns the prompt tokens that hit on the device and in storage."""

    enable_hicache_storage, enable_lmcache = True, False

    def _add_host(self, tokens, write_policy, load_back_min_tokens):
        super()._add_host(tokens, write_policy, load_back_min_tokens)
        cache, controller = self.cache, self.cache.cache_controller
        self.tree_cache, self.storage = cache, Storage()
        controller.host_memory_mode = cache.host_memory_mode = "buffer_only"
        controller.enable_storage = cache.enable_storage = True
        controller.storage_stop_event = threading.Event()
        controller.storage_backend, controller.storage_backend_type = self.storage, "file"
        controller.page_get_func, controller.page_set_func = controller._page_get_zero_copy, controller._page_set_zero_copy
        controller.prefetch_tokens_occupied, controller.prefetch_capacity_limit = 0, tokens * 9 // 10
        controller.pp_prefetch_decisions, controller.pp_prefetch_command_thread = {}, None
        controller.prefetch_hits_sync_groups = controller.prefetch_completion_sync_groups = []
        controller._all_reduce = lambda tensor, op, groups: tensor
        controller.storage_config = SimpleNamespace(pp_rank=0, is_storage_writer=True)
        controller._start_storage_threads()
        cache.prefetch_threshold, cache.prefetch_stop_policy = PREFETCH_MIN_TOKENS, "wait_complete"
        cache.hicache_storage_pass_prefix_keys = False
        cache.tree_core.set_host_memory_buffer_only()
        self.allocator._kvcache = SimpleNamespace(size=self.allocator.size)
        cache.buffer_pipeline = cache.components[ComponentType.FULL].create_buffer_pipeline(
            swa_component=None, write_backlog_cap=2 * self.allocator.size)
        controller.host_write_staged_tokens_fn = lambda: cache.buffer_pipeline.write_staged_tokens_
        memory = SimpleNamespace(hicache_host_memory_mode="buffer_only", hicache_storage_prefetch_retry_poll_interval=8,
                                 hicache_storage_prefetch_retry_max_attempts=8)
        self.look_up = scripted_waiting.scheduler_rules(memory)["_prefetch_kvcache"].__get__(self)

    def stop(self):
        self.cache.cache_controller._stop_storage_threads()

    def _until(self, condition):
        def settled():
            self.cache.check_hicache_events()
            return condition()

        scripted_storage.until(settled)

    def serve(self, rid, prompt, answer_tokens, answer, priority=0, session=0, closes=False):
        cache, pipeline = self.cache, self.cache.buffer_pipeline
        request = scripted_waiting.Request(rid, prompt, 0)
        request.rid, request.priority = str(rid), priority
        self.arrive(request, session, closes)
        self.look_up(request)
        handle = request.cache_request_handle
        self._until(lambda: cache.check_prefetch_progress(handle))
        cache.pop_prefetch_loaded_tokens(handle)
        request.host_hit_is_storage, request.host_loaded_length = False, 0
        request.init_next_round_input(cache)
        device, loaded = request.prefix_len, 0
        assert pipeline.prepare_staged_prefetch(request), "nothing evicts while one request waits"
        if request.host_hit_length:
            request.lock = cache.lock(request.last_node)
            loaded, request.last_node = cache.init_load_back(
                InitLoadBackParams(request.best_match_node, request.host_hit_length, req=request))
            cache.unlock(request.lock)
        cache.storage_prefetch_retries.cancel(request.rid)
        request.lock = cache.lock(request.last_node)
        request.kv.req_pool_idx = self.rows.alloc_rows(1)[0]
        hit = device + loaded
        request.kv.cache_protected_len = request.kv.kv_allocated_len = hit
        if hit:
            path = cache.path_device_indices(request.last_node)
            self.rows.write((request.kv.req_pool_idx, slice(0, hit)), path[:hit].to(path.dtype))
        cache.ready_to_load_host_cache()
        self._prefill(request, prompt, hit, answer_tokens == 1)
        self._decode(request, prompt + answer[: answer_tokens - 1])
        request.output_ids = answer[:answer_tokens]
        self._release(request, len(prompt) + answer_tokens - 1)
        self._until(pipeline.is_idle)
        return device, loaded
