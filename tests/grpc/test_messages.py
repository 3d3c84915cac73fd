"""What is read and written by hand is what protobuf reads and writes."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.api.placement import ReplyFormat
from stubserve.grpc import contents
from stubserve.grpc.infer_decode import first_raw, split
from stubserve.grpc.infer_encode import encode, encode_empty_final, encode_stream_error
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, read_varint, varint
from stubserve.inference.request import Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.model_config.proto import ModelConfig

ALL = ReplyFormat(None, True)


def message(**more: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name="model", model_version="3", id="grüße", **more)
    made.inputs.add(name="A", datatype="FP32", shape=[2])
    made.inputs.add(name="B", datatype="INT8", shape=[300, 1])
    made.outputs.add(name="O")
    made.parameters["p"].string_param = "x"
    made.raw_input_contents.extend([b"12345678", bytes(300)])
    return made


def test_a_message_is_taken_apart() -> None:
    data = message().SerializeToString()
    for form in (data, memoryview(bytearray(data))):
        envelope = split(form)
        assert (envelope.model_name, envelope.model_version, envelope.id) == ("model", "3", "grüße")
        assert [data[start:end] for start, end in envelope.raw] == [b"12345678", bytes(300)]
        described = service_pb2.ModelInferRequest.FromString(envelope.description)
        expected = message()
        for field in ("model_name", "model_version", "id", "raw_input_contents"):
            expected.ClearField(field)
        assert described == expected


def overlong(tag: int, nbytes: int) -> bytes:
    """A tag in more bytes than it needs."""
    return bytes(
        [tag & 0x7F | 0x80, *[tag >> 7 * n & 0x7F | 0x80 for n in range(1, nbytes - 1)], tag >> 7 * (nbytes - 1)]
    )


@pytest.mark.parametrize("nbytes", [2, 3, 5])
def test_a_tag_may_be_longer_than_it_need_be(nbytes: int) -> None:
    """Protobuf reads it as the field that it is."""
    data = message().SerializeToString()
    inputs = b"".join(overlong(0x2A, nbytes) + varint(len(one)) + one for one in [b"\x0a\1C", b"\x0a\1D"])
    data += overlong(0x0A, nbytes) + b"\5other" + inputs + overlong(0x3A, nbytes) + b"\3raw"
    theirs = service_pb2.ModelInferRequest.FromString(data)
    envelope = split(data)
    assert envelope.model_name == theirs.model_name == "other"
    assert [data[start:end] for start, end in envelope.raw] == list(theirs.raw_input_contents)
    described = service_pb2.ModelInferRequest.FromString(envelope.description)
    assert [one.name for one in described.inputs] == ["A", "B", "C", "D"]
    assert first_raw(memoryview(overlong(0x3A, nbytes) + b"\3raw")) == nbytes + 1


# Six bytes; more than 32 bits; field 0, short and overlong
@pytest.mark.parametrize("tag", [overlong(0x3A, 6), b"\xfa\xff\xff\xff\x1f", b"\x02", b"\x82\0", b"\x80" * 5 + b"\1"])
def test_a_tag_is_refused_where_protobuf_does_so(tag: bytes) -> None:
    data = b"\x0a\1m" + tag + b"\0"
    with pytest.raises(DecodeError):
        service_pb2.ModelInferRequest.FromString(data)
    with pytest.raises(Malformed):
        split(data)


def test_fields_in_any_order() -> None:
    raw = service_pb2.ModelInferRequest(raw_input_contents=[b"xy"]).SerializeToString()
    rest = message()
    rest.ClearField("raw_input_contents")
    unknown = b"\x98\x06\x07\xa2\x06\x01z\xa9\x06" + bytes(8) + b"\xb5\x06" + bytes(4)
    data = raw + rest.SerializeToString() + unknown + service_pb2.ModelInferRequest(id="last").SerializeToString()
    envelope = split(data)
    assert envelope.id == "last"
    assert [data[start:end] for start, end in envelope.raw] == [b"xy"]
    assert service_pb2.ModelInferRequest.FromString(envelope.description).inputs == rest.inputs


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    try:
        envelope = split(data)
    except Malformed:
        return
    assert all(0 <= start <= end <= len(data) for start, end in envelope.raw)


@given(st.integers(0, 30), st.integers(0, 255))
def test_a_damaged_message(at: int, byte: int) -> None:
    data = bytearray(message().SerializeToString())
    data[at] = byte
    try:
        split(bytes(data))
    except Malformed:
        return


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints(value: int) -> None:
    assert read_varint(varint(value), 0) == (value % 2**64, len(varint(value)))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10])
def test_varints_that_do_not_end(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_varint(data, 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_of_contents(values: list[int]) -> None:
    tensor = service_pb2.InferTensorContents(int64_contents=values)
    data = contents.read(tensor, "A", BY_NAME["INT64"].number, "m")
    np.testing.assert_array_equal(np.frombuffer(data, np.int64), values)


def test_many_integers_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [-1, 300, 0, 2**31 - 1, 127, 128] * 10
    tensor = service_pb2.InferTensorContents(int_contents=values)
    for size in (1, 7, 16):
        monkeypatch.setattr(contents, "_PIECE_BYTES", size)
        data = contents.read(tensor, "A", BY_NAME["INT32"].number, "m")
        np.testing.assert_array_equal(np.frombuffer(data, np.int32), values)
    monkeypatch.undo()
    count = 8 << 20
    tensor = service_pb2.InferTensorContents(int_contents=np.ones(count, np.int32))
    tracemalloc.start()
    contents.read(tensor, "A", BY_NAME["INT8"].number, "m")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * count


@given(st.lists(st.binary(max_size=20)))
def test_strings_of_contents(values: list[bytes]) -> None:
    data = contents.read(service_pb2.InferTensorContents(bytes_contents=values), "A", BY_NAME["BYTES"].number, "m")
    assert data == b"".join(struct.pack("<I", len(value)) + value for value in values)


def signature() -> Signature:
    return Signature("modèle", 7, ModelConfig(name="modèle"))


def test_a_response_is_what_protobuf_reads() -> None:
    response = Response(
        [
            Tensor("O", BY_NAME["FP32"].number, (2, 1), struct.pack("<2f", 1, 2)),
            Tensor("E", BY_NAME["BYTES"].number, (), b""),
            Tensor("L", BY_NAME["UINT8"].number, (1000,), bytes(1000)),
        ],
        {"b": True, "i": -5, "big": 2**62, "s": "ü", "d": 0.5},
        final=False,
    )
    expected = service_pb2.ModelInferResponse(
        model_name="modèle",
        model_version="7",
        id="id",
        outputs=[
            {"name": "O", "datatype": "FP32", "shape": [2, 1]},
            {"name": "E", "datatype": "BYTES"},
            {"name": "L", "datatype": "UINT8", "shape": [1000]},
        ],
        raw_output_contents=[struct.pack("<2f", 1, 2), b"", bytes(1000)],
    )
    expected.parameters["b"].bool_param = True
    expected.parameters["i"].int64_param = -5
    expected.parameters["big"].int64_param = 2**62
    expected.parameters["s"].string_param = "ü"
    expected.parameters["d"].double_param = 0.5
    parts = encode("id", response, signature(), ALL)
    assert service_pb2.ModelInferResponse.FromString(b"".join(parts)) == expected
    expected.parameters["triton_final_response"].bool_param = False
    parts = encode("id", response, signature(), ALL, in_stream=True)
    read = service_pb2.ModelStreamInferResponse.FromString(b"".join(parts))
    assert read.infer_response == expected


def test_what_a_stream_says_besides() -> None:
    read = service_pb2.ModelStreamInferResponse.FromString
    refused = read(b"".join(encode_stream_error("warum?", "1", None, True)))
    assert refused == service_pb2.ModelStreamInferResponse(error_message="warum?", infer_response={"id": "1"})
    failed = read(b"".join(encode_stream_error("x", "1", ("m", "2"), False)))
    assert (failed.infer_response.model_name, failed.infer_response.model_version) == ("m", "2")
    assert failed.infer_response.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
    assert not failed.infer_response.parameters["triton_final_response"].bool_param
    last = read(b"".join(encode_empty_final("1", ("m", "")))).infer_response
    assert (last.id, last.model_name, list(last.outputs)) == ("1", "m", [])
    assert last.parameters["triton_final_response"].bool_param
