"""kvtwin: a hierarchical KV cache for LLM serving, simulated and real, with one policy library.

    import kvtwin
    result = kvtwin.simulate("experiments/quickstart.toml", set={"tiers.host.gib": 64})
    result.report["ttft_seconds"]["mean"], result.requests["ttft_s"].mean()

docs/python.md describes the package. The parts are loaded when they are used, so `import kvtwin` is quick, and the parts
that need no compiled module also work from the source folder.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvtwin import errors as errors
    from kvtwin import figures as figures
    from kvtwin import traces as traces
    __version__: str
    from kvtwin.errors import Error as Error
    from kvtwin.errors import InputError as InputError
    from kvtwin.errors import Note as Note
    from kvtwin.errors import WorkError as WorkError
    from kvtwin.hits import hitrate as hitrate
    from kvtwin.intervals import bootstrap as bootstrap
    from kvtwin.plans import Plan as Plan
    from kvtwin.plans import plan as plan
    from kvtwin.policy_libraries import cmake_prefix as cmake_prefix
    from kvtwin.reports import report as report
    from kvtwin.simulation import Result as Result
    from kvtwin.simulation import load as load
    from kvtwin.simulation import run as run
    from kvtwin.simulation import simulate as simulate
    from kvtwin.store import Identity as Identity
    from kvtwin.store import LookUpError as LookUpError
    from kvtwin.store import Need as Need
    from kvtwin.store import PageForm as PageForm
    from kvtwin.store import PageStatus as PageStatus
    from kvtwin.store import Pool as Pool
    from kvtwin.store import Store as Store
    from kvtwin.store import Transfer as Transfer
    from kvtwin.store import Usable as Usable
    from kvtwin.store import weights_fingerprint as weights_fingerprint
    from kvtwin.sweeps import Comparison as Comparison
    from kvtwin.sweeps import Sweep as Sweep
    from kvtwin.sweeps import compare as compare
    from kvtwin.sweeps import sweep as sweep

# The public names of each module.
_NAMES = {
    "_core": ("__version__",),
    "errors": ("Error", "InputError", "Note", "WorkError"),
    "hits": ("hitrate",),
    "intervals": ("bootstrap",),
    "plans": ("Plan", "plan"),
    "policy_libraries": ("cmake_prefix",),
    "reports": ("report",),
    "simulation": ("Result", "load", "run", "simulate"),
    "store": ("Identity", "LookUpError", "Need", "PageForm", "PageStatus", "Pool", "Store", "Transfer", "Usable",
              "weights_fingerprint"),
    "sweeps": ("Comparison", "Sweep", "compare", "sweep"),
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("errors", "figures", "traces")

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
