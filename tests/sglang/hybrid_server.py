"""Serves requests of hybrid models on SGLang's own prefix cache, as SGLang's scheduler does, without a model: several
requests run at a time, and a tree has windows, states or both beside the full KV.

SGLang's own code, unchanged: UnifiedRadixCache with either tree core, the components for windows and states, the allocators,
the table of requests with states, the choice of the state point of a forward pass, HybridCacheController. This file
stands for the scheduler (admission, chunks, decode steps), for the memory of the pools, and for the copies, which take no
time and move no bytes. The unit of full KV and of windows is a token, the unit of states a state.
"""

import contextlib
import math
from types import SimpleNamespace

import torch

import sequential_server as base
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache.allocation import ensure_mamba_capacity
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.rust_tree_core import adapter as rust_adapter
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import base as component_base
from sglang.srt.mem_cache.unified_cache.components import mamba as mamba_component
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

FULL, WINDOW, STATE = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
ROWS = 8
MAX_TOKENS = 1 << 14


class OrderedSet(dict):
    """A set in the order in which its elements were added, for the sets of sessions and of their leaves. SGLang walks through sets
    of objects and of strings, whose order differs from run to run, and moves nodes in the order of use as it goes."""

    def __init__(self, elements=()):
        super().__init__((element, None) for element in elements)

    def add(self, element):
        self[element] = None

    def remove(self, element):
        del self[element]


component_base.set = OrderedSet


class DoesNotFitError(Exception):
    """The requests that run leave too little room. SGLang's scheduler would let a request wait, or retract one."""


@contextlib.contextmanager
def refusal_of_states():
    try:
        yield
    except AssertionError as error:
        if "alloc mamba" in str(error):
            raise DoesNotFitError from error
        raise


class WindowMapping(BaseSWAKVPool):
    """The mapping of full slots to window slots, without the memory of the pools."""

    full_kv_pool = swa_kv_pool = None

    def __init__(self):
        pass

    def register_mapping(self, mapping):
        self.full_to_swa_index_mapping = mapping

    def translate_loc_from_full_to_swa(self, indices):
        return self.full_to_swa_index_mapping[indices]


WindowMapping.__abstractmethods__ = frozenset()  # the others read and write the memory


class StateRows(HybridReqToTokenPool):
    """SGLang's table of requests with states. The pool of states has slots and no memory."""

    def _init_mamba_pool(self, *, mamba_size, device, **ignored):
        self.mamba_pool = SimpleNamespace(
            size=mamba_size, replayssm_write_pos=None, replayssm_spec_write_pos=None, copy_from=lambda source, target: None)
        self.mamba_allocator = MambaSlotAllocator(size=mamba_size, device=device)
        self.mamba_ckpt_pool = None
        self.device = device
        rows = self.req_to_token.shape[0]
        self.req_index_to_mamba_index_mapping = torch.zeros(rows, dtype=torch.int32)
        self.req_index_to_mamba_ping_pong_track_buffer_mapping = torch.zeros(
            (rows, self.mamba_ping_pong_track_buffer_size), dtype=torch.int64)


class Request(base.Request):
    def __init__(self, rid, prompt):
        super().__init__(rid, prompt, 0)
        self.mamba_branching_seqlen = self.swa_branching_seqlen = None
        self.auxiliary_swa_host_hit_length = 0
        self.prefix_len = self.extend_end = 0  # of the forward pass

    @property
    def extend_len(self):
        return self.extend_end - self.prefix_len

    def get_fill_ids(self):
        return self.full_untruncated_fill_ids[: self.extend_end]


