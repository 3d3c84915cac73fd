from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest

from stubserve.errors import Code, ServeError, unavailable
from stubserve.inference.request import CANCELLED, OTHER_FAILURE, REJECTED, Request, Response
from stubserve.inference.work import Decision, Work
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.depth import MOST_AHEAD, QUICK_IN_A_ROW
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.serving.alarm import Alarm
from stubserve.serving.dispatcher import Dispatcher

from .fakes import Clock, Reader, Script


class Executor:
    """An instance that takes what it is given."""

    def __init__(self, name: str = "i") -> None:
        self.name = name
        self.spec: Any = None
        self.takes_work = True
        self.differs = False
        self.streams = 0
        self.refuses: Exception | None = None
        self.works: list[Work] = []
        # How many works it had whenever it was told of them
        self.announced: list[int] = []

    def execute(self, work: Work) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.works.append(work)

    def announce(self) -> None:
        self.announced.append(len(self.works))

    @property
    def batches(self) -> list[list[str]]:
        return [[request.id for request in work.requests] for work in self.works]


class FakeAlarm:
    def __init__(self) -> None:
        self.at_ns: int | None = None
        self.closed = False

    def set(self, at_ns: int | None) -> None:
        self.at_ns = at_ns

    def close(self) -> None:
        self.closed = True


class Answers:
    """What became of requests that the dispatcher answers itself."""

    def __init__(self) -> None:
        self.got: list[tuple[str, ServeError, str | None]] = []
        self.on_answer: Callable[[], None] = lambda: None

    def refused(self, request: Request, refusal: ServeError) -> None:
        pass

    def respond_streamed(self, request: Request, response: Response, start_ns: int) -> None:
        pass

    def fail(self, requests: Iterable[Request], error: ServeError, outcome: str | None) -> None:
        for request in requests:
            self.got.append((request.id, error, outcome))
            self.on_answer()


class Parts:
    def __init__(self, scheduler: Scheduler) -> None:
        self.clock = Clock()
        self.alarm = FakeAlarm()
        self.answers = Answers()
        self.reader = Reader()
        # Any: instance and delivery are fakes
        self.dispatcher: Any = Dispatcher(
            "m", scheduler, cast(Any, self.answers), self.clock, lambda callback: cast(Alarm, self.alarm)
        )

    def enqueue(self, *ids: str) -> list[Request]:
        requests = [self.reader.request(id) for id in ids]
        for request in requests:
            self.dispatcher.enqueue(request)
        return requests

    def done(self, executor: Executor, took_ns: int = 1_000_000) -> None:
        work = executor.works.pop(0)
        for request in work.requests:
            request.compute_input_end_ns, request.compute_infer_end_ns = 0, took_ns
        self.dispatcher.work_done(executor, [(work, ())])


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    async def inside() -> None:
        await scenario()

    asyncio.run(inside())


def test_requests_of_one_turn_of_the_loop_share_a_batch() -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(8)), Executor()
        parts.dispatcher.join(one)
        for id in "abc":
            parts.enqueue(id)
            parts.dispatcher.poll_soon()
        assert one.works == []
        await asyncio.sleep(0)
        assert one.batches == [["a", "b", "c"]]
        assert all(request.compute_start_ns == parts.clock.now_ns for request in one.works[0].requests)
        assert parts.dispatcher.queued == 0

    run(scenario)


def test_the_next_work_follows_the_one_that_is_done() -> None:
    async def scenario() -> None:
        parts, one, two = Parts(DynamicBatcher(1)), Executor(), Executor()
        parts.dispatcher.join(one)
        parts.dispatcher.join(two)
        parts.enqueue("a", "b", "c", "d")
        parts.dispatcher.poll()
        assert (one.batches, two.batches) == ([["a"]], [["b"]])
        parts.done(two)
        parts.done(one)
        assert (one.batches, two.batches) == ([["d"]], [["c"]])
        assert parts.dispatcher.queued == 0

    run(scenario)


def test_nothing_is_decided_while_nobody_waits() -> None:
    """A lone client's result frees an instance, and that is all: what comes next is asked about when it comes."""

    class Counted(DynamicBatcher):
        polls = 0

        def poll(self, now_ns: int) -> Decision:
            self.polls += 1
            return super().poll(now_ns)

    async def scenario() -> None:
        scheduler = Counted(1)
        parts, one = Parts(scheduler), Executor()
        parts.dispatcher.join(one)
        parts.enqueue("a")
        parts.dispatcher.poll()
        before = scheduler.polls
        parts.done(one, took_ns=1_000)
        assert scheduler.polls == before
        # The instance is free all the same
        parts.enqueue("b")
        parts.dispatcher.poll()
        assert one.batches == [["b"]]
        # And who has waited gets it at once
        parts.enqueue("c")
        parts.dispatcher.poll()
        parts.done(one, took_ns=1_000)
        assert one.batches == [["c"]]

    run(scenario)


