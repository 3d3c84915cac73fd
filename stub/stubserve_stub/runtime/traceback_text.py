"""An exception out of a model as the log has it: as Python itself shows it, with the lines of source and carets.

Clients get the text of upstream (`failure`), which has neither. Frames of the stub, and of the import system, are left
out, and a very long text is cut in the middle.

The lines of source are those that run. `keep_sources` reads them when a model is loaded, because its files may be
saved again while the old code goes on serving.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from typing import Optional, Sequence, Set

from stubserve_stub.runtime.failure import Refusal, describe

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LONGEST = 16384


def for_log(exc: BaseException) -> str:
    """What the log is told of an exception: its type and message, then where it comes from."""
    if isinstance(exc, Refusal):
        return str(exc)
    try:
        shown = traceback.TracebackException(type(exc), exc, exc.__traceback__)
        _leave_out_stub(shown, set())
        text = "".join(shown.format())
    except BaseException:  # its __str__ may raise anything, SystemExit too
        return describe(exc)
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + "\n  [...]\n" + text[-_LONGEST // 2 :]
    # Of a syntax error its place comes first, indented; of a message with several lines the first one says most.
    first = next(part for part in shown.format_exception_only() if not part.startswith(" ")).partition("\n")[0]
    return "{}\n{}".format(first[:_LONGEST], text).encode("utf-8", "backslashreplace").decode("utf-8")


def keep_sources(folders: Sequence[str]) -> None:
    """Has tracebacks show the modules that were imported from `folders` as their files are now."""
    inside = tuple(os.path.join(folder, "") for folder in folders)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith(inside) and file.endswith(".py"):
            lines = linecache.updatecache(file)
            # An entry without a time of change is never compared with the file again.
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)


def _leave_out_stub(shown: "Optional[traceback.TracebackException]", seen: Set[int]) -> None:
    """Takes the frames out of an exception that are none of the model's, and out of those that it comes from."""
    if shown is None or id(shown) in seen:
        return
    seen.add(id(shown))
    shown.stack[:] = [frame for frame in shown.stack if not _is_ours(frame.filename)]
    for other in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        _leave_out_stub(other, seen)


def _is_ours(file: str) -> bool:
    return file.startswith((_PACKAGE, "<frozen importlib"))
