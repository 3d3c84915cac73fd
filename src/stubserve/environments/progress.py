"""How far the extraction of an archive is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("stubserve.environments")

_LINE_EVERY_S = 5.0


class ExtractionProgress:
    """Shows the progress of one extraction, as a context manager."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._last = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(archive.name, total=None)

    def __enter__(self) -> ExtractionProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, size: int) -> None:
        """So many bytes of the archive are extracted."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=size)
            return
        now = time.monotonic()
        if now - self._last >= _LINE_EVERY_S:
            self._last = now
            log.info("extracting %s: %d %% of %d MiB", self._archive, 100 * done // max(size, 1), size >> 20)


def _bar() -> Progress:
    # Imported only when there is an archive: it takes 30 ms, and a server may have none.
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("extracting {task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
