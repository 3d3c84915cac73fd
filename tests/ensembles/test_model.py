"""An ensemble with members that only the test answers for, and memory that is counted."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from google.protobuf import text_format
from stubserve_stub.wire.options import RequestOptions

from stubserve.ensembles.model import EnsembleModel
from stubserve.ensembles.plan import EnsemblePlan
from stubserve.ensembles.steps import Prospect, fit
from stubserve.errors import Code, ServeError, internal, not_found
from stubserve.inference.latencies import Latencies
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.trace import ModelTracing
from stubserve.instances.deadlock import FutureWaiter, find_deadlock
from stubserve.memory.blocks import Block
from stubserve.model_config.proto import ModelConfig
from stubserve.response_cache.stage import CacheStage
from stubserve.response_cache.store import ResponseCache
from tests.response_cache.test_stage import Remote, until
from tests.serving.fakes import Reader

from ..real_server import PATIENCE_S

FP32 = 11


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on an event loop."""

    @functools.wraps(test)
    def run(**values: Any) -> None:
        asyncio.run(test(**values))

    return run


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = "".join(f'input_map {{ key: "{name}" value: "{tensor}" }} ' for name, tensor in inputs.items())
    maps += "".join(f'output_map {{ key: "{name}" value: "{tensor}" }} ' for name, tensor in outputs.items())
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }}'


def one(model: str, source: str, target: str) -> str:
    return step(model, {"IN": source}, {"OUT": target})


def config_of(*steps: str, outputs: str = "OUT", inputs: str = "IN", more: str = "", limit: int = 0) -> Any:
    text = "".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: -1 }}' for name in inputs.split())
    text += "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: -1 }}' for name in outputs.split())
    text += f"ensemble_scheduling {{ {' '.join(steps)} max_inflight_requests: {limit} }} {more}"
    return text_format.Parse(f'name: "pipe" platform: "ensemble" {text}', ModelConfig())


CHAIN = (one("first", "IN", "m"), one("second", "m", "OUT"))
FAN = (
    *(one("part", "IN", f"p{number}") for number in range(4)),
    step("join", {f"IN{number}": f"p{number}" for number in range(4)}, {"OUT": "OUT"}),
)


class Memory:
    """Blocks that are counted."""

    def __init__(self) -> None:
        self.live = 0

    def tensor(self, name: str, shape: Sequence[int] = (1,)) -> Tensor:
        self.live += 1
        block = Block(0, 4, memoryview(bytearray(4)), self._release)
        return Tensor(name, FP32, tuple(shape), None, block.whole())

    def _release(self, block: Block) -> None:
        self.live -= 1


class Member:
    """A member that keeps its requests until the test answers them."""

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def __init__(self, name: str, inputs: str = "IN", batch: int = 0) -> None:
        text = "".join(f'input {{ name: "{one}" data_type: TYPE_FP32 dims: -1 }}' for one in inputs.split())
        text += f'output {{ name: "OUT" data_type: TYPE_FP32 dims: -1 }} max_batch_size: {batch}'
        self.name = self.key = name
        self.signature = Signature(name, 1, text_format.Parse(text, ModelConfig()))
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []
        self.reserved = 0
        self.refusal: ServeError | None = None
        self.reason = ""
        self.waiters: list[Any] = [FutureWaiter(f"{name}_0")]

    def submit(self, request: Request) -> None:
        if self.refusal is not None:
            raise self.refusal
        request.compute_start_ns = 10
        self.requests.append(request)

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        request.resume()
        self.cancelled.append(request)

    def reserve(self) -> None:
        self.reserved += 1

    def release(self) -> None:
        self.reserved -= 1

    def down(self) -> bool:
        return bool(self.reason)

    def why_not_ready(self) -> str:
        return self.reason

    def checks_readiness(self) -> bool:
        return False

    def waiters_for(self, request: Request | None) -> Sequence[Any]:
        return self.waiters

    # What the test has it do

    def answer(self, *outputs: Tensor, at: int = 0, final: bool = True, error: ServeError | None = None) -> None:
        """A response to the oldest request, or the one `at` this place; as `Delivery` passes it on."""
        request = self.requests[at]
        response = Response(list(outputs), error=error, final=final, empty=not outputs and not error and not final)
        if final:
            self.requests.remove(request)
            request.compute_input_end_ns, request.compute_infer_end_ns, request.compute_end_ns = 11, 13, 17
        request.on_response(request, response)
        drop_blocks(response.outputs)
        if final:
            drop_blocks(request.inputs)

    def end(self) -> None:
        """The end of a stream, without a response."""
        request = self.requests.pop(0)
        request.on_response(request, Response(empty=True))
        drop_blocks(request.inputs)


