"""The texts of an exception of a backend, or of a model, for the client and for the log.

The client's has upstream's form (checked against Triton 2.51), because people read it, search for it and test for it::

    ValueError: what happened

    At:
      /models/m/1/model.py(12): helper
      /models/m/1/model.py(30): execute

The innermost frame comes first. As in upstream, the text follows the callers of that frame, so the line of a caller is
where its frame stood last. Causes, contexts and notes are not part of it. A coroutine (before Python 3.13 a generator,
too) has lost its callers by then. Frames of the stub are not shown; upstream's stub is C++ and has none.

The log's text is Python's own, without frames of the stub and of the import system; a very long text is cut in the
middle. It shows the source that runs: `keep_sources` reads it when a model is loaded, because the files may be saved
again while the old code goes on serving.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from typing import List, Optional, Sequence, Set

from stubserve_stub.wire import codes

_PACKAGE = "stubserve_stub."
# The modules that call a model or a backend; frames beyond them are not the model's.
_ENTRIES = tuple(
    _PACKAGE + name
    for name in (
        "backends.python.backend",
        "backends.python.model",
        "runtime.main_loop",
        "runtime.process",
        "runtime.seats",
    )
)


class Refusal(Exception):
    """A refusal of a backend. The client gets its text as it is, without type and frames.

    `code` is one of `wire.codes`, for the answer to a single request. `log` is for the log in its place: there it may
    name what is no client's business.
    """

    def __init__(self, text: str, code: int = codes.INTERNAL, log: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.log = log


def describe(exc: BaseException) -> str:
    """The text of an exception for a client."""
    return str(exc) if isinstance(exc, Refusal) else format_exception(exc)


def format_exception(exc: BaseException) -> str:
    """The text of an exception of a model, with its frames."""
    frames = _frames(exc)
    failure = ""
    try:
        message = str(exc) or "<EMPTY MESSAGE>"
    except BaseException as error:  # SystemExit, too, which would end the stub
        message = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
        failure = f"\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {_named(error)}"
    text = f"{type(exc).__name__}: {message}"
    if frames:
        text += "\n\nAt:\n" + "".join(frames)
    text += failure
    # The text goes over the wire as UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _named(failure: BaseException) -> str:
    """The text of an exception that another one's `__str__` has raised; its own `__str__` may raise, too."""
    try:
        text = f"{type(failure).__name__}: {failure}"
    except BaseException:
        return type(failure).__name__
    frames = _frames(failure, below=format_exception.__code__)
    return text + "\n\nAt:\n" + "".join(frames) if frames else text


def _frames(exc: BaseException, below: Optional[object] = None) -> List[str]:
    """A line for each frame of the model, innermost first, up to the stub's call of the model or the code `below`."""
    trace = exc.__traceback__
    if trace is None:
        return []
    while trace.tb_next is not None:
        trace = trace.tb_next
    lines = []
    frame = trace.tb_frame
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))  # code run by `exec` may have any value here, or none
        if module in _ENTRIES or frame.f_code is below:
            break
        if not module.startswith(_PACKAGE):
            code = frame.f_code
            lines.append(f"  {code.co_filename}({frame.f_lineno}): {code.co_name}\n")
        frame = frame.f_back  # type: ignore[assignment]
    return lines


_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LONGEST = 16384


def for_log(exc: BaseException) -> str:
    """The text of an exception for the log: its type and message, then where it comes from."""
    if isinstance(exc, Refusal):
        return exc.log or str(exc)
    try:
        shown = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        _leave_out_stub(shown, set())
        text = "".join(shown.format()) + _remedy(exc)
    except BaseException:  # its __str__ may raise anything, SystemExit too
        return describe(exc)
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + "\n  [...]\n" + text[-_LONGEST // 2 :]
    # A syntax error begins with its place, indented. Of a message of several lines the first says most.
    first = next(part for part in shown.format_exception_only() if not part.startswith(" ")).partition("\n")[0]
    return f"{first[:_LONGEST]}\n{text}".encode("utf-8", "backslashreplace").decode("utf-8")


def _remedy(exc: BaseException) -> str:
    """What to do about a package that is not there."""
    name = exc.name if isinstance(exc, ModuleNotFoundError) else None
    if not name:
        return ""
    return (
        f"This model's Python is {sys.executable}, which has no module '{name}'. Install the package there. Or give "
        "the model an environment of its own: list its packages in requirements.txt in the model's folder, and run "
        "`stubserve env build` with that folder.\n"
    )


def keep_sources(folders: Sequence[str]) -> None:
    """Has tracebacks show modules imported from `folders` with the present content of their files."""
    inside = tuple(os.path.join(folder, "") for folder in folders)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(inside) and file.endswith(".py"):
            lines = linecache.updatecache(file)
            # An entry without a time of change is never compared with the file again.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def _leave_out_stub(shown: "Optional[traceback.TracebackException]", seen: Set[int]) -> None:
    """Removes frames that are not the model's from an exception, and from its causes and contexts."""
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith((_FOLDER, "<frozen importlib"))]
    for other in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        _leave_out_stub(other, seen)
