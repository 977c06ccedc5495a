#!/usr/bin/env python3
"""Every flag of `vllm serve`, read from its own argparse parser.

tools/engine-parity vllm --flags compares the flags with server_flags.tsv in tests/fixtures/vllm/, or writes that file. As a
program in the environment of `tools/engine-env vllm`, this module prints the table. The parser needs no GPU: an empty
stand-in takes the place of each package that is not installed. tests/flag_list.py has the columns.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import flag_list

FILE = Path(__file__).resolve().parents[1] / "fixtures/vllm/server_flags.tsv"
# Of vLLM itself: models, kernels and layers of the server that the parser names and does not use.
ABSENT = ("torch._inductor", "vllm.compilation", "vllm.parser", "vllm.renderers", "vllm.transformers_utils",
          "vllm.v1.hisparse", "vllm.tool_parsers", "vllm.reasoning", "vllm.distributed", "vllm.model_executor.models",
          "vllm.v1.attention.ops", "vllm.v1.worker", "vllm.lora", "vllm.model_executor.model_loader",
          "vllm.model_executor.kernels")


def prepare():
    """Makes vLLM's arguments importable on a machine without a GPU, as for an H100. Returns vLLM's version."""
    import importlib.metadata
    import re

    import sympy  # noqa: F401  before packages are replaced: it takes what it finds
    import torch

    plain = lambda function=None, **named: function or (lambda function: function)  # noqa: E731
    torch.compile = torch.compiler.disable = torch.compiler.allow_in_graph = plain
    import absent_packages

    sys.modules.setdefault("regex", re)  # the package reads what the command line needs as Python's own module does
    absent_packages.replace(("setuptools", "pkg_resources"), ABSENT)
    absent_packages.replace_missing("vllm")
    import vllm.platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    class Gpu(UnspecifiedPlatform):
        device_type = "cuda"
        dispatch_key = "CPU"
        memory_gib, name = 80, "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id=0):
            return cls.memory_gib << 30

        @classmethod
        def get_device_name(cls, device_id=0):
            return cls.name

    vllm.platforms._current_platform = Gpu()
    return importlib.metadata.version("vllm")


def parser():
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))


def table():
    version = prepare()
    return flag_list.table(f"# vllm {version}, make_arg_parser; see tests/vllm/server_flags.py", parser())


def compare(renew):
    return flag_list.compare("vLLM", "tools/engine-parity vllm", __file__, FILE, renew)


if __name__ == "__main__":
    print(table())
