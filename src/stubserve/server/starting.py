"""The start of a server for people: its progress while it takes long, and the result at the end.

The log has lines for both. A terminal also gets a table of the models, and their addresses.
"""

from __future__ import annotations

import asyncio
import io
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stubserve.model_config.complete import InstanceSpec, instances_of
from stubserve.observability.logs import takes_colors
from stubserve.observability.output import output
from stubserve.repository.registry import Registry, VersionState

log = logging.getLogger("stubserve.server")

# How long a start may take before its progress is logged
_PATIENCE_S = 2.0
# How often progress is reported
_EVERY_S = 5.0
# The most names in a line
_NAMES = 4
# With more models than this, only those that are not ready are listed.
_ROWS = 40


@dataclass(frozen=True)
class Row:
    """One version of a model, or a model without one."""

    model: str
    version: str
    instances: str
    state: str
    reason: str


async def now_and_then(patience_s: float) -> AsyncIterator[None]:
    """Yields for ever: after `patience_s`, and every five seconds from then on."""
    await asyncio.sleep(patience_s)
    while True:
        yield
        await asyncio.sleep(_EVERY_S)


async def tell_progress(registry: Registry) -> None:
    """Logs how many models of the start are loaded, now and then, until it is cancelled."""
    began = time.monotonic()
    async for _ in now_and_then(_PATIENCE_S):
        if registry.pending:
            log.info("%s after %.0f s", progress(registry), time.monotonic() - began)


def progress(registry: Registry) -> str:
    """How many models of the start are loaded, and the names of the others if these are few."""
    waiting = sorted(registry.pending)
    names = f", waiting for {listed(waiting)}" if len(waiting) <= _NAMES else ""
    return f"loading models: {registry.expected - len(waiting)}/{registry.expected}{names}"


def listed(names: list[str]) -> str:
    """A few names of models, and how many more there are."""
    more = len(names) - _NAMES
    return ", ".join(f"'{name}'" for name in names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def rows(registry: Registry) -> Iterator[Row]:
    """The models, by name and version."""
    for name, entry in sorted(registry.models.items()):
        if not entry.versions:
            yield Row(name, "", "", VersionState.UNAVAILABLE.value, first_line(entry.reason))
        for number, version in sorted(entry.versions.items()):
            # None for an ensemble, which has no processes
            instances = instances_of(version.model.config) if version.model is not None else []
            state = version.state.value
            yield Row(name, str(number), placed(instances), state, first_line(version.reason))


def placed(instances: Sequence[InstanceSpec]) -> str:
    """How many instances there are, and on which GPUs if any are on one."""
    gpus = sorted({one.device_id for one in instances if one.kind == "GPU"})
    if not gpus:
        return str(len(instances) or "")
    others = " and CPU" if any(one.kind != "GPU" for one in instances) else ""
    return f"{len(instances)} on GPU {', '.join(map(str, gpus))}{others}"


def first_line(text: str) -> str:
    """The first line of a reason, which may be a traceback."""
    return text.strip().partition("\n")[0]


def show(registry: Registry, places: Callable[[], dict[str, str]], to_file: bool) -> None:
    """Writes table and addresses (by protocol) to stdout, if that is a terminal and the log does not go `to_file`."""
    if sys.stdout.isatty() and not to_file:
        text = shown(registry, places(), shutil.get_terminal_size().columns, takes_colors(sys.stdout))
        output.write(sys.stdout.fileno(), text.encode(errors="backslashreplace"))


def shown(registry: Registry, places: dict[str, str], width: int, colored: bool) -> str:
    """Table and addresses, as text for a terminal of a width."""
    # Imported only for a terminal: it takes 50 ms.
    from rich.console import Console

    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=colored,
        width=width,
        highlight=False,
        no_color=not colored,
        markup=False,
        emoji=False,
    )
    found = list(rows(registry))
    console.print()
    if found:
        console.print(_table(found))
    for protocol, place in places.items():
        console.print(f" {protocol:<8} {place}", soft_wrap=True)
    console.print()
    return text.getvalue()


def _table(found: list[Row]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ready = [row for row in found if row.state == VersionState.READY.value]
    hidden = ready if len(found) > _ROWS else []
    with_reason = any(row.reason for row in found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 1))
    for title in ("Model", "Version", "Instances", "State", *(["Reason"] if with_reason else [])):
        table.add_column(title, overflow="fold", justify="right" if title in ("Version", "Instances") else "left")
    for row in found:
        if row not in hidden:
            is_ready = row.state == VersionState.READY.value
            state = Text(row.state, style="green" if is_ready else "bold red")
            table.add_row(row.model, row.version, row.instances, state, *([row.reason] if with_reason else []))
    if hidden:
        table.add_row(f"{len(hidden)} models", "", "", Text(VersionState.READY.value, style="green"))
    return table
