"""How far a model's statistics moved while a case ran: the counters as one flat table."""

from __future__ import annotations

import json
import time
from typing import Any

from .request import encode
from .servers import Server
from .wire import exchange

# Counters may be written after the reply: the table is read until it stands still for this long.
SETTLE_S = 0.06


def counters(server: Server, model: str) -> dict[str, int]:
    """Every count of ``GET /v2/models/<model>/stats``, by path; durations and clock times are left out."""
    answer = exchange(server.port, (encode("GET", f"/v2/models/{model}/stats"),), ("GET",), timeout=10)
    if not answer.responses or answer.responses[0].status != 200:
        return {}
    table: dict[str, int] = {}
    for entry in json.loads(answer.responses[0].body)["model_stats"]:
        _flatten(entry, f"v{entry['version']}", table)
    return table


def _flatten(value: Any, path: str, table: dict[str, int]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in ("ns", "last_inference", "memory_usage", "batch_size"):
                _flatten(item, f"{path}.{key}", table)
    elif isinstance(value, list):
        for item in value:
            _flatten(item, f"{path}[{item.get('batch_size')}]", table)
    elif isinstance(value, int):
        table[path] = value


def settled(server: Server, model: str) -> dict[str, int]:
    table = counters(server, model)
    while True:
        time.sleep(SETTLE_S)
        later = counters(server, model)
        if later == table:
            return table
        table = later


def movement(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was added to each counter that moved."""
    return {key: after[key] - before.get(key, 0) for key in sorted(after) if after[key] != before.get(key, 0)}