class Pipe:
    """An ensemble, its members, and a reader."""

    def __init__(self, config: Any, *members: Member) -> None:
        self.members = {member.name: member for member in members}
        self.memory = Memory()
        self.reader = Reader()
        self.model = EnsembleModel("pipe", 1, config, self, {})  # type: ignore[arg-type]

    def find(self, name: str, version: str) -> Any:
        if name not in self.members:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return self.members[name]

    def submit(self, id: str = "r", outputs: list[str] | None = None, **shapes: Sequence[int]) -> Request:
        tensors = [self.memory.tensor(name, shape) for name, shape in (shapes or {"IN": (1,)}).items()]
        request = self.reader.request(id, *tensors, requested_outputs=outputs)
        self.model.enqueue(request)
        self.model.poll()
        return request

    def tensor(self, name: str = "OUT", shape: Sequence[int] = (1,)) -> Tensor:
        return self.memory.tensor(name, shape)

    @property
    def responses(self) -> list[Response]:
        return [response for _, response in self.reader.got]

    async def over(self) -> None:
        """Asserts that nothing is left of any request."""
        await asyncio.wait_for(self.model.drained(), PATIENCE_S)
        assert self.memory.live == 0
        assert [member.reserved for member in self.members.values()] == [0] * len(self.members)


def chain(**more: Any) -> tuple[Pipe, Member, Member]:
    first, second = Member("first"), Member("second")
    return Pipe(config_of(*CHAIN, **more), first, second), first, second


@on_a_loop
async def test_a_chain() -> None:
    pipe, first, second = chain()
    pipe.submit()
    assert not second.requests
    first.answer(pipe.tensor())
    assert not first.requests
    second.answer(pipe.tensor())
    (response,) = pipe.responses
    assert response.final
    assert response.error is None
    assert [tensor.name for tensor in response.outputs] == ["OUT"]
    assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    await pipe.over()


@on_a_loop
async def test_a_tensor_goes_on_where_it_lies() -> None:
    pipe, first, second = chain()
    request = pipe.submit()
    (given,) = request.inputs
    (taken,) = first.requests[0].inputs
    assert taken.span is given.span
    assert taken.span is not None
    assert not taken.span.shared
    made = pipe.tensor()
    first.answer(made)
    assert second.requests[0].inputs[0].span is made.span
    second.answer(pipe.tensor())
    await pipe.over()


@on_a_loop
async def test_what_a_step_passes_on_belongs_to_the_next() -> None:
    """A chain of models that return their input must not make it shared, or the third one pays for a copy."""
    pipe, first, second = chain()
    pipe.submit()
    (tensor,) = first.requests[0].inputs
    span = tensor.span
    assert span is not None
    span.send_on()
    span.hold()
    first.answer(Tensor("OUT", FP32, (1,), None, span))
    assert not span.returned
    second.answer(pipe.tensor())
    await pipe.over()


@on_a_loop
async def test_steps_see_what_the_caller_said() -> None:
    pipe, first, second = chain()
    tensor = pipe.tensor("IN")
    options = RequestOptions(7, 3, 2, 9, {"a": 1})
    request = pipe.reader.request("mine", tensor, **options._asdict())
    pipe.model.enqueue(request)
    pipe.model.poll()
    (seen,) = first.requests
    assert (seen.id, seen.options) == ("mine", options)
    assert seen.requested_outputs == ["OUT"]
    first.answer(pipe.tensor("OUT"))
    (seen,) = second.requests
    assert seen.options == options


