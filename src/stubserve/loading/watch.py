"""Watching the repository (`--model-control-mode=poll`): what lies on disk is what is served.

A model is loaded anew when anything in its folder has changed since the look that came before its last load
(`contents`), and unloaded when its folder is gone. Files are not written all at once, so a look may see half of a
change: a load that fails is tried again at the next look, as upstream does, and what served before goes on meanwhile.
While the folder stays as it is, more and more looks go by between tries, and the log has one mistake once.

With `serve --dev` there is a look as soon as files have changed (`occasions`), in place of one every few seconds, and
what was loaded is checked as `stubserve check` does. The check is a process of its own, because it collects what the
repository's code writes to the log.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stubserve.repository.contents import Contents, contents_of
from stubserve.repository.repositories import Repositories
from stubserve.settings.groups import RepositorySettings

log = logging.getLogger("stubserve.repository")

# With --dev, where the system does not tell of changes
_DEV_INTERVAL_S = 1.0
# How long nothing happens until a watch has begun for sure
_QUIET_MS = 500
# How many looks a load that fails is left out for, at most
_MOST_LEFT_OUT = 64


@dataclass(slots=True)
class _Failure:
    """Loads that have failed with these contents, `times` in a row; the next `left_out` looks do without another."""

    contents: Contents
    times: int = 0
    left_out: int = 0

    def is_due(self) -> bool:
        self.left_out -= 1
        return self.left_out < 0

    def again(self) -> None:
        self.left_out = min((1 << self.times) >> 2, _MOST_LEFT_OUT)
        self.times += 1


class RepositoryWatch:
    """`load` says which of several models could be loaded, `changed` hears of each that is not tried just again.

    `checks` is the command that checks the repositories.
    """

    def __init__(
        self,
        repositories: Repositories,
        load: Callable[[Collection[str]], Awaitable[Mapping[str, bool]]],
        unload: Callable[[str], Awaitable[None]],
        changed: Callable[[str], None],
        checks: Sequence[str] = (),
    ) -> None:
        self._repositories = repositories
        self._load = load
        self._unload = unload
        self._changed = changed
        self._checks = checks
        # What the last load of each model has served from, None for one that no load has succeeded with
        self._seen: dict[str, Contents | None] = {}
        self._failures: dict[str, _Failure] = {}

    async def look(self) -> bool:
        """Loads what is new or changed, unloads what is gone; whether everything is as on disk now.

        Raises ServeError if a repository cannot be read.
        """
        contents, unique, folders = await asyncio.to_thread(self._look_at_all)
        for name in self._seen.keys() - contents.keys():
            del self._seen[name]
            self._failures.pop(name, None)
            await self._unload(name)
        due = [name for name in contents if self._is_due(name, contents[name])]
        for name in due:
            failure = self._failures.get(name)
            if failure is None or failure.contents != contents[name]:
                self._changed(name)
        loaded = await self._load(due)
        for name, complete in loaded.items():
            if complete:
                self._seen[name] = contents[name]
                self._failures.pop(name, None)
            else:
                self._seen.setdefault(name, None)
                failure = self._failures.get(name)
                if failure is None or failure.contents != contents[name]:
                    failure = self._failures[name] = _Failure(contents[name])
                failure.again()
        if due and self._checks:
            await _tell_problems(self._checks, [folders[name] for name in due])
        return not self._failures and unique

    def _is_due(self, name: str, contents: Contents) -> bool:
        if self._seen.get(name) == contents:
            self._failures.pop(name, None)  # what was wrong has been taken back
            return False
        failure = self._failures.get(name)
        return failure is None or failure.contents != contents or failure.is_due()

    def _look_at_all(self) -> tuple[dict[str, Contents], bool, dict[str, Path]]:
        """What lies in each model's folder, whether each name is in one repository only, and the folders."""
        found = self._repositories.survey()
        folders = {name: folder.path for name, folder in found.models.items()}
        return {name: contents_of(path) for name, path in folders.items()}, not found.duplicates, folders


async def _tell_problems(command: Sequence[str], folders: Sequence[Path]) -> None:
    """Logs what `stubserve check` (`command`) finds in the folders of some models."""
    check = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        printed, _ = await check.communicate()
    except asyncio.CancelledError:
        check.kill()
        await check.wait()
        raise
    inside = tuple(f"{folder}{end}" for folder in folders for end in ("/", ":"))
    for line in printed.decode(errors="replace").splitlines():
        if line.startswith(inside):
            log.warning("%s", line)


async def occasions(settings: RepositorySettings, sleep: Callable[[float], Awaitable[None]]) -> AsyncIterator[None]:
    """Yields when it is time for a look: every few seconds, or with --dev when files have changed."""
    interval: float = settings.poll_secs
    if settings.notices_changes:
        interval = _DEV_INTERVAL_S
        try:
            async for _ in _changes(settings.paths):
                yield
        except (OSError, RuntimeError) as error:  # there is a limit on what may be watched
            log.warning("files cannot be watched, so they are checked every second: %s", error)
    while True:
        await sleep(interval)
        yield


async def _changes(repositories: Sequence[Path]) -> AsyncIterator[None]:
    """Yields when it has begun to watch, and whenever files have changed since and were left alone for a moment."""
    # Imported only where somebody writes models: a server needs none of it.
    from watchfiles import awatch

    began = False
    watched = [*repositories, *_linked_folders(repositories)]
    # Its own filter leaves out what Python and editors write beside the files that people save.
    async for changed in awatch(*watched, debounce=200, rust_timeout=_QUIET_MS, yield_on_timeout=True):
        if not began:
            log.info("watching %s for changes", ", ".join(map(str, repositories)))
        if changed or not began:
            began = True
            yield


def _linked_folders(repositories: Sequence[Path]) -> list[Path]:
    """Folders that links in a repository lead to: a watch does not follow those."""
    links = (path for repository in repositories for depth in ("*", "*/*") for path in repository.glob(depth))
    return [link.resolve() for link in links if link.is_symlink() and link.is_dir()]
