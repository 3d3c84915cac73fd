"""Equal requests that wait for each other (`coalesce=true`), under any schedule: what readers do when they are answered
is drawn at random, with failures, cancellations, full queues, deaths and a store elsewhere in between.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError, internal
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block

from ..real_server import PATIENCE_S
from .test_stage import FP32, Cached, answer

PLAIN = ""
ORDERED = "max_batch_size: 2 dynamic_batching { preserve_ordering: true }"
LIMIT = 3
LIMITED = f"max_batch_size: 2 dynamic_batching {{ default_queue_policy {{ max_queue_size: {LIMIT} }} }}"

# What a reader does when it has its answer, and what happens otherwise: numbers are of requests, modulo how many
reactions = st.one_of(
    st.none(),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("cancel all"), st.just(0)),
    st.tuples(st.just("ask"), st.integers(0, 1)),
    st.tuples(st.just("fail"), st.just(0)),
)
events = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 1), st.sampled_from((None, "a", "b")), reactions),
    st.tuples(st.just("ask"), st.integers(0, 1), st.sampled_from((None, "a", "b")), reactions),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("finish"), st.booleans()),
    st.tuples(st.just("turn")),
)
ASK = ("ask", 0, None, None)


class Elsewhere:
    """A store that has nothing, and says so some turns later, sometimes the last question first."""

    def __init__(self) -> None:
        self._turns = itertools.cycle((1, 3, 2, 0))

    async def get(self, key: bytes) -> bytes:
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)
        return b""

    async def put(self, key: bytes, value: bytes) -> None:
        pass


class Herd:
    """A model with a cache, and readers that do something when they are answered."""

    def __init__(self, config: str, remote: Elsewhere | None) -> None:
        self.served = Cached(config, coalesces=True, remote=remote)
        self.requests: list[Request] = []
        self.keys: dict[Request, int] = {}
        self.answers: dict[Request, Response] = {}
        self.live_blocks = 0
        self.wrong: list[tuple[Request, Response]] = []

    @property
    def unanswered(self) -> list[Request]:
        return [request for request in self.requests if request not in self.answers]

    @property
    def executing(self) -> int:
        return sum(len(work.requests) for work in self.served.stubs["m_0"].work.works)

    def ask(self, key: int, client: str | None = None, reaction: Any = None) -> bool:
        self.served.clock.now_ns += 1
        self.live_blocks += 1
        block = Block(0, 4, memoryview(bytearray(b"%04d" % key)), self._release)
        tensor = Tensor("I", FP32, (1,), None, block.whole())
        request = Request([tensor], on_response=partial(self._on_response, reaction))
        request.admitted, request.client = True, client
        try:
            self.served.model.submit(request)
        except ServeError:  # the queue is full, or nobody serves
            request.inputs[0].span.drop()  # type: ignore[union-attr]
            return False
        self.requests.append(request)
        self.keys[request] = key
        return True

    def cancel(self, number: int) -> None:
        if self.requests:
            self.served.model.cancel(self.requests[number % len(self.requests)])

    def finish(self, well: bool) -> None:
        stub = self.served.stubs["m_0"]
        if stub.work.works:
            self.served.clock.now_ns += 1000
            # By their ids, which are all the same
            for request in stub.work.works[0].requests:
                request.id = str(id(request))
            answers = {
                request.id: answer(b"%04d" % self.keys[request]) if well else Response(error=internal("no"))
                for request in stub.work.works[0].requests
            }
            stub.finish(**answers)

    def _release(self, block: Block) -> None:
        self.live_blocks -= 1

    def _on_response(self, reaction: Any, request: Request, response: Response) -> None:
        # What is raised here is the reader's own mistake, and the test never hears of it.
        wrong = request in self.answers or not response.final
        self.answers[request] = response
        if response.error is not None:
            wrong |= response.error.code is Code.CANCELLED and not request.cancelled
        elif response.outputs:
            wrong |= bytes(response.outputs[0].buffer) != b"%04d" % self.keys[request]
        else:
            wrong |= not request.cancelled
        if wrong:
            self.wrong.append((request, response))
        if reaction is None:
            return
        what, number = reaction
        if what == "cancel":
            self.cancel(number)
        elif what == "cancel all":
            for one in self.unanswered:
                self.served.model.cancel(one)
        elif what == "ask":
            self.ask(number)
        else:
            raise RuntimeError("a reader's mistake")

    async def settle(self) -> None:
        """Everything that the model can do without an instance's answer is done."""
        for _ in range(10):
            await asyncio.sleep(0)


async def live(config: str, remote: Elsewhere | None, history: Sequence[Any], dies: bool) -> None:
    herd = Herd(config, remote)
    await herd.served.start("m_0")
    for what, *more in history:
        if what == "ask":
            herd.ask(*more)
        elif what == "cancel":
            herd.cancel(more[0])
        elif what == "finish":
            herd.finish(more[0])
            # Nothing is kept, so that there is always somebody to wait for.
            if herd.served.local is not None:
                herd.served.local.clear()
        else:
            await herd.settle()
            if config is LIMITED:
                assert len(herd.unanswered) - herd.executing <= LIMIT
    if dies:
        herd.served.stubs["m_0"].die()
    for _ in range(10 * len(history) + 10):
        await herd.settle()
        if not herd.unanswered:
            break
        herd.finish(True)
    assert herd.unanswered == []
    assert herd.wrong == []
    await asyncio.wait_for(herd.served.model.drained(), PATIENCE_S)
    assert herd.live_blocks == 0
    if not dies and config is LIMITED:
        # Every place is free again.
        if remote is None:
            assert [herd.ask(key) for key in range(2, 2 + 2)] == [True] * 2
            await herd.settle()
        assert [herd.ask(9) for _ in range(LIMIT + 1)] == [True] * LIMIT + [False]


@pytest.mark.parametrize(
    ("config", "elsewhere"),
    [(PLAIN, False), (ORDERED, False), (LIMITED, False), (LIMITED, True), (PLAIN, True), (ORDERED, True)],
    ids=["plain", "ordered", "limited", "limited and elsewhere", "elsewhere", "ordered and elsewhere"],
)
@example(history=[ASK, ASK, ("cancel", 0), ASK], dies=False)
@settings(max_examples=150, deadline=None)
@given(history=st.lists(events, max_size=30), dies=st.booleans())
def test_everybody_is_answered_once_whoever_is_cancelled_and_when(
    config: str, elsewhere: bool, history: Sequence[Any], dies: bool
) -> None:
    asyncio.run(live(config, Elsewhere() if elsewhere else None, history, dies))
