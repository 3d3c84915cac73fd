"""What a large request is made into means what it meant."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.errors import ServeError
from stubserve.grpc import contents
from stubserve.grpc.contents import MAX_PARTS
from stubserve.grpc.infer_decode import MAX_FIELDS, decode, split
from stubserve.grpc.infer_message import MAX_DIMS
from stubserve.grpc.infer_rewrite import rewrite
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, TooLong, TooManyParts, field, varint
from stubserve.inference.long_work import LARGE_BYTES, finish
from stubserve.inference.signature import Signature
from stubserve.memory.heap_account import MAX_WORDS_BYTES
from stubserve.memory.server_memory import Memory
from stubserve.model_config.proto import ModelConfig

MEMBERS = {
    "bool_contents": ("BOOL", st.booleans()),
    "int_contents": ("INT32", st.integers(-(2**31), 2**31 - 1)),
    "int64_contents": ("INT64", st.integers(-(2**63), 2**63 - 1)),
    "uint_contents": ("UINT8", st.integers(0, 255)),
    "uint64_contents": ("UINT64", st.integers(0, 2**64 - 1)),
    "fp32_contents": ("FP32", st.floats(width=32)),
    "fp64_contents": ("FP64", st.floats()),
    "bytes_contents": ("BYTES", st.binary(max_size=300)),
}
# It makes a description long enough to be rewritten, and is no part of any tensor.
PADDING = "x" * (LARGE_BYTES + 1)


def message(*inputs: tuple[str, str, list[Any]], raw: list[bytes] | None = None) -> Any:
    made = service_pb2.ModelInferRequest(model_name="model", id="1", raw_input_contents=raw or [])
    for number, (member, datatype, values) in enumerate(inputs):
        one = made.inputs.add(name=f"IN{number}", datatype=datatype, shape=[len(values)])
        one.parameters["padding"].string_param = PADDING
        one.contents.SetInParent()
        getattr(one.contents, member).extend(values)
    return made


def rewritten(data: bytes) -> Any:
    found = rewrite(memoryview(data))
    assert found is not None
    kept: list[int] = []
    pieces = finish(found(kept.append))
    # What is as it was sent is in the arena already.
    assert sum(map(len, pieces)) <= len(data) + sum(kept)
    return service_pb2.ModelInferRequest.FromString(b"".join(pieces))


INPUTS = st.sampled_from(sorted(MEMBERS)).flatmap(lambda name: st.tuples(st.just(name), st.lists(MEMBERS[name][1])))


@given(st.lists(INPUTS, min_size=1, max_size=3))
def test_contents_become_the_raw_contents_that_they_are(inputs: list[tuple[str, list[Any]]]) -> None:
    asked = message(*[(member, MEMBERS[member][0], values) for member, values in inputs])
    made = rewritten(asked.SerializeToString())
    expected = [contents.read(one.contents, one.name, BY_NAME[one.datatype].number, "model") for one in asked.inputs]
    assert list(made.raw_input_contents) == expected
    assert not any(one.HasField("contents") for one in made.inputs)
    for one in asked.inputs:
        one.ClearField("contents")
    made.ClearField("raw_input_contents")
    assert made == asked


def test_encodings_that_protobuf_also_takes() -> None:
    """Numbers one by one, in several runs, longer than they need be, and what belongs to nobody."""
    padding = field(4, field(1, b"padding") + field(2, field(3, PADDING.encode())))
    head = field(1, b"IN0") + field(2, b"INT32") + b"\x18\x06" + padding
    typed = [
        b"\x10\x07",
        field(2, b"\x01\x82\x00"),
        b"\x10" + varint(-1),
        b"\x35\0\0\0",
        b"\xf8\x01\x05",
        field(2, b""),
    ]
    typed[3] = field(9, b"?")
    asked = field(1, b"model") + field(5, head + b"".join(field(5, one) for one in typed))
    made = rewritten(asked)
    assert np.frombuffer(made.raw_input_contents[0], np.int32).tolist() == [7, 1, 2, -1]
    as_it_was = service_pb2.ModelInferRequest.FromString(asked)
    assert list(as_it_was.inputs[0].contents.int_contents) == [7, 1, 2, -1]
    truth = head.replace(field(2, b"INT32"), field(2, b"BOOL")) + field(5, field(1, b"\x02\x00\x81\x00"))
    assert rewritten(field(5, truth)).raw_input_contents[0] == b"\1\0\1"


def outcome(data: bytes) -> str:
    """The error in which a message ends that is decoded."""
    with pytest.raises(ServeError) as error:
        decode(data, split(data), Signature("model", 1, ModelConfig(name="model")), Memory(64 << 20).store)
    return error.value.message


@pytest.mark.parametrize("kind", ["other type", "two members", "raw beside it", "shared memory", "one without"])
def test_what_is_wrong_stays_wrong_in_the_same_way(kind: str) -> None:
    asked = message(("int_contents", "INT32", [1] * 1000), ("fp32_contents", "FP32", [1.0] * 1000))
    if kind == "other type":
        asked.inputs[1].datatype = "FP64"
    elif kind == "two members":
        asked.inputs[0].contents.bool_contents.extend([True] * 1000)
    elif kind == "raw beside it":
        asked.raw_input_contents.extend([b"1234", b"5678"])
    elif kind == "shared memory":
        asked.inputs[0].parameters["shared_memory_region"].string_param = "there"
    else:
        asked.inputs[1].ClearField("contents")
    data = asked.SerializeToString()
    made = rewritten(data).SerializeToString()
    assert outcome(made) == outcome(data)
    assert len(made) < len(data) - 900


@pytest.mark.parametrize(
    "contents_bytes",
    [b"\x10", field(2, b"\x80"), field(2, b"\xff" * 11 + b"\0"), field(2, b"\x80" * 3_000_000 + b"\0"),
     field(6, b"123"), b"\x42\x05abc", b"\x42", b"\x00\x01", b"\x0b"],
)  # fmt: skip
def test_contents_that_are_none(contents_bytes: bytes) -> None:
    datatype = b"FP32" if contents_bytes[:1] == b"\x32" else b"INT32"
    head = field(1, b"IN0") + field(2, datatype) + field(4, field(1, b"p") + field(2, field(3, PADDING.encode())))
    with pytest.raises(Malformed):
        rewritten(field(5, head + field(5, contents_bytes)))


@pytest.mark.parametrize(
    "small",
    [
        lambda n: field(5, b"\x22\x00" * n),
        lambda n: field(5, field(3, b"\x01" * n)),
        lambda n: field(5, b"\x18\x01" * n),
        lambda n: field(5, b"\x78\x00" * n),
        lambda n: field(5, field(5, b"\x10\x01" * n)),
        lambda n: field(5, field(4, field(2, b"\x78\x00" * n))),
        lambda n: field(6, field(2, b"\x78\x00" * n)),
        lambda n: field(4, field(2, b"\x78\x00" * n)),
    ],
)
def test_a_message_has_no_more_than_so_many_parts(small: Any) -> None:
    for count, fine in ((MAX_PARTS // 3, True), (MAX_PARTS, False)):
        data = field(1, b"model") + field(5, field(1, b"IN0")) + small(count) + field(4, field(1, PADDING.encode()))
        if fine:
            rewritten(data)
        else:
            with pytest.raises(TooManyParts):
                rewritten(data)


def test_what_is_not_large_is_left_alone() -> None:
    assert rewrite(message(raw=[bytes(1 << 20)]).SerializeToString()) is None
    assert rewrite(b"\xff\xff") is None


def test_fields_and_dimensions_have_a_limit() -> None:
    few = message(raw=[b""] * (MAX_FIELDS - 10)).SerializeToString()
    assert len(split(few).raw) == MAX_FIELDS - 10
    for many in (b"\x3a\x00", b"\x78\x00", b"\x2a\x00", b"\x22\x00"):
        with pytest.raises(TooManyParts):
            split(few + many * 20)
    signature = Signature("model", 1, ModelConfig(name="model"))
    asked = service_pb2.ModelInferRequest(model_name="model", raw_input_contents=[struct.pack("<f", 1)])
    asked.inputs.add(name="IN0", datatype="FP32", shape=[1] * (MAX_DIMS + 1))
    data = asked.SerializeToString()
    with pytest.raises(TooManyParts) as error:
        decode(data, split(data), signature, Memory(64 << 20).store)
    assert error.value.text == f"the request is made of too many dimensions of input 'IN0': at most {MAX_DIMS} are read"


@pytest.mark.parametrize("field_number", [1, 2, 3])
def test_names_and_ids_have_a_limit(field_number: int) -> None:
    assert split(field(field_number, b"x" * MAX_WORDS_BYTES))
    with pytest.raises(TooLong):
        split(field(field_number, b"x" * (MAX_WORDS_BYTES + 1)))


def test_parameters_have_a_limit() -> None:
    asked = message(("int_contents", "INT32", [1] * 1000))
    asked.parameters["p"].string_param = "x" * (MAX_WORDS_BYTES - len(PADDING) - 100)
    assert rewritten(asked.SerializeToString()).raw_input_contents
    asked.parameters["p"].string_param += "x" * 100
    with pytest.raises(TooLong) as error:
        rewritten(asked.SerializeToString())
    assert "id, names and parameters may have 1048576 bytes together" in error.value.text


def test_tags_may_be_longer_than_they_need_be() -> None:
    """As protobuf's own parser reads them: the rewriting must not lose what it does not."""
    strings = b"\xc2\0\1a" + field(8, b"b") + b"\xc2\x80\0\1c" * 2
    one = field(1, b"IN") + field(2, b"BYTES") + b"\xaa\0" + varint(len(strings)) + strings
    one += field(4, field(1, b"padding") + field(2, field(3, PADDING.encode())))
    data = field(1, b"model") + b"\xaa\x80\0" + varint(len(one)) + one
    [asked] = service_pb2.ModelInferRequest.FromString(data).inputs
    assert list(asked.contents.bytes_contents) == [b"a", b"b", b"c", b"c"]
    made = rewritten(data)
    assert list(made.raw_input_contents) == [contents.read(asked.contents, "IN", BY_NAME["BYTES"].number, "model")]
