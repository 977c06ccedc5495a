#!/usr/bin/env python3
"""Sizes of SGLang's memory pools, by its own pool configurators and host pools, without a GPU.

As a program, this module prints the table of the SGLang that is on Python's path; tools/engine-parity sglang --pools compares
it with tests/fixtures/sglang/pools.tsv, or writes that file. The unit tests of models/engine_pools.hpp read the file.
Real: the configurators of pool_configurator.py, KVCacheConfigurator's mamba pool and running limit, the state shapes,
the host pools and their split. Stand-ins: the server's settings, and the part of ModelConfig that is read, from the
configs in models/presets/models.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/fixtures/sglang/pools.tsv"
GB40 = 40_000_000_000
SETTINGS = dict(tp=1, dp=1, page=64, bytes=GB40, window_ratio=0.0, state_ratio=0.0, states=0, running=0,
                strategy="extra_buffer", draft_tokens=0, host_ratio=0.0, host_gb=0)
RESULTS = ("full", "window", "states", "max_running", "host_full", "host_window", "host_states")
# Preset, architecture.
MODELS = (("gpt-oss-120b", "GptOssForCausalLM"), ("gemma-3-27b", "Gemma3ForConditionalGeneration"),
          ("gemma-4-31b", "Gemma4ForConditionalGeneration"), ("mimo-v2-flash", "MiMoV2FlashForCausalLM"),
          ("step-3.7-flash", "Step3p7ForConditionalGeneration"), ("qwen3-next-80b-a3b", "Qwen3NextForCausalLM"),
          ("qwen3.5-397b-a17b", "Qwen3_5MoeForConditionalGeneration"),
          ("nemotron-3-nano-30b-a3b", "NemotronHForCausalLM"), ("kimi-k3", "KimiK3ForConditionalGeneration"),
          ("deepseek-v4-flash", "DeepseekV4ForCausalLM"), ("deepseek-v3.2", "DeepseekV32ForCausalLM"),
          ("glm-5", "GlmMoeDsaForCausalLM"), ("minimax-m3", "MiniMaxM3SparseForCausalLM"))
WINDOWS = ("gpt-oss-120b", "gemma-4-31b", "mimo-v2-flash", "step-3.7-flash")
STATES = ("qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "nemotron-3-nano-30b-a3b", "kimi-k3")


def cases():
    """Pairs of a preset and the settings that differ from SETTINGS."""
    for model, _ in MODELS:
        page = {"page": 256} if model == "deepseek-v4-flash" else {}
        yield model, page
        yield model, {"tp": 8, **page}
        yield model, {"host_ratio": 2.0, **page}
        if model != "deepseek-v4-flash":  # refuses --hicache-size
            yield model, {"host_gb": 100, **page}
    for model in WINDOWS:
        yield model, {"window_ratio": 0.1}
        yield model, {"draft_tokens": 4, "running": 48}
    for model in STATES:
        large = {"bytes": 100_000_000_000}  # states of Kimi-K3 have 449 MB
        yield model, {"state_ratio": 0.3}
        yield model, {"states": 100, **large}
        yield model, {"strategy": "no_buffer"}
        yield model, {"strategy": "extra_buffer_lazy"}
        yield model, {"running": 4}
        yield model, {"draft_tokens": 4, "running": 48, **large}
        yield model, {"draft_tokens": 4, "running": 8, "states": 60, **large}
        yield model, {"tp": 8, "dp": 4, "running": 128}
    yield "deepseek-v4-flash", {"page": 256, "window_ratio": 0.3}
    yield "deepseek-v4-flash", {"page": 256, "running": 64}
    yield "deepseek-v4-flash", {"page": 256, "draft_tokens": 4, "running": 48}


def import_sglang():
    """Imports SGLang's modules. Returns its version."""
    sys.path.insert(0, str(ROOT / "tests"))
    import absent_packages

    absent_packages.replace((), ("sglang.srt.entrypoints",))
    absent_packages.replace_missing("sglang")
    version = absent_packages.skip_init("sglang", "sglang", "sglang.srt.configs")
    # The package's own classes need transformers; its submodules are real.
    configs = absent_packages.StandInModule("sglang.srt.configs")
    configs.__path__ = sys.modules["sglang.srt.configs"].__path__
    sys.modules["sglang.srt.configs"] = configs
    import torch

    torch.compile = torch.compiler.disable = lambda function=None, **named: function or (lambda function: function)
    return version


