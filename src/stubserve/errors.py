"""The one exception that may reach a client, and its status code.

Codes are those of Triton's error enum; the statuses are those that its front ends send for them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

TRITON, STANDARD = "triton", "standard"


class Code(enum.IntEnum):
    """Triton's error codes, with the numbers that its Python backend exposes as `TritonError.<NAME>`."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    # Not in Triton's enum: the client may not ask
    UNAUTHENTICATED = 101
    FORBIDDEN = 102
    RESTRICTED = 103
    # INVALID_ARG to most clients; OpenAI's routes tell them apart: a body that is too large, and one of a wrong form
    TOO_LARGE = 104
    WRONG_FORM = 105
    # JSON that cannot be read as what it should be: INTERNAL to Triton's clients
    MALFORMED = 106

    @property
    def http_status(self) -> int:
        return _STANDARD.get(self, _SHOWN[self][0]) if Statuses.are_standard else _SHOWN[self][0]

    @property
    def generate_status(self) -> int:
        """That of `generate` once a model has the request: Triton's front end then has one status for all errors."""
        return self.http_status if Statuses.are_standard else 400

    @property
    def of_triton(self) -> Code:
        """Triton's code for this one."""
        if self is Code.MALFORMED:
            return Code.INTERNAL
        return self if self <= Code.CANCELLED else Code.INVALID_ARG

    @property
    def grpc_status(self) -> int:
        return _SHOWN[self][1]

    @property
    def title(self) -> str:
        """Upstream's name for the code inside longer texts, as in 'Invalid argument: ...'."""
        return _SHOWN[self][2]


# The statuses of HTTP and gRPC, and the title
_SHOWN = {
    Code.UNKNOWN: (400, 2, "Unknown"),
    Code.INTERNAL: (500, 13, "Internal"),
    Code.NOT_FOUND: (404, 5, "Not found"),
    Code.INVALID_ARG: (400, 3, "Invalid argument"),
    Code.UNAVAILABLE: (503, 14, "Unavailable"),
    Code.UNSUPPORTED: (501, 12, "Unsupported"),
    Code.ALREADY_EXISTS: (400, 6, "Already exists"),
    Code.CANCELLED: (400, 1, "Cancelled"),
    Code.UNAUTHENTICATED: (401, 16, "Unauthenticated"),
    Code.FORBIDDEN: (403, 7, "Permission denied"),
    # As in Triton
    Code.RESTRICTED: (403, 14, "Restricted"),
    Code.TOO_LARGE: (400, 3, "Invalid argument"),
    Code.WRONG_FORM: (400, 3, "Invalid argument"),
    Code.MALFORMED: (500, 13, "Internal"),
}
# The statuses that HTTP has for these, where Triton has others
_STANDARD = {
    Code.UNKNOWN: 500,
    Code.ALREADY_EXISTS: 409,
    Code.TOO_LARGE: 413,
    Code.MALFORMED: 400,
}


class Statuses:
    """Which statuses the errors of this process have over HTTP (--http-status): Triton's, or standard ones."""

    are_standard = False


class Unusable(Exception):
    """What a flag names cannot be used on this machine; the text has the reason and the remedy."""


class UsageError(Exception):
    """The command line is wrong; the text says how."""


class ServeError(Exception):
    """An error for a client or an operator, with its exact text.

    `path` is the field of a model's configuration with the error, as names and indices (`("input", 0, "dims")`).
    `log_message` is the log's text if the log says more (lines of source, for instance). `retry_after_s` is the seconds
    after which to try again, 0 if that would not help or is unknown.
    """

    def __init__(self, code: Code, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.path = path
        self.log_message = message
        self.retry_after_s = 0

    def __str__(self) -> str:
        return self.message

    def at(self, *path: str | int) -> ServeError:
        """The same error, about the field at `path`."""
        return ServeError(self.code, self.message, path)

    @property
    def status_text(self) -> str:
        """`<Code>: <message>`, the form upstream gives a status inside another text."""
        return f"{self.code.title}: {self.message}"

    @property
    def log_text(self) -> str:
        """`status_text`, for the log."""
        return f"{self.code.title}: {self.log_message}"


def internal(message: str) -> ServeError:
    return ServeError(Code.INTERNAL, message)


def malformed(message: str) -> ServeError:
    return ServeError(Code.MALFORMED, message)


def not_found(message: str) -> ServeError:
    return ServeError(Code.NOT_FOUND, message)


def invalid(message: str) -> ServeError:
    return ServeError(Code.INVALID_ARG, message)


def unavailable(message: str) -> ServeError:
    return ServeError(Code.UNAVAILABLE, message)


def overloaded(message: str) -> ServeError:
    """UNAVAILABLE because the server is too busy; the client may try again after a second."""
    error = unavailable(message)
    error.retry_after_s = 1
    return error


def unsupported(message: str) -> ServeError:
    return ServeError(Code.UNSUPPORTED, message)


def within(errors: Iterable[ServeError], *path: str | int) -> Iterator[ServeError]:
    """Errors about a part of a configuration as errors about the whole: `path` leads to the part."""
    for error in errors:
        yield error.at(*path, *error.path)


def raise_first(errors: Iterable[ServeError]) -> None:
    """Raises the first error, if there is one."""
    for error in errors:
        raise error
