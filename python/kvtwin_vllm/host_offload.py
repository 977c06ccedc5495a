"""vLLM's tiered KV offloading where the KV cache is in host memory: vLLM on a CPU, whose own offloading refuses that.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
      "spec_name": "HostTieringSpec", "spec_module_path": "kvtwin_vllm.host_offload", "cpu_bytes_to_use": 1073741824,
      "secondary_tiers": [{"type": "KvtwinTier", "module_path": "kvtwin_vllm.tier", "path": "/nvme/kvtwin", "capacity_gib": 500}]}}'

The spec, its keys, its scheduler side and the layout of its memory are vLLM's TieringOffloadingSpec. Only the copies differ:
vLLM copies with CUDA's streams and events, and this spec with the CPU, before submit_store and submit_load return. Works
with the classes of vLLM 0.32 and 0.33.
"""

import time
from unittest import mock

import numpy as np
import torch
from vllm.v1.kv_offload.base import TransferResult
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostCopies:
    """One direction of transfers. Takes the place of vLLM's SingleDirectionOffloadingHandler, and has its methods.

    A tensor of vLLM's pool is [blocks, bytes], one of the offloading tier [chunks, bytes of a chunk's blocks]."""

    def __init__(self, gpu_tensors, cpu_tensors, blocks_per_chunk, layer_refs_per_group, gpu_to_cpu, canonical_layout=False,
                 host_memory_is_pinned=True):
        if canonical_layout:
            raise NotImplementedError("kvtwin: HostTieringSpec has no canonical layout")
        self._pool = gpu_tensors
        self._chunks = [tensor.unflatten(1, (blocks_per_chunk, -1)) for tensor in cpu_tensors]
        self._blocks_per_chunk = blocks_per_chunk
        self._refs_of_groups = layer_refs_per_group
        self._store = gpu_to_cpu
        self._finished = []

    def transfer_async(self, job_id, src_spec, dst_spec):
        begin = time.perf_counter()
        in_pool, in_chunks = (src_spec, dst_spec) if self._store else (dst_spec, src_spec)
        moved = at = at_chunk = 0
        for refs, count, first in zip(self._refs_of_groups, in_pool.group_sizes, in_pool.block_indices, strict=True):
            if count == 0:
                continue
            # The first chunk of a group may begin before the blocks that are moved, and the last one may end behind them.
            places = first % self._blocks_per_chunk + np.arange(count)
            chunks = int(places[-1]) // self._blocks_per_chunk + 1
            blocks = torch.from_numpy(np.ascontiguousarray(in_pool.block_ids[at : at + count], np.int64))
            chunk_ids = np.asarray(in_chunks.block_ids[at_chunk : at_chunk + chunks], np.int64)
            where = torch.from_numpy(chunk_ids[places // self._blocks_per_chunk]), torch.from_numpy(places % self._blocks_per_chunk)
            for ref in refs:
                pool, tier = self._pool[ref.tensor_idx], self._chunks[ref.tensor_idx]
                if self._store:
                    tier[where[0], where[1], : ref.page_size_bytes] = pool[blocks, : ref.page_size_bytes]
                else:
                    pool[blocks, : ref.page_size_bytes] = tier[where[0], where[1], : ref.page_size_bytes]
                moved += count * ref.page_size_bytes
            at, at_chunk = at + count, at_chunk + chunks
        assert at == len(in_pool.block_ids) and at_chunk == len(in_chunks.block_ids)
        self._finished.append(TransferResult(job_id=job_id, success=True, transfer_size=moved,
                                             transfer_time=time.perf_counter() - begin))
        return True

    def get_finished(self):
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids):
        """Every transfer has ended before transfer_async returned."""

    def shutdown(self):
        self._pool, self._chunks = [], []  # vLLM unmaps their memory


class HostTieringSpec(TieringOffloadingSpec):
    def _uses_shared_region(self):
        return True  # memory that the tiers in the scheduler's process see

    def get_worker(self, kv_caches):
        if not self._worker:
            with mock.patch.object(gpu_worker, "SingleDirectionOffloadingHandler", HostCopies):
                self._worker = self.create_worker(kv_caches)
        return self._worker