@on_a_loop
async def test_a_tensor_with_several_readers_is_shared() -> None:
    part, join = Member("part"), Member("join", "IN0 IN1 IN2 IN3")
    pipe = Pipe(config_of(*FAN), part, join)
    pipe.submit()
    assert len(part.requests) == 4
    spans = {request.inputs[0].span for request in part.requests}
    assert [span.shared for span in spans if span is not None] == [True]
    for _ in range(4):
        assert not join.requests
        part.answer(pipe.tensor(), at=len(part.requests) - 1)
    assert [tensor.name for tensor in join.requests[0].inputs] == ["IN0", "IN1", "IN2", "IN3"]
    assert not any(tensor.span.shared for tensor in join.requests[0].inputs if tensor.span)
    join.answer(pipe.tensor())
    assert len(pipe.responses) == 1
    await pipe.over()


@on_a_loop
async def test_a_failure_is_told_when_the_others_have_ended() -> None:
    part, join = Member("part"), Member("join", "IN0 IN1 IN2 IN3")
    pipe = Pipe(config_of(*FAN), part, join)
    pipe.submit("mine")
    part.answer(pipe.tensor())
    part.answer(error=ServeError(Code.NOT_FOUND, "no such word"))
    assert pipe.responses == []
    assert part.cancelled == part.requests
    part.answer(pipe.tensor())
    part.answer(error=internal("this one, too"))
    error = pipe.reader.error("mine")
    assert (error.code, error.message) == (Code.NOT_FOUND, "in ensemble 'pipe', no such word (step 1, model 'part')")
    assert pipe.model.statistics.fail_count == 1
    await pipe.over()


@on_a_loop
async def test_a_member_that_takes_no_request() -> None:
    pipe, first, second = chain()
    second.refusal = ServeError(Code.UNAVAILABLE, "no running instance")
    pipe.submit("mine")
    first.answer(pipe.tensor())
    error = pipe.reader.error("mine")
    assert (error.code, error.message) == (
        Code.UNAVAILABLE,
        "in ensemble 'pipe', no running instance (step 1, model 'second')",
    )
    await pipe.over()


@on_a_loop
async def test_a_member_that_is_not_there() -> None:
    pipe, first, _ = chain()
    del pipe.members["second"]
    pipe.submit("mine")
    assert not first.requests
    assert pipe.reader.error("mine").message == "in ensemble 'pipe', Request for unknown model: 'second' is not found"
    await pipe.over()


@on_a_loop
async def test_a_member_that_answers_in_a_wrong_shape() -> None:
    first, second = Member("first"), Member("second", "OTHER")
    pipe = Pipe(config_of(*CHAIN), first, second)
    pipe.submit("mine")
    first.answer(pipe.tensor())
    assert pipe.reader.error("mine").message.startswith("in ensemble 'pipe', ")
    await pipe.over()


@on_a_loop
async def test_cancellation_goes_to_the_members() -> None:
    pipe, first, second = chain()
    request = pipe.submit("mine")
    (running,) = first.requests
    pipe.model.cancel(request)
    assert first.cancelled == [running]
    assert pipe.responses == []
    first.answer(pipe.tensor())
    assert not second.requests
    assert pipe.reader.error("mine").code is Code.CANCELLED
    assert pipe.model.statistics.failures["cancelled"] == 1
    await pipe.over()


@on_a_loop
async def test_a_request_that_is_cancelled_before_it_begins() -> None:
    pipe, first, _ = chain()
    request = pipe.reader.request("mine", pipe.tensor("IN"))
    pipe.model.submit(request)
    pipe.model.cancel(request)
    await asyncio.sleep(0)
    assert not first.requests
    assert pipe.reader.error("mine").code is Code.CANCELLED
    await pipe.over()


@on_a_loop
async def test_an_output_that_is_missing() -> None:
    pipe, _, second = chain(outputs="OUT m")
    pipe.submit()
    pipe.members["first"].answer(pipe.tensor())
    second.answer()
    (response,) = pipe.responses
    assert response.error is None
    assert [tensor.name for tensor in response.outputs] == ["m"]
    await pipe.over()


@on_a_loop
async def test_a_name_that_is_answered_twice() -> None:
    pipe, first, second = chain()
    pipe.submit()
    first.answer(pipe.tensor(), pipe.tensor())
    second.answer(pipe.tensor(), pipe.tensor("SURPRISE"))
    assert len(pipe.responses) == 1
    await pipe.over()


