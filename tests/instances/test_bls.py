"""Requests that a stub's model makes, carried out for a stub that says what the test wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from stubserve_stub.wire import messages
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import InArena, InRegion, Lent, Shared

from stubserve.errors import internal
from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.batch import pack_batch
from stubserve.memory.blocks import Span
from tests.inference.models import signature
from tests.instances.fakes import FP32, MODEL, Model, Stub, on_a_loop, small, turn

BIG = 4096
NOT_READY = (
    "Model {0} - Error when running inference: Failed for execute the inference request. Model '{0}' is not ready."
)


def wire_input(place: Any, name: str = "IN") -> messages.WireTensor:
    nbytes = len(place) if isinstance(place, bytes) else place.nbytes
    return (name, FP32, (nbytes // 4,), place)


def decoupled() -> Model:
    model = Model()
    model.signature = signature(
        "target",
        'input { name: "IN" data_type: TYPE_FP32 dims: [-1] } output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }'
        "model_transaction_policy { decoupled: true }",
    )
    return model


def output(stub: Stub, nbytes: int = BIG) -> Tensor:
    """An output of a model that was called, in memory of its own."""
    return Tensor("OUT", FP32, (nbytes // 4,), None, stub.memory.store(bytes(nbytes)).whole())


async def error_of(stub: Stub) -> str:
    [(_, final, (error, outputs, parameters), _)] = await stub.answers()
    assert final
    assert (outputs, parameters) == ((), None)
    text: str = error[0]
    return text


@on_a_loop
async def test_a_call_is_submitted_and_its_answer_comes_back() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        await stub.call(5)
        [request] = target.requests
        assert (request.id, request.admitted, target.polled) == ("call", True, 1)
        assert [tensor.data for tensor in request.inputs] == [bytes(4)]
        target.answer(request, Response([small(7)], {"n": 1}))
        assert await stub.answers() == [(5, True, (None, (("IN", FP32, (1,), b"\7\0\0\0"),), {"n": 1}), ())]


@on_a_loop
async def test_calls_of_one_turn_are_scheduled_together() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        request: messages.WireRequest = ("", NO_OPTIONS, None, None, [wire_input(bytes(4))])
        for number in range(3):
            stub.channel.send(messages.pack_call(number, False, False, "target", -1, request, ()))
        await turn()
        assert (len(target.requests), target.polled) == (3, 1)


@on_a_loop
async def test_memory_of_the_callers_own_is_freed_when_the_call_is_over() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        place = stub.output(BIG)
        await stub.call(5, "target", wire_input(place))
        [request] = target.requests
        span = request.inputs[0].span
        assert span is not None
        assert not span.shared
        target.answer(request, Response([small()]))
        assert [frees for _, _, _, frees in await stub.answers()] == [()]
        assert stub.outputs.take_frees() == [place.offset]


@on_a_loop
async def test_an_output_is_the_callers_until_it_lets_go() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        await stub.call(5)
        made = output(stub)
        target.answer(target.requests[0], Response([made]))
        [(_, _, (_, [(_, _, _, place)], _), _)] = await stub.answers()
        assert place == InArena(made.offset, BIG)
        assert stub.ingress_bytes
        await stub.say(messages.pack_released([made.offset]))
        assert not stub.ingress_bytes


@on_a_loop
async def test_a_lent_input_is_shared_and_comes_back_shared() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        tensor = stub.large()
        own = stub.request(tensor)
        stub.execute(own)
        await stub.call(5, "target", wire_input(Lent(tensor.offset, BIG, tensor.offset)))
        [request] = target.requests
        assert request.inputs[0].span is tensor.span
        assert messages.unpack(pack_batch(1, (), Work([request])))[3][0][4][0][3] == Shared(tensor.offset, BIG)
        # The target returns it as it came.
        given = request.inputs[0]
        assert given.span is not None
        target.answer(request, Response([Tensor("OUT", FP32, (1024,), None, given.span.hold())]))
        [(_, _, (_, [(_, _, _, place)], _), _)] = await stub.answers()
        assert place == Shared(tensor.offset, BIG)


@on_a_loop
async def test_what_lies_beside_a_lent_input_is_not_shared() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        # Two inputs in the body of one HTTP request
        body = stub.memory.store(bytes(2 * BIG))
        one, other = (Tensor("IN", FP32, (1024,), None, Span(body.hold(), body.offset + at, BIG)) for at in (0, BIG))
        body.drop()
        own = stub.request(one, other)
        number = stub.execute(own)
        await stub.call(5, "target", wire_input(Lent(one.offset, BIG, one.offset)))
        # Its next reader gets one to copy when it looks, and the other to write to.
        await stub.result(number, [messages.RESCHEDULED])
        stub.work.execute(Work([own]))
        _, _, [(*_, inputs)] = stub.received()
        assert [place for _, _, _, place in inputs] == [Shared(one.offset, BIG), InArena(other.offset, BIG)]
        target.answer(target.requests[0], Response([small()]))
        drop_blocks(own.inputs)
        assert not stub.ingress_bytes


@on_a_loop
async def test_what_a_stub_holds_can_be_lent() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        await stub.call(5)
        made = output(stub)
        target.answer(target.requests[0], Response([made]))
        await stub.answers()
        # The same message says that the model has let go of it.
        lent = wire_input(Lent(made.offset + 64, 128, made.offset))
        await stub.call(6, "target", lent, released=[made.offset])
        request = target.requests[1]
        assert [(tensor.offset, tensor.nbytes) for tensor in request.inputs] == [(made.offset + 64, 128)]
        target.answer(request, Response([small()]))
        assert not stub.ingress_bytes


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Lent(4096, 64, 4096), "input 'IN' from stub 'model_0_0' is in memory that the stub was not given"),
        (Shared(4096, 64), "input 'IN' from stub 'model_0_0' is in memory that a stub cannot name"),
        (InArena(0, 64), "a stub named memory outside of its segment as its own"),
        (
            InRegion(3, 0, 64),
            "input 'IN' from stub 'model_0_0' lies in a client's shared memory (region 3), of which nobody has told",
        ),
    ],
)
@on_a_loop
async def test_a_bad_input_refuses_the_call_and_takes_nothing_with_it(place: Any, text: str) -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        good = stub.output()
        await stub.call(5, "target", wire_input(good), wire_input(place))
        [(_, _, (error, _, _), frees)] = await stub.answers()
        assert error[0] == f"Model target - Error when running inference: {text}"
        assert target.requests == []
        # What came before it is free again.
        assert frees == (good.offset,)
        stub.end()
        assert await stub.given_back()


@on_a_loop
async def test_garbage_as_an_input_ends_the_stub_and_leaves_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    with Stub({"target": Model()}) as stub:
        with caplog.at_level(logging.CRITICAL, "stubserve.instances"):
            await stub.call(5, "target", wire_input(stub.output()), ("IN", FP32, (1,), (9, 9)))  # type: ignore[arg-type]
        assert len(stub.process.condemned) == 1
        stub.end()
        assert await stub.given_back()


# Refusals


@on_a_loop
async def test_refusals_are_answers() -> None:
    down, stream = Model(), decoupled()
    down.reason_down = "It died."
    with Stub({"down": down, "stream": stream, "target": Model()}) as stub:
        await stub.call(1, "nobody")
        assert await error_of(stub) == "Model nobody - Error when running inference: unknown model 'nobody'"
        await stub.call(2, "down")
        assert await error_of(stub) == NOT_READY.format("down") + " It died."
        await stub.call(3, "stream")
        assert "using the decoupled" in await error_of(stub)
        await stub.call(4, "target", wire_input(bytes(4), name="WRONG"))
        assert "'WRONG'" in await error_of(stub)
        assert not stub.work.calls.blocking()


@on_a_loop
async def test_a_model_that_is_not_ready_is_asked_first() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        target.readiness = asyncio.get_running_loop().create_future()
        place = stub.output()
        await stub.call(1, "target", wire_input(place))
        await stub.call(2, "target")
        assert target.requests == []
        target.readiness.set_result("Not today.")
        refused = await stub.answers()
        told = sorted((number, final, error[0]) for number, final, (error, _, _), _ in refused)
        assert told == [(number, True, NOT_READY.format("target") + " Not today.") for number in (1, 2)]
        target.readiness = asyncio.get_running_loop().create_future()
        target.readiness.set_result("")
        await stub.call(3)
        await turn()
        assert len(target.requests) == 1


@on_a_loop
async def test_an_error_of_the_target_is_the_answer() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        await stub.call(5)
        target.answer(target.requests[0], Response(error=internal("broken")))
        assert await error_of(stub) == "broken"


# Decoupled


@on_a_loop
async def test_responses_of_a_decoupled_model() -> None:
    target = decoupled()
    with Stub({"target": target}) as stub:
        await stub.call(5, decoupled=True)
        [request] = target.requests
        for value in (1, 2):
            target.answer(request, Response([small(value)], final=False))
        target.answer(request, Response(final=True, empty=True))
        answers = await stub.answers()
        assert [(number, final) for number, final, _, _ in answers] == [(5, False), (5, False), (5, True)]
        assert answers[2][2] is None


@on_a_loop
async def test_a_caller_that_is_behind_holds_the_target_back() -> None:
    target = decoupled()
    with Stub({"target": target}) as stub:
        await stub.call(5, decoupled=True)
        [request] = target.requests
        for _ in range(63):
            target.answer(request, Response([small()], final=False))
        assert request.stream is None
        target.answer(request, Response([small()], final=False))
        assert request.stream is not None
        assert request.stream.paused
        await stub.say(messages.pack_taken(5, 16, 64))
        assert not request.stream.paused


@on_a_loop
async def test_bytes_count_as_well() -> None:
    target = decoupled()
    with Stub({"target": target}) as stub:
        await stub.call(5, decoupled=True)
        [request] = target.requests
        target.answer(request, Response([output(stub, 8 << 20)], final=False))
        assert request.stream is not None
        assert request.stream.paused
        await stub.say(messages.pack_discard(5))
        assert not request.stream.paused
        # Nobody takes the rest, and its memory goes.
        before = stub.ingress_bytes
        target.answer(request, Response([output(stub)], final=False))
        assert stub.ingress_bytes == before
        assert not stub.work.calls.blocking()


@on_a_loop
async def test_a_call_can_be_cancelled_while_it_is_open() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        await stub.call(5)
        await stub.say(messages.pack_cancel(5))
        [request] = target.requests
        assert target.cancelled == [request]
        target.answer(request, Response([small()]))
        for late in (messages.pack_cancel, messages.pack_discard, messages.pack_call_blocks):
            await stub.say(late(5))
        await stub.say(messages.pack_taken(5, 1, 4))
        assert target.cancelled == [request]
        assert not stub.process.condemned


# What holds up the batch


class Waiting:
    """An instance that waits for calls."""

    def __init__(self, name: str, calls: Sequence[Any]) -> None:
        self.name = name
        self.calls = calls

    def has(self, request: Any) -> bool:
        return False

    def waits_for(self) -> Sequence[Any]:
        return self.calls


class BlockedCall:
    """A call of another stub, to `model`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.request = None


