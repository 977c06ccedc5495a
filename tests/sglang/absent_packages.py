"""Imports SGLang's cache code without the packages that the cache code does not use.

SGLang's modules import GPU kernels, tokenizers and web servers at their top. Each of these packages is replaced by an
empty stand-in. The cache classes themselves are SGLang's files, unchanged: a stand-in never replaces a module of
sglang.srt.mem_cache or sglang.srt.managers.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types

PACKAGES = set(
    "IPython PIL gguf regex compressed_tensors huggingface_hub openai sentencepiece starlette torchvision transformers triton tvm_ffi".split())
# Of SGLang itself: model configurations, tokenizers and the web server, which need the packages above.
SGLANG_PACKAGES = ("sglang.srt.configs", "sglang.srt.utils.hf_transformers", "sglang.srt.entrypoints",
                   "sglang.srt.constrained", "sglang.srt.parser", "sglang.srt.function_call")


class StandInType(type):
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandInType(name, (StandIn,), {})

    def __getitem__(cls, key):
        return cls

    def __iter__(cls):
        return iter(())

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class StandIn(metaclass=StandInType):
    """A class, a function, a decorator or a constant of an absent package."""

    def __new__(cls, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:  # a decorator returns the function
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return StandIn(*args, **kwargs)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __getitem__(self, key):
        return self


class StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandInType(name, (StandIn,), {})


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in PACKAGES or name.startswith(SGLANG_PACKAGES):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = StandInModule(spec.name)
        module.__path__ = []
        module.__version__ = "2.0"
        return module

    def exec_module(self, module):
        pass


def prepare_imports():
    """Makes SGLang's modules importable, and returns SGLang's version."""
    version = importlib.metadata.version("sglang")
    import torch

    # The compiler takes seconds to import, and no cache decision is compiled.
    torch.compile = torch.compiler.disable = lambda function=None, **named: function or (lambda function: function)
    sys.meta_path.insert(0, AbsentPackages())
    # Not sglang/__init__.py, which imports the language front end.
    package = types.ModuleType("sglang")
    package.__path__ = [os.fspath(importlib.metadata.distribution("sglang").locate_file("sglang"))]
    package.__version__ = version
    sys.modules["sglang"] = package
    return version
