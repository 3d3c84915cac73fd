"""Replies as Triton 2.51 gave them for the same outputs, unless a comment says otherwise."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubserve_stub.wire.datatypes import BY_NAME, DataType

from stubserve.api.placement import ReplyFormat, Slot
from stubserve.errors import Code, ServeError, not_found
from stubserve.http.infer_encode import encode, encode_error, encode_steps, is_large, json_array, json_array_steps
from stubserve.http.message import Reply
from stubserve.inference.long_work import finish
from stubserve.inference.request import Response
from stubserve.inference.tensor import Tensor
from tests.http.arena import Memory
from tests.inference.models import echo, request

ALL_JSON = ReplyFormat(None, False)
ALL_BINARY = ReplyFormat(None, True)


def reply(
    *outputs: Tensor, form: ReplyFormat = ALL_JSON, id: str = "", parameters: dict[str, Any] | None = None
) -> Reply:
    model = echo("f", "FP32", "-1")
    model.version = 3
    model.labels["OUT"] = ["zero", "one"]
    return encode(request(id=id), Response(list(outputs), parameters), model, form)


def text(*outputs: Tensor, **options: Any) -> str:
    found = reply(*outputs, **options)
    assert (found.status, found.content_type, found.json_length, len(found.parts)) == (200, "application/json", None, 1)
    return bytes(found.parts[0]).decode()


def out(kind: str, shape: list[int], data: bytes, name: str = "OUT") -> Tensor:
    return Tensor(name, BY_NAME[kind].number, shape, data)


def data(kind: str, layout: str, *values: Any) -> str:
    written = text(out(kind, [len(values)], struct.pack(layout, *values)))
    head, _, rest = written.partition(f'"datatype":"{kind}","shape":[{len(values)}],"data":')
    assert head == '{"model_name":"f","model_version":"3","outputs":[{"name":"OUT",'
    return rest.removesuffix("}]}")


KINDS = [kind for kind in BY_NAME.values() if kind.itemsize and kind.name not in ("FP16", "BF16")]


@given(st.sampled_from(KINDS), st.integers(0, 64), st.data())
def test_few_numbers_are_written_as_many_are(kind: DataType, count: int, source: st.DataObject) -> None:
    content = source.draw(st.binary(min_size=count * kind.itemsize, max_size=count * kind.itemsize))
    tensor = Tensor("OUT", kind.number, (count,), content)
    assert json_array(tensor) == b"".join(json_array_steps(tensor))


def test_json() -> None:
    assert text(out("FP32", [1, 2], struct.pack("<2f", 0.5, 7))) == (
        '{"model_name":"f","model_version":"3",'
        '"outputs":[{"name":"OUT","datatype":"FP32","shape":[1,2],"data":[0.5,7.0]}]}'
    )


def test_nothing() -> None:
    assert text() == '{"model_name":"f","model_version":"3","outputs":[]}'


def test_id_and_parameters() -> None:
    # The escapes are 2.51's; its Python backend has no response parameters, their place is 2.73's.
    parameters = {"a": 1, "b": True, "c": 'x"', "d": 1.0, "e": math.inf}
    assert text(id='a"\x07', parameters=parameters) == (
        '{"id":"a\\"\\u0007","model_name":"f","model_version":"3",'
        '"parameters":{"a":1,"b":true,"c":"x\\"","d":1.0,"e":Infinity},"outputs":[]}'
    )


def placing(placed: list[bytes]) -> Callable[[bytes], bytes]:
    def place(part: bytes) -> bytes:
        placed.append(part)
        return part

    return place


@pytest.mark.parametrize("piece", ["a", 'a"\\\x07é', "\udcff🙂"])
def test_a_long_id_is_written_in_steps_as_a_short_one_is_at_once(piece: str) -> None:
    asked, answer, model = request(id=piece * 100_000), Response([]), echo("f", "FP32", "-1")
    assert is_large(asked, answer, ALL_JSON, None)
    placed: list[bytes] = []
    parts = finish(encode_steps(asked, answer, model, ALL_JSON, lambda nbytes: None, placing(placed))).parts
    assert b"".join(parts) == b"".join(encode(asked, answer, model, ALL_JSON).parts)
    assert placed


@pytest.mark.parametrize(
    ("kind", "layout", "values", "expected"),
    [
        ("BOOL", "3B", (0, 1, 2), "[false,true,true]"),
        ("UINT8", "B", (255,), "[255]"),
        ("UINT64", "<Q", (2**64 - 1,), "[18446744073709551615]"),
        ("INT8", "b", (-1,), "[-1]"),
        ("INT64", "<q", (-(2**63),), "[-9223372036854775808]"),
        ("FP32", "<4f", (0.1, 1 / 3, 16777216, 1e-45), "[0.10000000149011612,0.3333333432674408,16777216.0,1.401298464324817e-45]"),  # noqa: E501
        ("FP32", "<2f", (math.nan, -math.inf), "[NaN,-Infinity]"),
        ("FP64", "<3d", (0.1, 1e21, -0.0), "[0.1,1e21,-0.0]"),
    ],
)  # fmt: skip
def test_numbers(kind: str, layout: str, values: tuple[Any, ...], expected: str) -> None:
    assert data(kind, layout, *values) == expected


def test_strings() -> None:
    elements = ['a\u00e9"\\/\n\x01'.encode(), b"b", b""]
    content = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    written = text(out("BYTES", [3], content))
    assert written.endswith('"shape":[3],"data":["a\u00e9\\"\\\\/\\n\\u0001","b",""]}]}')


def test_strings_that_are_no_text() -> None:
    found = reply(out("BYTES", [1], b"\2\0\0\0a\xff"))
    assert bytes(found.parts[0]).endswith(b'"data":["a\xff"]}]}')


def test_empty() -> None:
    assert text(out("FP32", [0, 4, 1], b"")).endswith('"shape":[0,4,1],"data":[]}]}')
    assert text(out("BYTES", [0], b"")).endswith('"shape":[0],"data":[]}]}')


def test_binary() -> None:
    found = reply(out("FP32", [1, 2], bytes(8)), out("UINT8", [3], b"abc", "P"), form=ALL_BINARY, id="x")
    json = (
        b'{"id":"x","model_name":"f","model_version":"3",'
        b'"outputs":[{"name":"OUT","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"P","datatype":"UINT8","shape":[3],"parameters":{"binary_data_size":3}}]}'
    )
    assert (found.content_type, found.json_length) == ("application/octet-stream", len(json))
    assert [bytes(part) for part in found.parts] == [json, bytes(8), b"abc"]


def test_binary_without_bytes_is_json() -> None:
    assert text(out("FP32", [0], b""), form=ALL_BINARY).endswith('"shape":[0],"parameters":{"binary_data_size":0}}]}')


def test_binary_outputs_are_not_copied() -> None:
    memory = Memory()
    block = memory.store(b"x" * 4096)
    tensor = Tensor("OUT", 2, [4096], None, block.whole())
    part = reply(tensor, form=ALL_BINARY).parts[1]
    block.view[0] = ord("y")
    assert bytes(part[:2]) == b"yx"


def test_outputs_each_in_their_way() -> None:
    form = ReplyFormat({"A": Slot(True, 0), "B": Slot(False, 0)}, False)
    outputs = [out("UINT8", [1], b"\1", name) for name in "ABC"]
    found = reply(*outputs, form=form)
    assert bytes(found.parts[0]).endswith(
        b'"outputs":[{"name":"A","datatype":"UINT8","shape":[1],"parameters":{"binary_data_size":1}},'
        b'{"name":"B","datatype":"UINT8","shape":[1],"data":[1]}]}'
    )
    assert bytes(found.parts[1]) == b"\1"


def test_classification() -> None:
    tensor = out("FP32", [3], struct.pack("<3f", 1, 3, 2))
    written = text(tensor, form=ReplyFormat({"OUT": Slot(False, 2)}, False))
    assert written.endswith('[{"name":"OUT","datatype":"BYTES","shape":[2],"data":["3.000000:1:one","2.000000:2"]}]}')
    found = reply(tensor, form=ReplyFormat({"OUT": Slot(True, 1)}, False))
    assert bytes(found.parts[1]) == b"\x0e\0\0\x003.000000:1:one"


@pytest.mark.parametrize("kind", ["FP16", "BF16"])
def test_types_without_json(kind: str) -> None:
    with pytest.raises(ServeError) as caught:
        reply(out(kind, [1], b"\0\0"))
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message == (
        f"sending {kind} data via JSON is not supported. Please use the binary data format for output"
    )
    assert reply(out(kind, [1], b"\0\0"), form=ALL_BINARY).json_length


@pytest.mark.parametrize(
    ("kind", "content"),
    [("FP32", bytes(7)), ("BYTES", b"\1\0\0\0a\1"), ("BYTES", b"\1\0\0\0a\2\0\0\0b"), ("BOOL", b"")],
)
def test_bytes_that_do_not_fill_the_shape(kind: str, content: bytes) -> None:
    # The text is 2.73's: models cannot make 2.51 say it.
    with pytest.raises(ServeError, match=r"^output tensor shape does not match size of output for 'OUT'$") as caught:
        reply(out(kind, [2], content))
    assert caught.value.code == Code.INTERNAL


def test_parameters_that_have_no_json() -> None:
    with pytest.raises(ServeError) as caught:
        text(parameters={"a": b"bytes"})
    assert caught.value.code == Code.UNSUPPORTED


def test_error() -> None:
    found = encode_error(not_found('no "m"\n'))
    assert (found.status, found.content_type, found.json_length) == (404, "application/json", None)
    assert found.parts == [b'{"error":"no \\"m\\"\\n"}']