@on_a_loop
async def test_only_what_is_requested_is_made() -> None:
    left, right = Member("left"), Member("right")
    pipe = Pipe(config_of(one("left", "IN", "A"), one("right", "IN", "B"), outputs="A B"), left, right)
    pipe.submit(outputs=["B"])
    assert not left.requests
    right.answer(pipe.tensor())
    assert [tensor.name for tensor in pipe.responses[0].outputs] == ["B"]
    await pipe.over()


@on_a_loop
async def test_nothing_is_produced() -> None:
    pipe, first, _ = chain()
    pipe.submit("mine")
    first.end()
    assert pipe.reader.error("mine").message == (
        "in ensemble 'pipe', [request id: mine] unexpected deadlock, at least one output is not set while no more "
        "ensemble steps can be made"
    )
    await pipe.over()


DECOUPLED = "model_transaction_policy { decoupled: true }"


@on_a_loop
async def test_each_response_of_a_decoupled_step_is_a_turn() -> None:
    pipe, first, second = chain(more=DECOUPLED)
    pipe.submit()
    first.answer(pipe.tensor(), final=False)
    first.answer(pipe.tensor(), final=False)
    second.answer(pipe.tensor())
    first.end()
    assert [response.final for response in pipe.responses] == [False]
    second.answer(pipe.tensor())
    assert [(response.final, response.empty) for response in pipe.responses] == [(False, False), (True, False)]
    assert pipe.model.statistics.success_count == 1
    await pipe.over()


@on_a_loop
async def test_only_the_first_response_of_a_stream_is_timed() -> None:
    pipe, first, second = chain(more=DECOUPLED)
    latencies = pipe.model.latencies = Latencies((100.0,), summaries=False)
    pipe.submit()
    for _ in range(3):
        first.answer(pipe.tensor(), final=False)
        second.answer(pipe.tensor())
    first.end()
    assert len(pipe.responses) == 4
    assert latencies.first_response is not None
    assert sum(latencies.first_response.counts) == 1
    await pipe.over()


@on_a_loop
async def test_a_stream_of_nothing() -> None:
    pipe, first, _ = chain(more=DECOUPLED)
    pipe.submit()
    first.end()
    (response,) = pipe.responses
    assert response.final
    assert response.empty
    await pipe.over()


@on_a_loop
async def test_a_stream_that_fails_after_some_responses() -> None:
    pipe, first, second = chain(more=DECOUPLED)
    pipe.submit("mine")
    first.answer(pipe.tensor(), final=False)
    second.answer(pipe.tensor())
    first.answer(error=internal("enough"))
    assert [response.final for response in pipe.responses] == [False, True]
    assert pipe.responses[1].error is not None
    await pipe.over()


@on_a_loop
async def test_a_reader_that_is_behind_pauses_the_source() -> None:
    pipe, first, second = chain(more=DECOUPLED)
    request = pipe.submit()
    (source,) = first.requests
    request.pause()
    first.answer(pipe.tensor(), final=False)
    passed_on = []
    source.when_read(lambda: passed_on.append("yes"))
    assert passed_on == []
    request.resume()
    assert passed_on == ["yes"]
    second.answer(pipe.tensor())
    first.end()
    await pipe.over()


@on_a_loop
async def test_a_source_waits_for_a_slow_step() -> None:
    """A stream that its next step cannot keep up with does not fill the memory."""
    pipe, first, second = chain(more=DECOUPLED)
    pipe.submit()
    (source,) = first.requests
    while source.stream is None or not source.stream.paused:
        first.answer(pipe.tensor(), final=False)
    count = len(second.requests)
    assert 1 < count < 200
    second.answer(pipe.tensor())
    assert not source.stream.paused
    first.end()
    while second.requests:
        second.answer(pipe.tensor())
    assert len(pipe.responses) == count
    await pipe.over()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("limit", [0, 1])
