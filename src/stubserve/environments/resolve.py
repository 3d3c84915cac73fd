"""From the parameter EXECUTION_ENV_PATH to an environment that stubs can be started in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve.environments.environment import Environment, environment_in
from stubserve.environments.refusals import blocked, unreadable
from stubserve.errors import internal

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("stubserve.environments")

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def place_of(value: str, model_dir: Path) -> Path:
    """The file or folder that a value of the parameter names, without links. Raises ServeError if there is none.

    A relative path counts from the server's working folder, as upstream.
    """
    text = value
    if value.startswith(_MODEL_DIRECTORY):
        text = str(model_dir) + value[len(_MODEL_DIRECTORY) :]
    try:
        return Path(text).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # not there, links in a circle, a zero byte
        why = blocked(Path(text)) if "\0" not in text else ""
        more = f" It cannot be reached: {why}" if why else ""
        raise internal(f"Failed to get the canonical path for {text}.{more}") from None


def named_in(config: Any) -> str:
    """The value of the parameter in a model's configuration; empty if it is not set."""
    return str(config.parameters[PARAMETER].string_value) if PARAMETER in config.parameters else ""


def mention_stub_program(model_dir: Path) -> None:
    """Logs that a compiled stub for the model is not used."""
    program = model_dir / "triton_python_backend_stub"
    if program.exists():
        log.info(
            "'%s' is not used and can be deleted: stubs are Python code here, which the interpreter of the model's "
            "environment runs, whatever its version; none has to be compiled for it.",
            program,
        )


class Environments:
    """Finds environments; archives are extracted into `folder`. One per server, so that models can share the work."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._guards: dict[str, asyncio.Lock] = {}

    async def find(self, value: str, model_dir: Path) -> Environment:
        """The environment that a value of EXECUTION_ENV_PATH names; without a value, the server's own.

        An archive is extracted unless the cache has it. Raises ServeError.
        """
        if not value:
            return Environment()
        place, environment = await asyncio.to_thread(_look_at, value, model_dir)
        return environment if environment is not None else await self.extracted(place)

    async def extracted(self, archive: Path) -> Environment:
        """The environment of an archive, from the cache. Raises ServeError."""
        from stubserve.environments import cache  # not at the top: few servers have such a model

        folder = self._folder if self._folder is not None else await asyncio.to_thread(cache.default_folder)
        locked = await asyncio.to_thread(unreadable, archive)
        if locked:
            raise internal(f"cannot use {archive}: {locked}")
        try:
            key = await asyncio.to_thread(cache.key_of, archive)
            # One of the tasks for the same archive does the work; between servers there is another lock.
            async with self._guards.setdefault(key, asyncio.Lock()):
                lease = await asyncio.to_thread(cache.lease, folder, key)
                while lease is None:
                    await _prepare(archive, folder, key)
                    lease = await asyncio.to_thread(cache.lease, folder, key)
        except OSError as error:
            raise internal(f"cannot use {archive} with the cache of environments in {folder}: {error}") from None
        return await asyncio.to_thread(environment_in, lease.folder, lease)


def _look_at(value: str, model_dir: Path) -> tuple[Path, Environment | None]:
    """The path that a value of the parameter names, and the environment there if it is a folder. Raises ServeError."""
    place = place_of(value, model_dir)
    log.info("Using Python execution env %s", place)
    return place, environment_in(place) if place.is_dir() else None


async def _prepare(archive: Path, folder: Path, key: str) -> None:
    """Runs `stubserve.environments.prepare`. Raises ServeError with its error, OSError if it cannot be started."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stubserve.environments.prepare", str(archive), str(folder), key,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # The same modules as here, and none from the working folder; the server handles a Ctrl-C of the terminal.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"},
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    failed: str | None = f"the process that extracts {archive} has died"
    try:
        with ExtractionProgress(archive) as progress:
            async for line in process.stdout:
                message = json.loads(line)
                if "done" in message:
                    progress.update(message["done"], message["of"])
                elif "waiting" in message:
                    log.info("another server is extracting %s, waiting for it", archive)
                elif "extracting" in message:
                    log.info("Extracting Python execution env %s", archive)
                elif "removed" in message:
                    log.info("removed from the cache of environments: %s", ", ".join(message["removed"]))
                else:
                    failed = message.get("failed")
    except BaseException:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its child processes, which write to the same folder
        raise
    finally:
        await process.wait()
    if failed is not None:
        raise internal(failed)


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
