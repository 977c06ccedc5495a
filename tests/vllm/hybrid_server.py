"""Serves requests of hybrid models on vLLM's own KV cache manager, as vLLM's scheduler does, without a model: several
requests run at a time, and layers have full attention, windows or states.

vLLM's own code, unchanged: the groups of layers and the sizes of their blocks, KVCacheManager with its coordinator and the
managers of each kind of layer, BlockPool, the block hashes, and the scheduler's split of a prefill of models with states.
This file stands for the scheduler: admission, chunks, one token a decode step. A preempted request ends.
"""

import ast
import hashlib
import math
import pickle
import textwrap
from pathlib import Path
from types import SimpleNamespace

import torch

from vllm.v1 import kv_cache_interface
from vllm.v1.core import kv_cache_planning as planning
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MambaSpec, SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

MAX_TOKENS = 1 << 18
TYPE = torch.bfloat16


def digest(value):
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).digest()


def prefill_split():
    """The method of the scheduler's class. Its module imports the connectors, so only the method is compiled."""
    text = (Path(planning.__file__).parent / "sched/scheduler.py").read_text(encoding="utf-8")
    name = "_mamba_block_aligned_split"
    (method,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name)
    names = {**vars(kv_cache_interface), "Request": Request}
    exec(textwrap.dedent("\n".join(text.splitlines()[method.lineno - 1 : method.end_lineno])), names)
    return names[name]