@on_a_loop
async def test_a_source_does_not_wait_for_a_step_that_needs_its_instance(nested: bool, limit: int) -> None:
    """A model that is two steps of an ensemble, or of ensembles in it, may have one instance only."""
    member = Member("m")
    steps = (one("inner" if nested else "m", "IN", "t"), one("m", "t", "OUT"))
    pipe: Any = Pipe(config_of(*steps), member)
    inner = EnsembleModel("inner", 1, config_of(one("m", "IN", "OUT"), more=DECOUPLED), pipe, {("m", ""): member})  # type: ignore[dict-item]
    pipe.members["inner"] = inner
    members: Any = {("m", ""): member, ("inner", ""): inner}
    pipe.model = EnsembleModel("pipe", 1, config_of(*steps, limit=limit, more=DECOUPLED), pipe, members)
    pipe.submit()
    await asyncio.sleep(0)
    (source,) = member.requests
    for _ in range(200):
        member.answer(pipe.tensor(), final=False)
        assert source.stream is None or not source.stream.paused
    member.end()
    while member.requests:
        member.answer(pipe.tensor())
    assert len(pipe.reader.got) == 200
    del pipe.members["inner"]
    await pipe.over()


@on_a_loop
async def test_a_limit_of_requests_in_flight_counts_for_all_requests() -> None:
    pipe, first, second = chain(limit=1)
    pipe.submit("a")
    pipe.submit("b")
    pipe.submit("c")
    assert [request.id for request in first.requests] == ["a"]
    first.answer(pipe.tensor())
    assert [request.id for request in first.requests] == ["b"]
    first.answer(pipe.tensor())
    assert [request.id for request in second.requests] == ["a"]
    second.answer(pipe.tensor())
    second.answer(pipe.tensor())
    first.answer(pipe.tensor())
    second.answer(pipe.tensor())
    assert pipe.reader.ids == ["a", "b", "c"]
    await pipe.over()


@on_a_loop
async def test_a_limit_pauses_the_source_and_a_cancelled_request_leaves_the_queue() -> None:
    pipe, first, second = chain(limit=1, more=DECOUPLED)
    request = pipe.submit("mine")
    (source,) = first.requests
    first.answer(pipe.tensor(), final=False)
    assert source.stream is None
    first.answer(pipe.tensor(), final=False)
    assert source.stream is not None
    assert source.stream.paused
    pipe.model.cancel(request)
    second.answer(pipe.tensor())
    first.end()
    assert pipe.reader.error("mine").code is Code.CANCELLED
    pipe.submit("next")
    assert [one.id for one in first.requests] == ["next"]
    first.end()
    await pipe.over()


@on_a_loop
async def test_a_refused_step_gives_its_place_to_the_next() -> None:
    pipe, first, _ = chain(limit=1)
    first.refusal = internal("not now")
    pipe.submit("a")
    first.refusal = None
    pipe.submit("b")
    assert [request.id for request in first.requests] == ["b"]


@on_a_loop
async def test_statistics_are_the_sums_of_the_steps() -> None:
    pipe, first, second = chain()
    pipe.submit()
    first.answer(pipe.tensor())
    second.answer(pipe.tensor())
    statistics = pipe.model.statistics
    assert (statistics.success_count, statistics.execution_count, statistics.inference_count) == (1, 1, 1)
    # Each member takes 1, 2 and 4 ns.
    assert (statistics.compute_input_ns, statistics.compute_infer_ns, statistics.compute_output_ns) == (2, 4, 8)
    await pipe.over()


@on_a_loop
async def test_readiness_is_that_of_the_members() -> None:
    pipe, first, _ = chain()
    assert not pipe.model.down()
    assert await pipe.model.check_ready() == ""
    first.reason = "its stub was killed"
    assert pipe.model.down()
    assert pipe.model.why_not_ready() == "its member 'first' is not ready: its stub was killed"
    del pipe.members["first"]
    assert pipe.model.down()
    assert pipe.model.why_not_ready() == (
        "its member 'first' is not ready: Request for unknown model: 'first' is not found"
    )


@on_a_loop
async def test_members_are_kept_while_a_request_may_need_them() -> None:
    pipe, first, second = chain()
    pipe.submit()
    assert (first.reserved, second.reserved) == (1, 1)
    second.name = "old"
    pipe.members["second"] = Member("second")
    first.answer(pipe.tensor())
    assert len(second.requests) == 1  # as when the request began
    second.answer(pipe.tensor())
    assert (first.reserved, second.reserved) == (0, 0)
    await pipe.over()


