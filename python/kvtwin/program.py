"""The program `kvtwin` of the package: where it is, and how it runs as a child process.

Simulations run in a child process, because SimGrid has one world per process, because a crash or an interrupt must not
end the Python process, and because the program then gives the same bytes and the same sentences.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvtwin.errors import InputError, WorkError

_PACKAGE = Path(__file__).resolve().parent


def path() -> Path:
    """Returns the path of the program: of the wheel, or of build/ if the package is used from the source folder."""
    for program in (_PACKAGE / "bin/kvtwin", _PACKAGE.parents[1] / "build/kvtwin"):
        if program.exists():
            return program
    raise WorkError(f"{_PACKAGE}: has no program bin/kvtwin; install the package with pip, or build the preset release")


def data(name: str) -> Path:
    """Returns the path of a file that comes with kvtwin: experiments/NAME.toml, traces/NAME, models/measured/...

    A name that exists in the working folder is that file.
    """
    with contextlib.suppress(OSError):  # for example, the name is too long
        for path in (Path(name), _PACKAGE / "data" / name, _PACKAGE.parents[1] / name):
            if path.exists():
                return path
    return Path(name)  # the program says that there is no such file


class TemporaryFolder:
    """A folder that is deleted with this object, at the latest at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="kvtwin-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def run(arguments: Sequence[str | os.PathLike[str]], *, accept: Sequence[int] = (0,)) -> str:
    """Runs `kvtwin ARGUMENTS`, and returns its stdout.

    Notes of the program become warnings of the category kvtwin.errors.Note. Raises InputError for exit code 2 and
    WorkError for other codes, a signal, or a program that cannot start. KeyboardInterrupt ends the child first.
    """
    words = [os.fspath(argument) for argument in arguments]
    for word in words:
        if "\0" in word:
            raise InputError(f"{word!r:.80} contains a zero byte (\\0), which no name may have; leave it out")
    command = f"kvtwin {' '.join(words[:1])}"
    # Figures and pages are drawn by this Python.
    environment = {**os.environ, "KVTWIN_PYTHON": os.environ.get("KVTWIN_PYTHON", sys.executable)}
    child: subprocess.Popen[str] | None = None
    try:
        with _interrupts_later():
            # A session of its own: Ctrl-C in a terminal reaches only Python, which ends the child and its children.
            child = subprocess.Popen(
                [path(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                encoding="utf-8", errors="replace", start_new_session=True, env=environment,
            )
        text, said = child.communicate()
    except BaseException as error:
        if child is None and isinstance(error, OSError):
            raise WorkError(f"{command}: can't start {path()}: {error.strerror}") from error
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        raise
    if child.returncode in accept:
        _pass_notes(text, said)
        return text
    sentence = _sentence(said) or "no reason given"
    if child.returncode == 2:
        raise InputError(sentence)
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        raise WorkError(f"{command}: its process was ended by {name}" + (f"; it said: {sentence}" if said.strip() else ""))
    raise WorkError(sentence)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Handles SIGINT at the end of the block. An interrupt within Popen() would leave a child that nobody knows."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield  # interrupts do not reach this thread, or not Python
        return
    seen = []
    signal.signal(signal.SIGINT, lambda *arguments: seen.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen and callable(before):
        before(*seen[0])


def _pass_notes(text: str, said: str) -> None:
    """Notes are on stderr, and at the end of what a run prints. The warnings name the line that called the package."""
    import warnings

    from kvtwin.errors import Note

    depth, frame = 1, sys._getframe()
    while frame.f_back is not None and Path(frame.f_code.co_filename).parent == _PACKAGE:
        depth, frame = depth + 1, frame.f_back
    for lines, prefix in ((said, "kvtwin: note: "), (text, "note       ")):
        for line in lines.splitlines():
            if line.startswith(prefix):
                warnings.warn(line.removeprefix(prefix), Note, stacklevel=depth)


def _sentence(said: str) -> str:
    """Returns the sentence of the error: the last line that begins with `kvtwin: ` or `kvtwin report: `, else the last
    line."""
    lines = [line for line in said.splitlines() if line.strip()]
    named = [found[1] for line in lines if (found := re.fullmatch(r"kvtwin(?: [\w-]+)?: (.*)", line))]
    return (named or lines or [""])[-1]


def option_arguments(options: Mapping[str, Any]) -> list[str]:
    """Returns --name value for name=value, the option once for each value of a list, --name for name=True, and nothing
    for None and False."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is None or value is False:
            continue
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, bool) or not (isinstance(one, str | int | float | os.PathLike) or hasattr(one, "item")):
                    raise InputError(f"{name} is {value!r}; give a text, a number, True, False, or a list of texts or numbers")
                arguments += [option, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
    return arguments


def main() -> NoReturn:
    """The command `kvtwin` of the package: the program, whose figures and pages are drawn by this Python."""
    os.environ.setdefault("KVTWIN_PYTHON", sys.executable)
    program = path()
    os.execv(program, ["kvtwin", *sys.argv[1:]])
