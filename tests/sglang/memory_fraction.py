#!/usr/bin/env python3
"""SGLang's own --mem-fraction-static and --chunked-prefill-size by the memory of a GPU, without a GPU.

As a program, this module prints the table of the SGLang that is on Python's path; tools/engine-parity sglang --memory compares
it with tests/fixtures/sglang/memory_fraction.tsv, or writes that file. The unit tests of models/device_memory.hpp read the
file. Real: handle_gpu_memory_settings of srt/arg_groups/memory_hook.py, and the sizes of graphs that it asks for. Stand-ins:
the server's settings, the memory of the GPU, and whether the model has MLA.
"""

import copy
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/fixtures/sglang/memory_fraction.tsv"
# MiB of nvidia-smi, which SGLang asks.
GPUS = {"a100-sxm": 81920, "h100-sxm": 81559, "h200-sxm": 143771, "b200-sxm": 183359, "b300-sxm": 275040, "gb200": 189471,
        "gb300": 284208, "h20": 97871}
SMALLER = {"t4": 15360, "rtx-4090": 24564, "rtx-5090": 32607, "a100-40gb": 40960, "l40s": 46068}  # without a preset
MEMORY = GPUS | SMALLER
SETTINGS = {"gpu": "h100-sxm", "tp": 1, "dp": 1, "chunk": 0, "running": 0, "mla": 0, "graphs": 1, "mode": "null"}


def cases():
    """The settings that differ from SETTINGS."""
    for gpu in GPUS:
        for tp in (1, 4, 8):
            yield {"gpu": gpu, "tp": tp}
        yield {"gpu": gpu, "tp": 8, "mla": 1}
        yield {"gpu": gpu, "tp": 8, "dp": 8, "mla": 1, "running": 256}
    for gpu in SMALLER:
        for tp in (1, 4):
            yield {"gpu": gpu, "tp": tp}
        yield {"gpu": gpu, "running": 16}
    for chunk in (1024, 2048, 4096, 16384, 32768):
        yield {"chunk": chunk}
        yield {"gpu": "b200-sxm", "tp": 8, "mla": 1, "chunk": chunk}
    for running in (16, 300, 2000):
        yield {"running": running}
        yield {"gpu": "h200-sxm", "tp": 8, "dp": 4, "mla": 1, "running": running}
    yield {"graphs": 0}
    for mode in ("prefill", "decode"):
        yield {"mode": mode}
        yield {"mode": mode, "gpu": "b200-sxm", "tp": 8, "dp": 8, "mla": 1, "running": 512}


def row(changes):
    from sglang.srt.arg_groups import cuda_graph_hook, memory_hook
    from sglang.srt.arg_groups.model_overrides import qwen3_vl
    from sglang.srt.model_executor import cuda_graph_config

    s = SimpleNamespace(**{**SETTINGS, **changes})
    config = cuda_graph_config.CudaGraphConfig()
    config.prefill.backend = cuda_graph_config.Backend.BREAKABLE  # the default on NVIDIA's GPUs
    if not s.graphs:
        config.prefill.backend = config.decode.backend = cuda_graph_config.Backend.DISABLED
    server = SimpleNamespace(
        device="cuda", cuda_graph_config=config, chunked_prefill_size=s.chunk or None, tp_size=s.tp, pp_size=1,
        max_running_requests=s.running or None, mem_fraction_static=None, disaggregation_mode=s.mode, max_total_tokens=None,
        model_path="model", speculative_algorithm=None, speculative_num_draft_tokens=None, max_prefill_tokens=16384,
        disable_cuda_graph_padding=False, language_only=False, language_model_only=False, enable_symm_mem=False,
        attn_dp_size=s.dp, moe_a2a_backend="none", enable_dp_attention=s.dp > 1, dp_size=s.dp, torch_compile_max_bs=0,
        enable_two_batch_overlap=False, _cuda_graph_config_locked=set())
    same = lambda server: server  # noqa: E731
    memory_hook.resolving_view = memory_hook.resolved_view = same
    memory_hook.declare_resolution = lambda server, who, **values: vars(server).update(copy.deepcopy(values))
    memory_hook.get_device_memory_capacity = lambda device: float(MEMORY[s.gpu])
    memory_hook.attn_dp_enabled_of = lambda server: server.enable_dp_attention
    memory_hook.use_mla_backend = lambda server: bool(s.mla)
    memory_hook.post_capture_kv_sizing_planned = lambda server: False  # SGLANG_ENABLE_POST_CAPTURE_KV_SIZING is off
    memory_hook.model_config_of = lambda server: SimpleNamespace(is_multimodal=False)
    memory_hook.get_platform = lambda: SimpleNamespace(is_xpu=False)
    cuda_graph_hook.resolving_view = cuda_graph_hook.resolved_view = same
    qwen3_vl.expand_multimodal_decode_graph_to_running_limit = lambda server, *others: None  # of Qwen3-VL only
    memory_hook.handle_gpu_memory_settings(server)
    return [str(value) for value in vars(s).values()] + [str(MEMORY[s.gpu]), str(server.chunked_prefill_size), str(server.mem_fraction_static)]


def table():
    import pools

    version = pools.import_sglang()
    lines = [f"# sglang {version}: defaults by the memory of a GPU; see tests/sglang/memory_fraction.py",
             "\t".join((*SETTINGS, "mib", "chunked_prefill_size", "mem_fraction_static"))]
    lines += ["\t".join(row(changes)) for changes in cases()]
    return "\n".join(lines)


def compare(renew):
    import stored_table

    return stored_table.compare(__file__, FILE, "defaults by the memory", renew)


if __name__ == "__main__":
    print(table())
