"""Long work on the event loop, without anybody waiting for it who has nothing to do with it.

Most of what takes long cannot leave the loop's thread for another one: orjson and loops in Python hold the
interpreter's lock, and a second thread that wants the lock gets it only every 5 ms. So work comes in steps
(`inference.steps`), and the loop does SLICE_S of it at a time, for one piece of work per pass of the loop, which looks
at its sockets in between. However many large answers are being made, a small request waits for one slice per pass.
Functions that let go of the lock run in threads meanwhile, which yield to everybody else where cores are short.

A small request takes four or five passes (it is read, handed to its stub, answered, written), so it is a few slices
longer on its way: with slices of 2 ms a client that asked every 10 ms fell behind for good. A slice costs the loop one
pass, about 20 µs, so 4 % of the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from stubserve.inference.steps import Steps

T = TypeVar("T")

SLICE_S = 0.0005
# Results of less than this are not worth the detour; it is what the loop does in a few milliseconds.
LARGE_BYTES = 256 * 1024
_THREADS = 2
# How much the threads yield, as `nice` counts: they get a tenth where others want the core, and all of it else.
_NICE = 10


class Offload:
    """The event loop's long work."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        # Who waits for a slice, in order; one is woken per pass
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waking = False

    async def run(self, steps: Steps[T]) -> T:
        """The result of the work. Cancelled in the middle, the generator is closed."""
        loop = asyncio.get_running_loop()
        result = None
        try:
            while True:
                await self._slice(loop)
                end = perf_counter() + SLICE_S
                wanted = steps.send(result)
                while wanted is None and perf_counter() < end:
                    wanted = steps.send(None)
                result = None
                if wanted is not None:
                    result = await loop.run_in_executor(self._pool(), wanted)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()

    def close(self) -> None:
        """Ends the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "offload", _yield_to_others)
        return self._threads

    async def _slice(self, loop: asyncio.AbstractEventLoop) -> None:
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake, loop)
        await turn

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():  # whose work was cancelled
            self._waiting.popleft()
        if self._waiting:
            self._waiting.popleft().set_result(None)
            loop.call_soon(self._wake, loop)
        else:
            self._waking = False


def _yield_to_others() -> None:
    """Lets whoever answers small requests go first where there are fewer cores than work: the loop, stubs, clients."""
    with contextlib.suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)
