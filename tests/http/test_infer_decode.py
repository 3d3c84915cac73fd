"""Texts, statuses and precedence as Triton 2.51 gave them for the same bodies, unless a comment says otherwise."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import pytest

from stubserve.api.placement import BodyPlacer, ReplyFormat, Slot
from stubserve.errors import ServeError
from stubserve.http import infer_document
from stubserve.http.infer import decode, parse_header_length
from stubserve.inference.admission import admit
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks
from tests.http.arena import Memory, decoded
from tests.inference.models import echo, io, signature

NOBODY = "[request id: <id_unknown>] "
UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
LEAVE_OUT = object()


@pytest.fixture
def model() -> Signature:
    return echo("f16b", "FP32", "16", "max_batch_size: 8")


def tensor(**fields: Any) -> dict[str, Any]:
    made = {"name": "IN", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16, **fields}
    return {name: value for name, value in made.items() if value is not LEAVE_OUT}


def binary(nbytes: Any, **fields: Any) -> dict[str, Any]:
    return tensor(data=LEAVE_OUT, parameters={"binary_data_size": nbytes}, **fields)


def body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({**fields, "inputs": list(inputs)}).encode()


def read(
    model: Signature, header: bytes, tail: bytes = b"", limit: int = 1 << 20, memory: Memory | None = None
) -> tuple[Request, ReplyFormat]:
    """Decodes a body that does not lie in the arena; `tail` is what follows the JSON."""
    store = (memory or Memory()).store
    return decoded(header + tail, len(header) if tail else None, model, store, limit)


def admitted(model: Signature, header: bytes, tail: bytes = b"") -> Request:
    made = read(model, header, tail)[0]
    admit(made, model)
    return made


def refusal(model: Signature, header: bytes, tail: bytes = b"", limit: int = 1 << 20) -> tuple[int, str]:
    with pytest.raises(ServeError) as caught:
        admit(read(model, header, tail, limit)[0], model)
    return caught.value.code.http_status, caught.value.message


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


# The JSON as a whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ("[]", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ("5", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ("{}", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ('{"inputs":5}', "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ('{"id":5,"parameters":3,"inputs":3}', "Unable to parse 'id': attempt to access JSON non-string as string"),
        ('{"parameters":5}', "failed to get request params.: attempt to get members for non-object"),
        ('{"parameters":null}', "failed to get request params.: attempt to get members for non-object"),
        ('{"inputs":[],"outputs":3}', "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ('{"inputs":[],"outputs":null}', "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ('{"inputs":[{"data":1}],"outputs":3}', "Unable to parse 'name': attempt to access non-existing object member 'name'"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_json(model: Signature, text: str, message: str) -> None:
    assert refusal(model, text.encode()) == (500, message)


def test_unknown_members_do_not_matter(model: Signature) -> None:
    assert admitted(model, body(tensor(foo=3), bar=[1])).batch_size == 1


def test_of_equal_names_the_first_counts() -> None:
    text = b'{"id":"a","id":5,"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1],"data":[2]}],"inputs":3}'
    made = admitted(echo("one", "FP32", "1"), text)
    assert made.id == "a"
    assert made.inputs[0].data == floats(1)


def test_a_colon_in_a_text_is_no_name(model: Signature) -> None:
    assert admitted(model, body(tensor(), id='a:b":')).id == 'a:b":'


def test_an_id_ends_at_a_nul(model: Signature) -> None:
    assert admitted(model, body(tensor(), id="a\0b")).id == "a"


def test_json_over_the_limit(model: Signature) -> None:
    header = body(tensor())
    text = (
        f"request JSON size of {len(header)} bytes exceeds the maximum allowed input size of 50 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert refusal(model, header, limit=50) == (400, text)


def test_json_shorter_than_announced(model: Signature) -> None:
    with pytest.raises(ServeError, match=r"^unexpected size for request JSON, expecting 8 more bytes$"):
        decoded(b"{}", 10, model, Memory().store)


# Parameters


def parameters(**given: Any) -> Request:
    return admitted(echo("f16b", "FP32", "16", "max_batch_size: 8"), body(tensor(), parameters=given))


def test_reserved_parameters() -> None:
    made = parameters(sequence_id=2**64 - 1, sequence_start=True, sequence_end=True, priority=3, timeout=2**63)
    assert made.options == (2**64 - 1, SEQUENCE_START | SEQUENCE_END, 3, 2**63, None)
    assert parameters(sequence_id="abc", sequence_start=False).options == ("abc", 0, 0, 0, None)


def test_other_parameters() -> None:
    given = {"a": 1, "b": "x", "c": True, "d": 1.5, "e": -(2**63), "f": "", "headers": "h", "g": 2**63}
    found = parameters(**given).options.parameters
    assert found == given
    assert found is not None
    # Only what fits a signed integer stays one.
    assert [type(found[key]) for key in ("a", "c", "d", "e", "g")] == [int, bool, float, int, float]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sequence_id": -5}, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ({"sequence_id": None}, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ({"sequence_id": True}, "Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
        ({"sequence_start": 1}, "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean"),
        ({"sequence_end": "a"}, "Unable to parse 'sequence_end': attempt to access JSON non-boolean as boolean"),
        ({"priority": -1}, f"Unable to parse 'priority': {UINT}"),
        ({"priority": 1.5}, f"Unable to parse 'priority': {UINT}"),
        ({"timeout": "a"}, f"Unable to parse 'timeout': {UINT}"),
        ({"binary_data_output": 1}, "Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_reserved_parameters(model: Signature, given: dict[str, Any], message: str) -> None:
    assert refusal(model, body(tensor(), parameters=given)) == (500, message)


@pytest.mark.parametrize("value", [None, [], {}])
def test_parameters_of_no_type(model: Signature, value: Any) -> None:
    text = "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."
    assert refusal(model, body(5, parameters={"a": value})) == (400, text)


def test_tritons_own_parameters(model: Signature) -> None:
    text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    given = {"triton_enable_empty_final_response": True}
    assert refusal(model, body(tensor(), parameters=given)) == (400, text)


# Inputs, but for their data


CONTENT = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


@pytest.mark.parametrize("item", [5, {}, {"name": 5}, tensor(data=LEAVE_OUT), tensor(data=LEAVE_OUT, parameters=5)])
def test_no_content(model: Signature, item: Any) -> None:
    assert refusal(model, body(item)) == (400, f"{CONTENT} no field is set")


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        (tensor(parameters={"binary_data_size": 4}), "'data' 'binary_data_size'"),
        (tensor(data=LEAVE_OUT, parameters={"shared_memory_region": "r", "binary_data_size": 4}), "'binary_data_size' 'shared_memory_region'"),  # noqa: E501
    ],
)  # fmt: skip
def test_too_much_content(model: Signature, item: Any, fields: str) -> None:
    assert refusal(model, body(item)) == (400, f"{CONTENT} set {fields}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": LEAVE_OUT}, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ({"name": 5, "datatype": 5}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        ({"datatype": LEAVE_OUT, "shape": 5}, "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"),  # noqa: E501
        ({"datatype": 3}, "Unable to parse 'datatype': attempt to access JSON non-string as string"),
        ({"shape": LEAVE_OUT}, "Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
        ({"shape": 5}, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        ({"shape": [1, -1]}, f"Unable to parse 'shape': {UINT}"),
        ({"shape": [1, 1.0]}, f"Unable to parse 'shape': {UINT}"),
        ({"data": 5}, "Unable to parse 'data': attempt to access JSON non-array as array"),
        ({"data": None}, "Unable to parse 'data': attempt to access JSON non-array as array"),
    ],
)  # fmt: skip
def test_bad_inputs(model: Signature, fields: dict[str, Any], message: str) -> None:
    assert refusal(model, body(tensor(**fields))) == (500, message)


def test_a_second_input_of_a_name_is_refused_before_its_data(model: Signature) -> None:
    text = NOBODY + "input 'IN' already exists in request"
    assert refusal(model, body(tensor(), tensor(data=5))) == (400, text)


def test_a_datatype_that_is_none(model: Signature) -> None:
    assert refusal(model, body(tensor(datatype="fp32"))) == (400, "invalid datatype for input IN")
    text = NOBODY + "inference input 'IN' data-type is '<invalid>', but model 'f16b' expects 'FP32'"
    assert refusal(model, body(binary(4, datatype="TYPE_FP32")), b"1234") == (400, text)


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ([1, 2**63], "contains one or more invalid dimensions"),
        ([2**32, 2**32], "causes total element count to exceed maximum size of 9223372036854775807"),
    ],
)
def test_shapes_beyond_64_bits(model: Signature, shape: list[int], problem: str) -> None:
    # 2.73's texts; 2.51 dies of these.
    text = f"invalid shape for input 'IN': shape [{shape[0]},{shape[1]}] {problem}"
    assert refusal(model, body(tensor(shape=shape))) == (400, text)


def test_sizes_in_bytes_beyond_64_bits(model: Signature) -> None:
    text = (
        f"byte size overflow for input 'IN': element count ({2**62}) * data type size (4) exceeds maximum allowed size"
    )
    status, error = refusal(model, body(tensor(shape=[1, 2**62])))
    assert (status, error) == (400, f"{text} ({2**64 - 1})")


def test_a_long_shape_is_not_multiplied_out(model: Signature) -> None:
    """All of it would take a quarter of an hour."""
    status, text = refusal(model, body(tensor(shape=[2**62] * 500_000)), limit=1 << 30)
    assert status == 400
    assert text.endswith("causes total element count to exceed maximum size of 9223372036854775807")


def test_a_tensor_over_the_limit(model: Signature) -> None:
    text = (
        "JSON input 'IN' has a byte_size (4000000 bytes) that exceeds the maximum allowed value of 1000 bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert refusal(model, body(tensor(shape=[1000000], data=[])), limit=1000) == (400, text)


def test_shared_memory(model: Signature) -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 64}
    text = "Unable to find shared memory region: 'r'"
    assert refusal(model, body(tensor(data=LEAVE_OUT, parameters=region))) == (404, text)
    assert refusal(model, body(tensor(), outputs=[{"name": "OUT", "parameters": region}])) == (404, text)
    bad = {"shared_memory_region": 5}
    text = "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string"
    assert refusal(model, body(tensor(data=LEAVE_OUT, parameters=bad))) == (500, text)


# Binary data


def test_binary_input(model: Signature) -> None:
    content = floats(*range(16))
    made = admitted(model, body(binary(64)), content)
    assert (made.inputs[0].data, list(made.inputs[0].shape), made.batch_size) == (content, [1, 16], 1)


@pytest.mark.parametrize(
    ("announced", "sent", "status", "message"),
    [
        (64, 60, 400, "unexpected size for input 'IN', expecting 4 additional bytes for model 'f16b'"),
        (60, 64, 400, "unexpected additional input data for model 'f16b'"),
        (60, 60, 400, NOBODY + "input byte size mismatch for input 'IN' for model 'f16b'. Expected 64, got 60"),
        ("a", 64, 500, f"Unable to parse 'binary_data_size': {UINT}"),
        (-1, 64, 500, f"Unable to parse 'binary_data_size': {UINT}"),
        (1.5, 64, 500, f"Unable to parse 'binary_data_size': {UINT}"),
    ],
)
def test_bad_binary_sizes(model: Signature, announced: Any, sent: int, status: int, message: str) -> None:
    assert refusal(model, body(binary(announced)), bytes(sent)) == (status, message)


def test_no_bytes_at_all(model: Signature) -> None:
    text = "unexpected size for input 'IN', expecting 64 additional bytes for model 'f16b'"
    assert refusal(model, body(binary(64))) == (400, text)


def test_inputs_take_their_bytes_in_order() -> None:
    model = signature("two", io("input", "A", "UINT8", "-1") + io("input", "B", "UINT8", "-1"))
    header = body(binary(2, name="B", datatype="UINT8", shape=[2]), binary(3, name="A", datatype="UINT8", shape=[3]))
    made = admitted(model, header, b"bbaaa")
    assert {tensor.name: tensor.data for tensor in made.inputs} == {"B": b"bb", "A": b"aaa"}


def test_large_tensors_stay_in_the_body(memory: Memory) -> None:
    model = signature("two", io("input", "A", "UINT8", "-1") + io("input", "B", "UINT8", "-1"))
    header = body(
        binary(9000, name="A", datatype="UINT8", shape=[9000]), binary(5, name="B", datatype="UINT8", shape=[5])
    )
    whole = header + bytes(range(200)) * 45 + b"small"
    block = memory.store(b"#" * 10 + whole)
    placer = BodyPlacer(block.view[10:], block, block.offset + 10, memory.store)
    request, _ = decode(block.view[10:], len(header), model, placer)
    block.drop()
    large, small = request.inputs
    assert (large.data, large.offset, large.nbytes) == (None, block.offset + 10 + len(header), 9000)
    assert bytes(large.buffer) == bytes(range(200)) * 45
    assert (small.data, small.block) == (b"small", None)
    assert memory.allocator.live_blocks == 1
    assert large.block is block
    block.drop()


def test_large_tensors_of_a_body_elsewhere_are_stored(memory: Memory) -> None:
    model = echo("u", "UINT8", "-1")
    header = body(binary(9000, datatype="UINT8", shape=[9000]))
    for _ in range(2):  # by reading the header, then by its plan
        (found,) = read(model, header, b"x" * 9000, memory=memory)[0].inputs
        assert bytes(found.buffer) == b"x" * 9000
        assert found.block is not None
        assert memory.allocator.live_blocks == 1
        found.block.drop()


@pytest.mark.parametrize("tail", [b"x" * 9000, b"x" * 9001])
def test_nothing_is_held_after_a_failure(memory: Memory, tail: bytes) -> None:
    model = echo("u", "UINT8", "-1")
    header = body(binary(9000, datatype="UINT8", shape=[9000]), outputs=5)
    with pytest.raises(ServeError):
        read(model, header, tail, memory=memory)
    assert memory.allocator.live_blocks == 0


# Data in JSON


def every(kind: str, dims: str = "-1") -> Signature:
    return echo("every", kind, dims)


def converted(kind: str, data: Any, count: int) -> bytes | None:
    protocol = "BYTES" if kind == "STRING" else kind
    return admitted(every(kind), body(tensor(datatype=protocol, shape=[count], data=data))).inputs[0].data


@pytest.mark.parametrize(
    ("kind", "data", "layout", "expected"),
    [
        ("BOOL", [True, False], "<2B", (1, 0)),
        ("UINT8", [300, 255], "<2B", (44, 255)),
        ("UINT16", [70000], "<H", (4464,)),
        ("UINT32", [2**32 + 5], "<I", (5,)),
        ("UINT64", [2**64 - 1], "<Q", (2**64 - 1,)),
        ("INT8", [300, -129], "<2b", (44, 127)),
        ("INT16", [2**40 + 3], "<h", (3,)),
        ("INT32", [2**31], "<i", (-(2**31),)),
        ("INT64", [-(2**63), 2**63 - 1], "<2q", (-(2**63), 2**63 - 1)),
        ("FP32", [1, 0.1, 1e39, -1e39, 2**63], "<5f", (1.0, 0.10000000149011612, float("inf"), float("-inf"), 2.0**63)),
        ("FP64", [1, 0.1, 2**64], "<3d", (1.0, 0.1, 2.0**64)),
    ],
)
def test_conversion(kind: str, data: list[Any], layout: str, expected: tuple[Any, ...]) -> None:
    assert struct.unpack(layout, converted(kind, data, len(data)) or b"") == expected


@pytest.mark.parametrize(
    "data",
    [
        [1, 2, 3, 4],
        [[1, 2], [3, 4]],
        [[[1]], 2, [3, [4]]],
        [1, [[[]]], 2, 3, 4, []],
        [[[[1, 2, 3, 4]]]],
        [[1], 2, [[3, 4]]],
    ],
)
def test_any_nesting(data: Any) -> None:
    assert converted("FP32", data, 4) == floats(1, 2, 3, 4)


@pytest.mark.parametrize("beside", [b"", b"[],"])
@pytest.mark.parametrize(("depth", "fine"), [(99, True), (100, False)])
def test_nesting_depth(depth: int, fine: bool, beside: bytes) -> None:
    # 2.73's limit; 2.51 has none.
    data = b"[" * 50 + beside + b"[" * (depth - 50) + b"1" + b"]" * depth
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":' + data + b"}]}"
    if fine:
        assert admitted(every("FP32"), text).inputs[0].data == floats(1)
    else:
        assert refusal(every("FP32"), text) == (400, "JSON nesting depth exceeds maximum allowed limit (100)")


def test_numbers_that_are_not_in_the_standard() -> None:
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[3],"data":[NaN,Infinity,-Inf]}]}'
    data = admitted(every("FP32"), text).inputs[0].data
    assert data is not None
    assert data.hex() == floats(float("nan"), float("inf"), float("-inf")).hex()


SHAPE = "Unable to parse 'data': Shape does not match true shape of 'data' field"
SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
UNSIGNED = f"Unable to parse 'data': {UINT}"
NUMBER = "Unable to parse 'data': attempt to access JSON non-number as double"
BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("FP32", [1], SHAPE),
        ("FP32", [1, 2, 3], SHAPE),
        ("FP32", [], SHAPE),
        ("FP32", [1, 2, "a"], SHAPE),
        ("FP32", [1, "a"], NUMBER),
        ("FP32", [True, True], NUMBER),
        ("FP32", [None, 1], NUMBER),
        ("FP64", [{}, 1], NUMBER),
        ("INT32", [1.5, 1], SIGNED),
        ("INT32", [True, 1], SIGNED),
        ("INT64", [2**63, 1], SIGNED),
        ("UINT32", [-1, 1], UNSIGNED),
        ("UINT64", [2**64, 1], UNSIGNED),
        ("UINT64", [1.0, 1], UNSIGNED),
        ("BOOL", [1, 0], BOOLEAN),
        ("STRING", [1, "a"], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("STRING", ["a", [5]], "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    ],
)
def test_bad_data(kind: str, data: Any, message: str) -> None:
    protocol = "BYTES" if kind == "STRING" else kind
    assert refusal(every(kind), body(tensor(datatype=protocol, shape=[2], data=data))) == (500, message)


@pytest.mark.parametrize("kind", ["FP16", "BF16"])
def test_types_without_json(kind: str) -> None:
    text = f"receiving {kind} data via JSON is not supported. Please use the binary data format for input IN"
    assert refusal(every(kind), body(tensor(datatype=kind, shape=[1], data=[1]))) == (400, text)


def test_no_elements_no_data() -> None:
    assert converted("FP32", "anything", 0) == b""


def test_no_shape_no_data() -> None:
    text = NOBODY + "unexpected shape for input 'IN' for model 'every'. Expected [1], got []. "
    assert refusal(every("FP32", "1"), body(tensor(shape=[], data="anything"))) == (400, text)


def test_strings() -> None:
    text = 'a\u00e9"\U0001f600\0'
    expected = b"".join(struct.pack("<I", len(part)) + part for part in (text.encode(), b"", b"b"))
    assert converted("STRING", [text, ["", "b"]], 3) == expected


def test_strings_that_are_no_text() -> None:
    header = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["\xff\xfe"]}]}'
    assert admitted(every("STRING"), header).inputs[0].data == b"\2\0\0\0\xff\xfe"


def test_the_number_of_strings_is_checked_later() -> None:
    text = NOBODY + "expected 3 string elements for inference input 'IN' for model 'every', got 1"
    assert refusal(every("STRING"), body(tensor(datatype="BYTES", shape=[3], data=["a"]))) == (400, text)


# Outputs


def slots(outputs: Any, **fields: Any) -> ReplyFormat:
    return read(echo("f16b", "FP32", "16"), body(tensor(), outputs=outputs, **fields))[1]


def test_all_outputs() -> None:
    model = echo("f16b", "FP32", "16")
    assert read(model, body(tensor()))[1] == ReplyFormat(None, False)
    assert slots([]) == ReplyFormat(None, False)
    assert slots([], parameters={"binary_data_output": True}) == ReplyFormat(None, True)


def test_listed_outputs() -> None:
    listed = [{"name": "A", "parameters": {"binary_data": True}}, {"name": "B", "parameters": {"classification": 2}}]
    assert slots(listed).slots == {"A": Slot(True, 0), "B": Slot(False, 2)}
    # A listed output is JSON unless it says otherwise itself.
    assert slots([{"name": "A"}], parameters={"binary_data_output": True}).slots == {"A": Slot(False, 0)}


@pytest.mark.parametrize("first", [{}, {"parameters": {"binary_data": True}}, {"parameters": {"classification": 1}}])
def test_an_output_listed_twice(model: Signature, first: dict[str, Any]) -> None:
    listed = [{"name": "OUT", **first}, {"name": "OUT"}]
    for _ in range(2):
        with pytest.raises(ServeError, match=re.escape("[request id: x] output 'OUT' already exists in request")):
            admitted(model, body(tensor(), outputs=listed, id="x"))


@pytest.mark.parametrize(
    ("output", "status", "message"),
    [
        (5, 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ({"name": 5}, 500, "Unable to parse 'name': attempt to access JSON non-string as string"),
        ({"name": "NO"}, 400, "unexpected inference output 'NO' for model 'f16b'"),
        ({"name": "NO", "parameters": {"binary_data": 1}}, 500, "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"),  # noqa: E501
        ({"name": "OUT", "parameters": {"classification": -1}}, 500, f"Unable to set 'classification': {UINT}"),
        ({"parameters": {"shared_memory_region": "r", "classification": 1}}, 400, "Output can't set both 'shared_memory_region' and 'classification'"),  # noqa: E501
        ({"parameters": {"shared_memory_region": "r", "binary_data": True}}, 400, "Output can't set both 'shared_memory_region' and 'binary_data'"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_outputs(model: Signature, output: Any, status: int, message: str) -> None:
    assert refusal(model, body(tensor(), outputs=[output])) == (status, message)


# The same again


def test_a_header_means_the_same_again(model: Signature) -> None:
    header = body(
        binary(64),
        parameters={"sequence_id": 7, "sequence_start": True, "timeout": 5, "priority": 2, "x": 1},
        outputs=[{"name": "OUT", "parameters": {"binary_data": True}}],
    )
    (first, first_format), (second, second_format) = [read(model, header, bytes([n]) * 64) for n in range(2)]
    admit(first, model)
    admit(second, model)
    for name in ("options", "requested_outputs", "batch_size"):
        assert getattr(first, name) == getattr(second, name)
    assert first_format == second_format
    assert first.requested_outputs is not second.requested_outputs
    assert [(made.inputs[0].data, list(made.inputs[0].shape)) for made in (first, second)] == [
        (bytes(64), [1, 16]),
        (b"\1" * 64, [1, 16]),
    ]


@pytest.mark.parametrize("front", [b'{"id":"\\u00e9",', b'{ "id":"x",', b'{"id":"",', b'{"id":"x","id":"y",'])
def test_ids(model: Signature, front: bytes) -> None:
    made = admitted(model, front + body(binary(64))[1:], bytes(64))
    assert made.id == json.loads(front.partition(b",")[0] + b"}")["id"]


def test_other_strings_behind_a_header_are_still_checked(memory: Memory) -> None:
    model = every("STRING")
    header = body(binary(9000, datatype="BYTES", shape=[1]))
    good, bad = struct.pack("<I", 8996) + bytes(8996), struct.pack("<I", 9000) + bytes(8996)
    for data in (good, bad, good):
        made, _ = read(model, header, data, memory=memory)
        if data is good:
            admit(made, model)
        else:
            with pytest.raises(ServeError, match=r"^incomplete string data for inference input 'IN'"):
                admit(made, model)
        drop_blocks(made.inputs)


def test_ways_to_ask_for_outputs_are_remembered_but_not_for_ever(
    model: Signature, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infer_document, "FORMATS", 3)
    for classes in range(8):
        given = {"binary_data": bool(classes % 2), "classification": classes}
        for _ in range(2):
            _, reply_format = read(model, body(binary(64), outputs=[{"name": "OUT", "parameters": given}]), bytes(64))
            assert reply_format == ReplyFormat({"OUT": Slot(bool(classes % 2), classes)}, False)
        assert len(model.memo["reply-formats"]) <= 3


def test_reshaped_inputs() -> None:
    model = signature("rs", io("input", "IN", "FP32", "1", "reshape: { shape: [] }") + "max_batch_size: 4")
    made = admitted(model, body(binary(8, shape=[2, 1])), floats(1, 2))
    assert (made.inputs[0].shape, made.batch_size) == ((2,), 2)


# Raw mode


def raw(model: Signature, data: bytes, limit: int = 1 << 20) -> tuple[Request, ReplyFormat]:
    return decoded(data, 0, model, Memory().store, limit)


def test_raw(model: Signature) -> None:
    made, reply_format = raw(model, floats(*range(16)))
    admit(made, model)
    assert (list(made.inputs[0].shape), made.inputs[0].data) == ([1, 16], floats(*range(16)))
    assert reply_format == ReplyFormat(None, True)


@pytest.mark.parametrize(("dims", "count", "shape"), [("-1", 4, (4,)), ("-1, 2", 4, (2, 2)), ("-1", 0, (0,))])
def test_raw_shape_is_worked_out(dims: str, count: int, shape: tuple[int, ...]) -> None:
    made = raw(every("FP32", dims), bytes(4 * count))[0]
    assert made.inputs[0].shape == shape


def test_raw_string_gets_its_length() -> None:
    made = raw(every("STRING", "1"), b"abc")[0]
    admit(made, every("STRING", "1"))
    assert made.inputs[0].data == b"\3\0\0\0abc"


def test_an_empty_body_is_raw(model: Signature) -> None:
    text = NOBODY + "input byte size mismatch for input 'raw_input' for model 'f16b'. Expected 64, got 0"
    assert refusal(model, b"") == (400, text)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (every("FP32"), "input byte size mismatch for input 'raw_input' for model 'every'. Expected 4, got 6"),
        (every("FP32", "16"), "input byte size mismatch for input 'raw_input' for model 'every'. Expected 64, got 6"),
        (every("FP32", "-1, 4, -1"), "The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension"),  # noqa: E501
        (every("STRING"), "For BYTE datatype raw input 'IN', the model must have input shape [1]"),
        (every("STRING", "2"), "For BYTE datatype raw input 'IN', the model must have input shape [1]"),
        (signature("none", ""), "Raw request must only have 1 input (found 1) to be deduced but got 0 inputs in 'none' model configuration"),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_raw(model: Signature, message: str) -> None:
    with pytest.raises(ServeError) as caught:
        raw(model, b"sixsix")
    assert (caught.value.code.http_status, caught.value.message) == (400, NOBODY + message)


def test_raw_over_the_limit() -> None:
    with pytest.raises(ServeError, match=r"^Raw input has a byte_size \(100 bytes\) that exceeds the maximum allowed"):
        raw(every("FP32"), bytes(100), limit=99)


# Inference-Header-Content-Length


@pytest.mark.parametrize(
    ("value", "expected"),
    [(b"0", 0), (b"5", 5), (b"100", 100), (b" 12", 12), (b"12abc", 12), (b"1.5", 1), (b"+5", 5)],
)
def test_header_length(value: bytes, expected: int) -> None:
    assert parse_header_length(value, 100) == expected


RANGE = "value is out of range [ -2147483648, 2147483647 ]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"101", "inference header size should be in range (0, 100), got: 101"),
        (b"-1", "inference header size should be in range (0, 100), got: -1"),
        # From here on 2.73's: 2.51 reads these as 0 or as they are.
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"99999999999", f"Unable to parse Inference-Header-Content-Length, {RANGE}, got: 99999999999"),
        (b"9" * 5000, f"Unable to parse Inference-Header-Content-Length, {RANGE}, got: {'9' * 5000}"),
    ],
)
def test_bad_header_length(value: bytes, message: str) -> None:
    with pytest.raises(ServeError) as caught:
        parse_header_length(value, 100)
    assert (caught.value.code.http_status, caught.value.message) == (400, message)