@on_a_loop
async def test_it_stands_while_its_members_are_the_same() -> None:
    first, second = Member("first"), Member("second")
    pipe = Pipe(config_of(*CHAIN), first, second)
    loaded: Any = {("first", ""): first, ("second", ""): second}
    model = EnsembleModel("pipe", 1, pipe.model.config, pipe, loaded)  # type: ignore[arg-type]
    assert model.has_same_members()
    pipe.members["first"] = Member("first")
    assert not model.has_same_members()
    del pipe.members["first"]
    assert not model.has_same_members()


@on_a_loop
async def test_what_a_member_says_that_it_was_not_loaded_with_is_not_kept() -> None:
    """Neither by the ensemble, nor by one that it is a member of; who waits for the answer has it all the same."""
    remote = Remote()

    def in_arena(data: bytes | memoryview) -> Block:
        return Block(0, len(data), memoryview(bytearray(data)), lambda _: None)

    old, new = Member("first"), Member("first")
    pipe = Pipe(config_of(one("first", "IN", "OUT")), old)
    inner = EnsembleModel("inner", 1, pipe.model.config, pipe, {("first", ""): old})  # type: ignore[arg-type]
    pipe.members["inner"] = inner  # type: ignore[assignment]
    outer_config = config_of(one("inner", "IN", "OUT"))
    cache = functools.partial(
        CacheStage, ResponseCache(None, remote, lambda _: None, in_arena, True), b"of the old member"
    )
    outer = EnsembleModel("outer", 1, outer_config, pipe, {("inner", ""): inner}, front=(cache,))  # type: ignore[arg-type]
    # As the loader says where servers share the cache
    inner.identity, outer.identity = b"inner", b"outer"

    async def ask(member: Member) -> None:
        """Two that ask the same, of whom one is computed."""
        pipe.members["first"] = member
        for id in "ab":
            request = pipe.reader.request(id, Tensor("IN", FP32, (1,), b"1234"))
            outer.submit(request)
        await until(lambda: member.requests)
        assert len(member.requests) == 1
        member.answer(Tensor("OUT", FP32, (1,), b"said"))
        await asyncio.wait_for(outer.drained(), PATIENCE_S)
        for _ in range(3):
            await asyncio.sleep(0)

    await ask(new)
    assert pipe.reader.ids == ["a", "b"]
    assert remote.kept == {}
    await ask(old)
    assert len(remote.kept) == 1


@pytest.mark.parametrize("identity", [b"", b"of the old member"])
@on_a_loop
async def test_members_are_compared_only_where_a_shared_cache_has_to_know(identity: bytes) -> None:
    old, new = Member("first"), Member("first")
    pipe = Pipe(config_of(one("first", "IN", "OUT")), new)
    model = EnsembleModel("pipe", 1, pipe.model.config, pipe, {("first", ""): old})  # type: ignore[arg-type]
    model.identity = identity
    model.submit(pipe.reader.request("a", Tensor("IN", FP32, (1,), b"1234")))
    await until(lambda: new.requests)
    new.answer(Tensor("OUT", FP32, (1,), b"said"))
    [(_, response)] = pipe.reader.got
    assert response.transient is bool(identity)


@on_a_loop
async def test_what_is_under_way_when_it_stops() -> None:
    pipe, first, _ = chain()
    pipe.submit("mine")
    await pipe.model.stop(0)
    first.answer(pipe.tensor())
    assert pipe.reader.error("mine").code is Code.UNAVAILABLE
    with pytest.raises(ServeError, match="ensemble 'pipe' version 1 is not served any more"):
        pipe.model.enqueue(pipe.reader.request("late"))
    await pipe.over()


@on_a_loop
async def test_a_fault_of_the_server_is_an_error_for_the_caller() -> None:
    pipe, first, second = chain()
    broken: Any = None
    pipe.submit("mine")
    second.signature = broken
    first.answer(pipe.tensor())
    assert pipe.reader.error("mine").message == "unexpected error in ensemble 'pipe'; see the server's log"
    first.signature = broken
    pipe.submit("next")
    assert pipe.reader.error("next").code is Code.INTERNAL
    await asyncio.wait_for(pipe.model.drained(), PATIENCE_S)


