"""Loads and unloads while they run, and their turns.

Each is a task of its own: a client that goes away does not leave one half done. After any failure its client gets a
ServeError.

Those of one model take turns, those of several models do not wait. A model may load and unload others, from
`initialize` too, and then its own load goes on only when that inner turn is over. So turns can wait for each other in a
circle: a model that unloads itself while it loads, or two models that load each other at the same time. Upstream waits
for ever then. Here a turn that would close a circle is refused, before it waits, with an error that names both models.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from stubserve.errors import ServeError, internal, unavailable


class Turn:
    """One load or unload of `model`. `outer` is the load of the stub that requested it, None for others."""

    def __init__(self, model: str, outer: Turn | None) -> None:
        self.model = model
        self.outer = outer
        self.inner: set[Turn] = set()
        self.over = False


class Turns:
    """The turns of all models."""

    def __init__(self) -> None:
        # By model: its turns in order, the first has begun; and the events that the others wait for
        self._queues: dict[str, list[Turn]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def of(self, model: str, outer: Turn | None) -> AsyncIterator[Turn]:
        """Waits until it is this model's turn. Raises ServeError if that could never be, because of `outer`."""
        queue = self._queues.setdefault(model, [])
        if outer is not None and self._waits_for(queue, outer):
            if outer.model == model:
                raise internal(f"model '{model}' cannot load or unload itself while it is being loaded")
            raise internal(
                f"model '{outer.model}' is being loaded and cannot wait for model '{model}', which waits for that load"
            )
        turn = Turn(model, outer)
        queue.append(turn)
        if outer is not None:
            outer.inner.add(turn)
        try:
            async with self._locks.setdefault(model, asyncio.Lock()):
                yield turn
        finally:
            turn.over = True
            queue.remove(turn)
            if outer is not None:
                outer.inner.discard(turn)
            if not queue:
                del self._queues[model], self._locks[model]

    def _waits_for(self, turns: list[Turn], outer: Turn) -> bool:
        """Whether one of the turns ends only after `outer`, or after a load that waits for `outer`."""
        blocked = {outer}
        while outer.outer is not None:
            outer = outer.outer
            blocked.add(outer)
        seen: set[Turn] = set()
        rest = list(turns)
        while rest:
            turn = rest.pop()
            if turn in blocked:
                return True
            if turn not in seen:
                seen.add(turn)
                rest += turn.inner
                queue = self._queues[turn.model]
                rest += queue[: queue.index(turn)]
        return False


log = logging.getLogger("stubserve.repository")

_T = TypeVar("_T")


class Changes:
    """The loads and unloads that are under way. `slots` limits how many versions start at a time."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over = False

    async def run(self, change: Callable[[Turn | None], Coroutine[Any, Any, _T]], asked_in: Turn | None) -> _T:
        """Runs a load or unload to its end, even if the client goes away. Raises ServeError.

        `asked_in` is the load of the stub that has requested it, if any; `change` gets it, unless it is over.
        """
        if self._over:
            raise unavailable("Server exiting")
        outer = None if asked_in is None or asked_in.over else asked_in
        task = asyncio.get_running_loop().create_task(change(outer))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        if outer is not None:
            # The waiting load gives its place away meanwhile: they could be the last two places.
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
        """Ends all changes under way, with everything they have started, and takes no further ones."""
        self._over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may have gone


async def all_of(changes: Iterable[Awaitable[None]]) -> None:
    """Waits for all, and then raises the first error."""
    for outcome in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def as_load_error(raised: Exception) -> ServeError:
    """The error of a failed load, for the index. A fault of the server goes to the log and does not end the server."""
    if isinstance(raised, ServeError):
        return raised
    log.error("unexpected error while models were loaded or unloaded", exc_info=raised)
    return internal(f"unexpected error: {raised!r}")
