"""Requests that a model makes: who reads the answers, what the server is told. The ring is a list with a doorbell."""

from __future__ import annotations

import asyncio
import functools
import linecache
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stubserve_stub.runtime import calls as calls_module
from stubserve_stub.runtime.calls import Calls, OpenCall
from stubserve_stub.wire import messages
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.options import NO_OPTIONS

REQUEST: Any = ("", NO_OPTIONS, None, None, [])
TARGET = ("other", -1)


class Channel:
    """Stands for the rings. `answer` puts an answer into the ring and rings; reading sleeps in the kernel."""

    def __init__(self) -> None:
        self.answer_doorbell = os.eventfd(0)
        self.sent: list[Any] = []
        self.later: list[Any] = []
        self.freed: list[int] = []
        self.is_full = False
        self.news = threading.Condition()
        # The threads that have read
        self.readers: list[int] = []
        self._ring: deque[Any] = deque()

    def send(self, data: bytes) -> None:
        with self.news:
            self.sent.append(messages.unpack(data))
            self.news.notify_all()

    def send_and_report(self, pack: Callable[[list[int]], bytes]) -> None:
        if self.is_full:
            raise ArenaFull("no room for 1 bytes")
        self.send(pack([5]))

    def send_later(self, data: bytes) -> None:
        self.later.append(messages.unpack(data))

    def free(self, offsets: Any) -> None:
        self.freed += offsets

    def answer(self, *answers: Any) -> None:
        self._ring.extend(answers)
        os.eventfd_write(self.answer_doorbell, len(answers))

    def receive_answers(self) -> list[Any]:
        self.readers.append(threading.get_ident())
        count = os.eventfd_read(self.answer_doorbell)
        return [self._ring.popleft() for _ in range(count)]

    def wait_for(self, kind: int) -> Any:
        """The first message of a kind. Waits as a model would that waits for its threads."""
        with self.news:
            assert self.news.wait_for(lambda: any(message[0] == kind for message in self.sent), 60)
        return next(message for message in self.sent if message[0] == kind)


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    os.close(made.answer_doorbell)


@pytest.fixture
def calls(channel: Channel) -> Calls:
    return Calls(channel, lambda _, response, __: response)  # type: ignore[arg-type]


def answered(number: int, text: Any, final: bool = True, frees: Any = ()) -> Any:
    return (number, final, text, frees)


class Waiting:
    """A thread that makes a call and waits for its answer."""

    def __init__(self, calls: Calls) -> None:
        self.call: OpenCall = None  # type: ignore[assignment]
        self.got: Any = None
        self._calls = calls
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._opened.wait(60)

    def _run(self) -> None:
        self.call = self._calls.open(TARGET, False, REQUEST)
        self._opened.set()
        self.got = self._calls.wait(self.call)

    def result(self) -> Any:
        self._thread.join(60)
        return self.got


def followers(calls: Calls, count: int) -> None:
    """Waits until one thread reads and `count` others wait for it."""
    while not (calls._reading and len(calls._followers) == count):
        assert calls._guard is not None
        os.sched_yield()


def test_a_lone_call(calls: Calls, channel: Channel) -> None:
    call = calls.open(("other", 3), True, REQUEST)
    channel.answer(answered(call.number, "first", final=False, frees=[7]), answered(call.number, "last", frees=[8]))
    assert calls.wait(call) == ("first", False)
    assert calls.wait(call) == ("last", True)
    # Read at once, by the thread that waits.
    assert channel.readers == [threading.get_ident()]
    assert channel.freed == [7, 8]
    assert channel.sent == [(messages.CALL, call.number, True, True, "other", 3, (*REQUEST[:-1], ()), (5,))]


