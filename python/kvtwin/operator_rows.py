"""The rows of measured operators in the Python package aiconfigurator-core, as points of lattices: see import_ops.py."""

import glob
import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DTYPES = {"bfloat16": "bf16", "float16": "bf16"}
HEAD_DIMS = (64, 128, 256)
ENGINES = ("sglang", "vllm", "trtllm")
MAX_EXPERT_RANKS = 16
MAX_EXPERT_RANKS_OF_RACKS = 64  # GB200, GB300: 72 GPUs share one NVLink domain
FASTEST = (("gemm", "sglang"), ("gemm", "vllm"), ("gemm", "trtllm"), ("moe", "trtllm"))
WINDOWS = (0, 128)
DSA_HIDDEN = {"DeepseekV32ForCausalLM": 7168, "GlmMoeDsaForCausalLM": 6144}
DISTRIBUTION = "power_law_1.2"
WIDE_DISTRIBUTION = "power_law_1.01"  # of wide expert parallelism: aiconfigurator's choice for DeepSeek
WIDE_BETWEEN = ((8, 4, 16), (24, 16, 32), (48, 32, 64))  # ranks: the measured ranks below and above
EXCHANGE_ON = {"gb300": "gb200"}
DEEP_EP_SMS = 20  # DeepEP's default number of SMs for its normal kernels
RANKS_OF_NODE, RANKS_OF_GRACE_NODE = 8, 4
SHORT_TOKENS, SHORT_BYTES = 128, 8192  # prefills and messages whose eager time is that of the host
KERNELS_OF_EAGER_LAYER = 15  # of the layer that launch_of() reads; launched_kernels() in models/serving_times.cpp counts the same


PointOfOperator = tuple[tuple[Any, ...], tuple[int, ...], float | None]
"""The key of a lattice, a point in it, and the milliseconds."""


class Refused(Exception):
    pass


class Source:
    """The files of a wheel, or of a folder with the same content."""

    def __init__(self, path: str) -> None:
        self.path = path
        if os.path.isdir(path):
            self.zip = None
            files = glob.glob(os.path.join(glob.escape(path), "**"), recursive=True)
            self.names = sorted(os.path.relpath(f, path).replace(os.sep, "/") for f in files if os.path.isfile(f))
        else:
            try:
                self.zip = zipfile.ZipFile(path)
            except (OSError, zipfile.BadZipFile) as error:
                raise Refused(f"{path}: is neither a wheel nor a folder ({error})") from error
            self.names = sorted(self.zip.namelist())

    def read(self, name: str) -> bytes:
        if self.zip:
            return self.zip.read(name)
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def package(self) -> str:
        for name in self.names:
            found = re.search(r"aiconfigurator_core-([0-9.]+)\.dist-info/METADATA$", name)
            if found:
                return "aiconfigurator-core " + found.group(1)
        return "aiconfigurator-core (version unknown)"

    def gpus(self) -> list[str]:
        return sorted({match.group(1) for name in self.names if (match := re.search(r"systems/data/([^/]+)/.*parquet$", name))})

    def has_engine(self, gpu: str, engine: str) -> bool:
        return any(re.search(rf"systems/data/{gpu}/[^/]+/{engine}/.*parquet$", name) for name in self.names)

    def date(self) -> str:
        """Returns the newest date of a collection; "unknown" without one."""
        metas = [self.read(name).decode() for name in self.names if name.endswith("/collection_meta.yaml")]
        return max((day for meta in metas for day in re.findall(r"collected_at: '?(\d{4}-\d\d-\d\d)", meta)), default="unknown")

    def versions(self, gpu: str, family: str, engine: str, file: str) -> list[tuple[str, str]]:
        """Returns (version, name) of each parquet file, the newest version first."""
        found = []
        for name in self.names:
            match = re.search(rf"systems/data/{gpu}/{family}/{engine}/([^/]+)/{file}\.parquet$", name)
            if match:
                found.append(([int(n) for n in re.findall(r"\d+", match.group(1))], match.group(1), name))
        return [entry[1:] for entry in sorted(found, reverse=True)]

    def rows(self, name: str) -> list[dict[str, Any]]:
        try:
            # Without threads: those of pyarrow 26 abort the program at its end now and then.
            table = pq.ParquetFile(pa.BufferReader(self.read(name)), pre_buffer=False).read(use_threads=False)
            return [dict(row) for row in table.to_pylist()]
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"{name}: is no parquet file ({error})") from error


