"""Serves requests of hybrid models on vLLM's own KV cache manager with its own offloading connector, as vLLM's scheduler does:
a prefix in host memory is loaded before the request is admitted.

vLLM's own code, unchanged: what hybrid_server.py has, OffloadingConnectorScheduler and CPUOffloadingManager. This file stands
for the scheduler and for the workers: every copy ends at once. A request that could load all blocks of its prompt loads one
block less (`max_load_tokens`), as kvtwin does; without that limit, vLLM loads the last block and computes its last token again.
"""

from types import SimpleNamespace

import hybrid_server

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import config as offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.request import RequestStatus

WITHOUT_LIMIT = 1 << 30


class Server(hybrid_server.Server):
    """`host_chunks`, `host_eviction`: of the host tier."""

    def __init__(self, host_chunks, host_eviction="lru", retention=0, **config):
        super().__init__(retention=retention, **config)
        self.host = CPUOffloadingManager(host_chunks, cache_policy=host_eviction, enable_events=True)
        cache = self.manager.kv_cache_config
        groups = tuple(OffloadingGroupConfig(
            tokens_per_block=group.kv_cache_spec.block_size, layer_names=tuple(group.layer_names), group_id=number,
            sliding_window_size_in_chunks=offloading_config.get_sliding_window_size_in_chunks(
                group.kv_cache_spec, group.kv_cache_spec.block_size))
            for number, group in enumerate(cache.kv_cache_groups))
        spec = SimpleNamespace(
            config=SimpleNamespace(groups=groups), blocks_per_chunk=1, extra_config={}, offload_prompt_only=True,
            tokens_per_block=tuple(group.tokens_per_block for group in groups), tokens_per_hash=groups[0].tokens_per_block,
            get_manager=lambda: self.host,
            kv_events_config=SimpleNamespace(enable_kv_cache_events=False, self_describing_kv_events=False))
        vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(prefix_cache_retention_interval=retention, enable_prefix_caching=True),
            speculative_config=None, parallel_config=SimpleNamespace(world_size=1, decode_context_parallel_size=1))
        self.connector = OffloadingConnectorScheduler(spec, vllm_config, cache)

    def extra_args(self):
        return {"kv_transfer_params": {"max_load_tokens": WITHOUT_LIMIT}}

    def step(self, new=None, going_on=None, tokens=0, finished=()):
        """The connector's part of a step of the scheduler, for one request, and the end of all copies."""
        request = new or going_on
        blocks = [self.known_blocks(request)] if request else []
        if going_on:
            blocks = [tuple(ids[seen:] for ids, seen in zip(blocks[0], self.seen[request.request_id]))]
        if request:
            self.seen[request.request_id] = [len(ids) for ids in self.known_blocks(request)]
        offers = self.manager.take_boundary_state_offloads()
        output = SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=new.request_id, block_ids=blocks[0])] if new else [],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[going_on.request_id] if going_on else [], new_block_ids=blocks if going_on else [],
                resumed_req_ids=()),
            kv_cache_block_copies=(), preempted_req_ids=(), finished_req_ids=set(finished),
            num_scheduled_tokens={request.request_id: tokens} if request else {},
            kv_connector_block_state=SimpleNamespace(boundary_state_offloads=offers))
        meta = self.connector.build_connector_meta(output)
        ended = OffloadingWorkerMetadata({job: 1 for job in (*meta.load_jobs, *meta.store_jobs)})
        self.connector.update_connector_output(SimpleNamespace(kv_connector_worker_meta=ended))

    def known_blocks(self, request):
        return tuple(list(ids) for ids in self.manager.get_block_ids(request.request_id))

    def start(self, rid, prompt):
        self.seen = getattr(self, "seen", {})
        self.loaded, before = 0, len(self.host.events)
        request, outcome = super().start(rid, prompt)
        if request is None:
            self.step(finished=[str(rid)])
        return request, {**outcome, "loaded": self.loaded, **self.changes(before)}

    def _prefill(self, request, prompt, hit, blocks):
        connector, manager = self.connector, self.manager
        connector.on_new_request(request)
        self.loaded, _ = connector.get_num_new_matched_tokens(request, hit)
        if self.loaded:
            taken = manager.allocate_slots(request, 0, hit, blocks, num_external_computed_tokens=self.loaded,
                                           delay_cache_blocks=True)
            if taken is None:
                return self._give_up(request)
            connector.update_state_after_alloc(request, manager.get_blocks(request.request_id), self.loaded)
            self.step()
            manager.cache_blocks(request, hit + self.loaded)
        end, first = hit + self.loaded, True
        while end < prompt:
            count, found = min(self.chunk, prompt - end), hit if first and not self.loaded else 0
            request.num_computed_tokens = end if not found else 0
            if self.states:
                count = self.split(self.scheduler, request, count, found)
            if not first:
                manager.new_step_starts()
            taken = manager.allocate_slots(request, count, found, blocks if first and not self.loaded else None)
            if taken is None:
                return self._give_up(request)
            request.num_computed_tokens = end
            self.step(**{"new" if first else "going_on": request}, tokens=count)
            end, first = end + count, False
            request.num_computed_tokens, request.status = end, RequestStatus.RUNNING
        return True

    def _give_up(self, request):
        request.num_computed_tokens = 0  # nothing more is stored
        self._end(request)
        return False

    def _end(self, request):
        request.status = RequestStatus.FINISHED_ABORTED
        self.connector.request_finished(request)

    def finish(self, request, answer):
        if request is None:
            return {"refused": True}
        before, evicted, outcome = len(self.host.events), self.evicted, {}
        for number, token in enumerate(answer):
            request.append_output_token_ids(int(token))
            if number + 1 == len(answer):
                break
            self.manager.new_step_starts()
            if self.manager.allocate_slots(request, 1) is None:
                outcome = {"preempted": number}
                break
            self.step(going_on=request, tokens=1)
            request.num_computed_tokens += 1
        self._end(request)
        self.manager.free(request)
        self.step(finished=[request.request_id])
        return {**outcome, "evicted_blocks": self.evicted - evicted, **self.changes(before)}

    def changes(self, before):
        events = self.host.events[before:]
        return {"stored": sum(len(event.keys) for event in events if not event.removed),
                "host_evicted": sum(len(event.keys) for event in events if event.removed)}

    def usage(self):
        return {**super().usage(), "free": self.host._get_num_free_chunks()}
