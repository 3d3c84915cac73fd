"""The metrics about the server as a whole: what it was short of, and what it lost or refused for that.

They are counted where it happens; a scrape reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stubserve.observability.custom_metrics import COUNTER, GAUGE
from stubserve.observability.exposition import Exposition

PRESSURE = "stubserve_memory_pressure"
SHED = "stubserve_requests_shed_total"
TRACES_LOST = "stubserve_traces_lost_total"
LOG_LINES_LOST = "stubserve_log_lines_lost_total"
TOKEN_READS = "stubserve_token_file_reads_total"
TOKEN_FAILURES = "stubserve_token_file_failures_total"

_DESCRIPTIONS = {
    PRESSURE: "Whether the kernel has told in the last 5 seconds that memory is short (1) or not (0)",
    SHED: "Requests to models that were refused because memory was short (--shed-on-memory-pressure)",
    TRACES_LOST: "Traces that could not be written, or not fast enough: to their file, or to the collector",
    LOG_LINES_LOST: "Lines of the log that could not be written, or not fast enough",
    TOKEN_READS: "How often the file of tokens has changed and was read again (--auth-token-file)",
    TOKEN_FAILURES: "How often it has changed and could not be used, so that the tokens stayed as they were",
}
FAMILIES = {name: GAUGE if name == PRESSURE else COUNTER for name in _DESCRIPTIONS}

# How to read each of the FAMILIES
Readings = Mapping[str, Callable[[], float]]


def expose(readings: Readings, exposition: Exposition) -> None:
    """Adds the families of the server as a whole."""
    for name, text in _DESCRIPTIONS.items():
        exposition.family(name, FAMILIES[name], text).sample((), readings[name]())
