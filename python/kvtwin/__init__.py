"""kvtwin: a hierarchical KV cache for LLM serving, simulated and real, with one policy library.

    import kvtwin
    result = kvtwin.simulate("experiments/quickstart.toml", set={"tiers.host.gib": 64})
    result.report["ttft_seconds"]["mean"], result.requests["ttft_s"].mean()

docs/python.md describes the package. The parts are loaded when they are used, so `import kvtwin` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtwin._core import __version__ as __version__
    from kvtwin.errors import Error as Error, InputError as InputError, WorkError as WorkError
    from kvtwin.store import Identity as Identity, PageForm as PageForm, PageStatus as PageStatus, Store as Store

# The module of each public name.
_PLACES = {
    "__version__": "_core",
    **dict.fromkeys(("Error", "InputError", "WorkError"), "errors"),
    **dict.fromkeys(("Identity", "LookUpError", "PageForm", "PageStatus", "Store"), "store"),
}
_MODULES = ("errors", "store")

__all__ = [*_PLACES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(import_module(f"kvtwin.{_PLACES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"kvtwin.{name}")
    else:
        raise AttributeError(f"module 'kvtwin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
