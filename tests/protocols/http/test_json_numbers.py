"""Other numbers in a known frame: what comes out is what a server that never saw the frame would read."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stubserve.errors import ServeError
from stubserve.inference import admissions
from stubserve.inference.admission import admit
from stubserve.inference.request import unanswered
from stubserve.inference.signature import Signature
from stubserve.protocols import plan
from stubserve.protocols.http import infer_decode
from stubserve.protocols.http.infer_decode import decode
from stubserve.protocols.http.json_numbers import split
from tests.inference.models import echo, io, signature
from tests.protocols.http.arena import Memory

NUMBER_TYPES = ["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"]


@pytest.fixture
def memory() -> Iterator[Memory]:
    found = Memory()
    yield found
    assert found.allocator.live_blocks == 0


def echo_of(kind: str) -> Signature:
    return echo("m", kind, "-1", "max_batch_size: 8")


def text_of(kind: str, data: str, shape: str = "[1,3]", front: str = "", back: str = "") -> bytes:
    field = f'"name":"IN","datatype":"{kind}","shape":{shape},"data":{data}'
    return f'{{{front}"inputs":[{{{field}}}]{back}}}'.encode()


def outcome(model: Signature, text: bytes, memory: Memory) -> Any:
    """All that a client or a model could tell requests apart by."""
    try:
        decoded = decode(text, None, model, None, 0, memory.store)
        request = decoded.request(unanswered)
    except ServeError as error:
        return error.code, error.message
    try:
        admit(request, model)
        inputs = [(made.name, made.datatype, tuple(made.shape), bytes(made.buffer)) for made in request.inputs]
    except ServeError as error:
        return error.code, error.message
    finally:
        for made in request.inputs:
            if made.block is not None:
                made.block.drop()
    return inputs, request.id, request.batch_size, request.parameters, decoded.reply_format


def frames_known(model: Signature) -> int:
    return len(model.memo["http-frames"])


def values(element: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    nested = st.recursive(st.lists(element, max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
    return (st.lists(element, min_size=3, max_size=3) | nested).map(json.dumps)


DATA = st.one_of(
    values(st.floats(allow_nan=False, allow_infinity=False)),
    values(st.integers(-(2**65), 2**65)),
    values(st.integers(0, 200)),
    values(st.one_of(st.booleans(), st.none(), st.text(max_size=3), st.integers(0, 2), st.just({}), st.floats())),
    st.text(alphabet='[]{},"0.5-eE+truefalsn :\\\0', max_size=12),
    st.sampled_from(
        [
            "[1e39,-1e39,1e-50]",
            "[1e400,0,0]",
            "[NaN,Inf,-Infinity]",
            '[1,2,3],"data":[4,5,6]',
            '[1,2,3],"x":[4]',
            "[18446744073709551615,18446744073709551616,0]",
            "[-9223372036854775808,-9223372036854775809,0]",
            "[01,2,3]",
            "[1,2,3,]",
            "[1,,3]",
            "[1 2 3]",
            "[[1,2],3]",
            "[[1,2],[3]]",
            "[1,[2,3]]",
            "[[[[[[[[1,2,3]]]]]]]]",
            "[" * 120 + "1,2,3" + "]" * 120,
            "[true,2,3]",
            "[null,2,3]",
            '["a]",2,3]',
            "[1,2,3]]",
            "[[1,2,3]",
            "5",
            '{"data":[1,2,3]}',
            " [1,2,3]",
            "  [1,2,3]",
            "[ 1 ,\t2\n, 3 ] ",
        ]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([*NUMBER_TYPES, "BOOL", "BYTES", "FP16"]), DATA)
def test_a_known_frame_reads_as_an_unknown_one(memory: Memory, kind: str, data: str) -> None:
    name = "STRING" if kind == "BYTES" else kind
    fresh, knowing = echo_of(name), echo_of(name)
    outcome(knowing, text_of(kind, "[1,2,3]"), memory)
    assert frames_known(knowing) == (kind in NUMBER_TYPES)
    text = text_of(kind, data)
    assert outcome(knowing, text, memory) == outcome(fresh, text, memory)
    # The odd one may have been remembered too.
    for following in ("[4,5,6]", data):
        text = text_of(kind, following)
        assert outcome(knowing, text, memory) == outcome(echo_of(name), text, memory)


@pytest.mark.parametrize(("kind", "letter"), [*zip(NUMBER_TYPES, "BHIQbhiqfd", strict=True)])
def test_a_known_frame_is_not_read_again(
    memory: Memory, kind: str, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = echo_of(kind)
    outcome(model, text_of(kind, "[1,2,3]", front='"id":"first",'), memory)
    monkeypatch.delattr(infer_decode, "decode_json")
    for data in ("[4,5,6]", "[ 4, 5, 6 ]", "[[4,5,6]]", "[[[4],[5]],[[6]]]"):
        inputs, id, batch_size, *_ = outcome(model, text_of(kind, data, front='"id":"b",'), memory)
        assert inputs[0][2:] == ((1, 3), struct.pack("<3" + letter, 4, 5, 6))
        assert (id, batch_size) == ("b", 1)


def two_inputs(first: str, second: str) -> bytes:
    fields = '"name":"{}","shape":[1,300],"datatype":"{}","data":{}'
    items = [fields.format("A", "FP64", first), fields.format("B", "INT64", second)]
    return b'{"inputs":[{%b},{%b}]}' % (items[0].encode(), items[1].encode())


def pair() -> Signature:
    both = io("input", "A", "FP64", "-1") + io("input", "B", "INT64", "-1")
    return signature("m", both + io("output", "OUT", "FP64", "-1") + "max_batch_size: 8")


def test_two_inputs(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    ones, twos = json.dumps([1.5] * 300), json.dumps([2] * 300)
    model = pair()
    outcome(model, two_inputs(twos, twos), memory)
    assert outcome(model, two_inputs(twos, ones), memory) == outcome(pair(), two_inputs(twos, ones), memory)
    monkeypatch.delattr(infer_decode, "decode_json")
    inputs, *_ = outcome(model, two_inputs(ones, twos), memory)
    assert [made[3] for made in inputs] == [struct.pack("<300d", *[1.5] * 300), struct.pack("<300q", *[2] * 300)]


def test_no_memory_for_the_second_input(memory: Memory) -> None:
    ones = json.dumps([1] * 300)
    model = pair()
    outcome(model, two_inputs(ones, ones), memory)
    stored = []

    def store(data: bytes | memoryview) -> Any:
        if stored:
            raise MemoryError
        stored.append(memory.store(data))
        return stored[0]

    with pytest.raises(MemoryError):
        decode(two_inputs(ones, ones), None, model, None, 0, store)
    assert len(stored) == 1


@pytest.mark.parametrize(
    "text",
    [
        # The field's name spelled another way, and what only looks like the field
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","d\u0061ta":[7],"x\"data":[1]}]}',
        rb'{"inputs":[{"x\"data":[1],"name":"IN","shape":[1,1],"datatype":"FP32","d\u0061ta":[7]}]}',
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data" :[7]}],"x\"data":[1]}',
        b'{"data":[1],"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data"\n:[7]}]}',
        # Of equal names the first counts
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7],"data":[1]}]}',
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data" :[7],"data":[1]}]}',
        rb'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","d\u0061ta":[7]}],'
        rb'"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]}]}',
        # What rapidjson alone accepts
        b'{"inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}]}\0"data":[1]',
        b'{"id":"\xff","inputs":[{"name":"IN","shape":[1,1],"datatype":"FP32","data":[7]}],"x":[1]}',
        # No numbers counted
        b'{"inputs":[{"name":"IN","shape":[1,0],"datatype":"FP32","data":[7]}],"x":[1]}',
    ],
)
def test_what_only_looks_like_a_frame(memory: Memory, text: bytes) -> None:
    model = echo_of("FP32")
    for numbers in (b"[1]", b"[2]", b"[1,2]", b"[true]"):
        sent = text.replace(b"[1]", numbers)
        assert outcome(model, sent, memory) == outcome(echo_of("FP32"), sent, memory)


def test_frames_are_few_and_short(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admissions, "FORMS", 3)
    model = echo_of("FP32")
    for n in range(5):
        outcome(model, text_of("FP32", "[1,2,3]", back=f',"x":{n}'), memory)
    assert frames_known(model) == 3
    long = echo_of("FP32")
    outcome(long, text_of("FP32", "[1,2,3]", back=f',"x":"{"y" * plan.PLAN_BYTES}"'), memory)
    assert frames_known(long) == 0


def test_what_is_refused_is_not_remembered(memory: Memory) -> None:
    model = echo_of("FP32")
    refused = text_of("FP32", "[1,2,3,4,5,6,7,8,9]", shape="[9,1]")
    for _ in range(2):
        assert "batch-size must be <= 8" in outcome(model, refused, memory)[1]
    assert frames_known(model) == 0


@given(st.text(alphabet='[]{}, 1"', max_size=20), st.text(alphabet='[]{}, 1"', max_size=20))
def test_split_puts_empty_arrays_where_others_were(first: str, second: str) -> None:
    text = f'{{"data":{first},"data": {second}}}'.encode()
    frame, arrays = split(text)
    assert len(frame) == len(text) - sum(map(len, arrays)) + 2 * len(arrays)
    assert all(array.startswith(b"[") and array.endswith(b"]") and b'"' not in array for array in arrays)
    assert not arrays or frame != text or b"[]" in arrays
