"""An exception out of a model as the log has it: as Python itself shows it, with the lines of source and carets.

Clients get the text of upstream (`failure`), which has neither. Frames of the stub, and of the import system, are left
out, and a very long text is cut in the middle.
"""

from __future__ import annotations

import os
import traceback
from typing import Optional, Set

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
    first = "".join(shown.format_exception_only()).rstrip().rpartition("\n")[2]
    return "{}\n{}".format(first[:_LONGEST], text).encode("utf-8", "backslashreplace").decode("utf-8")


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
