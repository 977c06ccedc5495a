#!/usr/bin/env python3
"""Blocks of vLLM's pool for models with several kinds of KV, by its own planning of groups, without a GPU.

As a program in the environment of `tools/engine-env vllm`, prints the table; with --renew writes
tests/fixtures/vllm/pools.tsv, which the unit tests of models/engine_pools.hpp read. Real: the specs of layers, the
unification of pages and the grouping. The layers are those of models/presets/models; the size of a block beside states
follows _align_hybrid_block_size, which needs a GPU's backends.
"""

import json
import sys
from pathlib import Path

import vllm_imports

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/fixtures/vllm/pools.tsv"
COLUMNS = ("model", "tp", "block", "bytes", "blocks", "block_bytes", "block_tokens", "full_groups", "window_groups",
           "state_groups")
MODELS = ("gpt-oss-120b", "gpt-oss-20b", "gemma-3-27b", "gemma-4-31b", "gemma-4-26b-a4b", "step-3.7-flash", "qwen3-next-80b-a3b",
          "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "kimi-k3")
ROOM = 40_000_000_000


def kinds(name, config):
    """full, window, state or none for each layer."""
    count = config["num_hidden_layers"]
    if name.startswith("gpt-oss"):
        return ["full" if i % 2 else "window" for i in range(count)]
    if name.startswith("gemma-3"):
        return ["full" if (i + 1) % 6 == 0 else "window" for i in range(count)]
    if "layer_types" in config:
        return ["full" if kind == "full_attention" else "window" for kind in config["layer_types"]]
    if "full_attention_interval" in config:
        return ["full" if (i + 1) % config["full_attention_interval"] == 0 else "state" for i in range(count)]
    if "hybrid_override_pattern" in config:
        return [{"*": "full", "M": "state"}.get(letter, "none") for letter in config["hybrid_override_pattern"]]
    full = config["linear_attn_config"]["full_attn_layers"]
    return ["full" if i + 1 in full else "state" for i in range(count)]


def state_shapes(config, tp):
    """Shapes of the convolution's state and of the recurrent one, on one rank."""
    if "linear_num_value_heads" in config:
        heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return ((2 * keys + heads * dim) // tp, config["linear_conv_kernel_dim"] - 1), (heads // tp, dim, config["linear_key_head_dim"])
    if "mamba_num_heads" in config:
        heads, dim = config["mamba_num_heads"], config["mamba_head_dim"]
        width = heads * dim + 2 * config["n_groups"] * config["ssm_state_size"]
        return (width // tp, config["conv_kernel"] - 1), (heads // tp, dim, config["ssm_state_size"])
    linear = config["linear_attn_config"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    return (3 * heads * dim // tp, linear["short_conv_kernel_size"] - 1), (heads // tp, dim, dim)


def row(name, tp, block):
    import torch
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

    config = json.loads((ROOT / f"models/presets/models/{name}.json").read_text())
    heads, dim, given = config["num_key_value_heads"], config.get("head_dim"), block

    def attention(kind, block):
        own = max(1, heads // tp), dim
        if kind == "full" and "kv_lora_rank" in config:
            return MLAAttentionSpec(block_size=block, num_kv_heads=1, dtype=torch.bfloat16,
                                    head_size=config["kv_lora_rank"] + config["qk_rope_head_dim"])
        if kind == "full" and "global_head_dim" in config:
            own = max(1, config["num_global_key_value_heads"] // tp), config["global_head_dim"]
        named = dict(block_size=block, num_kv_heads=own[0], head_size=own[1], dtype=torch.bfloat16)
        return FullAttentionSpec(**named) if kind == "full" else SlidingWindowSpec(
            **named, sliding_window=config["sliding_window"])

    layers, padded = kinds(name, config), None
    if "state" in layers:
        shapes, dtypes = state_shapes(config, tp), (torch.bfloat16, torch.float32)
        state = MambaSpec(shapes=shapes, dtypes=dtypes, block_size=1).page_size_bytes
        token = attention("full", 1).page_size_bytes
        unit = max(block, 128 if "kv_lora_rank" in config else 16)
        block = max(block, unit * -(-state // (unit * token)))
        padded = block * token
    spec = {}
    for i, kind in enumerate(layers):
        if kind == "state":
            spec[f"{kind}.{i}"] = MambaSpec(shapes=shapes, dtypes=dtypes, block_size=block, page_size_padded=padded,
                                            mamba_cache_mode="align")
        elif kind != "none":
            spec[f"{kind}.{i}"] = attention(kind, block)
    groups = planning._get_kv_cache_groups_uniform_page_size(planning.unify_kv_cache_spec_page_size(spec))
    page = planning.get_uniform_page_size([group.kv_cache_spec for group in groups])
    block_bytes = page * max(len(group.layer_names) for group in groups)
    of_kind = [group.layer_names[0].split(".")[0] for group in groups]
    tokens = groups[of_kind.index("full")].kv_cache_spec.block_size
    return (name, tp, given, ROOM, ROOM // block_bytes, block_bytes, tokens,
            *(of_kind.count(kind) for kind in ("full", "window", "state")))


def table():
    version = vllm_imports.prepare_core()
    lines = [f"# vllm {version}: blocks of the pool of one rank; see tests/vllm/pools.py", "\t".join(COLUMNS)]
    for name in MODELS:
        for tp, block in ((1, 16), (1, 64), (8, 16)):
            lines.append("\t".join(str(cell) for cell in row(name, tp, block)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = table()
    if "--renew" in sys.argv:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text)
    print(text, end="")
