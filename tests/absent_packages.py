"""Imports an engine's Python code without the packages that the imported part does not use.

Engines import GPU kernels, tokenizers and web servers at the top of their modules. An empty stand-in takes the place of
such a package. The files of the engine that are under test stay unchanged.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from pathlib import Path


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

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __call__(self, *args, **kwargs):
        return StandIn(*args, **kwargs)

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __getitem__(self, key):
        return self

    def __iter__(self):
        return iter(())

    def __int__(self):
        return 0


class StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandInType(name, (StandIn,), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module whose name `absent` accepts."""

    def __init__(self, absent):
        self.absent = absent

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if self.absent(name) else None

    def create_module(self, spec):
        module = StandInModule(spec.name)
        module.__path__ = []
        module.__version__ = "2.0"
        return module

    def exec_module(self, module):
        pass


def replace(packages, prefixes=()):
    """Replaces these packages, installed or not, and all modules whose name begins with one of `prefixes`."""
    packages, prefixes = frozenset(packages), tuple(prefixes)
    sys.meta_path.insert(0, Finder(lambda name: name.split(".")[0] in packages or name.startswith(prefixes)))


def replace_missing(engine):
    """Replaces every package that is not installed. Modules of `engine` and of the standard library are not replaced."""
    real = {engine, *sys.stdlib_module_names}
    sys.meta_path.append(Finder(lambda name: name.split(".")[0] not in real))


def skip_init(engine, *packages):
    """Makes these packages of `engine` importable without their __init__.py, which import most of the engine. Returns the
    engine's version."""
    distribution = importlib.metadata.distribution(engine)
    for name in packages:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(distribution.locate_file(engine), *name.split(".")[1:]))]
        package.__version__ = distribution.version
        sys.modules[name] = package
    return distribution.version