def test_every_thread_gets_its_own(calls: Calls, channel: Channel) -> None:
    """One reads; when it has its own, it passes that part on."""
    waiting = [Waiting(calls) for _ in range(3)]
    followers(calls, 2)
    numbers = [one.call.number for one in waiting]
    reader = next(index for index, one in enumerate(waiting) if one.call not in calls._followers)
    last = next(index for index in range(3) if index != reader)
    middle = 3 - reader - last
    # One for a follower, which the reader takes for it; then the reader's own.
    channel.answer(answered(numbers[middle], "middle"))
    assert waiting[middle].result() == ("middle", True)
    channel.answer(answered(numbers[reader], "reader"))
    assert waiting[reader].result() == ("reader", True)
    channel.answer(answered(numbers[last], "last"))
    assert waiting[last].result() == ("last", True)
    assert calls._reading is False
    assert len(set(channel.readers)) == 2
    # All at once as well.
    waiting = [Waiting(calls) for _ in range(4)]
    channel.answer(*(answered(one.call.number, one.call.number) for one in waiting))
    for one in waiting:
        assert one.result() == (one.call.number, True)


def test_a_reader_that_is_interrupted_passes_its_part_on(calls: Calls, channel: Channel) -> None:
    """A signal handler of the model's may raise while the main thread waits."""

    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    threads: list[Waiting] = []

    def disturb() -> None:
        while not channel.readers:
            os.sched_yield()
        threads.append(Waiting(calls))
        followers(calls, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    disturbing = threading.Thread(target=disturb)
    try:
        call = calls.open(TARGET, False, REQUEST)
        disturbing.start()
        with pytest.raises(Interrupted):
            calls.wait(call)
    finally:
        disturbing.join(60)
        signal.signal(signal.SIGUSR1, before)
    channel.answer(answered(threads[0].call.number, "still"))
    assert threads[0].result() == ("still", True)


def test_a_follower_that_is_interrupted_is_not_given_the_part(calls: Calls, channel: Channel) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    reader = Waiting(calls)
    followers(calls, 0)

    def disturb() -> None:
        followers(calls, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    disturbing = threading.Thread(target=disturb)
    try:
        call = calls.open(TARGET, False, REQUEST)
        disturbing.start()
        with pytest.raises(Interrupted):
            calls.wait(call)
    finally:
        disturbing.join(60)
        signal.signal(signal.SIGUSR1, before)
    assert calls._followers == []
    channel.answer(answered(reader.call.number, "mine"))
    assert reader.result() == ("mine", True)
    # Nobody reads now; whoever waits next does, and its answer may have come long before.
    channel.answer(answered(call.number, "late"))
    assert calls.wait(call) == ("late", True)


def answer_when_it_sleeps(calls: Calls, channel: Channel, call: OpenCall, text: Any) -> None:
    """Answers a call once its thread waits while another one reads."""
    while call not in calls._followers:
        os.sched_yield()
    channel.answer(answered(call.number, text))


@pytest.mark.parametrize("follows", [False, True])
def test_a_wait_that_is_interrupted_anywhere_leaves_nothing(calls: Calls, channel: Channel, follows: bool) -> None:
    """A signal arrives between any two lines, and its handler may raise: here, at each of them in turn."""

    class Interrupted(Exception):
        pass

    def trace_until(line: int) -> Any:
        left = line

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code is not Calls._await.__code__:
                return None
            # Not on the line of a `with`: there its end is traced, which no signal can interrupt.
            if event == "line" and "with " not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
                left -= 1
                if not left:
                    raise Interrupted
            return trace

        return trace

    reader = Waiting(calls) if follows else None
    if reader is not None:
        followers(calls, 0)
    interrupted = 0
    for line in range(1, 100):
        call = calls.open(TARGET, False, REQUEST)
        if reader is None:
            channel.answer(answered(call.number, line))
        else:
            threading.Thread(target=answer_when_it_sleeps, args=(calls, channel, call, line)).start()
        before = sys.gettrace()
        sys.settrace(trace_until(line))
        try:
            got = calls.wait(call)
        except Interrupted:
            interrupted += 1
            got = None
        finally:
            sys.settrace(before)
        assert calls._guard.acquire(timeout=60)
        calls._guard.release()
        assert calls._followers == []
        assert calls._reading == (reader is not None)
        # Whatever happened: nobody is cheated of an answer.
        assert (got or calls.wait(call)) == (line, True)
        if got is not None:
            break
    # All lines of the way that it takes, the last round without a disturbance
    assert interrupted > 5
    if reader is not None:
        channel.answer(answered(reader.call.number, "mine"))
        assert reader.result() == ("mine", True)
    assert not calls._reading


def test_coroutines(calls: Calls, channel: Channel) -> None:
    """Their loop watches the doorbell; what arrives is theirs in any order."""

    async def ask() -> Any:
        loop = asyncio.get_running_loop()
        futures = []
        for _ in range(2):
            future = loop.create_future()
            calls.expect(loop)
            call = calls.open(TARGET, False, REQUEST, functools.partial(future.set_result, None))
            futures.append((call, future))
        assert [message[2] for message in channel.sent] == [False, False]
        for call, _ in reversed(futures):
            channel.answer(answered(call.number, call.number))
        for call, future in futures:
            await future
            calls.expect_no_more(loop)
            assert call.answers.popleft() == (call.number, True)
        assert calls._loops == {}

    asyncio.run(ask())


def test_a_thread_reads_for_coroutines_too(calls: Calls, channel: Channel) -> None:
    thread = Waiting(calls)
    followers(calls, 0)

    async def ask() -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        calls.expect(loop)

        def arrived() -> None:
            loop.call_soon_threadsafe(future.set_result, None)

        call = calls.open(TARGET, False, REQUEST, arrived)
        channel.answer(answered(call.number, "for the coroutine"))
        await future
        calls.expect_no_more(loop)
        assert call.answers.popleft() == ("for the coroutine", True)

    asyncio.run(ask())
    channel.answer(answered(thread.call.number, "for the thread"))
    assert thread.result() == ("for the thread", True)


def test_a_loop_that_was_closed_is_forgotten(calls: Calls) -> None:
    loop = asyncio.new_event_loop()
    calls.expect(loop)
    loop.close()
    calls.forget(loop)
    calls.forget(loop)
    assert calls._loops == {}


def test_what_is_told_of_a_call(calls: Calls, channel: Channel) -> None:
    call = calls.open(TARGET, True, REQUEST)
    calls.taken(call, 16, 4096)
    calls.cancel(call)
    assert channel.sent[1:] == [(messages.TAKEN, call.number, 16, 4096), (messages.CANCEL, call.number)]
    calls.discard(call)
    calls.discard(call)
    assert channel.later == [(messages.DISCARD, call.number)]  # perhaps from a finalizer, so not at once
    # Answers that were under way are for nobody, but what they free is free.
    other = calls.open(TARGET, False, REQUEST)
    channel.answer(answered(call.number, "late", frees=[3]), answered(other.number, "own"))
    assert calls.wait(other) == ("own", True)
    assert list(call.answers) == []
    assert channel.freed == [3]


def test_a_call_that_has_ended_is_not_given_up(calls: Calls, channel: Channel) -> None:
    call = calls.open(TARGET, False, REQUEST)
    channel.answer(answered(call.number, "all"))
    assert calls.wait(call) == ("all", True)
    calls.discard(call)
    assert channel.later == []


def test_no_room_for_a_request(calls: Calls, channel: Channel) -> None:
    channel.is_full = True
    with pytest.raises(ArenaFull):
        calls.open(TARGET, False, REQUEST)
    assert calls._open == {}


def test_a_threads_call_holds_up_its_instance_once_the_main_thread_waits(
    calls: Calls, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "WATCH_S", 0.001)
    thread = Waiting(calls)
    assert channel.sent[0][2] is False
    # In one of Python's own waits, as `Thread.join` and `Future.result` are.
    assert channel.wait_for(messages.CALL_BLOCKS) == (messages.CALL_BLOCKS, thread.call.number)
    channel.answer(answered(thread.call.number, "free"))
    assert thread.result() == ("free", True)
    assert [message[0] for message in channel.sent].count(messages.CALL_BLOCKS) == 1
