from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.errors import Code, ServeError, unavailable
from stubserve.inference.call import Call
from stubserve.inference.long_work import LongWork, Offload
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import TENSOR_BYTES, ModelTracing
from stubserve.memory.blocks import Block
from stubserve.memory.client_regions import ClientRegions
from stubserve.memory.heap_account import HeapAccount
from stubserve.memory.regions import RegionSpan
from tests.client_memory import SharedFile
from tests.inference.models import request as make

from .models import echo
from .traces import Collected


class Model:
    """Takes requests, or refuses them."""

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def __init__(self) -> None:
        self.name, self.version = "m", 1
        self.signature = echo("m", "FP32", "1")
        self.refuses: Exception | None = None
        self.submitted: list[Request] = []
        self.enqueued: list[Request] = []
        self.cancelled: list[Request] = []

    def submit(self, request: Request) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append(request)

    def enqueue(self, request: Request) -> None:
        self.enqueued.append(request)

    def cancel(self, request: Request) -> None:
        self.cancelled.append(request)


class Recorded(Call):
    def __init__(self, model: Model) -> None:
        super().__init__(cast(ServedModel, model))
        self.got: list[Response] = []
        self.released = 0

    def respond(self, request: Request, response: Response) -> None:
        self.got.append(response)

    def asked(self, size: int = 4, **fields: Any) -> Request:
        """A request of this call with an input of that many bytes in a block."""
        block = Block(0, size, memoryview(bytearray(size)), self._release)
        return make(Tensor("IN", 11, [1], None, block, 0, size), **fields)

    def _release(self, block: Block) -> None:
        self.released += 1


def test_responses_come_until_one_is_final() -> None:
    model = Model()
    call = Recorded(model)
    request = call.asked()
    call.submit(request)
    assert model.submitted == [request]
    assert request.admitted
    assert call.request is request
    first, last = Response(final=False), Response()
    request.on_response(request, first)
    assert call.request is request
    request.on_response(request, last)
    assert call.request is None
    request.on_response(request, Response())
    assert call.got == [first, last]


def test_who_submits_many_together_polls_by_itself() -> None:
    model = Model()
    call = Recorded(model)
    request = call.asked()
    call.submit(request, together=True)
    assert (model.submitted, model.enqueued) == ([], [request])


def test_a_refusal_leaves_nothing() -> None:
    model = Model()
    call = Recorded(model)
    with pytest.raises(ServeError, match="input byte size mismatch"):
        call.submit(call.asked(size=8))
    model.refuses = unavailable("the queue is full")
    with pytest.raises(ServeError) as refused:
        call.submit(call.asked())
    assert refused.value is model.refuses
    with pytest.raises(ServeError, match="input byte size mismatch"):
        call.admit(call.asked(size=8))
    assert call.released == 3
    assert call.request is None
    call.cancel()
    assert model.cancelled == []


def test_a_fault_of_the_server_is_logged_and_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    call = Recorded(model)
    model.refuses = KeyError("somewhere inside")
    with caplog.at_level(logging.ERROR), pytest.raises(ServeError) as refused:
        call.submit(call.asked())
    assert refused.value.code is Code.INTERNAL
    assert "somewhere inside" not in refused.value.message
    assert "somewhere inside" in caplog.text
    assert "'m'" in caplog.text
    assert call.released == 1
    assert call.request is None


def test_cancelling_is_for_a_request_that_is_under_way() -> None:
    model = Model()
    call = Recorded(model)
    call.cancel()
    request = call.asked()
    call.submit(request)
    call.cancel()
    assert model.cancelled == [request]
    request.on_response(request, Response(error=unavailable("cancelled")))
    call.cancel()
    assert model.cancelled == [request]
    assert len(call.got) == 1


def test_a_call_that_is_made_again_hears_of_its_latest_request_only() -> None:
    call = Recorded(Model())
    first, second = call.asked(), call.asked()
    call.submit(first)
    first.on_response(first, Response())
    call.submit(second)
    first.on_response(first, Response())
    assert len(call.got) == 1
    assert call.request is second


def test_an_answered_call_is_freed_without_the_garbage_collector() -> None:
    model = Model()
    call = Recorded(model)
    request = call.asked()
    call.submit(request)
    request.on_response(request, Response())
    model.submitted.clear()
    gone = weakref.ref(call)
    gc.disable()
    try:
        del call, request
        assert gone() is None
    finally:
        gc.enable()


