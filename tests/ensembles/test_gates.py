"""What `max_inflight_requests` holds back, and that it never holds back for ever, whatever the steps of an ensemble."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.ensembles import backpressure
from stubserve.ensembles.model import EnsembleModel
from stubserve.ensembles.problems import is_decoupled
from stubserve.errors import ServeError, internal
from stubserve.inference.request import Request
from stubserve.model_config.proto import ModelConfig

from ..real_server import PATIENCE_S
from .test_model import CHAIN, DECOUPLED, Member, Pipe, chain, config_of, on_a_loop, step

LIMIT = 2


@on_a_loop
async def test_a_step_does_not_run_ahead_of_the_next() -> None:
    """Results that wait for the next step are those of `LIMIT` runs, however many requests there are."""
    pipe, first, second = chain(limit=LIMIT)
    for number in range(60):
        pipe.submit(str(number))
    answered = 0
    for number in range(60):
        while first.requests:
            first.answer(pipe.tensor())
            answered += 1
        assert len(second.requests) == min(LIMIT, 60 - number)
        assert answered == min(number + 2 * LIMIT, 60)
        second.answer(pipe.tensor())
    assert pipe.reader.ids == [str(number) for number in range(60)]
    await pipe.over()


@on_a_loop
async def test_a_place_that_is_kept_is_free_when_its_request_is_over() -> None:
    """Because it was cancelled, or because another of its steps has failed."""
    pipe, first, second = chain(limit=1)
    requests = [pipe.submit(id) for id in "abcd"]
    first.answer(pipe.tensor())
    first.answer(pipe.tensor())
    assert not first.requests
    pipe.model.cancel(requests[1])
    assert [request.id for request in first.requests] == ["c"]
    first.answer(pipe.tensor())
    second.answer(error=internal("no"))
    assert [request.id for request in second.requests] == ["c"]
    assert [request.id for request in first.requests] == ["d"]
    pipe.model.cancel(requests[2])
    second.answer(pipe.tensor())
    first.answer(pipe.tensor())
    second.answer(pipe.tensor())
    await pipe.over()


@on_a_loop
async def test_the_place_of_a_stream_is_free_when_the_last_of_its_responses_has_gone_on() -> None:
    pipe, first, second = chain(limit=1, more=DECOUPLED)
    pipe.submit("a")
    pipe.submit("b")
    for _ in range(3):
        first.answer(pipe.tensor(), final=False)
    first.end()
    for _ in range(2):
        assert not first.requests
        second.answer(pipe.tensor())
    assert [request.id for request in first.requests] == ["b"]
    second.answer(pipe.tensor())
    first.end()
    await pipe.over()


@on_a_loop
async def test_many_that_fail_at_a_gate_at_once() -> None:
    """Each of them lets the next one in, and none of them in its own call."""
    pipe, first, second = chain(limit=1)
    for number in range(2000):
        pipe.submit(str(number))
    first.refusal = internal("down")
    first.answer(error=internal("died"))
    assert len(pipe.reader.got) == 2000
    told = [response.error.message for response in pipe.responses if response.error]
    assert sorted(text.partition(" (step")[0].rpartition(" ")[2] for text in told) == ["died", *["down"] * 1999]
    assert not second.requests
    await pipe.over()


# Any graph


class Graph:
    """A random ensemble, some of whose steps are ensembles, with members that answer at random.

    A member that is told to pause sends nothing until it may go on. Some have one instance, which ends its request
    before it begins the next.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.pipe = Pipe(config_of(*CHAIN))
        self.pipe.members.clear()
        self.streams: set[str] = set()
        self.single: set[str] = set()
        self.pipe.model = self.ensemble("pipe", random.choice([0, 0, 1, 2]))
        self.open: list[Request] = []
        # How many more responses a stream has
        self.left: dict[Request, int] = {}

    def ensemble(self, name: str, depth: int, may_stream: bool = True) -> EnsembleModel:
        random = self.random
        tensors, unread, steps = ["IN"], {"IN"}, []
        configs: dict[str, ModelConfig] = {}
        count = random.randint(1, 4)
        for number in range(count + 1):
            model = f"{name}.{number}"
            read = random.sample(tensors, min(random.choice([1, 1, 2, 3]), len(tensors)))
            if number == count:
                read = sorted(unread)  # the last step joins what nobody has read
            unread.difference_update(read)
            if depth and len(read) == 1 and random.random() < 0.6:
                inner = self.ensemble(model, depth - 1, may_stream)
                configs[model] = inner.config
                self.pipe.members[model] = inner  # type: ignore[assignment]
                names = ["IN"]
            else:
                names = [f"IN{index}" for index in range(len(read))]
                self.pipe.members[model] = Member(model, " ".join(names))
                if random.random() < 0.5:
                    self.single.add(model)
                configs[model] = ModelConfig(name=model)
                configs[model].model_transaction_policy.decoupled = may_stream and random.random() < 0.3
                if configs[model].model_transaction_policy.decoupled:
                    self.streams.add(model)
            made = "OUT" if number == count else f"t{number}"
            steps.append(step(model, dict(zip(names, read, strict=True)), {"OUT": made}))
            tensors.append(made)
            unread.add(made)
        config = config_of(*steps, limit=random.choice([0, 1, 1, 2, 3]))
        try:
            config.model_transaction_policy.decoupled = is_decoupled(config, configs)
        except ServeError:  # two streams would meet
            self.streams.difference_update(configs)
            return self.ensemble(name, depth, may_stream=False)
        return EnsembleModel(name, 1, config, self.pipe, {})  # type: ignore[arg-type]

    def able(self) -> list[tuple[Member, Request]]:
        """The requests that members can answer now."""
        return [
            (member, request)
            for member in self.pipe.members.values()
            if isinstance(member, Member)
            for request in (member.requests[:1] if member.name in self.single else member.requests)
            if request.stream is None or not request.stream.paused
        ]

    def answer(self) -> None:
        member, request = self.random.choice(self.able())
        member.requests.remove(request)
        member.requests.insert(0, request)
        if self.random.random() < 0.05:
            member.answer(error=internal("no"))
        elif member.name not in self.streams:
            member.answer(self.pipe.tensor())
        else:
            left = self.left.setdefault(request, self.random.randint(0, 8))
            self.left[request] -= 1
            if left:
                member.answer(self.pipe.tensor(), final=False)
            else:
                member.end()

    def check(self) -> None:
        """No step has more requests under way than its limit."""
        for model in (self.pipe.model, *self.pipe.members.values()):
            if isinstance(model, EnsembleModel) and model.gates:
                members = [self.pipe.members[one.model] for one in model.plan.steps]
                limit = model.config.ensemble_scheduling.max_inflight_requests
                assert all(len(one.requests) <= limit for one in members if isinstance(one, Member))


@pytest.fixture(autouse=True, scope="module")
def _few() -> Iterator[None]:
    """Streams are paused after a few responses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backpressure, "_MANY", 3)
        yield


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
@on_a_loop
async def test_no_graph_waits_for_ever(random: Random) -> None:
    """With branches, ensembles in ensembles, streams, errors and cancelled requests."""
    graph = Graph(random)
    count = random.randint(1, 8)
    for turn in range(100_000):
        if turn < count:
            graph.open.append(graph.pipe.submit(str(turn)))
        if random.random() < 0.05:
            graph.pipe.model.cancel(random.choice(graph.open))
        for _ in range(3):
            await asyncio.sleep(0)  # ensembles in ensembles begin in a later turn of the loop
        graph.check()
        if graph.able():
            graph.answer()
        elif turn >= count:
            break
    finals = [id for id, response in graph.pipe.reader.got if response.final]
    assert sorted(finals, key=int) == [str(number) for number in range(count)]
    await asyncio.wait_for(graph.pipe.model.drained(), PATIENCE_S)
    assert graph.pipe.memory.live == 0
