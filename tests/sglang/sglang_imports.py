"""Makes SGLang's cache code, request log and event publisher importable in the environment of `tools/engine-env sglang`.

The classes themselves are SGLang's files, unchanged: a stand-in never replaces a module of sglang.srt.mem_cache or
sglang.srt.managers.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import absent_packages

PACKAGES = """IPython PIL gguf regex compressed_tensors huggingface_hub openai sentencepiece starlette torchvision
transformers triton tvm_ffi""".split()
# Of SGLang itself: model configurations, tokenizers and the web server, which need the packages above.
SGLANG_PACKAGES = ("sglang.srt.configs", "sglang.srt.utils.hf_transformers", "sglang.srt.entrypoints",
                   "sglang.srt.constrained", "sglang.srt.parser", "sglang.srt.function_call")


def prepare():
    """Makes SGLang's modules importable, and returns SGLang's version."""
    import torch

    # The compiler takes seconds to import, and no cache decision is compiled.
    torch.compile = torch.compiler.disable = lambda function=None, **named: function or (lambda function: function)
    absent_packages.replace(PACKAGES, SGLANG_PACKAGES)
    return absent_packages.skip_init("sglang", "sglang")