def test_a_trace_of_what_a_client_has_taken_away_leaves_nothing() -> None:
    class Traced(Recorded):
        protocol = "HTTP"

    model, collected, regions = Model(), Collected(TENSOR_BYTES), ClientRegions()
    model.tracing = ModelTracing()
    model.tracing.sampler = collected
    call = Traced(model)
    request = call.asked()
    with SharedFile(16) as file:
        regions.register("in", file.key, 0, 16)
        request.inputs.append(Tensor("GONE", 11, [4], None, RegionSpan(regions.find("in", 0, 16))))
        file.shrink(0)
        with pytest.raises(ServeError):
            call.submit(request)
    assert call.request is None
    assert call.released == 1
    assert [len(tree) for tree in collected.trees] == [1]
    regions.unregister("")


class Later(Recorded):
    """A call of a client, whose server does long work on the test's loop."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.offload = Offload()
        self.made = 0
        self.refusals: list[ServeError] = []

    def server(self) -> Any:
        return SimpleNamespace(offload=self.offload, heap=HeapAccount(cast(Any, None)), block=None)

    def refused(self, error: ServeError) -> None:
        self.refusals.append(error)

    def asked(self, size: int = 4, **fields: Any) -> Request:
        self.made += 1
        return super().asked(size, **fields)

    def reading(self, size: int = 4) -> LongWork[Request]:
        """Takes two steps, and a wait."""
        yield None
        yield asyncio.sleep(0)
        yield None
        return self.asked(size)


async def until_done(call: Later) -> None:
    assert call.jobs is not None
    done = asyncio.Event()
    call.jobs.add(None, lambda nothing: done.set())
    await done.wait()


def body() -> tuple[Block, list[Block]]:
    """A block that is held once, and where it goes when it is let go of."""
    released: list[Block] = []
    return Block(0, 4, memoryview(bytearray(4)), released.append), released


def test_what_takes_long_to_read_is_submitted_later() -> None:
    async def run() -> None:
        model = Model()
        call = Later(model)
        block, released = body()
        call.begin_later(call.reading(), block)
        block.drop()
        assert not released
        assert not model.submitted
        await until_done(call)
        assert model.submitted == [call.request]
        assert released == [block]
        assert not call.refusals

    asyncio.run(run())


@pytest.mark.parametrize("where", ["reading", "check", "queue"])
def test_a_refusal_that_comes_later_is_heard_and_leaves_nothing(where: str) -> None:
    async def run() -> None:
        model = Model()
        call = Later(model)
        block, released = body()
        reading = call.reading(8 if where == "check" else 4)
        if where == "reading":
            reading = refusing()
        model.refuses = unavailable("the queue is full") if where == "queue" else None
        call.begin_later(reading, block)
        block.drop()
        await until_done(call)
        [refusal] = call.refusals
        expected = {"reading": "no JSON", "check": "input byte size mismatch", "queue": "the queue is full"}
        assert expected[where] in refusal.message
        assert call.released == (where != "reading")
        assert released == [block]
        assert call.request is None

    asyncio.run(run())


def refusing() -> LongWork[Request]:
    yield None
    raise unavailable("no JSON")


@pytest.mark.parametrize("passes", range(8))
def test_a_client_that_goes_while_its_request_is_read_leaves_nothing(passes: int) -> None:
    async def run() -> None:
        model = Model()
        call, other = Later(model), Later(model)
        block, released = body()
        call.begin_later(call.reading(), block)
        other.jobs = call.jobs
        other.begin(other.asked())
        block.drop()
        for _ in range(passes):
            await asyncio.sleep(0)
        begun = len(model.submitted)
        call.cancel()
        await until_done(call)
        assert len(model.submitted) == begun
        assert call.released + other.released == call.made + other.made - begun
        assert released == [block]
        assert not call.refusals + other.refusals

    asyncio.run(run())


def test_calls_of_one_stream_begin_in_order() -> None:
    async def run() -> None:
        model = Model()
        first, second, third = Later(model), Later(model), Later(model)
        first.begin_later(first.reading())
        second.jobs = third.jobs = first.jobs
        second.begin(second.asked(), takes_long=True)
        third.begin(third.asked())
        assert not model.submitted
        await until_done(first)
        assert model.submitted == [first.request, second.request, third.request]
        fourth = Later(model)
        fourth.jobs = first.jobs
        fourth.begin(fourth.asked())
        assert model.submitted[-1] is fourth.request

    asyncio.run(run())
