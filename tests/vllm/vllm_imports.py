"""Makes vLLM's KV offloading and its core importable in the environment of `tools/engine-env vllm`.

The classes themselves are vLLM's files, unchanged: a stand-in never replaces a module of vllm.v1.kv_offload or vllm.v1.core.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import absent_packages

PACKAGES = "prometheus_client regex requests urllib3".split()
# Of vLLM itself: model configurations, layers and the connectors' factory, which need GPUs' kernels or the packages above.
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector"
VLLM_PACKAGES = ("vllm.config", "vllm.model_executor", "vllm.transformers_utils", "vllm.v1.attention", f"{CONNECTOR}.factory",
                 f"{CONNECTOR}.base", f"{CONNECTOR}.v1.base")
# Packages whose __init__.py imports most of vLLM.
BARE = ("vllm", "vllm.distributed", "vllm.distributed.device_communicators", "vllm.distributed.kv_transfer", CONNECTOR,
        f"{CONNECTOR}.v1", f"{CONNECTOR}.v1.offloading")
# Of vLLM itself, what its core names and does not use.
CORE_PACKAGES = ("vllm.compilation", "vllm.parser", "vllm.v1.hisparse", "vllm.reasoning", "vllm.renderers",
                 "vllm.entrypoints", "vllm.distributed.device_communicators.pynccl")


def prepare():
    """Makes vLLM's modules importable, and returns vLLM's version."""
    import torch

    # The compiler takes seconds to import, and nothing here is compiled.
    torch.compile = torch.compiler.disable = lambda function=None, **named: function or (lambda function: function)
    absent_packages.replace(PACKAGES, VLLM_PACKAGES)
    return absent_packages.skip_init("vllm", *BARE)


def prepare_core():
    """Makes the modules of vllm.v1.core importable too, and returns vLLM's version."""
    version = prepare()
    absent_packages.replace(("setuptools", "pkg_resources"), CORE_PACKAGES)
    absent_packages.replace_missing("vllm")
    return version
