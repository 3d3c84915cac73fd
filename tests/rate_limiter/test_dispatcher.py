from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import internal
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.model_config.parse import parse_text
from stubserve.rate_limiter.dispatcher import LimitedDispatcher
from stubserve.rate_limiter.limiter import RateLimiter
from stubserve.schedulers.base import Scheduler
from stubserve.schedulers.depth import QUICK_IN_A_ROW
from stubserve.schedulers.dynamic_batcher import DynamicBatcher
from stubserve.schedulers.factory import create_scheduler
from stubserve.serving.alarm import Alarm
from tests.serving.fakes import Clock, Reader
from tests.serving.test_dispatcher import Answers, Executor, FakeAlarm


class Limits:
    """Models that share one limiter."""

    def __init__(self) -> None:
        self.limiter = RateLimiter()

    def model(self, scheduler: Scheduler, *counts: int, priority: int = 1) -> Model:
        """A model with an instance for each of `counts`, which is how much of R it asks for."""
        return Model(self, scheduler, counts, priority)

    @property
    def held(self) -> int:
        return sum(held for held, _ in self.limiter.usage.values())


class Model:
    def __init__(self, limits: Limits, scheduler: Scheduler, counts: tuple[int, ...], priority: int) -> None:
        self.clock = Clock()
        self.alarm = FakeAlarm()
        self.answers = Answers()
        self.reader = Reader()
        # Any: instances and delivery are fakes
        self.dispatcher: Any = LimitedDispatcher(
            limits.limiter, "m", scheduler, cast(Any, self.answers), self.clock, lambda _: cast(Alarm, self.alarm)
        )
        self.executors = [Executor(f"i_{index}") for index in range(len(counts))]
        for executor, count in zip(self.executors, counts, strict=True):
            demands = [("R", False, count)]
            limits.limiter.check([(demands, 0)])
            executor.spec = SimpleNamespace(resources=demands, device_id=0, priority=priority)
            self.dispatcher.limit(executor)
            self.dispatcher.join(executor)

    def ask(self, *ids: str, **more: Any) -> list[Request]:
        requests = []
        for id in ids:
            request = self.reader.request(id, **more)
            self.dispatcher.enqueue(request)
            requests.append(request)
        self.dispatcher.poll()
        return requests

    def done(self, which: int = 0, works: int = 1, took_ns: int = 1_000_000) -> None:
        executor = self.executors[which]
        done, executor.works = executor.works[:works], executor.works[works:]
        for work in done:
            for request in work.requests:
                request.compute_input_end_ns, request.compute_infer_end_ns = 0, took_ns
        self.dispatcher.work_done(executor, [(work, ()) for work in done])

    def warm_up(self) -> None:
        """Has its instance be one that is always quick."""
        for number in range(QUICK_IN_A_ROW):
            self.ask(f"warm-up {number}")
            self.done(took_ns=1000)

    @property
    def batches(self) -> list[list[list[str]]]:
        return [executor.batches for executor in self.executors]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        await scenario()

    asyncio.run(inside())


def test_two_models_with_one_resource_take_turns_and_batches_are_formed_late() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(8), 1), limits.model(DynamicBatcher(8), 1)
        one.ask("a")
        two.ask("x")
        two.ask("y")
        assert (one.batches, two.batches) == ([[["a"]]], [[]])
        two.ask("z")
        one.ask("b")
        one.done()
        assert (one.batches, two.batches) == ([[]], [[["x", "y", "z"]]])
        two.done()
        assert (one.batches, two.batches) == ([[["b"]]], [[]])
        one.done()
        assert limits.held == 0

    run(scenario)


def test_instances_that_ask_for_nothing_are_dispatched_as_ever() -> None:
    async def scenario() -> None:
        limits = Limits()
        holder, free = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 0, 1)
        holder.ask("h")
        free.ask("a", "b")
        assert free.batches == [[["a"]], []]
        free.done()
        assert free.batches == [[["b"]], []]
        holder.done()
        assert limits.held == 0
        free.ask("c")
        assert free.batches == [[["b"]], [["c"]]]

    run(scenario)


