"""Long work in steps, so that it can be done beside everything else or at once.

Most long work cannot leave the loop's thread: orjson and loops in Python hold the interpreter's lock, and a second
thread gets the lock only every 5 ms. So long work is a generator. It yields None where it may be interrupted, at least
every few tenths of a millisecond. It yields a function that can run in a thread because the function releases the lock
(zlib, numpy's sorting). It yields a coroutine where it must wait. The generator gets the result, or the exception is
raised in it. Its return value is the result of the work.

Work is written once, in this form. `finish` does small work at once. `Offload` does work beside the event loop's other
work. `OrderedJobs` does the same for pieces of work with ordered results.

The loop does SLICE_S of the steps at a time, for one piece of work per pass of the loop, and looks at its sockets in
between. So a small request waits for one slice per pass, however many large answers are being made. Functions that
release the lock run meanwhile in one or two threads. Work ends only after its function has ended: the memory that the
function uses belongs to another owner a moment later. The threads have the loop's own priority. A thread of low
priority may be set aside while it holds the lock, and then the loop waits until all others have had the core (p99 of
small requests under gzip-bombs: 28 ms, and 136 with nice 10). Work that other modules cut into pieces takes its turn
among these: `in_turn`.

A small request takes four or five passes (read, handed to its stub, answered, written), so its way is a few slices
longer. With slices of 2 ms a client that sent a request every 10 ms fell behind for good. A slice costs the loop one
pass, about 20 µs, so 4 % of the work.
"""

# Compiled by mypyc.
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
# Called once with the result of the work, or with its exception; with None if there was no work, or if the result is no
# longer wanted.
Then = Callable[[Any], None]

SLICE_S = 0.0005
# Smaller results are made at once; the loop needs a few milliseconds for this size.
LARGE_BYTES = 256 * 1024
# Half of the cores: the loop and the stubs need cores as well.
_THREADS = min(2, max(1, (os.cpu_count() or 1) // 2))


def finish(work: LongWork[T]) -> T:
    """The result of the work, done at once. The work must not need to wait."""
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
    """Takes the place of the function that counts kept bytes, for small results: their bytes are not counted."""


class Offload:
    """The event loop's long work."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        # The work that waits for its turn, in order; one piece per pass
        self._waiting: deque[Callable[[], object]] = deque()
        self._waking = False

    async def run(self, work: LongWork[T]) -> T:
        """The result of the work. A cancellation in the middle closes the generator."""
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
        """Calls `act` in a pass of the loop that does no other long work; `act` must take no longer than a slice."""
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
        """The result of a function. If cancelled while the function runs, this still waits for the function.

        After that no thread holds the function: the objects that it knows may have to end in the loop's thread.
        """
        acting = self._pool().submit(_act, [act])
        result = asyncio.wrap_future(acting)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError as cancelled:
            while not acting.cancel() and not result.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([result])
            raise cancelled  # named, since a compiled coroutine has lost the exception after a wait
        finally:
            # Both refer to the exception of the function, which refers to this frame.
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
    """Takes the only function out of the list and calls it, so that the list no longer keeps it."""
    return acts.pop()()


def _begin(turn: asyncio.Future[None]) -> None:
    """Gives work its turn. Cancelled work also uses up its turn, a pass of the loop."""
    if not turn.done():
        turn.set_result(None)


class OrderedJobs:
    """Work with results that are delivered in the order of `add`; `dropped`: the results are no longer wanted."""

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
        """Calls `then` once this work and all work before it is done."""
        self._waiting.append((steps, then))
        self._go_on()

    def drop(self) -> None:
        """Discards the results. Each `then` is called nevertheless, since it may hold memory."""
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
