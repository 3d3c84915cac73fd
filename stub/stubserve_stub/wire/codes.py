"""Numbers that both sides share: codes of errors, and levels of log lines."""

from __future__ import annotations

# Of Triton's error codes, as its Python backend numbers them, those that the stub itself uses
UNKNOWN = 0
INTERNAL = 1
NOT_FOUND = 2
INVALID_ARG = 3
UNAVAILABLE = 4
UNSUPPORTED = 5

LOG_INFO = 0
LOG_WARNING = 1
LOG_ERROR = 2
LOG_VERBOSE = 3
