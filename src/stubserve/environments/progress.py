"""How far the extraction of an archive is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

log = logging.getLogger("stubserve.environments")

_LINE_EVERY_S = 5.0


class ExtractionProgress:
    """Shows the progress of one extraction, as a context manager."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._last = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("extracting {task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
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
