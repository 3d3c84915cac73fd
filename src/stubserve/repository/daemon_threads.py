"""Threads for work that may hang: unlike those of an executor, they do not delay the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


async def in_daemon_thread(work: Callable[[], _T]) -> _T:
    """The result or exception of `work` in its own thread. A cancellation does not stop `work`."""
    outcome: Future[_T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as raised:
            outcome.set_exception(raised)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(outcome)


def for_all(items: Iterable[Any], work: Callable[[Any], None], at_once: int) -> None:
    """Calls `work`, which must not raise, for each item, several at once. Blocks."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    count = 0
    for item in items:
        waiting.put(item)
        count += 1

    def run() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                work(waiting.get_nowait())

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(count, at_once))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Latest:
    """Runs one piece of work at a time in the background, and waits for it only for a limited time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._done: threading.Event | None = None
        self._error: Exception | None = None

    def run(self, patience_s: float) -> bool:
        """Starts the work, unless it is running, and waits. Returns whether it has ended. Raises its exception."""
        with self._guard:
            if self._done is None:
                self._done = threading.Event()
                self._error = None
                threading.Thread(target=self._run, args=(self._done,), daemon=True).start()
            done = self._done
        if not done.wait(patience_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def _run(self, done: threading.Event) -> None:
        try:
            self._work()
        except Exception as raised:
            self._error = raised
        finally:
            with self._guard:
                self._done = None
            done.set()
