"""Watching the repository (`--model-control-mode=poll`): the models on disk are the served ones.

A model is loaded again when anything in its folder has changed since the look before its last load (`contents`), and
unloaded when its folder is gone. Files are not written all at once, so a look may see half of a change: a failed load
is tried again at the next look, as upstream does, and the old versions go on meanwhile. While the folder stays the
same, more and more looks pass between tries, and each mistake is logged once.

With `serve --dev` there is a look as soon as files have changed (`occasions`), not every few seconds, and each loaded
model is checked as `stubserve check` does. The check is a process of its own, because it collects what the repository's
code writes to the log.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stubserve.loading.changes import as_load_error
from stubserve.repository.contents import Contents, contents_of
from stubserve.repository.repositories import Repositories
from stubserve.settings.groups import RepositorySettings

log = logging.getLogger("stubserve.repository")

# With --dev, if the system does not report changes
_DEV_INTERVAL_S = 1.0
# After this time without a change, the watch has certainly begun
_QUIET_MS = 500
# The most looks that leave out a failed load
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
    """`load` returns which of several models could be loaded. `changed` is called for each, but not for retries.

    `checks` is the command that checks the repositories; it names files by their absolute paths.
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
        # The contents of each model's last load, None if no load has succeeded
        self._seen: dict[str, Contents | None] = {}
        self._failures: dict[str, _Failure] = {}
        # What is being loaded, and the tasks that do it
        self._under_way: dict[str, Contents] = {}
        self._loads: set[asyncio.Task[bool]] = set()
        self._looks: asyncio.Task[None] | None = None

    async def look(self) -> asyncio.Task[bool]:
        """Begins to load new and changed models, and unloads missing ones. Raises ServeError if a repository cannot be
        read.

        The result of the loads is whether all models match the disk then. Further looks need not wait for it: a model
        that has changed again is loaded anew.
        """
        contents, unique, folders = await asyncio.to_thread(self._look_at_all)
        for name in (self._seen.keys() | self._under_way.keys()) - contents.keys():
            self._seen.pop(name, None)
            self._under_way.pop(name, None)
            self._failures.pop(name, None)
            await self._unload(name)
        due = [name for name in contents if self._is_due(name, contents[name])]
        for name in due:
            failure = self._failures.get(name)
            if failure is None or failure.contents != contents[name]:
                self._changed(name)
        changed = {name: contents[name] for name in due}
        self._under_way.update(changed)
        loads = asyncio.get_running_loop().create_task(self._load_all(changed, [folders[name] for name in due], unique))
        self._loads.add(loads)
        loads.add_done_callback(self._have_ended)
        return loads

    def keep_looking(self, settings: RepositorySettings, sleep: Callable[[float], Awaitable[None]]) -> None:
        """Looks whenever it is time, until `close`."""
        self._looks = asyncio.get_running_loop().create_task(self._keep_looking(settings, sleep))

    async def _keep_looking(self, settings: RepositorySettings, sleep: Callable[[float], Awaitable[None]]) -> None:
        async for _ in occasions(settings, sleep):
            try:
                await self.look()
            except Exception as raised:
                log.error("cannot look for changes: %s", as_load_error(raised))

    async def close(self) -> None:
        """Ends the looks, and all loads."""
        if self._looks is not None:
            self._looks.cancel()
            await asyncio.gather(self._looks, return_exceptions=True)
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _have_ended(self, loads: asyncio.Task[bool]) -> None:
        self._loads.discard(loads)
        raised = None if loads.cancelled() else loads.exception()
        if isinstance(raised, Exception):
            log.error("cannot load what has changed: %s", as_load_error(raised))

    async def _load_all(self, due: Mapping[str, Contents], folders: Sequence[Path], unique: bool) -> bool:
        try:
            loaded = await self._load(list(due))
        finally:
            # Others have changed again, and are being loaded anew.
            latest = {name for name, contents in due.items() if self._under_way.get(name) is contents}
            for name in latest:
                del self._under_way[name]
        for name in latest:
            if loaded[name]:
                self._seen[name] = due[name]
                self._failures.pop(name, None)
            else:
                self._seen.setdefault(name, None)
                failure = self._failures.get(name)
                if failure is None or failure.contents != due[name]:
                    failure = self._failures[name] = _Failure(due[name])
                failure.again()
        if due and self._checks:
            await _tell_problems(self._checks, folders)
        return not self._failures and unique

    def _is_due(self, name: str, contents: Contents) -> bool:
        if name in self._under_way:
            return self._under_way[name] != contents
        if self._seen.get(name) == contents:
            self._failures.pop(name, None)  # the change that failed has been undone
            return False
        failure = self._failures.get(name)
        return failure is None or failure.contents != contents or failure.is_due()

    def _look_at_all(self) -> tuple[dict[str, Contents], bool, dict[str, Path]]:
        """The contents of each model's folder, whether each name is in one repository only, and the folders."""
        found = self._repositories.survey()
        folders = {name: folder.path for name, folder in found.models.items()}
        return {name: contents_of(path) for name, path in folders.items()}, not found.duplicates, folders


async def _tell_problems(command: Sequence[str], folders: Sequence[Path]) -> None:
    """Logs the findings of `stubserve check` (`command`) in the folders of some models."""
    check = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        printed, _ = await check.communicate()
    except asyncio.CancelledError:
        check.kill()
        await check.wait()
        raise
    inside = tuple(f"{folder.absolute()}{end}" for folder in folders for end in ("/", ":"))
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
        except (OSError, RuntimeError) as error:  # the number of watched files is limited
            log.warning("files cannot be watched, so they are checked every second: %s", error)
    while True:
        await sleep(interval)
        yield


async def _changes(repositories: Sequence[Path]) -> AsyncIterator[None]:
    """Yields when the watch has begun, and after each change once files have been left alone for a moment."""
    # Imported only with --dev: a server does not need it.
    from watchfiles import awatch

    began = False
    # Folders that links in a repository lead to as well: the watch does not follow links.
    links = (path for repository in repositories for depth in ("*", "*/*") for path in repository.glob(depth))
    watched = [*repositories, *(link.resolve() for link in links if link.is_symlink() and link.is_dir())]
    # The filter of watchfiles leaves out files that Python and editors write beside the saved ones.
    async for changed in awatch(*watched, debounce=200, rust_timeout=_QUIET_MS, yield_on_timeout=True):
        if not began:
            log.info("watching %s for changes", ", ".join(map(str, repositories)))
        if changed or not began:
            began = True
            yield
