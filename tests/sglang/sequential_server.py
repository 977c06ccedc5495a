"""Serves requests one after another on SGLang's own prefix caches, as SGLang's scheduler does, without a model.

SGLang's own code, unchanged: RadixCache, UnifiedRadixCache with either tree core, HybridCacheController, the page
allocator and the table of requests' rows. This file stands for the scheduler (admission, chunks, decode steps), for the
host pool's memory, and for the copies, which take no time and move no bytes.
"""

from types import SimpleNamespace

import torch

from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.l2_transfer import TransferCompletion
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

TREES = ("radix", "python", "rust")  # RadixCache, and UnifiedRadixCache with its two cores


class HostSlots:
    """Page numbers of a host pool of `tokens`, without the pool's memory."""

    layout = "page_first_direct"
    device = "cpu"
    shared_allocation_domain = None
    can_use_write_back_jit = False
    size_per_token = 0

    def __init__(self, tokens, page_tokens):
        self.size = self.logical_size = tokens
        self.page_size = page_tokens
        self.clear()

    def clear(self):
        self.free_pages = list(range(self.size // self.page_size))

    def available_size(self):
        return len(self.free_pages) * self.page_size

    def alloc(self, tokens):
        pages = tokens // self.page_size
        if pages > len(self.free_pages):
            return None
        taken = torch.tensor(self.free_pages[:pages], dtype=torch.int64)
        del self.free_pages[:pages]
        return (taken[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)

    def free(self, indices):
        self.free_pages += (indices[:: self.page_size] // self.page_size).tolist()
        return len(indices)


class Event:
    """Of a copy that has ended."""

    def query(self):
        return True

    def synchronize(self):
        pass


class NoCopies:
    """Stands for L2TransferEngine."""

    def submit_device_to_host(self, transfers):
        return TransferCompletion(Event(), Event(), False)

    def submit_host_to_device(self, transfers, start_event, on_layer_done, transfer_layer_id_max):
        return TransferCompletion(start_event, Event(), False)


class Controller(HybridCacheController):
    """SGLang's controller: its calls, its queues and its acks. Only the constructor and the bytes are left out."""

    def __init__(self, allocator, host_group, write_policy):
        self.mem_pool_device_allocator = allocator
        self.mem_pool_device = None
        self.mem_pool_host = self.storage_host_pool = host_group
        self.write_policy = write_policy
        self.page_size = allocator.page_size
        self.io_backend = "direct"
        self.device = "cpu"
        self.enable_storage = False
        self.host_memory_mode = "cache"
        self.load_queue, self.write_queue, self.ack_load_queue, self.ack_write_queue = [], [], [], []
        self.load_fence_stream = self.write_fence_stream = None
        self.l2_transfer_engine = NoCopies()
        self.transfer_layer_id_max = 0
        # Of the layers' events only the numbers of the sets are used.
        self.layer_done_counter = SimpleNamespace(
            num_counters=3, update_producer=lambda: 0, reset=lambda: None,
            events=[SimpleNamespace(start_event=SimpleNamespace(record=lambda: None), complete=None)])
        self.pp_prefetch_command_group = None
        self.extra_host_mem_release_queues = {}

    def reset(self):
        self.load_queue.clear()
        self.write_queue.clear()
        self.ack_load_queue.clear()
        self.ack_write_queue.clear()

    def _l2_transfers(self, host_indices, device_indices, pool_transfers=None):
        return []

    def _transfer_num_bytes(self, op):
        return 0


class Request(SimpleNamespace):
    """The fields of SGLang's Req that its caches read."""

    def __init__(self, rid, prompt, priority):
        super().__init__(
            rid=rid, kv=ReqKvInfo(), priority=priority, session_id=None, session=None, kv_rotation_base=None, extra_key=None,
            cache_salt=None, origin_input_ids=prompt, full_untruncated_fill_ids=prompt, output_ids=(), lock=None, last_node=None,
            swa_host_hit_length=0, mamba_host_hit_length=0, is_finished=False, finished_reason=None, session_generation=None)

    def finished(self):
        return self.is_finished


class Server:
    """One engine. `serve` returns the prompt tokens that hit on the device and on the host."""

    config = None  # of the eviction policy

    def __init__(self, tree, eviction, page_tokens, device_tokens, host_tokens=0, write_policy="write_through",
                 chunk_tokens=0, load_back_min_tokens=10, max_tokens=1 << 17, scheduler_room=False, session_radix=False):
        self.tree, self.page, self.host_tokens = tree, page_tokens, host_tokens
        self.chunk = chunk_tokens // page_tokens * page_tokens
        self.scheduler_room, self.session_radix = scheduler_room, session_radix
        self.allocator = PagedTokenToKVPoolAllocator(
            device_tokens, page_tokens, torch.bfloat16, "cpu", kvcache=None, need_sort=False)
        self.rows = ReqToTokenPool(1, max_tokens, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.allocator,
            page_size=page_tokens, eviction_policy=eviction, eviction_policy_config=self.config,
            tree_components=(ComponentType.FULL,), enable_session_radix_cache=session_radix,
            tree_core_backend=None if tree == "radix" else tree)
        self.cache = RadixCache(params) if tree == "radix" else UnifiedRadixCache(params)
        self.evicted_tokens = 0
        self.cache.update_eviction_metrics = self._count_evicted
        if host_tokens:
            self._add_host(host_tokens, write_policy, load_back_min_tokens)

    def _add_host(self, tokens, write_policy, load_back_min_tokens):
        """What UnifiedRadixCache.init_hicache and the assembler of the pools set up, for one pool."""
        cache, slots = self.cache, HostSlots(tokens, self.page)
        group = HostPoolGroup([PoolEntry(PoolName.KV, slots, None, lambda layer: layer, is_primary_index_anchor=True)])
        cache.host_pool_group = group
        cache.components[ComponentType.FULL]._full_kv_pool_host = slots
        cache.cache_controller = Controller(self.allocator, group, write_policy)
        cache.tree_core.set_hicache_enabled()
        cache.write_through_threshold = 1 if write_policy == "write_through" else 2
        cache.is_write_back = write_policy == "write_back"
        cache.load_back_threshold = load_back_min_tokens

    def _count_evicted(self, tokens, start_time):
        self.evicted_tokens += tokens

    def queue(self, request):
        """The request has arrived."""

    def admit(self, request):
        """The request goes to work on its path, which is locked."""

    def _events(self):
        if self.host_tokens:
            self.cache.ready_to_load_host_cache()
            self.cache.check_hicache_events()

    def _take(self, request, end, spare):
        """Slots for [kv_allocated_len, end) of the request."""
        begin = request.kv.kv_allocated_len
        pages = -(-end // self.page) - -(-begin // self.page)
        # SGLang's scheduler asks for a page more than it needs (alloc_paged_token_slots_extend, ..._decode).
        wanted = spare if self.scheduler_room else pages * self.page
        self.allocator.evict_to_free_tokens(self.cache, wanted)
        slots = self.allocator.alloc(pages * self.page)
        assert slots is not None, f"request {request.rid} does not fit the device"
        row, first = self.rows.req_to_token[request.kv.req_pool_idx], -(-begin // self.page) * self.page
        row[first : first + len(slots)] = slots.to(torch.int32)
        request.kv.kv_allocated_len = end

    def arrive(self, request, session, closes):
        """As Scheduler.handle_generate_request and close_session. `closes`: the session closes while the request runs."""
        self.closing = None
        if session and self.session_radix:
            request.session_id = str(session)
            request.session_generation = self.cache.ensure_session_generation(request.session_id)
            self.closing = session if closes else None

    def close_sessions(self, sessions):
        for session in sessions if self.session_radix else ():
            self.cache.release_radix_session(str(session))

    def serve(self, rid, prompt, answer_tokens, answer, priority=0, session=0, closes=False):
        """`prompt`: array("q") of tokens; `answer`: array of the answer's tokens."""
        cache, request = self.cache, Request(rid, prompt, priority)
        self.queue(request)
        self.arrive(request, session, closes)
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt, limit=len(prompt) - 1), req=request))
        device_hit, host_hit = match.device_prefix_len, 0
        request.last_node = match.last_device_node
        request.host_hit_length = match.host_hit_length
        if match.host_hit_length:
            host_hit, request.last_node = cache.init_load_back(
                InitLoadBackParams(match.best_match_node, match.host_hit_length, req=request))
        request.lock = cache.lock(request.last_node)
        self.admit(request)
        request.kv.req_pool_idx = self.rows.alloc_rows(1)[0]
        hit = device_hit + host_hit
        request.kv.cache_protected_len = request.kv.kv_allocated_len = hit
        if hit:
            path = cache.path_device_indices(request.last_node)
            self.rows.write((request.kv.req_pool_idx, slice(0, hit)), path[:hit].to(torch.int32))
        # SGLang makes room for the prefill in the step that submits the load (scheduler.py, ready_to_load_host_cache and
        # prepare_for_extend). The next step takes the load's acknowledgement.
        if self.host_tokens:
            cache.ready_to_load_host_cache()
        self._prefill(request, prompt, hit, answer_tokens == 1)
        self._decode(request, prompt + answer[: answer_tokens - 1])
        request.output_ids = answer[:answer_tokens]
        self._release(request, len(prompt) + answer_tokens - 1)
        self._events()
        return device_hit, host_hit

    def _prefill(self, request, prompt, hit, ends_there):
        end = hit
        while end < len(prompt):
            begin, end = end, len(prompt) if not self.chunk else min(len(prompt), end + self.chunk)
            self._take(request, end, end - begin + self.page)
            if end < len(prompt) or not ends_there:
                self.cache.checkpoint(request, up_to=end)
            self._events()

    def _decode(self, request, fill):
        if self.closing is not None:
            self.close_sessions([self.closing])
        request.full_untruncated_fill_ids = fill
        prompt_end = request.kv.kv_allocated_len
        for end in range(prompt_end + 1, len(fill) + 1):
            if (end - 1) % self.page == 0 or self.scheduler_room:
                self._take(request, end, self.page)
            request.kv.kv_allocated_len = end

    def _release(self, request, owned):
        """As release_kv_cache of a finished request."""
        cache = self.cache
        request.is_finished = True
        cache.checkpoint(request, up_to=owned)
        cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, owned)])
        cache.unlock(request.lock)
        self.rows.free_slots.append(request.kv.req_pool_idx)

    def stop(self):
        pass

    def check(self):
        """Every slot is free or in the tree."""
        total = self.cache.total_size()
        held = total[0] if isinstance(total, tuple) else total
        assert held + self.allocator.available_size() == self.allocator.size, "slots are lost"
        assert self.cache.protected_size() in (0, (0, 0)), "a lock is left"