class Config(SimpleNamespace):
    """What SGLang reads of a model, as its ModelConfig derives it from config.json."""

    def __init__(self, preset, architecture):
        config = json.loads((ROOT / f"models/presets/models/{preset}.json").read_text())
        windows = "layer_types" in config or "hybrid_layer_pattern" in config
        if preset.startswith("gpt-oss"):  # transformers' default of the config class
            config["layer_types"] = ["full_attention" if i % 2 else "sliding_attention"
                                     for i in range(config["num_hidden_layers"])]
        hf = SimpleNamespace(**{"architectures": [architecture], "kv_source_layer_ids": [], **config})
        hf.get_text_config = lambda: hf
        super().__init__(hf_config=hf, hf_text_config=hf, layers=config["num_hidden_layers"], windows=windows)
        self.hidden_size, self.num_attention_heads = config["hidden_size"], config["num_attention_heads"]
        self.context_len = config["max_position_embeddings"]
        self.is_draft_model, self.quantization = False, None
        self.head_dim = config.get("head_dim", self.hidden_size // self.num_attention_heads)
        self.v_head_dim = config.get("v_head_dim", self.head_dim)
        self.swa_head_dim = config.get("swa_head_dim", self.head_dim)
        self.swa_v_head_dim = config.get("swa_v_head_dim", self.swa_head_dim)
        self.kv_heads = self.swa_kv_heads = config.get("num_key_value_heads", self.num_attention_heads)
        self.swa_kv_heads = config.get("swa_num_key_value_heads", self.swa_kv_heads)
        if "global_head_dim" in config:  # Gemma 4
            self.head_dim = self.v_head_dim = config["global_head_dim"]
            self.kv_heads = config["num_global_key_value_heads"]
        self.is_mla = "kv_lora_rank" in config
        self.kv_lora_rank, self.qk_rope_head_dim = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
        self.qk_nope_head_dim = config.get("qk_nope_head_dim", self.head_dim - (self.qk_rope_head_dim or 0))
        self.index_head_dim = config.get("index_head_dim")
        self.window_size = config.get("sliding_window")
        if architecture.startswith("DeepseekV4"):
            self.compress_ratios = config["compress_ratios"][: self.layers]

    def get_num_kv_heads(self, tp, dcp=1):
        return max(1, self.kv_heads // tp)

    def get_swa_num_kv_heads(self, tp):
        return max(1, self.swa_kv_heads // tp)


def state_params(config, tp):
    """The state layers of the model and the layers with attention, as in SGLang's config classes; None without
    states."""
    mamba_utils = importlib.import_module("sglang.srt.configs.mamba_utils")
    hf, count = config.hf_config, config.layers
    if hasattr(hf, "linear_num_value_heads"):
        full = [i for i in range(count) if (i + 1) % hf.full_attention_interval == 0]
        shape = mamba_utils.Mamba2StateShape.create(
            tp_world_size=tp, intermediate_size=hf.linear_value_head_dim * hf.linear_num_value_heads,
            n_groups=hf.linear_num_key_heads, num_heads=hf.linear_num_value_heads, head_dim=hf.linear_value_head_dim,
            state_size=hf.linear_key_head_dim, conv_kernel=hf.linear_conv_kernel_dim)
        states = [i for i in range(count) if i not in full]
    elif hasattr(hf, "hybrid_override_pattern"):
        full = [i for i, kind in enumerate(hf.hybrid_override_pattern) if kind == "*"]
        states = [i for i, kind in enumerate(hf.hybrid_override_pattern) if kind == "M"]
        shape = mamba_utils.Mamba2StateShape.create(
            tp_world_size=tp, intermediate_size=hf.mamba_num_heads * hf.mamba_head_dim, n_groups=hf.n_groups,
            num_heads=hf.mamba_num_heads, head_dim=hf.mamba_head_dim, state_size=hf.ssm_state_size,
            conv_kernel=hf.conv_kernel)
    elif hasattr(hf, "linear_attn_config"):
        linear = hf.linear_attn_config
        full = [i - 1 for i in linear["full_attn_layers"]]
        states = [i - 1 for i in linear["kda_layers"]]
        shape = mamba_utils.KimiLinearStateShape.create(
            tp_world_size=tp, num_heads=linear["num_heads"], head_dim=linear["head_dim"],
            conv_kernel_size=linear["short_conv_kernel_size"])
        params = mamba_utils.KimiLinearCacheParams(shape=shape, layers=states)
        return SimpleNamespace(full_attention_layer_ids=full, mamba2_cache_params=params)
    else:
        return None
    params = mamba_utils.Mamba2CacheParams(shape=shape, layers=states)
    return SimpleNamespace(full_attention_layer_ids=full, mamba2_cache_params=params)


class Speculation:
    """The two kinds that the cases use: none, or an EAGLE-like draft with one layer."""

    def __init__(self, drafts):
        self.drafts = drafts

    def is_none(self):
        return not self.drafts

    def is_eagle(self):
        return self.drafts

    def is_standalone(self):
        return False

    is_dflash_family = is_dspark = is_standalone


class Bag(SimpleNamespace):
    """Settings; one that is not named is off."""

    def __getattr__(self, name):
        return None


def publish(settings, hybrid_ratio):
    """Puts the settings where SGLang's modules read them. Returns the schedule's part, which SGLang changes."""
    s = SimpleNamespace(**settings)
    lazy = s.strategy == "extra_buffer_lazy"
    schedule = Bag(
        swa_full_tokens_ratio=s.window_ratio or hybrid_ratio, _swa_full_tokens_ratio_explicitly_set=True,
        swa_prefix_tails=None, mamba_full_memory_ratio=s.state_ratio or 0.9, max_mamba_cache_size=s.states or None,
        max_running_requests=s.running or None, disable_overlap_schedule=s.strategy == "no_buffer",
        chunked_prefill_size=8192, page_size=s.page, max_total_tokens=None)
    bags = {
        "get_schedule": schedule,
        "get_memory": Bag(disable_radix_cache=False, enable_unified_memory=False,
                                      enable_hisparse=False, hicache_ratio=s.host_ratio, hicache_size=s.host_gb),
        "get_parallel": Bag(attn_tp_size=s.tp // s.dp, attn_dp_size=s.dp, attn_dcp_size=1, pp_size=1),
        "get_spec": Bag(speculative_algorithm="EAGLE" if s.draft_tokens else None,
                                    speculative_num_draft_tokens=s.draft_tokens or None,
                                    speculative_num_steps=s.draft_tokens - 1, speculative_eagle_topk=1),
        "get_disagg": Bag(disaggregation_mode="null", disaggregation_decode_extra_slots=0),
        "get_exec": Bag(
            mamba=Bag(enable_mamba_extra_buffer=s.strategy != "no_buffer",
                                  enable_mamba_extra_buffer_lazy=lazy, enable_linear_replayssm_spec=False),
            kernel=Bag(dsv4_attn_backend="flashmla", enable_deepseek_v4_fp4_indexer=False,
                                   dsa_prefill_backend="flashmla", dsa_decode_backend="flashmla"),
            features=Bag(enable_encoder_swa_bounded_replay=False)),
        "get_context": Bag(override=lambda name, **values: vars(schedule).update(values)),
        "max_speculative_num_draft_tokens": s.draft_tokens or None,
    }
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("sglang.srt."):
            continue
        for name, bag in bags.items():
            if name in vars(module):
                setattr(module, name, lambda bag=bag: bag)
    return schedule


def host_pool(bytes_per_slot, slots, page, settings, share):
    from sglang.srt.mem_cache.pool_host import base

    class Sized(base.HostKVCache):
        def clear(self):
            pass

    for name in base.HostKVCache.__abstractmethods__:
        setattr(Sized, name, lambda self, *args: None)
    Sized.__abstractmethods__ = frozenset()
    return Sized(dtype=None, device_capacity_tokens=slots, size_per_token=bytes_per_slot, start_layer=0, end_layer=1,
                 host_to_device_ratio=settings["host_ratio"], host_size=share, page_size=page, layout="page_first",
                 pin_memory=False, device="cpu", is_dummy=True).size


def host_states(params, slots, settings, share):
    import torch
    from sglang.srt.mem_cache.pool_host import mamba

    layers, shape, kinds = len(params.layers), params.shape, params.dtype

    def buffer(dims, dtype):
        return torch.empty(1, dtype=dtype).expand(layers, slots + 1, *dims)

    class Sized(mamba.MambaPoolHost):
        def init_kv_buffer(self):
            return None

        _init_write_back_staging_buffers = clear = init_kv_buffer

    mamba.host_memory_budget_bytes = lambda requested=0, **named: 1 << 62
    info = SimpleNamespace(validate=lambda **named: None, temporal=buffer(shape.temporal, kinds.temporal),
                           conv=[buffer(dims, kinds.conv) for dims in shape.conv], extra_checkpoint_buffers=())
    return Sized(info, settings["host_ratio"], share, device_capacity=slots, pin_memory=False, layout="page_first").size


def row(model, architecture, changes):
    import torch
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
    from sglang.srt.model_executor import pool_configurator

    model_config = importlib.import_module("sglang.srt.configs.model_config")
    settings = {**SETTINGS, **changes}
    page, tp = settings["page"], settings["tp"] // settings["dp"]
    config = Config(model, architecture)
    config.attention_arch = model_config.AttentionArch.MLA if config.is_mla else model_config.AttentionArch.MHA
    v4 = model_config.is_deepseek_v4(config.hf_config)
    if v4 and not settings["running"]:
        settings["running"] = 256  # deepseek_v4_hook.py
    schedule = publish(settings, 0.1 if v4 else 0.8)  # 0.1: model_overrides/deepseek_v4.py
    states = state_params(config, tp)
    # disable_hybrid_swa_memory: model_overrides/gemma2_gemma3.py; of Step-3.x with HiCache, arg_groups/overrides.py.
    whole = model.startswith("gemma-3") or (model.startswith("step") and (settings["host_ratio"] or settings["host_gb"]))
    hybrid = model_config.is_hybrid_swa_model([architecture], config.hf_config) and not whole
    window_ids, full_ids = model_config.get_hybrid_layer_ids([architecture], config.hf_config) if hybrid else (None, None)
    kvc = SimpleNamespace(
        kv_cache_dtype=torch.bfloat16, kv_cache_dtype_str="auto", model_dtype=torch.bfloat16, model_config=config,
        page_size=page, sliding_window_size=config.window_size, is_draft_worker=False, attn_dp_size=settings["dp"],
        pp_size=1, is_hybrid_swa=hybrid, use_mla_backend=config.is_mla, mambaish_config=states,
        hybrid_gdn_config=None, hybrid_kda_config=None, extra_mamba_cache_bytes_per_req=0,
        server_args=Bag(), fused_entry_bytes=lambda kind: None, kv_shard_spec=None,
        kv_shard_size=1, device="cpu",
        spec_algorithm=Speculation(settings["draft_tokens"] > 0),
        spec_aux_config=SimpleNamespace(eagle_draft_num_layers=1, eagle_draft_swa_num_layers=None),
        layer_info=SimpleNamespace(start_layer=0, end_layer=config.layers, num_effective_layers=config.layers,
                                   full_attention_layer_ids=full_ids, swa_attention_layer_ids=window_ids))
    pool_configurator.mambaish_config = kv_cache_configurator.mambaish_config = lambda config: states
    pool_configurator.compute_page_shard_scratch_bytes = lambda *args, **named: 0
    real = kv_cache_configurator.KVCacheConfigurator
    kvc._calculate_mamba_ratio = lambda: real._calculate_mamba_ratio(kvc)
    left = settings["bytes"] / (1 << 30)
    if states is not None:
        left = real._handle_max_mamba_cache(kvc, left)
    configurator = pool_configurator.create_memory_pool_configurator(kvc)
    sizes = configurator.calculate_pool_sizes(int(left * (1 << 30)), page)
    full, window = sizes.max_total_num_tokens, sizes.swa_max_total_num_tokens or 0
    state_slots = schedule.max_mamba_cache_size if states is not None else 0
    running = real.resolve_max_num_reqs(kvc, full)
    hosts = [0, 0, 0]
    if v4 and settings["host_ratio"]:
        pages = hybrid_pool_assembler._deepseek_v4_num_host_pages(
            params=SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(size_full=full)),
            kvcache=SimpleNamespace(size=full, swa_size=window), page_size=page, swa_page_size=page)
        hosts = [pages[0] * page, pages[1] * page, 0]
    elif settings["host_ratio"] or settings["host_gb"]:
        # Bytes of a slot on the device, and of the pools: a page or a slot more than the configurators count.
        token = configurator._full_cell_bytes() if window else configurator._cell_size
        of_window = configurator._swa_cell_bytes() if window else 0
        of_state = states.mamba2_cache_params.mamba_cache_per_req if states is not None else 0
        device = [(full + page) * token, (window + page) * of_window, (state_slots + 1) * of_state]
        shares = hybrid_pool_assembler._split_hicache_size(
            settings["host_gb"], tuple(SimpleNamespace(host_capacity_bytes=bytes) for bytes in device))
        hosts[0] = host_pool(token, full, page, settings, shares[0])
        if window:
            hosts[1] = host_pool(of_window, window, page, settings, shares[1])
        if states is not None:
            hosts[2] = host_states(states.mamba2_cache_params, state_slots, settings, shares[2])
    return [model, *(str(value) for value in settings.values()),
            *(str(value) for value in (full, window, state_slots, running, *hosts))]


def table():
    version = import_sglang()
    architectures = dict(MODELS)
    lines = [f"# sglang {version}: pools of one rank; see tests/sglang/pools.py", "\t".join(("model", *SETTINGS, *RESULTS))]
    for model, changes in cases():
        lines.append("\t".join(row(model, architectures[model], changes)))
    return "\n".join(lines)


def compare(renew):
    import stored_table

    return stored_table.compare(__file__, FILE, "pools", renew)


if __name__ == "__main__":
    print(table())