@on_a_loop
async def test_a_stub_that_waits_for_a_call_is_at_work() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        stub.execute(stub.request())
        await stub.call(1, blocking=True)
        await stub.call(2)
        assert [call.number for call in stub.work.waits_for()] == [1]
        await stub.say(messages.pack_call_blocks(2))
        await stub.say(messages.pack_call_blocks(2))
        assert [call.number for call in stub.work.waits_for()] == [1, 2]
        # So the stub of the target is not alone, and does not look for its next batch.
        assert stub.memory.stubs_at_work == 1
        target.answer(target.requests[0], Response([small()]))
        target.answer(target.requests[1], Response([small()]))
        assert stub.memory.stubs_at_work == 1
        assert not stub.work.waits_for()


@on_a_loop
async def test_a_blocking_call_to_oneself_is_refused() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        target.waiters = [stub.work]
        stub.execute(stub.request())
        await stub.call(1, blocking=True)
        assert "can never run" in await error_of(stub)
        assert target.requests == []
        assert stub.memory.stubs_at_work == 1


@on_a_loop
async def test_a_chain_that_closes_when_a_call_turns_out_to_block() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        caller = Model(MODEL)
        caller.waiters = [stub.work]
        stub.execute(stub.request())
        await stub.call(1)
        [request] = target.requests
        target.waiters = [Waiting("target_0", [BlockedCall(caller)])]
        await stub.say(messages.pack_call_blocks(1))
        text = await error_of(stub)
        assert text.startswith(
            "Model target - Error when running inference: the request to model 'target' can never run"
        )
        assert "model_0_0 -> target_0 -> model_0_0" in text
        assert target.cancelled == [request]
        # What the target still says is nobody's any more.
        target.answer(request, Response([output(stub)]))
        assert not stub.ingress_bytes
        assert stub.memory.stubs_at_work == 1


