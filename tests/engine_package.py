"""The package kvtwin for the Python of an engine's environment, which does not have it installed."""

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path

WHEELS = Path(__file__).resolve().parents[1] / "out/wheel"
HOW = "tools/python-package makes one"


def newest_wheel():
    """Returns the path of the newest wheel that tools/python-package has made, or None."""
    return max(WHEELS.glob("kvtwin-*.whl"), key=lambda path: path.stat().st_mtime, default=None)


def unpack(wheel, folder):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (Path(folder) / "kvtwin/bin/kvtwin").chmod(0o755)  # zipfile forgets modes


@contextlib.contextmanager
def environment_with(wheel):
    """Yields this process's environment with the content of the wheel on Python's path. The files disappear afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(wheel, folder)
        yield os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "GLOG_minloglevel": "3"}