def layer_specs(layers, block, heads, head_size, window, window_heads, state_shapes, state_dtypes):
    """The specs of the layers by name, and the tokens of a block of attention."""
    attention = dict(num_kv_heads=heads, head_size=head_size, dtype=TYPE)
    specs, row = {}, 2 * heads * head_size * TYPE.itemsize
    if layers.get("state"):
        state = dict(shapes=tuple(tuple(shape) for shape in state_shapes),
                     dtypes=tuple(getattr(torch, name) for name in state_dtypes))
        # _align_hybrid_block_size of a platform whose kernels take any multiple of 16 tokens.
        block = max(block, 16 * -(-MambaSpec(block_size=1, **state).page_size_bytes // (16 * row)))
    for i in range(layers.get("full", 0)):
        specs[f"full.{i}"] = FullAttentionSpec(block_size=block, **attention)
    for i in range(layers.get("window", 0)):
        specs[f"window.{i}"] = SlidingWindowSpec(
            block_size=block, sliding_window=window, **{**attention, "num_kv_heads": window_heads or heads})
    for i in range(layers.get("state", 0)):
        specs[f"state.{i}"] = MambaSpec(
            block_size=block, page_size_padded=block * row, mamba_cache_mode="align", **state)
    return specs, block


class Server:
    """One engine. `layers`: how many are full, window and state. `memory`: bytes of the pool. `window_heads`: KV heads of
    the window layers; 0: as the others."""

    def __init__(self, memory, layers, heads, head_size, window=0, window_heads=0, state_shapes=(), state_dtypes=(),
                 block=16, retention=0, chunk=8192, events=False):
        kv_cache_utils.init_none_hash(digest)
        register_all_kvcache_specs(None)
        self.chunk, self.states = chunk, layers.get("state", 0)
        specs, block = layer_specs(layers, block, heads, head_size, window, window_heads, state_shapes, state_dtypes)
        if planning.is_kv_cache_spec_uniform(specs):
            groups = planning._get_kv_cache_groups_uniform_spec(specs)
        else:
            groups = planning._get_kv_cache_groups_uniform_page_size(planning.unify_kv_cache_spec_page_size(specs))
        page = planning.get_uniform_page_size([group.kv_cache_spec for group in groups])
        self.blocks = memory // (page * max(len(group.layer_names) for group in groups))
        sizes = [group.kv_cache_spec.block_size for group in groups]
        block_of_scheduler, unit = math.lcm(*sizes), math.gcd(*sizes)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=self.blocks, kv_cache_tensors=[], kv_cache_groups=groups,
                          prefix_cache_retention_interval=retention),
            max_model_len=MAX_TOKENS, scheduler_block_size=block_of_scheduler, hash_block_size=unit,
            max_in_flight_tokens=chunk, enable_caching=True, enable_kv_cache_events=events)
        self.hasher = kv_cache_utils.get_request_block_hasher(unit, digest)
        self.group_count, self.equal_blocks = len(groups), unit == block_of_scheduler
        self._count_evictions()
        if self.states:
            self.split = prefill_split()
            # What the method reads of the scheduler.
            self.scheduler = SimpleNamespace(
                cache_config=SimpleNamespace(block_size=block), block_size=block_of_scheduler, hash_block_size=unit,
                mamba_partial_cache_hit=self.manager.coordinator.enable_partial_hash_hits, use_eagle_block_drop=False,
                num_hash_lookahead_tokens=0, mamba_has_prefill_checkpoint_blocks=False,
                mamba_prefill_checkpoint_alignment=None, max_num_scheduled_tokens=chunk,
                scheduler_config=SimpleNamespace(long_prefill_token_threshold=0), mamba_shared_prefix_checkpoint=False)

    def _count_evictions(self):
        self.evicted, pool = 0, self.manager.block_pool
        evict = pool._maybe_evict_cached_block

        def counted(block):
            gone = evict(block)
            self.evicted += bool(gone)
            return gone

        pool._maybe_evict_cached_block = counted

    def extra_args(self):
        return None

    def start(self, rid, prompt):
        """Admission and prefill. `prompt`: array("q") of tokens. Returns the request, or None without room, and the
        outcome."""
        request = Request(
            request_id=str(rid), prompt_token_ids=list(prompt), pooling_params=None, block_hasher=self.hasher,
            sampling_params=SimpleNamespace(
                max_tokens=1 << 20, structured_outputs=None, extra_args=self.extra_args(), skip_reading_prefix_cache=False,
                prompt_logprobs=None))
        manager, before = self.manager, self.evicted
        manager.new_step_starts()
        blocks, hit, junction = manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        groups = [hit]
        if self.group_count > 1:
            groups = list(manager.coordinator.find_longest_cache_hit_per_group(request.block_hashes, len(prompt) - 1)[1])
        if not self._prefill(request, len(prompt), hit, blocks):
            manager.free(request)
            return None, {"hit": 0, "refused": True}
        return request, {"hit": hit, "junction": junction, "groups": groups, "evicted_blocks": self.evicted - before}

    def _prefill(self, request, prompt, hit, blocks):
        end = hit
        while end < prompt:
            count, found = min(self.chunk, prompt - end), hit if end == hit else 0
            if self.states:
                count = self.split(self.scheduler, request, count, found)
            if end != hit:
                self.manager.new_step_starts()
            if self.manager.allocate_slots(request, count, found, blocks if end == hit else None) is None:
                return False
            end += count
            request.num_computed_tokens, request.status = end, RequestStatus.RUNNING
        return True

    def finish(self, request, answer):
        """Decode and release. The last token of the answer has no KV. Returns the outcome."""
        if request is None:
            return {"refused": True}
        before, outcome = self.evicted, {}
        for number, token in enumerate(answer):
            request.append_output_token_ids(int(token))
            if number + 1 == len(answer):
                break
            self.manager.new_step_starts()
            if self.manager.allocate_slots(request, 1) is None:
                outcome = {"preempted": number}
                break
            request.num_computed_tokens += 1
        self.manager.free(request)
        return {**outcome, "evicted_blocks": self.evicted - before}

    def usage(self):
        pool = self.manager.block_pool
        if not self.equal_blocks:  # kvtwin does not share the blocks of a page of which another block differs
            return {"blocks": self.blocks}
        return {"blocks": self.blocks, "busy": self.blocks - 1 - pool.get_num_free_blocks(),
                "hashed": len(pool.cached_block_hash_to_block)}

    def check(self):
        """If no request runs: every block is free, but for the null block."""
        assert self.manager.block_pool.get_num_free_blocks() == self.blocks - 1, "blocks are lost"
