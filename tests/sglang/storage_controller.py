"""SGLang's own HiCacheController with real host pools and a storage back end, on CPU.

The controller, its threads and queues, the host pools, the addresses of their pages and the factory of back ends are
SGLang's, unchanged. Only the device pool is left out: the tests fill the host pool, as a backup from the GPU would.
"""

import threading
from array import array
from queue import Empty
from types import SimpleNamespace

import torch
from scripted_storage import page_hashes
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo, MLABufferInfo
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

PATIENCE_S = 120  # for SGLang's threads

cache_controller.get_storage_hash_str = lambda tokens, prior, page_size=None: page_hashes(
    getattr(tokens, "token_ids", tokens), bytes.fromhex(prior) if prior else None, page_size)


def of_one_rank(rank=0, ranks=1):
    """States the place of this process, which SGLang's launcher would do."""
    get_parallel().override_permanently(
        attn_dcp_size=1, attn_dcp_rank=0, tp_size=ranks, tp_rank=rank, pp_size=1, pp_rank=0, attn_tp_rank=rank,
        attn_tp_size=ranks, attn_dp_rank=0, attn_dp_size=1, attn_cp_size=1, attn_cp_rank=0)


def pointers(tensors):
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def mha_pool(layout, pages, layers=4, heads=2, head_dim=64, page_tokens=16, dtype=torch.bfloat16, draft_layers=0,
             device_layout=KVBufferLayout.NHD):
    """A host pool of `pages` pages or a few more. The device pool has one page, which nobody reads."""
    def info(count):
        k, v = ([torch.zeros((page_tokens, heads, head_dim), dtype=dtype) for _ in range(count)] for _ in range(2))
        buffers = KVBuffers(k=tuple(k), v=tuple(v), k_data_ptrs=pointers(k), v_data_ptrs=pointers(v), layout=device_layout)
        return MHABufferInfo(buffers=buffers, page_size=page_tokens, head_num=heads, head_dim=head_dim, v_head_dim=head_dim,
                             dtype=dtype, device=torch.device("cpu"))

    return MHATokenToKVPoolHost(
        info(layers), pages, 0, page_tokens, layout, pin_memory=False, device="cpu", device_capacity_tokens=page_tokens,
        start_layer=0, end_layer=layers, draft_buffer_infos=[info(1) for _ in range(draft_layers)])


def mla_pool(layout, pages, layers=4, rank=112, rope=16, page_tokens=16, dtype=torch.bfloat16):
    rows = [torch.zeros((page_tokens, 1, rank + rope), dtype=dtype) for _ in range(layers)]
    info = MLABufferInfo(buffers=tuple(rows), data_ptrs=pointers(rows), layer_indices=tuple(range(layers)),
                         device_layer_num=layers, page_size=page_tokens, kv_lora_rank=rank, qk_rope_head_dim=rope,
                         kv_cache_dim=rank + rope, dtype=dtype, device=torch.device("cpu"))
    return MLATokenToKVPoolHost(info, pages, 0, page_tokens, layout, pin_memory=False, device="cpu",
                                device_capacity_tokens=page_tokens, start_layer=0, end_layer=layers, target_layer_num=layers)


class Engine:
    """A controller with one host pool. `backend` and `extra` are the server's flags --hicache-storage-backend and
    --hicache-storage-backend-extra-config."""

    def __init__(self, pool, backend, extra, model="tiny/model", mla=False, metrics=False):
        self.pool = pool
        device = SimpleNamespace(device="cpu", layer_num=pool.layer_num, register_layer_transfer_counter=lambda counter: None)
        if mla:  # SGLang looks at the class
            from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

            fields = vars(device)
            device = object.__new__(MLATokenToKVPool)
            vars(device).update(fields)
        allocator = PagedTokenToKVPoolAllocator(pool.page_size, pool.page_size, pool.dtype, "cpu", kvcache=device, need_sort=False)
        self.controller = cache_controller.HiCacheController(
            allocator, pool, pool.page_size, tp_group=None, load_cache_event=threading.Event(),
            write_policy="write_through", io_backend="direct", storage_backend=backend, model_name=model,
            storage_backend_extra_config=dict(extra), enable_storage_metrics=metrics)

    @property
    def storage(self):
        return self.controller.storage_backend

    def tokens(self, pages, first=0):
        return array("q", range(first * 1_000_000, first * 1_000_000 + pages * self.pool.page_size))

    def keys(self, tokens):
        return page_hashes(tokens, None, self.pool.page_size)

    def back_up(self, tokens, indices):
        """Writes pages as SGLang's backup does. Returns the number of pages that SGLang counts as stored."""
        self.controller.write_storage(indices, tokens, hash_value=self.keys(tokens))
        return self.controller.ack_backup_queue.get(timeout=PATIENCE_S).completed_tokens // self.pool.page_size

    def look_up(self, tokens):
        """The first half of a prefetch. Returns SGLang's operation, whose hash_value are the keys that were found."""
        operation = cache_controller.PrefetchOperation("request", tokens, None)
        self.controller.prefetch_queue.put(operation)
        return self.controller.prefetch_hit_queue.get(timeout=PATIENCE_S)

    def read(self, operation, indices):
        """The second half. Returns the pages that SGLang takes as read."""
        operation.host_indices = indices[: len(operation.hash_value) * self.pool.page_size]
        self.controller.prefetch_buffer.put(operation)
        tokens = 0
        while True:
            try:
                ack = self.controller.ack_prefetch_queue.get(timeout=PATIENCE_S)
            except Empty:
                raise AssertionError("SGLang's threads do not answer") from None
            if ack.completed_req:
                return tokens // self.pool.page_size
            tokens = ack.completed_tokens

    def prefetch(self, tokens, indices):
        operation = self.look_up(tokens)
        return self.read(operation, indices) if operation.hash_value else 0

    def close(self):
        self.controller.detach_storage_backend()


def fill(pool, indices, seed):
    """Random bytes in these pages. Returns a copy of the pages, as `content` does."""
    generator = torch.Generator().manual_seed(seed)
    for piece in pieces(pool, indices):
        piece.copy_(torch.randint(0, 256, piece.shape, dtype=torch.uint8, generator=generator))
    return content(pool, indices)


def content(pool, indices):
    return torch.stack([pool.get_data_page(int(index)).view(torch.uint8).clone() for index in indices[:: pool.page_size]])


def pieces(pool, indices):
    """The pages' bytes, one row of memory after another, in any layout."""
    import ctypes

    addresses, lengths = pool.get_page_buffer_meta(indices)
    for address, length in zip(addresses, lengths):
        yield torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def erase(pool, indices):
    for piece in pieces(pool, indices):
        piece.zero_()
