"""Requests that a model makes: the stub sends them and receives their answers.

Answers come over a ring with a doorbell of its own. The first thread that waits takes the reader's part and blocks in
the kernel on the doorbell, so the answer to a lone call wakes the very thread that wants it. The reader also takes
answers for other threads and wakes these; when it has its own answer, it passes the part on to a thread that still
waits. While coroutines wait, their event loop watches the doorbell, too, and reads when no thread does.

A call holds up its instance when the main thread waits for it in `execute`. The server must know, because instances
that wait for each other in a circle would wait for ever. A call by the main thread always does. A call by another
thread or a coroutine does if the main thread waits for that one. So when a call is not answered in WATCH_S, a watch
looks whether the main thread is in one of Python's own waits, and reports the call.
"""

from __future__ import annotations

import collections
import itertools
import select
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Optional, Tuple

from stubserve_stub.wire import messages
from stubserve_stub.wire.messages import WireRequest, WireResponse

if TYPE_CHECKING:
    import asyncio

    from stubserve_stub.runtime.channel import Channel

WATCH_S = 0.5

_PYTHONS_WAITS = threading.Condition.wait.__code__.co_filename


class OpenCall:
    """One request under way. `answers` have come and were not taken yet: (response, final).

    `preferred` is the memory that outputs should be in, as `api.bls` has it.
    """

    __slots__ = ("answers", "blocking", "number", "on_answer", "opened_at", "preferred", "reads", "waiter")

    def __init__(
        self, number: int, blocking: bool, on_answer: Optional[Callable[[], None]], preferred: Optional[int]
    ) -> None:
        self.number = number
        self.preferred = preferred
        self.blocking = blocking
        self.answers: Deque[Tuple[Any, bool]] = collections.deque()
        # Called once, on the thread that has read the first answer
        self.on_answer = on_answer
        # Of a waiting thread: whether it reads, and the lock that it sleeps on while another thread reads
        self.reads = False
        self.waiter: Optional[threading.Lock] = None
        self.opened_at = 0.0