def publish_settings(state_chunk, page, max_states_per_path, extra_buffer):
    """What SGLang's modules read from the configuration of the server."""
    settings = SimpleNamespace(mamba=SimpleNamespace(
        mamba_max_states_per_path=max_states_per_path, enable_mamba_extra_buffer=extra_buffer,
        enable_mamba_extra_buffer_lazy=False))
    chunk = max(state_chunk, page)
    for module in (mamba_component, rust_adapter, schedule_batch):
        module.get_exec = lambda: settings
        module.mamba_cache_chunk_size = lambda: chunk
        module.mamba_checkpoint_grid = lambda page: math.lcm(chunk, page)
    schedule_batch.get_parallel = lambda: SimpleNamespace(dcp_enabled=False)


class Server:
    """One engine. At most one server at a time, because SGLang's settings belong to the process."""

    def __init__(self, core="rust", page=1, full_tokens=0, window=0, window_tokens=0, states=0, chunk=0,
                 strategy="extra_buffer", track_interval=256, state_chunk=64, max_states_per_path=-1, eviction="lru",
                 host_tokens=0, host_window_tokens=0, host_states=0, write_policy="write_through",
                 load_back_min_tokens=10, window_eviction_interval=128, session_radix=False):
        core = "python" if session_radix else core
        self.page, self.window, self.states = page, window, states
        self.chunk = chunk // page * page
        self.window_eviction_interval = window_eviction_interval
        self.extra_buffer = strategy == "extra_buffer"
        self.state_interval = math.lcm(track_interval, max(state_chunk, page), page)
        publish_settings(state_chunk, page, max_states_per_path, self.extra_buffer)
        if window:
            self.allocator = SWATokenToKVPoolAllocator(
                full_tokens, window_tokens, page, torch.bfloat16, "cpu", kvcache=WindowMapping(), need_sort=False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                full_tokens, page, torch.bfloat16, "cpu", kvcache=None, need_sort=False)
        if states:
            self.rows = StateRows(
                size=ROWS, mamba_size=states, mamba_spec_state_size=0, max_context_len=MAX_TOKENS, device="cpu",
                enable_memory_saver=False, cache_params=None, mamba_layer_ids=[0],
                enable_mamba_extra_buffer=self.extra_buffer)
        else:
            self.rows = ReqToTokenPool(ROWS, MAX_TOKENS, "cpu", enable_memory_saver=False)
        self.cache = UnifiedRadixCache(CacheInitParams(
            disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.allocator, page_size=page,
            eviction_policy=eviction, tree_components=(FULL, *[WINDOW] * bool(window), *[STATE] * bool(states)),
            tree_core_backend=core, sliding_window_size=window or None,
            enable_mamba_extra_buffer=self.extra_buffer, enable_session_radix_cache=session_radix))
        self.session_radix = session_radix
        # The choice of state points is a method of SGLang's batch, which reads these fields of it.
        self.batch = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=state_chunk)),
            tree_cache=self.cache, req_to_token_pool=self.rows)
        self._count_evictions()
        self.host_pools = {}
        if host_tokens:
            self._add_host(host_tokens, host_window_tokens, host_states, write_policy, load_back_min_tokens)

    def _count_evictions(self):
        self.evicted = dict.fromkeys(("full", "window", "states"), 0)
        evict = self.cache._evict

        def counted(*args, **named):
            result = evict(*args, **named)
            self.evicted["full"] += result.num_tokens_evicted
            self.evicted["window"] += result.swa_num_tokens_evicted
            self.evicted["states"] += result.mamba_num_evicted
            return result

        self.cache._evict = counted

    def _add_host(self, tokens, window_tokens, states, write_policy, load_back_min_tokens):
        """What UnifiedRadixCache.init_hicache and the assembler of the pools set up."""
        cache, slots = self.cache, base.HostSlots(tokens, self.page)
        cache.components[FULL]._full_kv_pool_host = slots
        entries = [PoolEntry(PoolName.KV, slots, None, lambda layer: layer, is_primary_index_anchor=True)]

        def add(name, pool, component, allocator, make_room):
            entries.append(PoolEntry(
                name, pool, None, lambda layer: layer, host_evict_fn=lambda count: cache.evict_host(count, component),
                device_evict_fn=lambda count: make_room(cache, count), device_alloc_fn=allocator.alloc,
                device_free_fn=allocator.free))

        if self.window:
            pool = base.HostSlots(window_tokens, self.page)
            cache.components[WINDOW]._swa_kv_pool_host = pool
            cache.tree_core.has_swa_host_pool = True
            add(PoolName.SWA, pool, WINDOW, self.allocator.swa_attn_allocator, assembler._evict_swa_for_device_alloc)
        if self.states:
            pool = base.HostSlots(states, 1)
            cache.components[STATE]._mamba_pool_host = pool
            add(PoolName.MAMBA, pool, STATE, self.rows.mamba_allocator, assembler._evict_mamba_for_device_alloc)
        group = HostPoolGroup(entries)
        cache.host_pool_group = group
        cache.cache_controller = base.Controller(self.allocator, group, write_policy)
        cache.tree_core.set_hicache_enabled()
        cache.write_through_threshold = 1 if write_policy == "write_through" else 2
        cache.is_write_back = write_policy == "write_back"
        cache.load_back_threshold = load_back_min_tokens
        self.host_pools = {entry.name.value: entry.host_pool for entry in entries}

    def _events(self):
        if self.host_pools:
            self.cache.ready_to_load_host_cache()
            self.cache.check_hicache_events()

    def _take(self, request, end):
        """Slots for [kv_allocated_len, end) of the request."""
        begin = request.kv.kv_allocated_len
        first, last = -(-begin // self.page) * self.page, -(-end // self.page) * self.page
        request.kv.kv_allocated_len = end
        if first == last:
            return
        self.allocator.evict_to_free_tokens(self.cache, last - first)
        if self.window:
            slots = self.allocator.full_attn_allocator.alloc(last - first)
            windows = self.allocator.swa_attn_allocator.alloc(last - first)
            if slots is None or windows is None:
                raise DoesNotFitError
            self.allocator.set_full_to_swa_mapping(slots, windows)
        else:
            slots = self.allocator.alloc(last - first)
            if slots is None:
                raise DoesNotFitError
        self.rows.req_to_token[request.kv.req_pool_idx, first:last] = slots.to(torch.int32)

    def _take_row(self, request):
        """A row of the table, and the states that a request that runs needs."""
        if not ensure_mamba_capacity(self.rows, [request], self.cache) or self.rows.alloc([request]) is None:
            raise DoesNotFitError

    def _match(self, request, prompt):
        match = self.cache.match_prefix(MatchPrefixParams(
            key=RadixKey(prompt, limit=len(prompt) - 1), req=request, cow_mamba=bool(self.states)))
        request.mamba_branching_seqlen = match.mamba_branching_seqlen
        request.swa_branching_seqlen = match.swa_branching_seqlen
        request.last_node = match.last_device_node
        request.host_hit_length = match.host_hit_length
        request.swa_host_hit_length = match.swa_host_hit_length
        request.mamba_host_hit_length = match.mamba_host_hit_length
        return match

    @refusal_of_states()
    def start(self, rid, prompt, session=0):
        """Admission and prefill. `prompt`: array("q") of tokens. Returns the request and the outcome."""
        cache, request, before = self.cache, Request(rid, prompt), dict(self.evicted)
        if session and self.session_radix:
            request.session_id = str(session)
            request.session_generation = cache.ensure_session_generation(request.session_id)
        match = self._match(request, prompt)
        loaded = 0
        if max(match.host_hit_length, match.swa_host_hit_length, match.mamba_host_hit_length) > 0:
            loaded, request.last_node = cache.init_load_back(
                InitLoadBackParams(match.best_match_node, match.host_hit_length, req=request))
        request.lock = cache.lock(request.last_node)
        self._take_row(request)
        hit = match.device_prefix_len + loaded
        request.kv.cache_protected_len = request.kv.kv_allocated_len = hit
        if hit:
            path = cache.path_device_indices(request.last_node)
            self.rows.write((request.kv.req_pool_idx, slice(0, hit)), path[:hit].to(torch.int32))
        if self.host_pools:
            cache.ready_to_load_host_cache()
        self._prefill(request, hit)
        return request, {
            "hit": hit, "device": match.device_prefix_len, "host": loaded, "full_present": match.full_kv_hit_length,
            "branch": match.mamba_branching_seqlen if self.states else match.swa_branching_seqlen,
            "evicted": self._evicted_since(before)}

    def _prefill(self, request, hit):
        kv, end, prompt = request.kv, hit, len(request.origin_input_ids)
        while end < prompt:
            begin, end = end, min(prompt, end + self.chunk) if self.chunk else prompt
            request.prefix_len, request.extend_end = begin, end
            self._take(request, end)
            if self.states and self.extra_buffer:
                schedule_batch.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(self.batch, request)
            kv.kv_committed_len = end
            self.cache.checkpoint(request, up_to=end)
            self._events()

    @refusal_of_states()
    def finish(self, request, answer):
        """Decode and release. The last token of the answer has no KV. Returns the outcome."""
        before, kv, prompt = dict(self.evicted), request.kv, len(request.origin_input_ids)
        fill = request.origin_input_ids + answer[:-1]
        request.full_untruncated_fill_ids = fill
        for end in range(prompt + 1, len(fill) + 1):
            # With overlapping passes, SGLang's default, this happens one step later, and an answer that ends with a
            # stop token has one more step. Without overlap, only the first step does not free windows.
            if self.window:
                self.cache.evict_sliding_windows(
                    request, end - 1, eviction_interval=self.window_eviction_interval)
            self._take(request, end)
            kv.kv_committed_len = end
            if self.states and self.extra_buffer and end % self.state_interval == 0:
                self._track(kv, end)
        request.output_ids, request.is_finished, request.extend_end = answer, True, len(fill)
        self._release(request, len(fill))
        self._events()
        return {"evicted": self._evicted_since(before)}

    def close(self, session):
        """The session ends, with or without requests that run."""
        before = dict(self.evicted)
        self.cache.release_radix_session(str(session))
        return {"evicted": self._evicted_since(before)}

    def _track(self, kv, length):
        """As the processor of batch results, after a decode step that copies the state into the tracking slot."""
        kv.mamba_prev_track_seqlen, kv.mamba_last_track_seqlen = kv.mamba_last_track_seqlen, length
        kv.mamba_last_track_idx = kv.mamba_next_track_idx
        kv.mamba_next_track_idx = self.rows.get_mamba_ping_pong_other_idx(kv.mamba_next_track_idx)

    def _release(self, request, owned):
        """As release_kv_cache of a finished request."""
        cache = self.cache
        cache.checkpoint(request, up_to=owned)
        cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, owned)])
        cache.unlock(request.lock)
        cache.on_release(request, checkpointed=True)
        self.rows.free(request)

    def _evicted_since(self, before):
        return {name: self.evicted[name] - before[name] for name in self.evicted}

    def usage(self):
        """Slots in use, of the tree and of the requests that run."""
        full = self.allocator.full_attn_allocator if self.window else self.allocator
        used = {"full": full.size - full.available_size()}
        if self.window:
            windows = self.allocator.swa_attn_allocator
            used["window"] = windows.size - windows.available_size()
        if self.states:
            used["states"] = self.states - self.rows.mamba_allocator.available_size()
        if self.host_pools:
            used["host"] = {name: pool.size - pool.available_size() for name, pool in self.host_pools.items()}
        return used

    def check(self):
        """If no request runs: every slot is free or in the tree, and no lock is left."""
        cache, used = self.cache, self.usage()
        assert cache.full_evictable_size() == used["full"], "full slots are lost or locked"
        if self.window:
            assert cache.swa_evictable_size() == used["window"], "window slots are lost or locked"
        if self.states:
            assert cache.mamba_evictable_size() == used["states"], "states are lost or locked"