def dtype(name: str) -> str:
    return DTYPES.get(name, name)


def gemm_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        yield (dtype(r["gemm_dtype"]),), (r["m"], r["n"], r["k"]), r["latency"]


def kept_attention(r: dict[str, Any]) -> bool:
    return r["head_dim"] in HEAD_DIMS and r.get("window_size", 0) in WINDOWS


def attention_key(r: dict[str, Any]) -> tuple[Any, ...]:
    return (dtype(r["kv_cache_dtype"]), r["head_dim"], r.get("window_size", 0), r["num_heads"], r["num_key_value_heads"])


def context_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    # An fp8 cache: attention in fp8 where it was measured, else in bf16.
    best = {r["kv_cache_dtype"]: "bfloat16" for r in rows}
    best |= {r["kv_cache_dtype"]: r["attn_dtype"] for r in rows if r["attn_dtype"] == r["kv_cache_dtype"]}
    for r in rows:
        if r["step"] == 0 and kept_attention(r) and r["attn_dtype"] == best[r["kv_cache_dtype"]]:
            yield attention_key(r), (r["batch_size"], r["isl"] * (r["isl"] + 1) // 2), r["latency"]


def generation_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        if kept_attention(r):
            yield attention_key(r), (r["batch_size"], r["step"] + 1), r["latency"]


def mla_context_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        if r["step"] == 0:
            key = (dtype(r["kv_cache_dtype"]), r["num_heads"])
            yield key, (r["batch_size"], r["isl"] * (r["isl"] + 1) // 2), r["latency"]


def mla_generation_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        yield (dtype(r["kv_cache_dtype"]), r["num_heads"]), (r["batch_size"], r["step"] + 1), r["latency"]


def dsa_key(r: dict[str, Any]) -> tuple[Any, ...]:
    return (dtype(r["gemm_type"]), dtype(r["kv_cache_dtype"]), DSA_HIDDEN[r["architecture"]], r["num_heads"])


def dsa_context_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        if r["op_name"] == "dsa_context_module" and r["step"] == 0:
            yield dsa_key(r), (r["batch_size"], r["isl"]), r["latency"]


def dsa_generation_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        if r["op_name"] == "dsa_generation_module":
            yield dsa_key(r), (r["batch_size"], r["step"] + 1), r["latency"]


def moe_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        most = MAX_EXPERT_RANKS_OF_RACKS if r["device"].startswith("NVIDIA GB") else MAX_EXPERT_RANKS
        if r["distribution"] == DISTRIBUTION and r["moe_tp_size"] * r["moe_ep_size"] <= most:
            key = (dtype(r["moe_dtype"]), r["hidden_size"], r["inter_size"], r["topk"], r["num_experts"], r["moe_tp_size"],
                   r["moe_ep_size"])
            yield key, (r["num_tokens"],), r["latency"]


def wide_points(rows: list[dict[str, Any]], distribution: str) -> Iterator[PointOfOperator]:
    times: dict[Any, Any] = {}
    for r in rows:
        slots = r.get("num_slots", r["num_experts"])
        if r["distribution"] == distribution and slots == r["num_experts"] and r["moe_tp_size"] == 1 and r["latency"]:
            key = (dtype(r["moe_dtype"]), r["hidden_size"], r["inter_size"], r["topk"], r["num_experts"], 1)
            if r["moe_ep_size"] <= MAX_EXPERT_RANKS_OF_RACKS:
                at = (key, r["moe_ep_size"], r["num_tokens"])
                times[at] = min(r["latency"], times.get(at, r["latency"]))
    measured = {(key, ep) for key, ep, tokens in times}
    for (key, ep, tokens), latency in times.items():
        yield (*key, ep), (tokens,), latency
    for ranks, below, above in WIDE_BETWEEN:
        share = float(np.log(ranks / below) / np.log(above / below))
        for (key, ep, tokens), latency in times.items():
            other = times.get((key, above, tokens))
            if ep == below and other and (key, ranks) not in measured:
                yield (*key, ranks), (tokens,), float(latency ** (1 - share) * other**share)


def exchange_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    """The sum of an all-to-all's phases, of the faster kernel. Low precision of the way back is an option: left out."""
    sums: dict[Any, Any] = {}
    phases: dict[Any, Any] = {}
    for r in rows:
        if r["op_name"] == "alltoall_combine_low_precision" or not r["latency"] or r["latency"] <= 0:
            continue
        key = (dtype(r["moe_dtype"]), r["hidden_size"], r["topk"], r["num_experts"], r["moe_ep_size"])
        of_kernel = (key, (r["num_tokens"],), r["kernel_source"])
        phases.setdefault(of_kernel, set()).add(r["op_name"])
        sums[of_kernel] = sums.get(of_kernel, 0) + r["latency"]
    for (key, at, kernel), latency in sums.items():
        if len(phases[key, at, kernel]) == (3 if kernel == "NVLinkTwoSided" else 2):
            yield key, at, latency


def deep_ep_points(rows: list[dict[str, Any]], mode: str) -> Iterator[PointOfOperator]:
    """To the experts and back, by DeepEP's kernels of this mode. The rows have nodes, whose ranks all take part."""
    for r in rows:
        ranks = r["node_num"] * (RANKS_OF_GRACE_NODE if r["device"].startswith("NVIDIA GB") else RANKS_OF_NODE)
        if ranks > MAX_EXPERT_RANKS_OF_RACKS or (mode == "normal" and r["dispatch_sms"] != DEEP_EP_SMS):
            continue
        parts = ("transmit", "notify") if mode == "normal" else ("avg_t",)
        us = sum(r[f"{way}_{part}_us"] for way in ("dispatch", "combine") for part in parts)
        yield (r["hidden_size"], r["num_topk"], r["num_experts"], ranks), (r["num_token"],), us / 1e3


def gdn_points(rows: list[dict[str, Any]], phase: str) -> Iterator[PointOfOperator]:
    """The sum of the kernels of a gated delta net layer, at the points where each kernel was measured."""
    kernels: dict[Any, Any] = {}
    times: dict[Any, Any] = {}
    for r in rows:
        if r["phase"] == phase:
            key = (r["d_model"], r["num_k_heads"], r["num_v_heads"])
            at = (r["batch_size"], r["seq_len"]) if phase == "context" else (r["batch_size"],)
            kernels.setdefault(key, set()).add(r["kernel_source"])
            of_kernel = times.setdefault((key, at), {})
            of_kernel[r["kernel_source"]] = min(r["latency"], of_kernel.get(r["kernel_source"], r["latency"]))
    for (key, at), of_kernel in times.items():
        if set(of_kernel) == kernels[key]:
            yield key, at, sum(of_kernel.values())


def reduce_points(rows: list[dict[str, Any]]) -> Iterator[PointOfOperator]:
    for r in rows:
        nccl = r["op_name"] == "all_reduce" and r.get("nccl_dtype") == "half"
        if nccl or str(r.get("backend", "")).endswith("_graph") or r.get("implementation") == "trtllm":
            yield (r["num_gpus"],), (r["message_size"],), r["latency"]


# (name in the table, folder, file, points, axes, axes along which times never fall)
FAMILIES = (
    ("gemm", "gemm", "gemm_perf", gemm_points, ("m", "n", "k"), (0,)),
    ("context", "attention", "context_attention_perf", context_points, ("batch", "pairs"), (0, 1)),
    ("generation", "attention", "generation_attention_perf", generation_points, ("batch", "tokens"), (0, 1)),
    ("mla_context", "mla", "context_mla_perf", mla_context_points, ("batch", "pairs"), (0, 1)),
    ("mla_generation", "mla", "generation_mla_perf", mla_generation_points, ("batch", "tokens"), (0, 1)),
    ("dsa_context", "sparse_attention", "dsa_context_module_perf", dsa_context_points, ("batch", "tokens"), (0, 1)),
    ("dsa_generation", "sparse_attention", "dsa_generation_module_perf", dsa_generation_points, ("batch", "tokens"),
     (0, 1)),
    ("moe", "moe", "moe_perf", moe_points, ("tokens",), (0,)),
    ("moe_normal", "moe", "wideep_context_moe_perf", lambda rows: wide_points(rows, WIDE_DISTRIBUTION), ("tokens",), (0,)),
    ("moe_normal", "moe", "wideep_moe_perf", lambda rows: wide_points(rows, WIDE_DISTRIBUTION), ("tokens",), (0,)),
    ("moe_low_latency", "moe", "wideep_generation_moe_perf", lambda rows: wide_points(rows, WIDE_DISTRIBUTION), ("tokens",),
     (0,)),
    ("moe_low_latency", "moe", "wideep_moe_perf", lambda rows: wide_points(rows, WIDE_DISTRIBUTION), ("tokens",), (0,)),
    ("moe_balanced", "moe", "wideep_moe_perf", lambda rows: wide_points(rows, WIDE_DISTRIBUTION + "_eplb"), ("tokens",),
     (0,)),
    ("exchange", "comm", "trtllm_alltoall_perf", exchange_points, ("tokens",), (0,)),
    ("exchange_normal", "comm", "wideep_deepep_normal_perf", lambda rows: deep_ep_points(rows, "normal"), ("tokens",), (0,)),
    ("exchange_low_latency", "comm", "wideep_deepep_ll_perf", lambda rows: deep_ep_points(rows, "low_latency"), ("tokens",),
     (0,)),
    ("gdn_context", "linear_attention", "gdn_perf", lambda rows: gdn_points(rows, "context"), ("batch", "tokens"), (0, 1)),
    ("gdn_generation", "linear_attention", "gdn_perf", lambda rows: gdn_points(rows, "generation"), ("batch",), (0,)),
    ("all_reduce", "comm", "custom_allreduce_perf", reduce_points, ("bytes",), (0,)),
)


def sources_of(
    source: Source, name: str, gpu: str, folder: str, engine: str, file: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields (label, rows): each adds the lattices that those before it lack."""
    if name == "exchange":
        on = EXCHANGE_ON.get(gpu, gpu)
        for version, found in source.versions(on, folder, engine, file):
            yield f"{engine} {version}{'' if on == gpu else ' on ' + on}", source.rows(found)
        return
    others = [other for other in ENGINES if other != engine]
    if (name, engine) in FASTEST:
        rows, labels = [], []
        for each in (engine, *others):
            for version, found in source.versions(gpu, folder, each, file):
                rows += source.rows(found)
                labels.append(f"{each} {version}")
        if rows:
            yield ", ".join(labels), rows
        return
    for each in (engine, *others):
        for version, found in source.versions(gpu, folder, each, file):
            rows, label = source.rows(found), f"{each} {version}"
            nccl = source.versions(gpu, "comm", "nccl", "nccl_perf") if name == "all_reduce" else []
            if nccl:
                rows += source.rows(nccl[0][1])
                label += f" and nccl {nccl[0][0]}"
            yield label, rows


def launch_of(source: Source, gpu: str, engine: str) -> tuple[float, str] | None:
    """Returns (milliseconds, label) of a kernel that the host launches without a CUDA graph; None if it was not measured.

    A short prefill takes the time of the host. SGLang's attention layer of DeepSeek-V3 in fp8 was measured so: 15 kernels.
    On a GPU without such rows: the eager call of a small all-reduce, of the engine or else of another one.
    """
    for version, found in source.versions(gpu, "mla", "sglang", "wideep_context_mla_perf"):
        layers = [r["latency"] for r in source.rows(found)
                  if r["step"] == 0 and r["batch_size"] == 1 and r["isl"] <= SHORT_TOKENS and r["latency"] > 0]
        if layers:
            return float(np.median(layers)) / KERNELS_OF_EAGER_LAYER, f"sglang {version}, an attention layer of 15 kernels"
    for each in (engine, *(other for other in ENGINES if other != engine)):
        for version, found in source.versions(gpu, "comm", each, "custom_allreduce_perf"):
            calls = [r["latency"] for r in source.rows(found)
                     if str(r.get("backend", "")).endswith("_eager") and r["message_size"] <= SHORT_BYTES]
            if calls:
                return float(np.median(calls)), f"{each} {version}, a small all-reduce"
    return None
