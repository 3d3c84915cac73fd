"""Turns of loads and unloads: those of one model take turns, those of several models do not wait.

A model may load and unload others, from `initialize` too, and then its own load goes on only when that inner turn is
over. So turns can wait for each other in a circle: a model that unloads itself while it loads, or two models that load
each other at the same time. Upstream waits for ever then. Here a turn that would close a circle is refused, before it
waits, with an error that names both models, and its client can go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from stubserve.errors import internal


class Turn:
    """One load or unload of `model`, asked for by a stub of the load `outer` if there is one, or by anybody else."""

    def __init__(self, model: str, outer: Turn | None) -> None:
        self.model = model
        self.outer = outer
        # Turns that stubs of this load wait for
        self.inner: set[Turn] = set()
        self.over = False


class Turns:
    """The turns of all models."""

    def __init__(self) -> None:
        # By model: its turns in order, the first has begun; and what the others wait for
        self._queues: dict[str, list[Turn]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def of(self, model: str, outer: Turn | None) -> AsyncIterator[Turn]:
        """Waits until it is this model's turn. Raises ServeError where that could never be, because of `outer`."""
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
        """Whether one of the turns ends only after `outer`, or after a load that waits for that one."""
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