# The end


@on_a_loop
async def test_calls_of_a_dead_stub_are_cancelled_and_leave_no_memory() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        tensor = stub.large()
        own = stub.request(tensor)
        stub.execute(own)
        await stub.call(1, "target", wire_input(Lent(tensor.offset, BIG, tensor.offset)), blocking=True)
        await stub.call(2, "target", wire_input(stub.output()))
        first, second = target.requests
        target.answer(first, Response([output(stub)]))
        assert stub.end().executing == [own]
        assert target.cancelled == [second]
        assert stub.memory.stubs_at_work == 0
        drop_blocks(own.inputs)
        target.answer(second, Response(error=internal("cancelled")))
        assert not stub.ingress_bytes
        assert await stub.given_back()


@on_a_loop
async def test_a_question_for_readiness_ends_with_the_stub() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        target.readiness = asyncio.get_running_loop().create_future()
        await stub.call(1, "target", wire_input(stub.output()))
        stub.end()
        await turn()
        assert target.requests == []
        assert await stub.given_back()


@on_a_loop
async def test_telling_whether_a_model_is_ready() -> None:
    target = Model()
    with Stub({"target": target}) as stub:
        ask = stub.work.calls.answer_readiness
        assert await ask({"model": "target", "version": ""}) == {"value": True}
        target.readiness = asyncio.get_running_loop().create_future()
        target.readiness.set_result("not yet")
        assert await ask({"model": "target", "version": ""}) == {"value": False}
        assert await ask({"model": "target", "version": "bad"}) == {"error": "a version is a number"}
