"""Makes one page of results.

    kvtwin.report(result, out="chat.html")
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from kvtwin import program
from kvtwin.errors import InputError


class HasFolder(Protocol):
    """A Result, Plan, Sweep or Comparison."""

    folder: Path


Folder = str | os.PathLike[str] | HasFolder


def report(
    folders: Folder | Iterable[Folder], *, out: str | os.PathLike[str] | None = None, force: bool = False
) -> Path:
    """Writes one self-contained page of results, with the same bytes as `kvtwin report`, and returns its path.

    folders: a Result, Plan, Sweep, Comparison, or the path of a folder; or several, which are shown side by side.
    out: the file to write. Without it, the page is report.html in the last folder; then this folder must not be
    temporary. force: replace the file.

    Needs jinja2 and plotly or matplotlib: pip install kvtwin[report]. Raises InputError for bad input, WorkError if the
    page cannot be written.
    """
    given = [folders] if isinstance(folders, str | os.PathLike) or hasattr(folders, "folder") else list(folders)
    if not given:
        raise InputError("folders is empty; give a Result, or the path of a folder")
    if out is None and getattr(given[-1], "_temporary", None) is not None:
        raise InputError("out is not given, and the last folder is temporary; give the name of a file")
    paths = [os.fspath(one if isinstance(one, str | os.PathLike) else one.folder) for one in given]
    page = Path(paths[-1]) / "report.html" if out is None else Path(out)
    program.run(["report", *paths, *program.option_arguments({"out": page, "force": force})])
    return page
