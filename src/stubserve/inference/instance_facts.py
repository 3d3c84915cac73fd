"""The facts about a model's instance at one moment, for metrics and the status page."""

from __future__ import annotations

from typing import NamedTuple


class InstanceFacts(NamedTuple):
    """One instance. Sizes are bytes; `pid` is 0, and what belongs to a stub zero, while it has none.

    `state` is one of "starting", "ready", "asleep", "restarting", "failed", "draining" and "stopped". `restarts` counts
    the starts after a death, ever. `memory` belongs to the process alone, `arena` is shared memory that is committed
    for its outputs. `batches` and `requests` are those that the stub has, `executing_s` is for how many seconds it has
    been executing its batch. `error` is why it is not ready, empty if it is.
    """

    name: str
    state: str
    pid: int = 0
    restarts: int = 0
    memory: int = 0
    arena: int = 0
    batches: int = 0
    requests: int = 0
    executing_s: float = 0.0
    error: str = ""
