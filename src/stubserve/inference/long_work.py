"""Long work in steps, so that it can be done beside everything else or at once.

Most of what takes long cannot leave the loop's thread for another one: orjson and loops in Python hold the
interpreter's lock, and a second thread that wants the lock gets it only every 5 ms. So long work is a generator. It
yields None where it may be interrupted, at least every few tenths of a millisecond. It yields a function where that can
run in a thread, because it lets go of the lock (zlib, numpy's sorting), and a coroutine where it has to wait; it gets
the result of either back, or what that raised is raised in it. What it returns is the result of the work.

Work is written once, in this form. `finish` does all of it at once, for small work. `Offload` does it beside the event
loop's other work, and `OrderedJobs` does the same for pieces of work whose results have an order.

The loop does SLICE_S of the steps at a time, for one piece of work per pass of the loop, which looks at its sockets in
between. However many large answers are being made, a small request waits for one slice per pass. Functions that let go
of the lock run in a thread or two meanwhile. No work ends before its function has: what that reads and writes is
somebody else's memory a moment later. The threads have the loop's own priority: they take the lock for moments again
and again, and a thread of low priority that is put aside while it has the lock keeps the loop waiting until all others
have had the core (p99 of small requests under gzip-bombs: 28 ms, and 136 with nice 10). What others cut into pieces
takes its turn among these: `in_turn`.

A small request takes four or five passes (it is read, handed to its stub, answered, written), so it is a few slices
longer on its way: with slices of 2 ms a client that asked every 10 ms fell behind for good. A slice costs the loop one
pass, about 20 µs, so 4 % of the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")

LongWork = Generator[Callable[[], Any] | Coroutine[Any, Any, Any] | None, Any, T]
# Called once with the work's result, or with the exception that it ended in; with None where there was no work, or
# nothing wants its result any more.
Then = Callable[[Any], None]

SLICE_S = 0.0005
# Results of less than this are not worth the detour; it is what the loop does in a few milliseconds.
LARGE_BYTES = 256 * 1024
# Half of the cores: the loop and the stubs need some as well.
_THREADS = min(2, max(1, (os.cpu_count() or 1) // 2))


def finish(work: LongWork[T]) -> T:
    """The result, with everything done here and now. The work may not have to wait."""
    try:
        wanted = next(work)
        while True:
            assert wanted is None or callable(wanted)
            try:
                made = None if wanted is None else wanted()
            except Exception as error:
                wanted = work.throw(error)
            else:
                wanted = work.send(made)
    except StopIteration as end:
        result: T = end.value
        return result


def uncounted(nbytes: int) -> None:
    """Counts nothing. It stands where bytes that are kept would be counted: those of a small result are not."""


class Offload:
    """The event loop's long work."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        # The work that waits for a turn, in order; one piece has its turn in each pass
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
                        result = await (self._in_thread(wanted) if callable(wanted) else wanted)
                        wanted = None
                    except Exception as error:
                        wanted = work.throw(error)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            work.close()

    @property
    def busy(self) -> bool:
        """Whether work waits for a turn."""
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
        except asyncio.CancelledError as cancelled:
            while not acting.cancel() and not result.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            raise cancelled  # named, since a compiled coroutine has forgotten it after it has waited
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


class OrderedJobs:
    """Work whose results are heard in the order in which it was asked for; `dropped` once nobody wants them."""

    __slots__ = ("_offload", "_task", "_waiting", "dropped")

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._waiting: deque[tuple[LongWork[Any] | None, Then]] = deque()
        self._task: asyncio.Task[Any] | None = None
        self.dropped = False

    @property
    def busy(self) -> bool:
        return self._task is not None or bool(self._waiting)

    def add(self, steps: LongWork[Any] | None, then: Then) -> None:
        """Has `then` called once the work and everything before it is done."""
        self._waiting.append((steps, then))
        self._go_on()

    def drop(self) -> None:
        """Nobody wants the results any more. Each `then` is called nevertheless: it may hold memory."""
        self.dropped = True
        if self._task is not None:
            self._task.cancel()
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._task is None:
            steps, then = self._waiting.popleft()
            if steps is None or self.dropped:
                then(None)
                continue
            self._task = asyncio.get_running_loop().create_task(self._offload.run(steps))
            self._task.add_done_callback(partial(self._done, then))

    def _done(self, then: Then, task: asyncio.Task[Any]) -> None:
        self._task = None
        if task.cancelled():
            then(None)
        else:
            error = task.exception()
            made = task.result() if error is None else error
            then(None if self.dropped else made)
        self._go_on()
