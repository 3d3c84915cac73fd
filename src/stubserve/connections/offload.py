"""Long work on the event loop, without anybody waiting for it who has nothing to do with it.

Most of what takes long cannot leave the loop's thread for another one: orjson and loops in Python hold the
interpreter's lock, and a second thread that wants the lock gets it only every 5 ms. So work comes in steps
(`inference.long_work`), and the loop does SLICE_S of it at a time, for one piece of work per pass of the loop, which
looks at its sockets in between. However many large answers are being made, a small request waits for one slice per
pass.
Functions that let go of the lock run in a thread or two meanwhile. No work ends before its function has: what that
reads and writes is somebody else's memory a moment later. The threads have the loop's own priority: they take the
lock for moments again and again, and a thread of low priority that is put aside while it has the lock keeps the loop
waiting until all others have had the core (p99 of small requests under gzip-bombs: 28 ms, and 136 with nice 10).
What others cut into pieces takes its turn among these: `in_turn`.

A small request takes four or five passes (it is read, handed to its stub, answered, written), so it is a few slices
longer on its way: with slices of 2 ms a client that asked every 10 ms fell behind for good. A slice costs the loop one
pass, about 20 µs, so 4 % of the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import TypeVar

from stubserve.inference.long_work import LongWork

T = TypeVar("T")

SLICE_S = 0.0005
# Results of less than this are not worth the detour; it is what the loop does in a few milliseconds.
LARGE_BYTES = 256 * 1024
# Half of the cores: the loop and the stubs need some as well.
_THREADS = min(2, max(1, (os.cpu_count() or 1) // 2))


class Offload:
    """The event loop's long work."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        # Who waits for a turn, in order; one has it per pass
        self._waiting: deque[Callable[[], object]] = deque()
        self._waking = False

    async def run(self, work: LongWork[T]) -> T:
        """The result of the work. Cancelled in the middle, the generator is closed."""
        loop = asyncio.get_running_loop()
        result = None
        try:
            while True:
                await self._slice(loop)
                end = perf_counter() + SLICE_S
                wanted = work.send(result)
                while wanted is None and perf_counter() < end:
                    wanted = work.send(None)
                result = None
                while wanted is not None:
                    try:
                        result, wanted = await self._in_thread(wanted), None
                    except Exception as error:
                        wanted = work.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            work.close()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._waiting)

    def in_turn(self, act: Callable[[], object]) -> None:
        """Has `act` called in a pass of the loop that does no other long work; it is to take no longer than a slice."""
        self._waiting.append(act)
        if not self._waking:
            self._waking = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._wake, loop)

    def close(self) -> None:
        """Ends the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "offload")
        return self._threads

    async def _in_thread(self, act: Callable[[], T]) -> T:
        """What a function returns. Cancelled while it runs, this waits for it all the same.

        Then no thread has the function any more: what it knows may have to end in the loop's thread.
        """
        acting = self._pool().submit(_act, [act])
        result = asyncio.wrap_future(acting)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            while not acting.cancel() and not result.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            raise
        finally:
            # They know what the function has raised, which knows this frame.
            del acting, result

    async def _slice(self, loop: asyncio.AbstractEventLoop) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        self.in_turn(partial(_begin, turn))
        await turn

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting:
            loop.call_soon(self._wake, loop)
            self._waiting.popleft()()
        else:
            self._waking = False


def _act(acts: list[Callable[[], T]]) -> T:
    """Does the only one of them, and forgets it."""
    return acts.pop()()


def _begin(turn: asyncio.Future[None]) -> None:
    """Work that was cancelled meanwhile has its turn all the same: a pass of the loop."""
    if not turn.done():
        turn.set_result(None)
