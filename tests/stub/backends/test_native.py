"""A backend that computes on tensors: what it is given, and what becomes of its answers. The arena is a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.native import NativeBackend, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import AsList, InArena, Lent, Shared

from tests.stub.runtime.stub_memory import StubMemory, stub_memory

UINT8 = 2
DATA = bytes(range(250)) * 160


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory() as memory:
        yield memory


class Native(NativeBackend):
    """Answers with what it is told to, and keeps what it was given until it is told to drop that."""

    def __init__(self, answers: Any, max_batch_size: int = 0) -> None:
        self.answers = answers
        self.given: list[NativeRequest] = []
        arguments = {"model_config": f'{{"max_batch_size": {max_batch_size}}}'}
        self.instance_initialize(InstanceSetup("m_0", arguments, ["A", "B"], False))

    def compute(self, requests: list[NativeRequest]) -> list[NativeResponse]:
        self.given = requests
        answers: list[NativeResponse] = self.answers(requests)
        return answers


def request(*inputs: Any, requested: Any = None) -> Any:
    return ("id", NO_OPTIONS, None, requested, inputs)


def batch(stub: StubMemory, *requests: Any) -> Batch:
    return Batch(stub.channel, 1, requests)


def output(memory: Any, name: str = "A") -> NativeOutput:
    return NativeOutput(name, UINT8, [len(memory)], memory)


def test_requests_come_as_views(stub: StubMemory) -> None:
    place, shared = stub.give(DATA), stub.give(DATA)
    native = Native(lambda requests: [NativeResponse() for _ in requests], max_batch_size=8)
    large = ("L", UINT8, (5, 8000), tuple(place))
    small = ("S", UINT8, (5, 2), b"0123456789")
    others = ("O", UINT8, (1, 40000), tuple(Shared(*shared[1:])))
    work = batch(stub, request(large, small), request(others, requested=("B",)))
    assert not work.computed_ns
    native.execute(work)
    assert work.computed_ns
    first, second = native.given
    assert (first.outputs, first.rows, second.outputs, second.rows) == (["A", "B"], 5, ("B",), 1)
    name, datatype, shape, memory = first.inputs["L"]
    assert (name, datatype, shape) == ("L", UINT8, (5, 8000))
    assert memory.tobytes() == DATA
    memory[0] = 99
    assert stub.read(place)[0] == 99
    assert first.inputs["S"].memory == b"0123456789"
    assert not second.inputs["O"].memory.flags.writeable


def test_strings_that_come_one_by_one_are_as_all_others(stub: StubMemory) -> None:
    native = Native(lambda requests: [NativeResponse() for _ in requests])
    native.execute(batch(stub, request(("S", BYTES, (2,), tuple(AsList((b"a", "é".encode())))))))
    assert native.given[0].inputs["S"].memory == strings.join([b"a", "é".encode()])


def test_rows_without_batching(stub: StubMemory) -> None:
    native = Native(lambda requests: [NativeResponse() for _ in requests])
    native.execute(batch(stub, request(("S", UINT8, (5,), b"01234"))))
    assert native.given[0].rows == 1


def test_entries(stub: StubMemory) -> None:
    """Small ones in the message, an input where it lies, all else copied; an empty slot stays empty."""
    place = stub.give(DATA)

    def answers(requests: Any) -> Any:
        given = requests[0].inputs["L"].memory
        outputs = [output(b"small"), output(given[:9000], "B"), output(given + np.uint8(1), "C")]
        return [NativeResponse(outputs, {"p": 1}), NativeResponse(error="no", code=codes.UNSUPPORTED)]

    native = Native(answers)
    work = batch(stub, None, request(("L", UINT8, (40000,), tuple(place))), request())
    entries: Any = native.execute(work)
    assert entries[0] is None
    error, (small, given, made), parameters = entries[1]
    assert (error, parameters) == (None, {"p": 1})
    assert small == ("A", UINT8, [5], b"small")
    assert given[3] == Lent(place.offset, 9000, place.offset)
    assert isinstance(made[3], InArena)
    assert stub.read(made[3]) == bytes(byte + 1 for byte in DATA)
    assert entries[2] == (("no", codes.UNSUPPORTED), (), None)


@pytest.mark.parametrize("keeps", [False, True])
def test_an_input_that_is_kept(stub: StubMemory, keeps: bool) -> None:
    """The backend says nothing of it: that a view is alive is enough, and what was answered from there is moved."""
    place = stub.give(DATA)
    native = Native(lambda requests: [NativeResponse([output(requests[0].inputs["L"].memory)])])
    work = batch(stub, request(("L", UINT8, (40000,), tuple(place))))
    entries = native.execute(work)
    kept = native.given[0].inputs["L"].memory[10:20] if keeps else None
    native.given = []
    held, prepared = work.prepare_result(entries)
    assert held == ([place.offset] if keeps else [])
    ((_, ((_, _, _, where),), _),) = prepared  # type: ignore[misc]
    assert isinstance(where, InArena if keeps else Lent)
    assert stub.read(where) == DATA
    assert kept is None or kept.tobytes() == DATA[10:20]


def test_no_room_for_an_output(stub: StubMemory) -> None:
    """One response becomes an error and frees what it had; the others go out."""
    native = Native(
        lambda requests: [
            NativeResponse([output(bytes(9000))]),
            NativeResponse([output(bytes(10000)), output(bytes(1 << 20), "B")]),
        ]
    )
    live = stub.channel.memory.live_blocks
    fine, failed = native.execute(batch(stub, request(), request()))
    assert fine[0] is None  # type: ignore[index]
    assert failed[0][0].startswith("no room for ")  # type: ignore[index]
    assert failed[0][1] == codes.UNAVAILABLE  # type: ignore[index]
    assert stub.channel.memory.live_blocks == live + 1


def test_an_answer_that_cannot_be_encoded_keeps_no_memory(stub: StubMemory) -> None:
    def answers(requests: Any) -> Any:
        good = NativeResponse([output(bytes(9000))])
        return [good, NativeResponse([output(bytes(9000)), NativeOutput("B", UINT8, [1], 5)])]

    live = stub.channel.memory.live_blocks
    with pytest.raises(AttributeError, match="nbytes"):
        Native(answers).execute(batch(stub, request(), request()))
    assert stub.channel.memory.live_blocks == live
