"""kvtwin inside SGLang: a storage back end for HiCache (storage.py; docs/engines.md), and a tree core that takes its victims
from kvtwin's policies (tree_core.py; docs/sglang.md)."""


def host_name() -> str:
    """The engine's name and version, for journals of its calls."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"sglang {version('sglang')}"
    except PackageNotFoundError:
        return "sglang"