def test_a_quick_instance_that_serves_alone_has_several_works_ahead() -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(1)), Executor()
        parts.dispatcher.join(one)
        for _ in range(QUICK_IN_A_ROW):
            parts.enqueue("warm")
            parts.dispatcher.poll()
            assert len(one.works) == 1
            parts.done(one, took_ns=10)
        one.announced.clear()
        ids = [str(number) for number in range(2 * MOST_AHEAD)]
        parts.enqueue(*ids)
        parts.dispatcher.poll()
        assert one.batches == [[id] for id in ids[: 1 + MOST_AHEAD]]
        assert one.announced == [1 + MOST_AHEAD]  # told of all at once
        parts.done(one, took_ns=10)
        assert one.batches == [[id] for id in ids[1 : 2 + MOST_AHEAD]]
        parts.done(one, took_ns=1_000_000)  # not quick any more
        assert one.batches == [[id] for id in ids[2 : 2 + MOST_AHEAD]]

    run(scenario)


def test_an_instance_with_a_number_of_streams_has_one_work_at_a_time() -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(1)), Executor()
        one.streams = 9
        parts.dispatcher.join(one)
        for _ in range(QUICK_IN_A_ROW):
            parts.enqueue("warm")
            parts.dispatcher.poll()
            parts.done(one, took_ns=10)
        parts.enqueue("a", "b")
        parts.dispatcher.poll()
        assert one.batches == [["a"]]
        one.takes_work = False
        parts.done(one, took_ns=10)
        assert one.batches == []
        one.takes_work = True
        parts.dispatcher.work_done(cast(Any, one), ())
        assert one.batches == [["b"]]

    run(scenario)


def test_a_slower_instance_has_its_next_batch_before_it_is_idle() -> None:
    """At once if that is full, else when most of the time is over that the last ones took."""

    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(2)), Executor()
        parts.dispatcher.join(one)
        for _ in range(2):
            parts.enqueue("warm")
            parts.dispatcher.poll()
            parts.done(one, took_ns=800_000)
        parts.enqueue("a")
        parts.dispatcher.poll()
        parts.enqueue("b")
        parts.dispatcher.poll()
        assert one.batches == [["a"]]
        assert parts.alarm.at_ns == parts.clock() + 700_000
        parts.enqueue("c", "d")
        parts.dispatcher.poll()
        assert one.batches == [["a"], ["b", "c"]]
        assert parts.alarm.at_ns is None
        parts.done(one, took_ns=800_000)
        assert one.batches == [["b", "c"]]
        parts.clock.now_ns = parts.alarm.at_ns or 0
        parts.dispatcher.poll()
        assert one.batches == [["b", "c"], ["d"]]

    run(scenario)


def test_an_instance_whose_stub_is_dead_gets_no_further_work() -> None:
    async def scenario() -> None:
        parts, one, two = Parts(DynamicBatcher(1)), Executor(), Executor()
        parts.dispatcher.join(one)
        parts.enqueue("a", "b")
        parts.dispatcher.poll()
        one.takes_work = False
        parts.done(one)
        assert one.works == []
        parts.dispatcher.leave(one)
        parts.dispatcher.join(two)
        assert two.batches == [["b"]]

    run(scenario)


def test_the_alarm_is_set_and_turned_off() -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(2, max_queue_delay_us=100)), Executor()
        parts.dispatcher.join(one)
        parts.enqueue("a")
        parts.dispatcher.poll()
        assert parts.alarm.at_ns == parts.clock.now_ns + 100_000
        assert one.works == []
        parts.enqueue("b")
        parts.dispatcher.poll()
        assert one.batches == [["a", "b"]]
        assert parts.alarm.at_ns is None
        parts.dispatcher.close()
        assert parts.alarm.closed

    run(scenario)


def test_a_poll_from_within_an_answer_has_the_last_word_on_the_alarm() -> None:
    async def scenario() -> None:
        script = Script()
        parts = Parts(script)
        gone = parts.reader.request("gone")
        script.decide(answer=[(gone, unavailable("late"))], wake_at_ns=2_000)
        script.decide(wake_at_ns=1_000)
        parts.answers.on_answer = parts.dispatcher.poll
        parts.dispatcher.poll()
        assert [id for id, _, _ in parts.answers.got] == ["gone"]
        assert parts.alarm.at_ns == 1_000

    run(scenario)


