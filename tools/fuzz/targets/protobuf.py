"""A ModelInferRequest: our envelope beside protobuf's parser, and what decoding makes of it, known and unknown."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER
from tritonclient.grpc import service_pb2

from stubserve.grpc import infer_decode
from stubserve.grpc.infer_decode import decode
from stubserve.grpc.wire import Malformed, TooManyParts
from stubserve.inference.admission import admit
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks

from ..finding import Finding, same
from ..server import CONFIGS, Memory, described, outcome, signature

GROUPS = (3, 4)
NUMBERS = ("int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents", "fp64_contents")


def fuzz_one(data: bytes) -> None:
    try:
        theirs = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        theirs = None
    infer_decode.first_raw(memoryview(data))
    try:
        ours = infer_decode.split(data)
    except TooManyParts:
        return  # a limit of ours
    except Malformed:
        if theirs is not None and not _has_groups(data):
            raise Finding("our envelope refuses what protobuf reads") from None
        return
    if theirs is not None:
        raw = [bytes(data[start:end]) for start, end in ours.raw]
        same(
            (ours.model_name, ours.model_version, ours.id, raw),
            (theirs.model_name, theirs.model_version, theirs.id, list(theirs.raw_input_contents)),
            "our envelope and protobuf read different things",
        )
    known = signature(ours.model_name if ours.model_name in CONFIGS else "floats")
    fresh = _read(data, known)
    if fresh is not Malformed and theirs is None:
        raise Finding("protobuf refuses what we read", repr(fresh))
    with mock.patch.object(infer_decode, "_read", return_value=None):
        same(fresh, _read(data, known), "read as a message it means something else")
    same(fresh, _read(data, known), "a remembered description is read differently from a new one")
    if fresh is not Malformed and len(data) > 1:
        changed = data[:-1] + bytes([data[-1] ^ 1])
        alone = _read(changed, signature(known.model))
        same(alone, _read(changed, known), "what is remembered of a message spoils another", repr(changed))
    if theirs is not None:
        _compare_numbers(theirs, data)


def _read(data: bytes, known: Signature) -> Any:
    memory = Memory()

    def read() -> Any:
        request, reply_format = decode(data, infer_decode.split(data), known, memory.store)
        try:
            admit(request, known)
            return described(request), reply_format
        finally:
            drop_blocks(request.inputs)

    try:
        found = outcome(read)
    except Malformed:
        found = Malformed
    if memory.held:
        raise Finding("blocks are held afterwards", f"{memory.held} after {found!r}")
    return found


def _compare_numbers(message: Any, data: bytes) -> None:
    """Typed contents, read by numpy there and one by one here."""
    if message.raw_input_contents:
        return
    memory = Memory()
    try:
        request, _ = decode(data, infer_decode.split(data), signature("mixed"), memory.store)
    except Exception:
        return
    for item, tensor in zip(message.inputs, request.inputs, strict=False):
        for member in NUMBERS:
            values = list(getattr(item.contents, member))
            if values and tensor.datatype in BY_NUMBER and tensor.datatype != BY_NAME["BYTES"].number:
                kind = np.dtype(BY_NUMBER[tensor.datatype].numpy)
                expected = np.array(values, "u8" if kind.kind == "u" else "i8" if kind.kind == "i" else kind)
                same(bytes(tensor.buffer), expected.astype(kind).tobytes(), f"{member} are read wrongly")
    drop_blocks(request.inputs)


def _has_groups(data: bytes) -> bool:
    """Whether a group may be in it: protobuf skips them, nobody sends them, and we refuse them."""
    return any(byte & 7 in GROUPS for byte in data)


def request(model: str, *inputs: tuple[str, str, list[int]], raw: tuple[bytes, ...] = (), id: str = "") -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=id)
    for name, datatype, shape in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    message.raw_input_contents.extend(raw)
    return message


def _seeds() -> list[bytes]:
    plain = request("floats", ("IN", "FP32", [1, 2]), raw=(bytes(8),), id="a")
    long = request("floats", ("IN", "FP32", [1, 400]), raw=(bytes(1600),))
    mixed = request("mixed", ("A", "INT8", [2, 1]), ("S", "BYTES", [1]), raw=(b"\1\2", b"\1\0\0\0a"))
    typed = request("mixed", ("A", "INT8", [2, 2]), ("U", "UINT64", [2]))
    typed.inputs[0].contents.int_contents.extend([1, -2, 3, 127])
    typed.inputs[1].contents.uint64_contents.extend([1 << 63, 0])
    strings = request("strings", ("IN", "BYTES", [2, 1]))
    strings.inputs[0].contents.bytes_contents.extend([b"a", b"\xff"])
    parameters = request("floats", ("IN", "FP32", [1, 1]), raw=(bytes(4),))
    parameters.parameters["sequence_id"].int64_param = 5
    parameters.parameters["sequence_start"].bool_param = True
    parameters.parameters["timeout"].int64_param = 5
    parameters.parameters["p"].double_param = 0.5
    parameters.outputs.add(name="OUT").parameters["classification"].int64_param = 2
    messages = [plain, long, mixed, typed, strings, parameters]
    return [message.SerializeToString() for message in messages] + [b"\x3a\x00" * 100, b"\x78\x00" * 100]


SEEDS = _seeds()
WORDS = [
    b"\x0a\x06floats",
    b"\x0a\x05mixed",
    b"\x1a\x01a",
    b"\x3a\x00",
    b"\x3a\x04abcd",
    b"\x78\x00",
    b"\x2a\x00",
    b"\x22\x00",
    b"\x32\x05\x0a\x03OUT",
    b"\x0b\x0c",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
]