def test_several_instances_run_as_far_as_the_resource_goes() -> None:
    async def scenario() -> None:
        limits = Limits()
        limits.model(DynamicBatcher(1), 3)
        model = limits.model(DynamicBatcher(1), 1, 1, 1, 1)
        model.ask("a", "b", "c", "d", "e")
        assert model.batches == [[["a"]], [["b"]], [["c"]], []]
        model.done(1)
        assert model.batches == [[["a"]], [], [["c"]], [["d"]]]
        model.done(0)
        assert [len(one) for one in model.batches] == [0, 1, 1, 1]
        assert limits.held == 3

    run(scenario)


def test_a_batch_that_waits_to_fill_keeps_no_resource() -> None:
    async def scenario() -> None:
        limits = Limits()
        waits = limits.model(DynamicBatcher(4, (4,), 1000), 1)
        other = limits.model(DynamicBatcher(1), 1)
        waits.ask("a")
        assert waits.batches == [[]]
        assert limits.held == 0
        assert waits.alarm.at_ns == waits.clock.now_ns + 1_000_000
        other.ask("x")
        assert other.batches == [[["x"]]]
        waits.clock.now_ns += 2_000_000
        waits.dispatcher.poll()  # the alarm
        assert waits.batches == [[]]
        other.done()
        assert waits.batches == [[["a"]]]
        waits.done()
        assert limits.held == 0

    run(scenario)


def test_requests_that_are_cancelled_while_their_model_waits_cost_nobody_a_turn() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two, three = (limits.model(DynamicBatcher(1), 1) for _ in range(3))
        one.ask("a")
        (gone,) = two.ask("x")
        three.ask("y")
        two.dispatcher.cancel(gone)
        assert [id for id, _, _ in two.answers.got] == ["x"]
        one.done()
        assert (two.batches, three.batches) == ([[]], [[["y"]]])

    run(scenario)


def test_a_stub_that_dies_gives_back_and_one_that_is_retired_when_it_has_finished() -> None:
    async def scenario() -> None:
        limits = Limits()
        dies, retires, waits = (limits.model(DynamicBatcher(1), 1) for _ in range(3))
        dies.ask("a")
        retires.ask("b")
        dies.executors[0].takes_work = False
        dies.dispatcher.leave(dies.executors[0])
        assert retires.batches == [[["b"]]]
        waits.ask("c")
        retires.executors[0].takes_work = False
        retires.dispatcher.leave(retires.executors[0], finishing=True)
        assert waits.batches == [[]]
        retires.done()
        assert waits.batches == [[["c"]]]
        retires.dispatcher.forget(retires.executors[0])
        dies.executors[0].takes_work = True
        dies.dispatcher.join(dies.executors[0])
        dies.ask("d")
        waits.done()
        assert dies.batches == [[["a"], ["d"]]]  # "a" was lost with the stub before
        dies.dispatcher.close()
        waits.dispatcher.close()
        assert limits.limiter.usage == {}

    run(scenario)


def test_an_instance_that_refuses_its_work_gives_back() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 1)
        one.executors[0].refuses = internal("no room")
        one.ask("a")
        two.ask("x")
        assert [id for id, _, _ in one.answers.got] == ["a"]
        assert two.batches == [[["x"]]]
        one.executors[0].refuses = None
        one.ask("b")
        two.done()
        await asyncio.sleep(0)
        assert one.batches == [[["b"]]]

    run(scenario)