def test_a_chain_of_answers_is_no_recursion() -> None:
    async def scenario() -> None:
        script = Script()
        parts = Parts(script)
        depth = deepest = 0
        requests = [parts.reader.request(str(n)) for n in range(5_000)]
        for request in requests:
            script.decide(answer=[(request, unavailable("no"))])

        def again() -> None:
            nonlocal depth, deepest
            depth += 1
            deepest = max(deepest, depth)
            parts.dispatcher.poll()
            depth -= 1

        parts.answers.on_answer = again
        parts.dispatcher.poll()
        assert len(parts.answers.got) == len(requests)
        assert deepest == 1

    run(scenario)


def test_who_is_cancelled_or_expires_is_counted_so() -> None:
    async def scenario() -> None:
        script = Script()
        parts = Parts(script)
        a, b = parts.reader.request("a"), parts.reader.request("b")
        script.decide(answer=[(a, ServeError(Code.CANCELLED, "gone")), (b, unavailable("late"))])
        parts.dispatcher.poll()
        assert [(id, outcome) for id, _, outcome in parts.answers.got] == [("a", CANCELLED), ("b", REJECTED)]

    run(scenario)


@pytest.mark.parametrize("refusal", [unavailable("no room in shared memory"), ValueError("a fault")])
def test_work_that_cannot_be_handed_over_is_answered(refusal: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(1)), Executor("m_0")
        parts.dispatcher.join(one)
        one.refuses = refusal
        parts.enqueue("a", "b")
        parts.dispatcher.poll()
        ((id, error, outcome),) = parts.answers.got
        assert (id, outcome) == ("a", OTHER_FAILURE)
        if isinstance(refusal, ServeError):
            assert error is refusal
        else:
            assert error.code is Code.INTERNAL
            assert "'m_0'" in error.message
            assert "a fault" in caplog.text
        one.refuses = None
        await asyncio.sleep(0)  # the instance is offered again
        assert one.batches == [["b"]]

    with caplog.at_level(logging.ERROR):
        run(scenario)


def test_a_scheduler_that_fails_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        script = Script()
        parts, busy, idle = Parts(script), Executor(), Executor()
        parts.dispatcher.join(busy)
        parts.dispatcher.join(idle)
        (a,) = parts.enqueue("a")
        script.decide(run=[(busy, Work([a]))])
        parts.dispatcher.poll()
        script.waiting.clear()
        parts.enqueue("b", "c")
        script.heard.clear()
        script.decisions.append(KeyError("lost track"))
        parts.dispatcher.poll()
        assert [(id, error.code) for id, error, _ in parts.answers.got] == [
            ("b", Code.INTERNAL), ("c", Code.INTERNAL),
        ]  # fmt: skip
        assert script.heard == [("instance_idle", idle)]
        assert "lost track" in caplog.text
        parts.done(busy)
        assert script.heard[1][0] == "work_done"

    with caplog.at_level(logging.ERROR):
        run(scenario)


def test_the_scheduler_hears_of_responses_and_released_slots() -> None:
    async def scenario() -> None:
        script = Script()
        parts, one = Parts(script), Executor()
        parts.dispatcher.join(one)
        (a,) = parts.enqueue("a")
        work = Work.of_slots([None, a])
        script.decide(run=[(one, work)])
        parts.dispatcher.poll()
        script.heard.clear()
        parts.dispatcher.on_response(one, a, Response(), 0)
        parts.done(one)
        assert script.heard == [("response_complete", a), ("work_done", work), ("instance_idle", one)]

    run(scenario)


def test_nothing_is_handed_out_once_it_is_closed() -> None:
    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(1)), Executor()
        parts.dispatcher.join(one)
        parts.enqueue("a", "b")
        parts.dispatcher.poll()
        parts.dispatcher.close()
        parts.done(one)
        parts.dispatcher.join(Executor())
        assert one.works == []
        assert parts.dispatcher.serving == 0
        assert [request.id for request in parts.dispatcher.drain()] == ["b"]

    run(scenario)


def test_a_request_that_comes_as_it_is_closed_is_left_to_be_drained() -> None:
    """An instance that is idle is not given it any more: it is about to be ended."""

    async def scenario() -> None:
        parts, one = Parts(DynamicBatcher(1)), Executor()
        parts.dispatcher.join(one)
        parts.enqueue("a")
        parts.dispatcher.poll_soon()
        parts.dispatcher.close()
        await asyncio.sleep(0)
        assert one.works == []
        assert parts.answers.got == []
        assert [request.id for request in parts.dispatcher.drain()] == ["a"]

    run(scenario)
