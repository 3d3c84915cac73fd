"""What is read without a message means what the message says, whatever it is; and usual messages are read so."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stubserve.errors import Code
from stubserve.grpc import infer_decode
from stubserve.grpc.infer_decode import decode, split
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, field, varint
from stubserve.inference.signature import Signature
from tests import outcomes
from tests.http.arena import Memory
from tests.inference.models import io, signature


def model() -> Signature:
    inputs = io("input", "A", "UINT8", "-1") + io("input", "S", "STRING", "-1", "optional: true")
    return signature("m", inputs + io("output", "O", "UINT8", "-1") + "max_batch_size: 4")


def outcome(data: bytes, known: Signature, memory: Memory) -> Any:
    """As `outcomes`, or how a message that is none is refused."""
    try:
        return outcomes.outcome(lambda: decode(data, split(data), known, memory.store), known)
    except Malformed as malformed:
        return malformed.status, malformed.text


def same(data: bytes, memory: Memory, known: Signature | None = None) -> Any:
    """The outcome, which is the one that it has by way of the message."""
    found = outcome(data, known or model(), memory)
    with mock.patch.object(infer_decode, "_read", return_value=None):
        assert outcome(data, model(), memory) == found
    return found


def message(*raw: bytes, shape: tuple[int, ...] = (1, 2), datatype: str = "UINT8", **more: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name="m", id="x", **more)
    made.inputs.add(name="A", datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raw)
    return made


def test_usual_messages_are_read_without_one(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    known = model()
    made = message(b"ab")
    made.outputs.add(name="O").parameters["classification"].int64_param = 2
    made.parameters["sequence_id"].int64_param = 5
    made.parameters["own"].string_param = "y"
    outcome(made.SerializeToString(), known, memory)
    # The same inputs and outputs again, with another id and shape; only what is new would be parsed.
    monkeypatch.delattr(infer_decode, "service_pb2")
    made.id = "z"
    made.inputs[0].shape[:] = [2, 300]
    made.raw_input_contents[0] = bytes(600)
    inputs, others, parameters, requested, batch_size, reply_format = outcome(made.SerializeToString(), known, memory)
    assert inputs == [("A", 2, (2, 300), bytes(600))]
    assert others == ("z", 5, 0, 0, 0)
    assert (parameters, requested, batch_size) == ("{'own': 'y'}", ["O"], 2)
    assert reply_format.slots["O"].classification == 2


def test_requests_do_not_share_parameters(memory: Memory) -> None:
    known = model()
    made = message(b"ab")
    made.parameters["own"].string_param = "y"
    data = made.SerializeToString()
    first, second = [decode(data, split(data), known, memory.store)[0] for _ in range(2)]
    more = first.with_headers({"header": "h"})
    assert more.options.parameters == {"own": "y", "header": "h"}
    assert first.options.parameters == second.options.parameters == {"own": "y"}


def test_what_is_remembered_is_bounded(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer_decode, "FORMS", 5)
    known = model()
    for number in range(20):
        made = message(b"ab")
        made.inputs[0].name = f"A{number}"
        made.parameters["own"].int64_param = number
        outcome(made.SerializeToString(), known, memory)
        assert len(known.memo["grpc-inputs"]) <= 5
        assert len(known.memo["grpc-others"]) <= 5
    made.parameters["own"].string_param = "x" * 5000
    known.memo["grpc-others"].clear()
    outcome(made.SerializeToString(), known, memory)
    assert known.memo["grpc-others"] == {}


def item(*fields: bytes) -> bytes:
    return field(5, b"".join(fields))


NAME, KIND, SHAPE = field(1, b"A"), field(2, b"UINT8"), field(3, b"\1\2")
RAW = field(7, b"ab")


@pytest.mark.parametrize(
    "data",
    [
        item(NAME, KIND, SHAPE) + RAW,
        # Fields in another order, twice, unpacked, empty, or of another type
        item(KIND, NAME, SHAPE) + RAW,
        item(NAME, NAME, KIND, SHAPE) + RAW,
        item(NAME, KIND, KIND, SHAPE) + RAW,
        item(NAME, KIND, SHAPE, SHAPE) + RAW,
        item(NAME, KIND, b"\x18\1\x18\2") + RAW,
        item(NAME, KIND, field(3, b"\1"), b"\x18\2") + RAW,
        item(NAME, KIND, field(3, b"")) + RAW,
        item(NAME, KIND) + RAW,
        item(NAME, SHAPE) + RAW,
        item(KIND, SHAPE) + RAW,
        item() + RAW,
        item(NAME) + RAW,
        item(NAME, KIND, SHAPE, field(9, b"?")) + RAW,
        item(NAME, b"\x12\x85\0UINT8", SHAPE) + RAW,
        item(b"\x0a\x81\0A", KIND, SHAPE) + RAW,
        item(NAME, KIND, b"\x1a\x82\0\1\2") + RAW,
        item(NAME, KIND, b"\x1a\x82\0\1\2" + field(9, bytes(125))) + RAW,
        # Dimensions of more than seven bits, negative ones, one without an end, and many
        item(NAME, KIND, field(3, b"\1\x82\0")) + RAW,
        item(NAME, KIND, field(3, b"\1" + varint(300))) + field(7, bytes(300)),
        item(NAME, KIND, field(3, varint(-1) + b"\2")) + RAW,
        item(NAME, KIND, field(3, b"\1\x82")) + RAW,
        item(NAME, KIND, field(3, b"\1" * 200)) + RAW,
        item(NAME, KIND, field(3, b"\1" * 1100)) + RAW,
        # Names and types that are none
        item(field(1, b"\xff"), KIND, SHAPE) + RAW,
        item(field(1, b"B"), KIND, SHAPE) + RAW,
        item(NAME, field(2, b"uint8"), SHAPE) + RAW,
        item(NAME, field(2, b"\xff"), SHAPE) + RAW,
        item(NAME, field(2, b"BYTES"), SHAPE) + RAW,
        # Contents, regions, and too little or too much of what is raw
        item(NAME, KIND, SHAPE, field(5, field(4, b"\1\2"))),
        item(NAME, KIND, SHAPE, field(5, field(4, b"\1\2"))) + RAW,
        item(NAME, KIND, SHAPE, field(4, field(1, b"shared_memory_region") + field(2, field(3, b"r")))) + RAW,
        item(NAME, KIND, SHAPE),
        item(NAME, KIND, SHAPE) + RAW + RAW,
        item(NAME, KIND, SHAPE) + field(7, b"abc"),
        RAW + item(NAME, KIND, SHAPE),
        # The same input twice, and something wrong with more than one part
        item(NAME, KIND, SHAPE) * 2 + RAW * 2,
        item(NAME, KIND, field(3, b"\1\1")) * 2 + RAW * 2,
        item(NAME, KIND, SHAPE) * 2 + RAW * 2 + field(4, field(1, b"timeout") + field(2, field(3, b"x"))),
        item(NAME, KIND, SHAPE) + RAW + field(4, field(1, b"triton_x") + field(2, b"\x10\1")),
        item(NAME, KIND, field(3, b"\1\3")) + RAW + field(6, field(1, b"X")),
        item(NAME, KIND, SHAPE) + RAW + field(6, field(1, b"O")) * 2,
        item(NAME, KIND, field(3, b"\1\3")) + RAW + field(6, field(1, b"O")) * 2,
        item(NAME, KIND, SHAPE) * 2 + RAW * 2 + field(6, field(1, b"O")) * 2,
        item(NAME, KIND, SHAPE) + RAW + field(6, b"\x0a\5O"),
        item(NAME, KIND, SHAPE) + RAW + field(4, field(1, b"p") + field(2, b"\x10\1")) * 2,
    ],
)
def test_odd_messages(memory: Memory, data: bytes) -> None:
    known = model()
    same(message(b"ab").SerializeToString(), memory, known)
    for _ in range(2):
        same(b"\x0a\1m" + data, memory, known)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_messages(memory: Memory, damages: list[tuple[int, int]]) -> None:
    made = message(b"ab", b"\1\0\0\0x")
    made.inputs.add(name="S", datatype="BYTES", shape=[1, 1])
    made.outputs.add(name="O").parameters["classification"].int64_param = 1
    made.parameters["own"].string_param = "y"
    known = model()
    assert same(made.SerializeToString(), memory, known)[0] == [
        ("A", 2, (1, 2), b"ab"),
        ("S", 13, (1, 1), b"\1\0\0\0x"),
    ]
    data = bytearray(made.SerializeToString())
    for at, byte in damages:
        data[at % len(data)] = byte
    try:
        split(bytes(data))
    except Malformed:
        return
    same(bytes(data), memory, known)


def test_what_was_placed_before_an_odd_input_is_let_go_of(memory: Memory) -> None:
    large = field(7, bytes(9000))
    data = item(NAME, KIND, field(3, b"\1" + varint(9000))) + item(KIND, field(1, b"S"), SHAPE) + large + large
    same(b"\x0a\1m" + data, memory)


def test_an_output_listed_twice(memory: Memory) -> None:
    made = message(b"ab")
    for _ in range(2):
        made.outputs.add(name="O")
    refused = Code.INVALID_ARG, "[request id: x] output 'O' already exists in request"
    assert same(made.SerializeToString(), memory) == refused
    # Before contents are looked at, as inputs are.
    made.raw_input_contents.pop()
    assert same(made.SerializeToString(), memory) == refused