@on_a_loop
async def test_a_fault_of_the_server_gives_back_gates_and_memory() -> None:
    """Those that wait behind it go on, and nothing of it is left when its steps have been answered."""
    part, join = Member("part"), Member("join", "IN0 IN1 IN2 IN3")
    pipe = Pipe(config_of(*FAN, limit=1), part, join)
    cancel = part.cancel
    failing: list[Request] = []

    def fail_to_cancel(request: Request) -> None:
        failing.append(request)
        raise RuntimeError("a fault of the server's")

    part.cancel = fail_to_cancel  # type: ignore[method-assign]
    pipe.submit("mine")
    pipe.submit("next")
    assert [request.id for request in part.requests] == ["mine"] * 4
    part.answer(error=internal("no"))
    assert failing
    assert pipe.reader.error("mine").message == "unexpected error in ensemble 'pipe'; see the server's log"
    part.cancel = cancel  # type: ignore[method-assign]
    # Its other steps are still executed.
    assert [request.id for request in part.requests] == ["mine"] * 3 + ["next"] * 4
    for _ in range(3):
        part.answer(pipe.tensor())
    for id in ("next", "last"):
        for _ in range(4):
            part.answer(pipe.tensor())
        join.answer(pipe.tensor())
        assert pipe.reader.ids[-1] == id
        if id == "next":
            pipe.submit("last")
    await pipe.over()


class Blocked:
    """An instance that waits for these calls."""

    def __init__(self, name: str, *calls: Any) -> None:
        self.name = name
        self.calls = calls

    def has(self, request: Request) -> bool:
        return False

    def waits_for(self) -> Sequence[Any]:
        return self.calls


@on_a_loop
async def test_a_call_through_an_ensemble_back_to_its_caller_is_a_deadlock() -> None:
    pipe, _, second = chain()
    caller = Blocked("second_0", Prospect(pipe.model))  # type: ignore[arg-type]
    second.waiters = [caller]
    assert find_deadlock(caller, pipe.model, None) == ["second_0", "pipe", "second_0"]  # type: ignore[arg-type]
    second.waiters = [caller, FutureWaiter("second_1")]
    assert find_deadlock(caller, pipe.model, None) is None  # type: ignore[arg-type]


@on_a_loop
async def test_a_step_that_is_over_is_not_waited_for() -> None:
    pipe, first, second = chain()
    request = pipe.submit()
    caller = Blocked("caller_0")
    first.waiters = [caller]
    assert find_deadlock(caller, pipe.model, request) == ["caller_0", "pipe", "caller_0"]  # type: ignore[arg-type]
    first.answer(pipe.tensor())
    assert find_deadlock(caller, pipe.model, request) is None  # type: ignore[arg-type]
    second.answer(pipe.tensor())
    await pipe.over()


@pytest.mark.parametrize(
    ("shape", "is_batch", "dims", "wants_batch", "fitted"),
    [
        ((4,), False, (4,), False, (4,)),
        ((3, 4), True, (4,), True, (3, 4)),
        ((4,), False, (4,), True, (1, 4)),
        ((4,), False, (-1,), True, (1, 4)),
        ((3, 4), False, (4,), True, (3, 4)),
        ((1, 4), True, (4,), False, (4,)),
        ((3, 4), True, (4,), False, (3, 4)),
        ((1, 4), True, (-1, 4), False, (1, 4)),
        ((), False, (), True, (1,)),
    ],
)
def test_shapes(
    shape: tuple[int, ...], is_batch: bool, dims: tuple[int, ...], wants_batch: bool, fitted: tuple[int, ...]
) -> None:
    assert fit(shape, is_batch, dims, wants_batch) == fitted


@on_a_loop
async def test_shapes_between_members_of_both_kinds() -> None:
    first, second = Member("first", batch=4), Member("second")
    pipe = Pipe(config_of(*CHAIN), first, second)
    pipe.submit(IN=(1,))
    assert first.requests[0].inputs[0].shape == (1, 1)
    first.answer(pipe.tensor(shape=(1, 1)))
    assert second.requests[0].inputs[0].shape == (1,)
    second.answer(pipe.tensor())
    await pipe.over()


def test_routes_that_are_asked_for_again_are_remembered() -> None:
    plan = EnsemblePlan(config_of(*CHAIN, outputs="OUT m"))
    assert plan.route(["m"]) is plan.route(["m"])
    assert plan.route(["m", "OUT"]) is plan.route(None)
