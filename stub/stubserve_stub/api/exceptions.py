"""Errors as a model sees and makes them."""

from __future__ import annotations

from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.constants import ErrorCode


class TritonModelException(Exception):
    """The exception of the public module's functions and classes; models raise it as well."""

    # Upstream's tracebacks show it under this name, and people search logs for that.
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
