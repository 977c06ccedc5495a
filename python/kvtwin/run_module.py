"""Runs a module of the package for the program: python -m kvtwin.run_module MODULE [ARGUMENT]...

Exit code 2 if a package is absent that the module needs, with a sentence; else that of the module.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

# The command of each module, and the extra of pyproject.toml that adds its packages.
MODULES = {"figures": ("figures", "figures"), "report_page": ("report", "report"), "import_ops": ("import-ops", "operators")}


def main(words: Sequence[str]) -> int:
    command, extra = MODULES[words[0]]
    try:
        code: int = import_module(f"kvtwin.{words[0]}").main(words[1:])
        return code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvtwin"):
            raise
        if (Path(__file__).parent / "bin/kvtwin").exists():  # a wheel
            cure = f"{sys.executable} -m pip install 'kvtwin[{extra}]' adds the package"
        else:
            cure = "run tools/quickstart, or install notebooks/requirements.txt"
        print(f"kvtwin {command}: {sys.executable}: no package {error.name}; {cure}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
