"""Enumerations and flags of the public module. Members compare equal to their numbers, and print as upstream's do."""

from __future__ import annotations

import enum

from stubserve_stub.wire import codes

REQUEST_FLAG_SEQUENCE_START = 1
REQUEST_FLAG_SEQUENCE_END = 2
RESPONSE_COMPLETE_FINAL = 1
REQUEST_RELEASE_ALL = 1
REQUEST_RELEASE_RESCHEDULE = 2


class BoundEnum(enum.IntEnum):
    """An enumeration whose members look like those of a bound C++ enum."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {int(self)}>"

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ErrorCode(BoundEnum):
    """The codes of errors. The server decides which status each becomes."""

    UNKNOWN = 0
    INTERNAL = codes.INTERNAL
    NOT_FOUND = codes.NOT_FOUND
    INVALID_ARG = codes.INVALID_ARG
    UNAVAILABLE = codes.UNAVAILABLE
    UNSUPPORTED = codes.UNSUPPORTED
    ALREADY_EXISTS = 6
    CANCELLED = 7


# Upstream hides the type behind this name, and str() of a member shows it.
ErrorCode.__name__ = "__ErrorCode"


class MemoryType(BoundEnum):
    """Where a tensor lies. Not the numbers of Triton's C API."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class LogLevel(BoundEnum):
    INFO = codes.LOG_INFO
    WARNING = codes.LOG_WARNING
    ERROR = codes.LOG_ERROR
    VERBOSE = codes.LOG_VERBOSE


class MetricKind(BoundEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2