class Calls:
    """All calls of a stub.

    `decode` makes the model's object of a wire response (None where there is none), for the preferred memory of a call.
    """

    def __init__(
        self, channel: Channel, decode: Callable[[Channel, Optional[WireResponse], Optional[int]], Any]
    ) -> None:
        self.channel = channel
        self._decode = decode
        self._open: Dict[int, OpenCall] = {}
        self._numbers = itertools.count(1)
        # The thread of its instance, which makes this object
        self._main_thread = threading.get_ident()
        self._guard = threading.Lock()
        # Under the guard: whether a thread has the reader's part, and the calls of those that wait
        self._reading = False
        self._followers: List[OpenCall] = []
        # Event loops watch this instead of the doorbell, because uvloop makes what it watches non-blocking.
        self._arrivals = select.epoll()
        self._arrivals.register(channel.answer_doorbell, select.EPOLLIN)
        # Event loops that have coroutines waiting, and how many
        self._loops: Dict[asyncio.AbstractEventLoop, int] = {}
        self._watching: Optional[threading.Event] = None

    def open(
        self,
        target: Tuple[str, int],
        decoupled: bool,
        request: WireRequest,
        on_answer: Optional[Callable[[], None]] = None,
        preferred: Optional[int] = None,
    ) -> OpenCall:
        """Sends a request to version `target[1]` (-1 for any) of model `target[0]`. Raises ArenaFull."""
        blocking = on_answer is None and threading.get_ident() == self._main_thread
        call = OpenCall(next(self._numbers), blocking, on_answer, preferred)
        self._open[call.number] = call
        try:
            self.channel.send_and_report(
                lambda released: messages.pack_call(call.number, blocking, decoupled, *target, request, released)
            )
        except BaseException:
            del self._open[call.number]
            raise
        if not blocking:
            self._watch(call)
        return call

    def wait(self, call: OpenCall) -> Tuple[Any, bool]:
        """The next answer to a call that is not finished: (response, final). Blocks this thread."""
        if not call.answers:
            try:
                self._await(call)
            finally:  # a signal handler of the model may have raised at any point
                self._leave(call)
        return call.answers.popleft()

    def cancel(self, call: OpenCall) -> None:
        self.channel.send(messages.pack_cancel(call.number))

    def taken(self, call: OpenCall, count: int, nbytes: int) -> None:
        """Says how many answers to a call, and how many bytes of them, were taken since the last time."""
        self.channel.send(messages.pack_taken(call.number, count, nbytes))

    def discard(self, call: OpenCall) -> None:
        """The model takes no further answers. Safe in a finalizer."""
        if self._open.pop(call.number, None) is not None:
            self.channel.send_later(messages.pack_discard(call.number))

    # Reading

    def _read(self) -> None:
        """Takes the answers that have come; sleeps until there are some. For the thread with the reader's part."""
        for number, final, response, frees in self.channel.receive_answers():
            self.channel.free(frees)
            call = self._open.pop(number, None) if final else self._open.get(number)
            answer = self._decode(self.channel, response, None if call is None else call.preferred)
            if call is None:
                continue
            with self._guard:
                call.answers.append((answer, final))
                waiter = call.waiter
                if waiter is not None and call in self._followers:
                    self._followers.remove(call)
                    waiter.release()
            told, call.on_answer = call.on_answer, None
            if told is not None:
                told()

    def _await(self, call: OpenCall) -> None:
        """Reads, or sleeps while another thread reads, until there is an answer.

        `_leave` undoes it at any point: so the reader's part is noted with the call before it is taken, and a lock is
        closed before another thread may open it.
        """
        while not call.answers:
            with self._guard:
                if call.answers:
                    return
                if not self._reading:
                    call.reads = True
                    self._reading = True
                else:
                    call.waiter = waiter = threading.Lock()
                    waiter.acquire()
                    self._followers.append(call)
            if not call.reads:
                waiter.acquire()
            if call.reads:
                while not call.answers:
                    self._read()

    def _leave(self, call: OpenCall) -> None:
        """Ends the wait for `call`, and passes the reader's part on if it has that."""
        with self._guard:
            call.waiter = None
            if call in self._followers:
                self._followers.remove(call)
            if call.reads:
                call.reads = False
                self._pass_on_reading()

    def _pass_on_reading(self) -> None:
        """To be called under the guard."""
        if not self._followers:
            self._reading = False
            return
        heir = self._followers.pop(0)
        heir.reads = True
        assert heir.waiter is not None
        heir.waiter.release()

    # Coroutines

    def expect(self, loop: asyncio.AbstractEventLoop) -> None:
        """A coroutine of the running loop waits for an answer."""
        waiting = self._loops.get(loop, 0)
        self._loops[loop] = waiting + 1
        if not waiting:
            loop.add_reader(self._arrivals.fileno(), self._on_readable)

    def expect_no_more(self, loop: asyncio.AbstractEventLoop) -> None:
        """One coroutine less waits."""
        self._loops[loop] -= 1
        if not self._loops[loop]:
            del self._loops[loop]
            loop.remove_reader(self._arrivals.fileno())

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop has been closed."""
        self._loops.pop(loop, None)

    def _on_readable(self) -> None:
        with self._guard:
            if self._reading:
                return  # a thread reads, also for coroutines
            self._reading = True
        try:
            if self._arrivals.poll(0):
                self._read()
        finally:
            with self._guard:
                self._pass_on_reading()

    # What holds up the instance

    def _watch(self, call: OpenCall) -> None:
        call.opened_at = time.monotonic()
        with self._guard:
            if self._watching is None:
                self._watching = threading.Event()
                threading.Thread(target=self._look, args=(self._watching,), name="stubserve-calls", daemon=True).start()
        self._watching.set()

    def _look(self, watching: threading.Event) -> None:
        while True:
            watching.wait()
            time.sleep(WATCH_S)
            watching.clear()
            young = time.monotonic() - WATCH_S
            for call in list(self._open.values()):
                if call.blocking:
                    continue
                watching.set()
                if call.opened_at < young and self._main_thread_waits():
                    call.blocking = True
                    self.channel.send(messages.pack_call_blocks(call.number))

    def _main_thread_waits(self) -> bool:
        frame = sys._current_frames().get(self._main_thread or 0)
        return frame is not None and frame.f_code.co_filename == _PYTHONS_WAITS
