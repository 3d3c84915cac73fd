"""The text in which an exception out of a backend, or out of a model's code, reaches the client.

It has upstream's form (checked against Triton 2.51), because people read it, search for it and test for it::

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

from stubserve_stub.wire import codes

_PACKAGE = "stubserve_stub."
# The modules that call into a model, or a backend: the callers beyond them are none of the model's.
_ENTRIES = tuple(_PACKAGE + name for name in ("backends.python.backend", "backends.python.model", "runtime.main_loop"))


class Refusal(Exception):
    """A refusal of a backend. The client gets its words as they are, without type and frames.

    `code` is one of `wire.codes`, for whoever answers single requests with it.
    """

    def __init__(self, text: str, code: int = codes.INTERNAL) -> None:
        super().__init__(text)
        self.code = code


def describe(exc: BaseException) -> str:
    """What a client is told of an exception."""
    return str(exc) if isinstance(exc, Refusal) else format_exception(exc)


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
        if module in _ENTRIES or frame.f_code is below:
            break
        if not module.startswith(_PACKAGE):
            code = frame.f_code
            lines.append("  {}({}): {}\n".format(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return lines