def test_sequences_run_on_their_own_instances() -> None:
    async def scenario() -> None:
        config = parse_text(
            'name: "m" max_batch_size: 1 sequence_batching { direct { } max_sequence_idle_microseconds: 1000000000 }',
            "config.pbtxt",
        )
        limits = Limits()
        model, other = limits.model(create_scheduler(config), 1, 1), limits.model(DynamicBatcher(1), 1)
        model.ask("a1", correlation_id=1, flags=SEQUENCE_START)
        model.ask("b1", correlation_id=2, flags=SEQUENCE_START)
        assert model.batches == [[["a1"]], []]
        model.done(0)
        assert model.batches == [[], [["b1"]]]
        other.ask("x")
        model.ask("b2", correlation_id=2, flags=SEQUENCE_END)
        model.done(1)
        assert (model.batches, other.batches) == ([[], []], [[["x"]]])
        other.done()
        assert model.batches == [[], [["b2"]]]
        model.done(1)
        model.ask("a2", correlation_id=1, flags=SEQUENCE_END)
        assert model.batches == [[["a2"]], []]
        model.done(0)
        assert limits.held == 0

    run(scenario)


def test_the_oldest_strategy_and_iterations_share_resources_too() -> None:
    async def scenario() -> None:
        config = parse_text(
            'name: "m" max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 4 } '
            "max_sequence_idle_microseconds: 1000000000 }",
            "config.pbtxt",
        )
        iterative = parse_text(
            'name: "m" max_batch_size: 4 sequence_batching { iterative_sequence: true }', "config.pbtxt"
        )
        limits = Limits()
        oldest, loop = (limits.model(create_scheduler(one), 1) for one in (config, iterative))
        oldest.ask("a", correlation_id=1, flags=SEQUENCE_START | SEQUENCE_END)
        loop.ask("x")
        assert (oldest.batches, loop.batches) == ([[["a"]]], [[]])
        oldest.ask("b", correlation_id=2, flags=SEQUENCE_START | SEQUENCE_END)
        oldest.done()
        assert (oldest.batches, loop.batches) == ([[]], [[["x"]]])
        loop.done()
        assert oldest.batches == [[["b"]]]

    run(scenario)


# Ahead of time


def test_a_quick_instance_has_work_ahead_while_nobody_else_waits() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 1)
        one.warm_up()
        two.warm_up()
        one.ask("a", "b", "c")
        assert one.batches == [[["a"], ["b"], ["c"]]]
        one.done(took_ns=1000)
        one.ask("d")
        assert one.batches == [[["b"], ["c"], ["d"]]]
        # From now on it gets nothing more, and gives back when it has executed what it has.
        two.ask("x", "y")
        one.ask("e", "f")
        for left in ([["c"], ["d"]], [["d"]]):
            one.done(took_ns=1000)
            assert (one.batches, two.batches) == ([left], [[]])
        one.done(took_ns=1000)
        assert (one.batches, two.batches) == ([[]], [[["x"]]])
        # Both want to go on, so they take turns.
        two.done(took_ns=1000)
        assert (one.batches, two.batches) == ([[["e"]]], [[]])
        one.done(took_ns=1000)
        two.done(took_ns=1000)
        assert (one.batches, two.batches) == ([[["f"]]], [[]])
        one.done(took_ns=1000)
        assert limits.held == 0

    run(scenario)


def test_an_instance_that_is_full_holds_nothing_and_waits_for_nothing() -> None:
    async def scenario() -> None:
        limits = Limits()
        streams = limits.model(DynamicBatcher(1), 1)
        other = limits.model(DynamicBatcher(1), 1)
        (executor,) = streams.executors
        streams.ask("a", "b")
        executor.takes_work = False  # "a" stays open
        streams.done()
        assert limits.held == 0
        other.ask("c")
        assert other.batches == [[["c"]]]
        executor.takes_work = True
        streams.dispatcher.work_done(executor, ())
        assert streams.batches == [[]]
        other.done()
        assert streams.batches == [[["b"]]]

    run(scenario)


def test_results_that_come_together_end_what_an_instance_holds() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 1)
        one.warm_up()
        one.ask("a", "b", "c")
        one.done(works=3, took_ns=1000)
        assert limits.held == 0
        two.ask("x")
        one.ask("d")
        assert (one.batches, two.batches) == ([[]], [[["x"]]])
        two.done()
        assert one.batches == [[["d"]]]

    run(scenario)


