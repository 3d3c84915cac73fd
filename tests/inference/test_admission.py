"""Texts, codes and precedence as Triton 2.51 gave them for the same requests, unless a comment says otherwise."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stubserve.errors import Code, ServeError
from stubserve.inference import admission
from stubserve.inference.admission import admit, admit_steps, reshape_outputs
from stubserve.inference.long_work import finish
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from tests.inference.models import echo, io, request, signature, zeros

NOBODY = "[request id: <id_unknown>] "
NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

BATCHED = echo("f16b", "FP32", "16", "max_batch_size: 8")
FLAT = echo("f", "FP32", "-1")
TWO = signature("two", io("input", "IN0", "FP32", "2") + io("input", "IN1", "FP32", "2") + "max_batch_size: 4")
THREE = signature(
    "three",
    io("input", "IN0", "FP32", "2")
    + io("input", "IN1", "FP32", "2")
    + io("input", "IN2", "FP32", "2", "optional: true")
    + io("output", "OUT", "FP32", "2")
    + "max_batch_size: 4",
)
TWICE = signature("twice", io("input", "IN", "FP32", "2") * 2 + io("output", "OUT", "FP32", "2"))
STRINGS = echo("s", "STRING", "-1")


def refusal(model: Signature, made: Request) -> str:
    with pytest.raises(ServeError) as caught:
        admit(made, model)
    assert caught.value.code == Code.INVALID_ARG
    assert not made.admitted
    return caught.value.message


def pack(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def strings(shape: list[int], data: bytes) -> Request:
    return request(Tensor("IN", 13, shape, data))


def test_a_good_request_gets_its_batch_size() -> None:
    made = request(zeros("IN", [3, 16]))
    admit(made, BATCHED)
    assert made.batch_size == 3
    assert made.admitted
    assert made.inputs[0].shape == [3, 16]


def test_without_batching_the_batch_size_is_one() -> None:
    made = request(zeros("IN", [5]))
    admit(made, FLAT)
    assert made.batch_size == 1


def test_no_inputs_are_fine_where_none_is_configured() -> None:
    made = request()
    admit(made, signature("empty", "max_batch_size: 2"))
    assert made.batch_size == 1


def test_a_second_admission_changes_nothing() -> None:
    reshaped = signature("rs", io("input", "IN", "FP32", "1", "reshape: { shape: [] }") + "max_batch_size: 4")
    made = request(zeros("IN", [2, 1]))
    admit(made, reshaped)
    admit(made, reshaped)
    assert made.inputs[0].shape == (2,)


def test_duplicate_input_comes_before_everything() -> None:
    made = request(zeros("IN0", [1, 2]), zeros("IN0", [1, 2]), requested_outputs=["ZZ"])
    assert refusal(TWO, made) == NOBODY + "input 'IN0' already exists in request"


def test_unknown_output_comes_before_the_inputs() -> None:
    # The requested outputs are an ordered set upstream.
    assert refusal(TWO, request(requested_outputs=["ZZ", "AA"])) == "unexpected inference output 'AA' for model 'two'"


def test_the_request_id_is_named() -> None:
    text = refusal(BATCHED, request(id='my"id'))
    assert text.startswith('[request id: my"id] expected 1 inputs')


@pytest.mark.parametrize(
    ("model", "names", "text"),
    [
        (TWO, ["IN0"], "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['IN0'], but missing required input(s) ['IN1']."),  # noqa: E501
        (TWO, [], "expected 2 inputs but got 0 inputs for model 'two'. Got input(s) [], but missing required input(s) ['IN0','IN1']."),  # noqa: E501
        (TWICE, ["IN"], "expected 2 inputs but got 1 inputs for model 'twice'. Got input(s) ['IN'], but missing required input(s) ]."),  # noqa: E501
        (BATCHED, ["IN", "X"], "expected 1 inputs but got 2 inputs for model 'f16b'. Got input(s) ['X','IN'], but missing required input(s) ]."),  # noqa: E501
        (THREE, ["IN2"], "expected number of inputs between 2 and 3 but got 1 inputs for model 'three'. Got input(s) ['IN2'], but missing required input(s) ['IN0','IN1']."),  # noqa: E501
        (THREE, ["IN0", "IN1", "IN2", "X"], "expected number of inputs between 2 and 3 but got 4 inputs for model 'three'. Got input(s) ['X','IN2','IN1','IN0'], but missing required input(s) ]."),  # noqa: E501
    ],
)  # fmt: skip
def test_wrong_number_of_inputs(model: Signature, names: list[str], text: str) -> None:
    made = request(*[zeros(name, [1, 2]) for name in names])
    assert refusal(model, made) == f"{NOBODY}{text} Please provide all required input(s)."


def test_an_optional_input_may_stand_in_for_a_required_one() -> None:
    # Only the number is checked upstream; the model finds out.
    made = request(zeros("IN0", [1, 2]), zeros("IN2", [1, 2]))
    admit(made, THREE)
    assert made.admitted


def test_unknown_input() -> None:
    made = request(zeros("IN0", [1, 2]), zeros("X", [1, 2]))
    assert refusal(TWO, made) == "unexpected inference input 'X' for model 'two'"


def test_input_without_a_shape() -> None:
    made = request(zeros("IN", []))
    assert refusal(BATCHED, made) == NOBODY + "input 'IN' has no shape but model requires batch dimension for 'f16b'"


def test_batch_sizes_that_differ_come_before_one_that_is_too_large() -> None:
    made = request(zeros("IN0", [1, 2]), zeros("IN1", [9, 2]))
    assert refusal(TWO, made) == NOBODY + "input 'IN0' batch size does not match other inputs for 'two'"


def test_too_large_a_batch() -> None:
    made = request(zeros("IN", [16]))
    assert refusal(BATCHED, made) == NOBODY + "inference request batch-size must be <= 8 for 'f16b'"


def test_the_last_input_is_looked_at_first() -> None:
    made = request(zeros("IN0", [1, 3]), zeros("IN1", [1, 2], datatype=8))
    expected = "inference input 'IN1' data-type is 'INT32', but model 'two' expects 'FP32'"
    assert refusal(TWO, made) == NOBODY + expected


def test_a_datatype_that_is_none() -> None:
    made = request(Tensor("IN", 0, [1, 16], bytes(64)))
    expected = "inference input 'IN' data-type is '<invalid>', but model 'f16b' expects 'FP32'"
    assert refusal(BATCHED, made) == NOBODY + expected


def test_wrong_shape_with_batching() -> None:
    text = NOBODY + "unexpected shape for input 'IN' for model 'f16b'. Expected [-1,16], got [1,17]." + NOTE
    assert refusal(BATCHED, request(zeros("IN", [1, 17]))) == text


def test_wrong_shape_without_batching_ends_in_a_space() -> None:
    text = NOBODY + "unexpected shape for input 'IN' for model 'f'. Expected [-1], got [1,1]. "
    assert refusal(FLAT, request(zeros("IN", [1, 1]))) == text


def test_a_shape_with_an_unspecified_dimension() -> None:
    # Not reachable over HTTP; the text is 2.73's.
    text = NOBODY + "All input dimensions should be specified for input 'IN' for model 'f', got [-1]"
    assert refusal(FLAT, request(Tensor("IN", 11, [-1], b""))) == text


def test_sizes_come_after_all_shapes() -> None:
    made = request(Tensor("IN0", 11, [1, 2], b"1234"), zeros("IN1", [1, 3]))
    assert "unexpected shape for input 'IN1'" in refusal(TWO, made)


def test_wrong_size() -> None:
    text = NOBODY + "input byte size mismatch for input 'IN' for model 'f'. Expected 8, got 4"
    assert refusal(FLAT, request(Tensor("IN", 11, [2], b"1234"))) == text


@pytest.mark.parametrize("nbytes", [0, 64])
def test_an_empty_batch_is_refused(nbytes: int) -> None:
    # 2.51 says this for 0 bytes; for the bytes of one item it passes on a shape without its batch dimension.
    expected = 0 if nbytes else 64
    text = f"{NOBODY}input byte size mismatch for input 'IN' for model 'f16b'. Expected {expected}, got {nbytes}"
    assert refusal(BATCHED, request(Tensor("IN", 11, [0, 16], bytes(nbytes)))) == text


def test_an_empty_tensor() -> None:
    made = request(Tensor("IN", 11, [0], b""))
    admit(made, FLAT)
    assert made.admitted


@pytest.mark.parametrize(("shape", "data"), [([2], pack(b"a", b"bc")), ([0], b""), ([1], pack(b""))])
def test_good_strings(shape: list[int], data: bytes) -> None:
    made = strings(shape, data)
    admit(made, STRINGS)
    assert made.admitted


@pytest.mark.parametrize(
    ("shape", "data", "text"),
    [
        ([2], pack(b"a"), "expected 2 string elements for inference input 'IN' for model 's', got 1"),
        ([1], b"", "expected 1 string elements for inference input 'IN' for model 's', got 0"),
        ([2], struct.pack("<II", 100, 0), "expected 2 string elements for inference input 'IN' for model 's', got 1"),
        ([2], pack(*[b"a"] * 5), "unexpected number of string elements 3 for inference input 'IN' for model 's', expecting 2"),  # noqa: E501
        ([2], pack(*[b"a"] * 4) + b"\1", "unexpected number of string elements 3 for inference input 'IN' for model 's', expecting 2"),  # noqa: E501
        ([0], pack(b"a"), "unexpected number of string elements 1 for inference input 'IN' for model 's', expecting 0"),
        ([2], pack(b"a") + b"\1\0", "incomplete string length indicator for inference input 'IN' for model 's', expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."),  # noqa: E501
    ],
)  # fmt: skip
def test_bad_strings(shape: list[int], data: bytes, text: str) -> None:
    assert refusal(STRINGS, strings(shape, data)) == NOBODY + text


@pytest.mark.parametrize("element", [b"equal", b"", None])
def test_many_strings(element: bytes | None) -> None:
    elements = [b"x" * (i % 20 + 1) if element is None else element for i in range(200)]
    data = pack(*elements)
    model = echo("m", "STRING", "-1")
    admit(strings([200], data), model)
    for shape, sent, text in (
        ([199], data, "unexpected number of string elements 200 for inference input 'IN' for model 'm', expecting 199"),
        ([201], data, "expected 201 string elements for inference input 'IN' for model 'm', got 200"),
        ([201], data + b"\1", "incomplete string length indicator for inference input 'IN' for model 'm', expecting 4"),
        ([201], data + b"\2\0\0\0a", "incomplete string data for inference input 'IN', expecting string of length 2"),
    ):
        with pytest.raises(ServeError, match=text):
            admit(strings(shape, sent), model)


def test_a_last_string_that_ends_beyond_the_data() -> None:
    # Found by upstream's Python backend, not by its core: therefore no request id.
    text = "incomplete string data for inference input 'IN', expecting string of length 10 but only 3 bytes available"
    assert refusal(STRINGS, strings([1], struct.pack("<I", 10) + b"abc")) == text


def test_reshape_carries_variable_dimensions_over() -> None:
    model = signature("rsv", io("input", "IN", "FP32", "-1, 2, -1", "reshape: { shape: [-1, 2, 1, -1] }"))
    made = request(zeros("IN", [3, 2, 5]))
    admit(made, model)
    assert made.inputs[0].shape == (3, 2, 1, 5)


def test_outputs_are_reshaped_back() -> None:
    model = signature(
        "rs", io("output", "O", "FP32", "-1, 2", "reshape: { shape: [2, 1, -1] }") + io("output", "P", "FP32", "1")
        + "max_batch_size: 4",
    )  # fmt: skip
    response = Response([zeros("O", [3, 2, 1, 7]), zeros("P", [3, 1]), zeros("UNKNOWN", [1])])
    reshape_outputs(response, model)
    assert [list(tensor.shape) for tensor in response.outputs] == [[3, 7, 2], [3, 1], [1]]


def test_an_output_that_does_not_fit_its_reshape_keeps_its_shape() -> None:
    model = signature("rs", io("output", "O", "FP32", "4", "reshape: { shape: [2, 2] }"))
    response = Response([zeros("O", [4])])
    reshape_outputs(response, model)
    assert response.outputs[0].shape == [4]


SEQUENCE = """max_batch_size: 4 sequence_batching { control_input {
    name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } } }"""


@pytest.mark.parametrize(
    ("kind", "id", "given", "expected"), [("UINT64", "a", "BYTES", "UINT64"), ("STRING", 7, "UINT64", "BYTES")]
)
def test_correlation_id_of_the_wrong_type(kind: str, id: int | str, given: str, expected: str) -> None:
    # 2.73's rule; 2.51 passes such ids on.
    model = echo("seq", "FP32", "1", SEQUENCE % kind)
    made = request(zeros("IN", [1, 1]), correlation_id=id)
    text = f"sequence batching control 'ID' data-type is '{given}', but model 'seq' expects '{expected}'"
    assert refusal(model, made) == NOBODY + text


@pytest.mark.parametrize(("kind", "id"), [("UINT64", 5), ("STRING", "a"), ("STRING", 0), ("UINT64", "")])
def test_correlation_ids_that_pass(kind: str, id: int | str) -> None:
    # Without an id, the sequence batcher has its own text.
    made = request(zeros("IN", [1, 1]), correlation_id=id)
    admit(made, echo("seq", "FP32", "1", SEQUENCE % kind))
    assert made.admitted


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201])
@pytest.mark.parametrize("element", [b"abc", b"a\0\0\0\0c", None])
@pytest.mark.parametrize("end", [b"", b"\1", b"\2\0\0\0a", b"\2\0\0\0ab"])
def test_in_steps_as_at_once(element: bytes | None, end: bytes, count: int) -> None:
    model = signature("m", io("input", "IN", "STRING", "-1") + io("output", "OUT", "STRING", "-1"))
    data = pack(*(element or b"x" * number for number in range(200))) + end

    def outcome(act: Callable[[Request], None]) -> str:
        try:
            act(strings([count], data))
        except ServeError as error:
            return error.message
        return ""

    assert outcome(lambda made: finish(admit_steps(made, model))) == outcome(lambda made: admit(made, model))


def test_a_long_shape_of_strings_is_not_multiplied_out() -> None:
    """All of it would take a quarter of an hour."""
    model = signature("m", io("input", "IN", "STRING", "-1") + io("output", "OUT", "STRING", "-1"))
    for data in (pack(*[b"abc"] * 200), pack(*[b"", b"abc"] * 100)):
        with pytest.raises(ServeError, match="unexpected shape for input 'IN'"):
            finish(admit_steps(strings([2**62] * 500_000, data), model))


# One look


SEVERAL = signature(
    "several",
    io("input", "A", "FP32", "2, -1")
    + io("input", "B", "STRING", "-1", "optional: true")
    + io("input", "C", "INT8", "1", "reshape: { shape: [] } optional: true")
    + io("input", "D", "INT8", "-1", "optional: true")
    + io("output", "OUT", "FP32", "2")
    + "max_batch_size: 4",
)
UNBATCHED = signature("flat", io("input", "A", "FP32", "-1, -1") + io("input", "B", "STRING", "-1", "optional: true"))
SHAPES = st.sampled_from(
    [
        (1, 2, 1),
        (1, 1),
        (2, 2, 1),
        (2, 1),
        (2,),
        (),
        (0, 2, 1),
        (5, 2, 1),
        (-1, 2, 1),
        (1, 2, -1),
        (1, -2),
        (-1, -2),
        (2, 0),
        (1, 0),
    ]
)
CONTENTS = st.sampled_from(
    [bytes(8), bytes(16), bytes(1), bytes(2), b"", pack(b"a"), pack(b"a", b"bc"), pack(b"a")[:-1]]
)


@st.composite
def tensors(draw: Any) -> Tensor:
    name, datatype = draw(st.sampled_from([*[("A", 11), ("B", 13), ("C", 6), ("D", 6)] * 4, ("A", 12), ("X", 11)]))
    made = Tensor(name, datatype, draw(SHAPES), draw(CONTENTS))
    if datatype == 13 and made.data == pack(b"a"):
        made.strings = draw(st.sampled_from([-1, 1]))
    return made


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([SEVERAL, UNBATCHED]), st.lists(tensors(), max_size=4), st.sampled_from([None, ["OUT"], ["X"]]))
def test_one_look_finds_what_the_ordered_checks_find(
    model: Signature, given_: list[Tensor], outputs: list[str] | None
) -> None:
    def outcome() -> Any:
        inputs = [Tensor(one.name, one.datatype, one.shape, one.data) for one in given_]
        for made, one in zip(inputs, given_, strict=True):
            made.strings = one.strings
        made = request(*inputs, requested_outputs=outputs)
        try:
            admit(made, model)
        except ServeError as error:
            return error.code, error.message, made.admitted
        return made.batch_size, made.admitted, [tuple(one.shape) for one in made.inputs]

    found = outcome()
    with mock.patch.object(admission, "_is_plain", return_value=False):
        assert outcome() == found


def test_two_negative_dimensions_are_no_size() -> None:
    made = request(Tensor("A", 11, (-1, -2), bytes(8)))
    assert "All input dimensions should be specified" in refusal(UNBATCHED, made)


def test_a_usual_request_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(admission, "_model_shape")
    made = request(Tensor("A", 11, (2, 2, 1), bytes(16)), Tensor("B", 13, (2, 1), pack(b"a", b"")))
    admit(made, SEVERAL)
    assert (made.batch_size, made.admitted) == (2, True)
