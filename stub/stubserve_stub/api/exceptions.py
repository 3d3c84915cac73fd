"""Errors as a model sees and makes them, and the text in which a model's exception reaches the client.

That text has upstream's form (checked against Triton 2.51), because people read it, search for it and test for it::

    ValueError: what happened

    At:
      /models/m/1/model.py(12): helper
      /models/m/1/model.py(30): execute

Innermost frame first. As upstream, it starts at the innermost frame of the traceback and follows its callers, so a
caller's line is where that frame stood last; causes, contexts and notes are not part of it; and a coroutine (before
Python 3.13 a generator, too) has lost its callers by then and stands alone. Frames of the stub itself are not shown:
upstream's counterparts are C++ and have none.
"""

from __future__ import annotations

from typing import List, Optional

from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.constants import ErrorCode

_PACKAGE = "stubserve_stub."
# The module that calls into the model: the callers beyond it are none of the model's.
_ENTRY = _PACKAGE + "backends.python.model"


class TritonModelException(Exception):
    """What the functions and classes of the public module raise; models raise it as well."""

    # The name under which upstream's tracebacks, and whoever searches logs, know it.
    __module__ = "c_python_backend_utils"


class TritonError:
    """An error as part of a response: `message()` reaches the client verbatim, `code()` decides the status."""

    __slots__ = ("__weakref__", "_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        text = as_text(message)
        if text is None or not isinstance(code, ErrorCode):
            raise incompatible(
                "__init__", "TritonError(message: str, code: ErrorCode = <ErrorCode.INTERNAL: 1>)", (message, code)
            )
        self._message = text
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


def format_exception(exc: BaseException) -> str:
    """The text of an exception that a model raised, with its frames."""
    frames = _frames(exc)
    failure = None
    try:
        message = str(exc) or "<EMPTY MESSAGE>"
    except BaseException as error:  # SystemExit, too, which would end the stub
        message, failure = "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>", error
    text = "{}: {}".format(type(exc).__name__, message)
    if frames:
        text += "\n\nAt:\n" + "".join(frames)
    if failure is not None:
        text += "\nMESSAGE UNAVAILABLE DUE TO EXCEPTION: {}".format(_named(failure))
    # The text goes over the wire as UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _named(failure: BaseException) -> str:
    """An exception raised by another one's `__str__`; its own may be no better."""
    try:
        text = "{}: {}".format(type(failure).__name__, failure)
    except BaseException:
        return type(failure).__name__
    frames = _frames(failure, below=format_exception.__code__)
    return text + "\n\nAt:\n" + "".join(frames) if frames else text


def _frames(exc: BaseException, below: Optional[object] = None) -> List[str]:
    """One line per frame of the model, innermost first; ends at the stub's call of the model, or at code `below`."""
    trace = exc.__traceback__
    if trace is None:
        return []
    while trace.tb_next is not None:
        trace = trace.tb_next
    lines = []
    frame = trace.tb_frame
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))  # code that is executed by hand may have any, or none
        if module == _ENTRY or frame.f_code is below:
            break
        if not module.startswith(_PACKAGE):
            code = frame.f_code
            lines.append("  {}({}): {}\n".format(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return lines