@pytest.mark.parametrize("took_ns", [300_000, 5_000_000])
def test_a_slower_instance_has_nothing_ahead(took_ns: int) -> None:
    async def scenario() -> None:
        limits = Limits()
        model = limits.model(DynamicBatcher(1), 1)
        for _ in range(QUICK_IN_A_ROW + 2):
            model.ask("a", "b")
            assert model.batches == [[["a"]]]
            model.done(took_ns=took_ns)
            assert model.batches == [[["b"]]]
            model.done(took_ns=took_ns)

    run(scenario)


def test_an_instance_that_is_retired_keeps_its_resources_until_all_that_it_has_is_executed() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 1)
        one.warm_up()
        one.ask("a", "b", "c")
        one.executors[0].takes_work = False
        one.dispatcher.leave(one.executors[0], finishing=True)
        two.ask("x")
        one.done(took_ns=1000)
        one.dispatcher.leave(one.executors[0], finishing=True)
        one.done(took_ns=1000)
        assert two.batches == [[]]
        one.done(took_ns=1000)
        assert two.batches == [[["x"]]]

    run(scenario)


def test_an_instance_that_dies_with_work_ahead_gives_back_at_once() -> None:
    async def scenario() -> None:
        limits = Limits()
        one, two = limits.model(DynamicBatcher(1), 1), limits.model(DynamicBatcher(1), 1)
        one.warm_up()
        one.ask("a", "b")
        two.ask("x")
        one.executors[0].takes_work = False
        one.dispatcher.leave(one.executors[0], finishing=True)
        one.dispatcher.leave(one.executors[0])
        assert two.batches == [[["x"]]]

    run(scenario)


def test_an_instance_that_refuses_what_it_is_given_ahead_goes_on() -> None:
    async def scenario() -> None:
        limits = Limits()
        model = limits.model(DynamicBatcher(1), 1)
        model.warm_up()
        model.ask("a")
        model.executors[0].refuses = internal("no room")
        model.ask("b")
        assert [id for id, _, _ in model.answers.got] == ["b"]
        model.executors[0].refuses = None
        model.ask("c")
        assert model.batches == [[["a"], ["c"]]]
        model.done(took_ns=1000, works=2)
        await asyncio.sleep(0)
        assert limits.held == 0

    run(scenario)


steps_ = st.lists(st.tuples(st.sampled_from(["ask", "ask", "done", "all done"]), st.integers(0, 2)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=3), st.booleans(), steps_)
def test_whoever_has_work_ahead_lets_others_in_and_nothing_is_forgotten(
    counts: list[int], batching: bool, steps: list[tuple[str, int]]
) -> None:
    async def scenario() -> None:
        limits = Limits()
        models = [limits.model(DynamicBatcher(4) if batching else DynamicBatcher(1), count) for count in counts]
        for model in models:
            model.warm_up()
        asked = executed = 0
        for step, number in [*steps, *(("all done", which) for _ in range(200) for which in range(len(models)))]:
            which = number % len(models)
            works = [len(model.executors[0].works) for model in models]
            somebody_waits = any(not has and one.dispatcher.queued for has, one in zip(works, models, strict=True))
            if step == "ask":
                models[which].ask(f"r {asked}")
                asked += 1
            elif works[which]:
                done = 1 if step == "done" else works[which]
                executed += sum(len(work.requests) for work in models[which].executors[0].works[:done])
                models[which].done(works=done, took_ns=1000)
                works[which] -= done
            held = sum(count for count, one in zip(counts, models, strict=True) if one.executors[0].works)
            assert held == limits.held <= max(counts)
            for had, model in zip(works, models, strict=True):
                if had and somebody_waits:  # who has given everything back may have been let in anew
                    assert len(model.executors[0].works) == had
        assert executed == asked
        assert limits.held == 0

    run(scenario)
