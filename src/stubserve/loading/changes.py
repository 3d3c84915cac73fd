"""Loads and unloads that somebody has asked for, while they run.

Each is a task of its own: a client that goes away does not leave one half done. Whatever fails one, its client gets
a ServeError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from stubserve.errors import unavailable
from stubserve.loading.changeover import as_load_error
from stubserve.loading.turns import Turn

_T = TypeVar("_T")


class Changes:
    """The loads and unloads that are under way. `slots` limits how many versions start at a time."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False

    async def run(self, change: Callable[[Turn | None], Coroutine[Any, Any, _T]], asked_in: Turn | None) -> _T:
        """Runs a load or unload to its end, whatever becomes of the client that asked for it. Raises ServeError.

        `asked_in` is the load of the stub that asks, if one does; `change` is given it, unless it is over.
        """
        if self._over:
            raise unavailable("Server exiting")
        outer = None if asked_in is None or asked_in.over else asked_in
        task = asyncio.get_running_loop().create_task(change(outer))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        if outer is not None:
            # The load that waits for this one gives its place away meanwhile: they could be the last two places.
            self._slots.release()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise unavailable("Server exiting") from None
            raise
        except Exception as raised:
            raise as_load_error(raised) from None
        finally:
            if outer is not None:
                await self._slots.acquire()

    async def give_up(self) -> None:
        """Ends those that are under way, with what they have started; there will be no others."""
        self._over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may not be there to hear of it


async def all_of(changes: Iterable[Awaitable[None]]) -> None:
    """Waits for all; raises the first error of them then."""
    for outcome in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
