"""Loads and unloads while they run, and their turns.

Each is a task of its own: a client that goes away does not leave one half done. After any failure its client gets a
ServeError.

Those of one model take turns, those of several models do not wait. A model may load and unload others, from
`initialize` too, and then its own load goes on only when that inner turn is over. So turns can wait for each other in a
circle: a model that unloads itself while it loads, or two models that load each other at the same time. Upstream waits
for ever then. Here a turn that would close a circle is refused, before it waits, with an error that names both models.

A load may never end, because its model's import does not. Such a load must not keep the model as it is for good: a
newer load or unload ends the one whose turn it is, if that is obsolete. After a while for requests, so that those that
come at about the same time are all carried out, as upstream does; at once for a file that is saved anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from stubserve.errors import Code, ServeError, internal, unavailable
from stubserve.repository.candidate import Candidate

log = logging.getLogger("stubserve.repository")


# How long a load that is obsolete goes on, so that requests of about the same time are all carried out
PATIENCE_S = 5.0
# How often those that wait ask whether the turn before them is obsolete
_AGAIN_S = 1.0


class Obsolete(ServeError):
    """A load was ended by a newer one."""

    def __init__(self, model: str) -> None:
        super().__init__(Code.UNAVAILABLE, f"the load of model '{model}' was ended by a newer load or unload of it")


class Turn:
    """One load or unload of `model`. `outer` is the load of the stub that requested it, None for others.

    `wanted` is what a load was asked to load, and `candidate` what it found.
    """

    def __init__(self, model: str, outer: Turn | None, wanted: object = None) -> None:
        self.model = model
        self.outer = outer
        self.wanted = wanted
        self.candidate: Candidate | None = None
        self.inner: set[Turn] = set()
        self.obsolete = False
        self.began_s = time.monotonic()
        self._task = asyncio.current_task()
        self._over = asyncio.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        """Ends it for a newer one. Its caller gets Obsolete."""
        if self._task is not None and not self.obsolete:
            log.warning("the load of '%s' that is under way is ended: a newer load or unload has come", self.model)
            self.obsolete = True
            self._task.cancel()

    def has_ended(self) -> None:
        self._over.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Waits until it is over, or for so long."""
        waiting = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait((waiting,), timeout=timeout_s)
        finally:
            waiting.cancel()


# Whether a turn that others wait for is obsolete
Ends = Callable[[Turn], Awaitable[bool]]


async def asked_by_itself(turn: Turn) -> bool:
    """The `Ends` of an unload: nobody else's load waits for this turn, as that of an ensemble does."""
    return turn.outer is None


class Turns:
    """The turns of all models. An obsolete one is ended at once, or if `patient` after a while."""

    def __init__(self, patient: bool = True) -> None:
        self._patience_s = PATIENCE_S if patient else 0.0
        # By model: its turns in order, the first has begun
        self._queues: dict[str, list[Turn]] = {}

    @contextlib.asynccontextmanager
    async def take(
        self,
        model: str,
        outer: Turn | None,
        wanted: object = None,
        ends: Ends | None = None,
    ) -> AsyncIterator[Turn]:
        """Waits until it is this model's turn. Raises ServeError if that could never be, because of `outer`.

        `ends` says of the turn before it whether that is obsolete.
        """
        queue = self._queues.setdefault(model, [])
        if outer is not None and self._waits_for(queue, outer):
            if outer.model == model:
                raise internal(f"model '{model}' cannot load or unload itself while it is being loaded")
            raise internal(
                f"model '{outer.model}' is being loaded and cannot wait for model '{model}', which waits for that load"
            )
        turn = Turn(model, outer, wanted)
        queue.append(turn)
        if outer is not None:
            outer.inner.add(turn)
        try:
            patience_s, ended = self._patience_s, None
            while (first := queue[0]) is not turn:
                if ended is not None and first.wanted == ended.wanted:
                    patience_s = min(patience_s, _AGAIN_S)  # as of a client that has asked again and again
                await first.wait(None if ends is None else max(first.began_s + patience_s - time.monotonic(), 0))
                if ends is not None and not first.over:
                    if await ends(first):
                        first.end()
                        ended = first
                    await first.wait(_AGAIN_S)
            yield turn
        except asyncio.CancelledError:
            if turn.obsolete:
                raise Obsolete(model) from None
            raise
        finally:
            turn.has_ended()
            was_first = queue[0] is turn
            queue.remove(turn)
            if was_first and queue:
                queue[0].began_s = time.monotonic()
            if outer is not None:
                outer.inner.discard(turn)
            if not queue:
                del self._queues[model]

    async def ended(self, models: Iterable[str]) -> None:
        """Waits until nobody loads or unloads one of these models."""
        for model in models:
            while queue := self._queues.get(model):
                await queue[-1].wait()

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
