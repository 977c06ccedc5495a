"""Eviction policies of your own, in C++, built against the headers that come with the package.

docs/policies.md has the steps. The path of the library is then a name of an eviction policy:

    kvtwin.hitrate("traces/chat_small.jsonl.zst", 3000, ["lru", "build/role_age.so(system=3)"])
"""

from pathlib import Path

from kvtwin.errors import WorkError

_PACKAGE = Path(__file__).resolve().parent


def cmake_prefix() -> Path:
    """Returns the folder for -DCMAKE_PREFIX_PATH, with which find_package(kvtwin COMPONENTS policies) finds the headers of
    policies in the wheel. Its folder examples/policy is a project to begin with.

    Raises WorkError if the package is used from the source folder, which has no installed headers.
    """
    if not (_PACKAGE / "lib/cmake/kvtwin").exists():
        raise WorkError(f"{_PACKAGE}: has no installed headers; install the package with pip, or kvtwin with cmake --install")
    return _PACKAGE
