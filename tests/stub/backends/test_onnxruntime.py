"""The onnxruntime backend in this process: files, options, completion, validation, and what runs do with memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.backends.onnxruntime import file as onnx_file
from stubserve_stub.backends.onnxruntime.session import open_session, options_of
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes, strings
from stubserve_stub.wire.datatypes import BY_NAME, BYTES
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import InArena, Lent, Shared

from stubserve.model_config.parse import parse_text
from stubserve.model_config.render import render_json
from tests import onnx_models
from tests.onnx_models import (
    ELEMENT_TYPES,
    arithmetic,
    helper,
    identity,
    model,
    node,
    save,
    segment_sums,
    with_external_data,
)
from tests.stub.backends.loaded import Instance, request, wire
from tests.stub.runtime.stub_memory import StubMemory, stub_memory

pytest.importorskip("onnxruntime")

PLAIN = [name for name in ELEMENT_TYPES if name not in ("BYTES", "BF16")]


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory(8 << 20) as memory:
        yield memory


def load(made: Any, tmp_path: Path, config: str = "", stub: StubMemory | None = None, **more: Any) -> Instance:
    save(made, tmp_path / "m" / "1")
    return Instance(tmp_path / "m", config, stub, **more)


def refusal(made: Any, tmp_path: Path, config: str = "", kind: str = "CPU") -> str:
    with pytest.raises(Refusal) as caught:
        load(made, tmp_path, config).start(kind)
    return str(caught.value)


# Runs


@pytest.mark.parametrize("rows", [2, 3000])
@pytest.mark.parametrize("datatype", PLAIN)
def test_every_type(stub: StubMemory, tmp_path: Path, datatype: str, rows: int) -> None:
    """Inputs inside messages and in the arena, twice: the second run binds its output."""
    instance = load(identity(datatype), tmp_path, "max_batch_size: 8000", stub).start()
    array = (np.arange(rows * 3).reshape(rows, 3) % 2).astype(BY_NAME[datatype].numpy)
    place = stub.give(array.tobytes()) if array.nbytes > 1024 else None
    for _ in range(2):
        found = instance.infer(X=wire("X", array, datatype, place))["Y"]
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_bf16(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(identity("BF16"), tmp_path, "", stub).start()
    assert instance.completed.input[0].data_type == BY_NAME["BF16"].number
    for array in (np.arange(6, dtype=np.uint16), np.arange(6000, dtype=np.uint16)):
        for _ in range(2):
            found = instance.infer(X=wire("X", array.reshape(-1, 3), "BF16"))["Y"]
            np.testing.assert_array_equal(found, array.reshape(-1, 3))


def test_strings(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(identity("BYTES", ["n"]), tmp_path, "max_batch_size: 0", stub)
    assert instance.completed.max_batch_size == 4
    instance = load(identity("BYTES", [3]), tmp_path, "", stub).start()
    texts = ["é".encode(), b"", b"a\0b"]
    assert instance.infer(X=texts)["Y"] == texts
    ((error, _, _),) = instance.run(request(X=[b"\xff", b"", b""]))
    assert error[1] == codes.INVALID_ARG
    assert error[0].startswith("input 'X' has a string that is no UTF-8")


def test_strings_beside_numbers(stub: StubMemory, tmp_path: Path) -> None:
    made = model(
        [node("Identity", "S", "T"), node("Neg", "X", "Y")],
        [("S", "BYTES", ["n", 1]), ("X", "FP32", ["n", 1])],
        [("T", "BYTES", ["n", 1]), ("Y", "FP32", ["n", 1])],
    )
    instance = load(made, tmp_path, "", stub).start()
    one = request(X=np.full((1, 1), 3, np.float32), S=("S", BYTES, (1, 1), strings.join([b"x"])))
    two = request(["Y"], X=np.full((2, 1), 4, np.float32), S=("S", BYTES, (2, 1), strings.join([b"y", b"z"])))
    first, second = instance.run(one, two)
    assert [tensor[:3] for tensor in first[1]] == [("T", BYTES, (1, 1)), ("Y", 11, (1, 1))]
    assert instance.array(first[1][0]) == [b"x"]
    assert instance.array(second[1][0]).tolist() == [[-4], [-4]]


def test_scalars(stub: StubMemory, tmp_path: Path) -> None:
    """Without dimensions in the file, [1] for the client."""
    made = model([node("Neg", "X", "Y")], [("X", "FP32", [])], [("Y", "FP32", [])])
    instance = load(made, tmp_path, "", stub).start()
    assert [list(tensor.dims) for tensor in (*instance.completed.input, *instance.completed.output)] == [[1], [1]]
    assert instance.infer(X=np.array([3], np.float32))["Y"].tolist() == [-3]


def test_empty_tensors(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(identity(), tmp_path, "", stub).start()
    for _ in range(2):
        assert instance.infer(X=np.empty((0, 3), np.float32))["Y"].shape == (0, 3)
        assert instance.infer(X=np.empty((2, 0), np.float32))["Y"].shape == (2, 0)


def test_only_what_is_asked_for_is_made(stub: StubMemory, tmp_path: Path) -> None:
    """In the order in which it is asked for, whatever was asked for before."""
    instance = load(arithmetic(), tmp_path, "", stub).start()
    bound: list[str] = []
    binding = instance.backend._execution._binding
    bind_output = binding.bind_output
    binding.bind_output = lambda name, *rest: bound.append(name) or bind_output(name, *rest)
    a, b = np.full((1, 3000), 3, np.float32), np.full((1, 3000), 1, np.float32)
    for names in (["DIFFERENCE"], ["DIFFERENCE", "SUM"], [], ["SUM"], ["SUM", "DIFFERENCE"], ["DIFFERENCE"]):
        bound.clear()
        found = instance.infer(names, A=a, B=b)
        assert {name: array[0, 0] for name, array in found.items()} == {
            name: {"SUM": 4, "DIFFERENCE": 2}[name] for name in names
        }
        assert bound == list(found) == names


def test_an_error_of_a_run(stub: StubMemory, tmp_path: Path) -> None:
    made = model([node("Div", "A B", "Y")], [("A", "INT32", ["n"]), ("B", "INT32", ["m"])], [("Y", "INT32", ["n"])])
    config = "max_batch_size: 0 input [ { name: 'A' data_type: TYPE_INT32 dims: [ -1 ] },"
    config += " { name: 'B' data_type: TYPE_INT32 dims: [ -1 ] } ]"
    config += " output [ { name: 'Y' data_type: TYPE_INT32 dims: [ -1 ] } ]"
    instance = load(made, tmp_path, config, stub).start()
    a, b = np.array([4, 9], np.int32), np.array([1, 2, 3], np.int32)
    ((error, tensors, _),) = instance.run(request(A=a, B=b))
    assert (error[1], tensors) == (codes.INTERNAL, ())
    assert error[0].startswith(
        "onnx runtime error 1: Error in execution: Non-zero status code returned while running Div"
    )
    assert ".h:" not in error[0]
    assert instance.infer(A=a, B=a)["Y"].tolist() == [1, 1]


def test_a_batch_of_several_requests(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(arithmetic(), tmp_path, "max_batch_size: 16", stub).start()
    for width in (2, 5000, 5000):
        parts = [np.random.default_rng(rows).random((rows, width), np.float32) for rows in (1, 3, 2)]
        wanted = [None, ["DIFFERENCE"], ["SUM"]]
        entries = instance.run(*(request(names, A=part, B=part * 2) for part, names in zip(parts, wanted, strict=True)))
        for part, names, (error, tensors, _) in zip(parts, wanted, entries, strict=True):
            assert error is None
            found = {tensor[0]: instance.array(tensor) for tensor in tensors}
            assert list(found) == (names or ["SUM", "DIFFERENCE"])
            if "SUM" in found:
                np.testing.assert_array_equal(found["SUM"], part + part * 2)
            if "DIFFERENCE" in found:
                np.testing.assert_array_equal(found["DIFFERENCE"], part - part * 2)


# Memory


def test_an_output_of_known_shape_is_made_where_it_is_sent_from(
    stub: StubMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run copies, the ones after it do not: neither one request nor several."""
    instance = load(identity(), tmp_path, "max_batch_size: 16", stub).start()
    copied: list[int] = []
    place = stub.channel.place
    monkeypatch.setattr(stub.channel, "place", lambda data: copied.append(memoryview(data).nbytes) or place(data))
    arrays = [np.full((rows, 3000), rows, np.float32) for rows in (1, 2)]
    before = stub.channel.memory.live_blocks
    for requests, copies in ((arrays[:1], [12000]), (arrays, [12000, 24000])):
        for expected in (copies, [], []):
            copied.clear()
            entries = instance.run(*(request(X=array) for array in requests))
            assert copied == expected
            places = [entry[1][0][3] for entry in entries]
            for array, entry in zip(requests, entries, strict=True):
                np.testing.assert_array_equal(instance.array(entry[1][0]), array)
            assert all(isinstance(place, InArena) for place in places)
            for each in places:
                stub.channel.free([each.offset])
    assert stub.channel.memory.live_blocks == before


def test_inputs_are_not_copied_and_not_written_to(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(identity(), tmp_path, "max_batch_size: 16", stub).start()
    array = np.arange(5000, dtype=np.float32).reshape(1, 5000)
    place = stub.give(array.tobytes())
    for given in (place, Shared(*place[1:])):
        ((error, (tensor,), _),) = instance.run(request(X=wire("X", array, "FP32", given)))
        assert error is None
        np.testing.assert_array_equal(instance.array(tensor), array)
    assert stub.read(place) == array.tobytes()


def test_inputs_stay_bound_until_others_come(stub: StubMemory, tmp_path: Path) -> None:
    """Batches of the same shapes are gathered into the same memory, which need not be bound again."""
    instance = load(arithmetic(), tmp_path, "max_batch_size: 16", stub).start()
    bound: list[str] = []
    binding = instance.backend._execution._binding
    bind_input = binding.bind_input
    binding.bind_input = lambda name, *rest: bound.append(name) or bind_input(name, *rest)

    def run(*rows: int, width: int = 3000) -> None:
        bound.clear()
        parts = [np.random.default_rng(count).random((count, width), np.float32) for count in rows]
        entries = instance.run(*(request(["SUM"], A=part, B=part * 2) for part in parts))
        for part, (error, (tensor,), _) in zip(parts, entries, strict=True):
            assert error is None
            np.testing.assert_array_equal(instance.array(tensor), part + part * 2)

    run(3, 2)
    assert bound == ["A", "B"]
    run(2, 3)
    assert bound == []
    run(1, 2)
    assert bound == ["A", "B"]
    run(9, 6)  # does not fit into the memory of the others
    assert bound == ["A", "B"]
    run(9, 6)
    assert bound == []
    run(9, 6, width=1000)
    assert bound == ["A", "B"]


def test_inputs_of_a_run_that_fails_are_bound_anew(stub: StubMemory, tmp_path: Path) -> None:
    made = model([node("Div", "A B", "Y")], [("A", "INT32", ["n"]), ("B", "INT32", ["m"])], [("Y", "INT32", ["n"])])
    config = "max_batch_size: 0 input [ { name: 'A' data_type: TYPE_INT32 dims: [ -1 ] },"
    config += " { name: 'B' data_type: TYPE_INT32 dims: [ -1 ] } ]"
    config += " output [ { name: 'Y' data_type: TYPE_INT32 dims: [ -1 ] } ]"
    instance = load(made, tmp_path, config, stub).start()
    places = [stub.give(np.full(count, count, np.int32).tobytes()) for count in (3000, 4000)]
    few, many = (np.full(count, count, np.int32) for count in (3000, 4000))
    for _ in range(2):
        wrong = request(A=wire("A", few, "INT32", places[0]), B=wire("B", many, "INT32", places[1]))
        assert instance.run(wrong)[0][0][1] == codes.INTERNAL
        right = instance.infer(A=wire("A", few, "INT32", places[0]), B=wire("B", few, "INT32", places[0]))
        assert right["Y"].tolist() == [1] * 3000


def test_an_output_that_varies(stub: StubMemory, tmp_path: Path) -> None:
    """How many there are depends on values: what was bound for the last number is not what this run needs."""
    made = model([node("NonZero", "X", "Y")], [("X", "FP32", [4000])], [("Y", "INT64", [1, "found"])])
    instance = load(made, tmp_path, "", stub).start()
    for numbers_of in (3000, 3000, 2900, 3000, 3, 3000):
        array = np.zeros(4000, np.float32)
        array[:numbers_of] = 1
        assert instance.infer(X=array)["Y"].tolist() == [list(range(numbers_of))]


def test_an_output_that_is_an_input(stub: StubMemory, tmp_path: Path) -> None:
    made = model([node("Neg", "X", "Y")], [("X", "FP32", ["n"])], [("X", "FP32", ["n"]), ("Y", "FP32", ["n"])])
    config = "max_batch_size: 0 input [ { name: 'X' data_type: TYPE_FP32 dims: [ -1 ] } ]"
    config += (
        " output [ { name: 'X' data_type: TYPE_FP32 dims: [ -1 ] }, { name: 'Y' data_type: TYPE_FP32 dims: [-1] } ]"
    )
    instance = load(made, tmp_path, config, stub).start()
    array = np.arange(5000, dtype=np.float32)
    place = stub.give(array.tobytes())
    for _ in range(3):
        ((error, tensors, _),) = instance.run(request(X=wire("X", array, "FP32", place)))
        assert error is None
        assert isinstance(tensors[0][3], Lent)
        np.testing.assert_array_equal(instance.array(tensors[0]), array)
        np.testing.assert_array_equal(instance.array(tensors[1]), -array)


def test_constants_as_outputs(stub: StubMemory, tmp_path: Path) -> None:
    values = list(range(3000))
    constant = helper.make_tensor("c", ELEMENT_TYPES["FP32"], [3000], values)
    made = model([node("Constant", "", "C", value=constant), node("Neg", "X", "Y")],
                 [("X", "FP32", [2])], [("C", "FP32", [3000]), ("Y", "FP32", [2])])  # fmt: skip
    instance = load(made, tmp_path, "", stub).start()
    for _ in range(3):
        assert instance.infer(X=np.zeros(2, np.float32))["C"].tolist() == values


def test_a_full_arena_fails_what_does_not_fit(tmp_path: Path) -> None:
    with stub_memory() as stub:
        instance = load(identity(), tmp_path, "max_batch_size: 64", stub).start()
        small, large = np.zeros((1, 3000), np.float32), np.zeros((40, 3000), np.float32)
        entries = instance.run(request(X=small), request(X=large))
        assert [entry[0] for entry in entries] == [None, None]
        stub.fill()
        for entries in (instance.run(request(X=small), request(X=large)) for _ in range(2)):
            assert {entry[0][1] for entry in entries if entry[0]} == {codes.UNAVAILABLE}
            assert entries[1][0][0].startswith("no room for ")


# Optional inputs, and rows


def test_weights_that_a_request_may_replace(stub: StubMemory, tmp_path: Path) -> None:
    weights = helper.make_tensor("W", ELEMENT_TYPES["FP32"], [2], [10, 20])
    made = model([node("Add", "X W", "Y")], [("X", "FP32", [2]), ("W", "FP32", [2])], [("Y", "FP32", [2])], [weights])
    config = "input [ { name: 'X' data_type: TYPE_FP32 dims: [ 2 ] },"
    config += " { name: 'W' data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]"
    instance = load(made, tmp_path, config, stub).start()
    x = np.array([1, 2], np.float32)
    assert instance.infer(X=x)["Y"].tolist() == [11, 22]
    assert instance.infer(X=x, W=x)["Y"].tolist() == [2, 4]
    batched = model(
        [node("Add", "X W", "Y")],
        [("X", "FP32", ["n", 2]), ("W", "FP32", [1, 2])],
        [("Y", "FP32", ["n", 2])],
        [helper.make_tensor("W", ELEMENT_TYPES["FP32"], [1, 2], [10, 20])],
    )
    text = refusal(
        batched, tmp_path, config + " max_batch_size: 2 output [ { name: 'Y' data_type: TYPE_FP32 dims: 2 } ]"
    )
    assert text == "unable to load model 'm', optional input 'W' is not supported for models that support batching"


def test_rows_that_are_none(stub: StubMemory, tmp_path: Path) -> None:
    made = model(
        [node("NonZero", "X", "F"), node("Transpose", "F", "Y")], [("X", "FP32", ["n"])], [("Y", "INT64", ["k", 1])]
    )
    instance = load(made, tmp_path, "max_batch_size: 8", stub).start()
    ((error, _, _),) = instance.run(request(X=np.array([1, 0, 1], np.float32)))
    assert "output 'Y' of model 'm' has shape [2, 1], but its first dimension must be 3" in error[0]


# Completion


def completed(made: Any, tmp_path: Path, config: str = "", **settings: str) -> Any:
    names = {name.replace("_", "-"): value for name, value in settings.items()}
    return load(made, tmp_path, config, settings=names).completed


def test_all_is_completed(tmp_path: Path) -> None:
    made = model(
        [node("Neg", "X", "Y"), node("ReduceMax", "X", "Z", axes=[1, 2], keepdims=0)],
        [("X", "FP32", ["batch", 3, "width"])],
        [("Y", "FP32", ["batch", 3, "width"]), ("Z", "FP32", ["batch"])],
    )
    config = completed(made, tmp_path)
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in config.input] == [("X", 11, [3, -1])]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("Y", [3, -1]), ("Z", [1])]
    assert config.output[1].HasField("reshape")
    assert list(config.output[1].reshape.shape) == []


@pytest.mark.parametrize(
    ("config", "size", "given", "batches"),
    [
        ("", "8", 8, True),
        ("", "1", 1, False),
        ("", "0", 0, False),
        ("max_batch_size: 2", "8", 2, True),
        ("max_batch_size: 1", "8", 1, False),
    ],
)
def test_batch_sizes(tmp_path: Path, config: str, size: str, given: int, batches: bool) -> None:
    made = completed(identity(), tmp_path, config, default_max_batch_size=size)
    assert (made.max_batch_size, made.HasField("dynamic_batching")) == (given, batches)
    assert list(made.input[0].dims) == ([-1] if given else [-1, -1])


def test_what_cannot_be_batched(tmp_path: Path) -> None:
    assert completed(identity(dims=[1, "n"]), tmp_path).max_batch_size == 0
    assert "autofill failed for model 'm': model does not support batching" in refusal(
        identity(dims=[1, "n"]), tmp_path, "max_batch_size: 2"
    )


def test_what_is_given_stays(tmp_path: Path) -> None:
    given = "input [ { name: 'X' data_type: TYPE_FP32 dims: [ 7 ] } ]"
    config = completed(identity(), tmp_path, given)
    assert (list(config.input[0].dims), list(config.output[0].dims), config.max_batch_size) == ([7], [-1], 4)
    both = given + " output [ { name: 'Y' data_type: TYPE_FP32 dims: [ -1, -1 ] } ]"
    assert completed(identity(), tmp_path, both).max_batch_size == 0


def test_the_session_that_completes_serves(tmp_path: Path, stub: StubMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    opened = []
    original = onnxruntime.InferenceSession

    def counted(*arguments: Any, **more: Any) -> Any:
        opened.append(arguments)
        return original(*arguments, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    load(identity(), tmp_path, "", stub).start()
    assert len(opened) == 1


# Validation

IN = "input [ { name: 'X' data_type: TYPE_FP32 dims: [ -1 ] } ]"
OUT = "output [ { name: 'Y' data_type: TYPE_FP32 dims: [ -1 ] } ]"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            IN.replace("-1", "-1, 4") + OUT,
            "model 'm', tensor 'X': the model expects 2 dimensions (shape [-1,-1]) but the model configuration "
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1,4])",
        ),
        (
            IN + OUT.replace("-1", "4"),
            "model 'm', tensor 'Y': the model expects 2 dimensions (shape [-1,-1]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension",
        ),
        (
            IN + OUT.replace("FP32", "INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for output 'Y', model provides "
            "TYPE_FP32",
        ),
        (
            IN.replace("FP32", "INT32") + OUT,
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'X', model provides "
            "TYPE_FP32",
        ),
        (
            IN + IN.replace("'X'", "'Z'") + OUT,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (IN.replace("'X'", "'Z'") + OUT, "unexpected inference input 'Z', allowed inputs are: X"),
        (IN + OUT.replace("'Y'", "'Z'"), "unexpected inference output 'Z', allowed outputs are: Y"),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path: Path, config: str, reason: str) -> None:
    assert refusal(identity(), tmp_path, "max_batch_size: 4 " + config).startswith(reason)


def test_dims_without_batching(tmp_path: Path) -> None:
    assert refusal(identity(dims=[2, 3]), tmp_path, IN + OUT) == (
        "model 'm', tensor 'X': the model expects 2 dimensions (shape [2,3]) but the model configuration specifies 1 "
        "dimensions (shape [-1])"
    )
    assert "for the model to support batching the shape should have at least 1 dimension" in refusal(
        identity(dims=[2, 3]), tmp_path, "max_batch_size: 4 " + IN + OUT
    )
    scalar = model([node("Neg", "X", "Y")], [("X", "FP32", [])], [("Y", "FP32", [])])
    assert "scalar tensor 'X', should only provide 1 in the model configuration" in refusal(scalar, tmp_path, IN + OUT)


def test_fewer_outputs_than_the_file_has(tmp_path: Path, stub: StubMemory) -> None:
    config = "output [ { name: 'DIFFERENCE' data_type: TYPE_FP32 dims: [ -1 ] } ]"
    instance = load(arithmetic(), tmp_path, config, stub).start()
    x = np.ones((1, 2), np.float32)
    assert list(instance.infer(A=x, B=x)) == ["DIFFERENCE"]


# Files


def load_file(data: bytes, tmp_path: Path) -> str:
    path = tmp_path / "m" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(Refusal) as caught:
        Instance(tmp_path / "m").start()
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no ONNX model: it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "it is a pointer of Git LFS"),
        (b"PK\x03\x04" + bytes(100), "it is a zip archive, as PyTorch saves models"),
        (b"<html>no</html>", "it is a web page or XML"),
        (bytes(range(1, 200)), "is no ONNX model: it has no graph"),
    ],
)
def test_what_is_no_model(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in load_file(data, tmp_path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    whole = identity().SerializeToString()
    for length in range(3, len(whole) - 1):
        text = load_file(whole[:length], tmp_path)
        assert (
            "is no whole ONNX model" in text or "is no ONNX model: it has no graph" in text or "unable to load" in text
        )
    assert "it is damaged, or cut off after" in load_file(whole[: len(whole) // 2], tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(Refusal, match=r"unable to find '.*/m/1/model.onnx' for model instance 'm_0'"):
        Instance(tmp_path / "m", 'backend: "onnxruntime"')


def test_other_names_and_a_folder(tmp_path: Path, stub: StubMemory) -> None:
    folder = tmp_path / "m" / "1"
    save(identity(), folder, "best.onnx")
    Instance(tmp_path / "m", 'backend: "onnxruntime" default_model_filename: "best.onnx"', stub).start()
    save(identity(), folder / "model.onnx")
    Instance(tmp_path / "m", "", stub).start()


def test_a_format_that_is_too_new(tmp_path: Path) -> None:
    new = model([node("Identity", "X", "Y")], [("X", "FP32", ["n"])], [("Y", "FP32", ["n"])], opset=99)
    text = refusal(new, tmp_path)
    assert "Opset 99 is under development" in text
    assert "The file has IR version 8 and the operator set ai.onnx 99: it needs a newer onnxruntime than" in text
    new = model([node("Identity", "X", "Y")], [("X", "FP32", ["n"])], [("Y", "FP32", ["n"])], ir_version=99)
    assert "The file has IR version 99" in refusal(new, tmp_path)


def test_an_operator_that_is_missing(tmp_path: Path) -> None:
    custom = model(
        [node("Foo", "X", "Y", domain="my.ops")], [("X", "FP32", ["n"])], [("Y", "FP32", ["n"])], domains=["my.ops"]
    )
    text = refusal(custom, tmp_path)
    assert text.startswith("unable to load '")
    assert "for model instance 'm_0': onnx runtime error 1: Load model from " in text
    assert "my.ops:Foo(-1) is not a registered function/op" in text
    assert 'model_operations { op_library_filename: "..." }' in text


def test_sequences_are_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("SequenceConstruct", "X X", "Y")],
        "graph",
        [onnx_models.info("X", "FP32", ["n"])],
        [helper.make_tensor_sequence_value_info("Y", ELEMENT_TYPES["FP32"], ["n"])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "output 'Y' is a seq(tensor(float)), which has no counterpart among the data types" in refusal(
        made, tmp_path
    )


def test_maps_are_refused(tmp_path: Path) -> None:
    made = model(
        [node("ZipMap", "X", "Y", domain="ai.onnx.ml", classlabels_int64s=[1, 2])], [("X", "FP32", [1, 2])], [],
        domains=["ai.onnx.ml"],
    )  # fmt: skip
    output = made.graph.output.add()
    output.name = "Y"
    kind = output.type.sequence_type.elem_type.map_type
    kind.key_type = ELEMENT_TYPES["INT64"]
    kind.value_type.tensor_type.elem_type = ELEMENT_TYPES["FP32"]
    assert "output 'Y' is a seq(map(int64,tensor(float)))" in refusal(made, tmp_path)


def test_external_data(tmp_path: Path, stub: StubMemory) -> None:
    folder = tmp_path / "m" / "1"
    weights = np.arange(2000, dtype=np.float32)
    save(with_external_data("weights/w.bin"), folder)
    with pytest.raises(Refusal, match=r"has weights in 'weights/w.bin', but there is no file '.*/1/weights/w.bin'"):
        Instance(tmp_path / "m")
    (folder / "weights").mkdir()
    weights.tofile(folder / "weights" / "w.bin")
    instance = Instance(tmp_path / "m", "", stub).start()
    assert instance.infer(X=weights)["Y"].tolist() == (weights * 2).tolist()
    for outside in ("../w.bin", str(tmp_path / "w.bin"), "weights/../../w.bin"):
        weights.tofile(tmp_path / "m" / "w.bin")
        weights.tofile(tmp_path / "w.bin")
        save(with_external_data(outside), folder)
        with pytest.raises(Refusal, match="which is outside of its folder: nothing is read there"):
            Instance(tmp_path / "m")


def test_external_data_inside_of_branches(tmp_path: Path) -> None:
    """Weights may lie in the subgraphs of a node, and in its attributes."""
    inner = with_external_data("../secret").graph
    branch = helper.make_graph(list(inner.node), "b", [], list(inner.output), list(inner.initializer))
    made = model(
        [node("If", "C", "Y", then_branch=branch, else_branch=branch)],
        [("C", "BOOL", [1]), ("X", "FP32", [2000])],
        [("Y", "FP32", [2000])],
    )
    path = save(made, tmp_path)
    with pytest.raises(Refusal, match=r"has weights in '\.\./secret'"):
        onnx_file.read(str(path))


def test_facts_of_a_file(tmp_path: Path) -> None:
    facts = onnx_file.read(str(save(identity(), tmp_path)))
    assert facts == (8, {"": 17}, set())


# Options

AVAILABLE = ["CPUExecutionProvider"]


def options(text: str, settings: dict[str, str] | None = None, available: Sequence[str] = AVAILABLE) -> Any:
    config = json.loads(render_json(parse_text('name: "m" ' + text, "c")))
    return options_of(config, settings or {}, available)


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }} '


def test_defaults() -> None:
    entries = (("session.force_spinning_stop", "1"),)
    providers = (("CPUExecutionProvider", ()),)
    assert options("") == ("ORT_ENABLE_ALL", False, 0, 0, None, None, entries, "", providers, None, (), (), ())


def test_the_log_says_what_was_chosen(tmp_path: Path) -> None:
    """In upstream's words and values, and only with --log-verbose."""
    text = parameter("session.use_device_allocator_for_initializers", "1") + parameter("enable_mem_arena", "1")
    text += parameter("enable_mem_pattern", "false") + parameter("memory.enable_memory_arena_shrinkage", "cpu:0")
    assert load(identity(), tmp_path, text).start().log.said == [
        (codes.LOG_VERBOSE, "Configuring 'session.use_device_allocator_for_initializers' to '1' for 'm'"),
        (codes.LOG_VERBOSE, "Configuring enable_mem_arena to 1"),
        (codes.LOG_VERBOSE, "Configuring enable_mem_pattern to false"),
        (codes.LOG_VERBOSE, "Configuring memory.enable_memory_arena_shrinkage to cpu:0"),
    ]


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ALL"), (-1, "BASIC"), (1, "EXTENDED"), (2, "DISABLE_ALL"), (7, "ALL")],
)
def test_graph_levels(level: int, name: str) -> None:
    assert options(f"optimization {{ graph {{ level: {level} }} }}").graph_level.endswith(name)


def test_parameters_are_honoured() -> None:
    text = parameter("intra_op_thread_count", "3") + parameter("inter_op_thread_count", "2")
    text += (
        parameter("execution_mode", "1") + parameter("enable_mem_arena", "0") + parameter("enable_mem_pattern", "true")
    )
    text += parameter("session.use_device_allocator_for_initializers", "1")
    made = options(text)
    assert (made.intra_op_threads, made.inter_op_threads, made.parallel) == (3, 2, True)
    assert (made.memory_arena, made.memory_pattern) == (False, True)
    assert ("session.use_device_allocator_for_initializers", "1") in made.entries
    made = options(parameter("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0"))
    assert made.shrinkage == "cpu:0"
    assert made.remarks == (
        "'gpu:0' in parameter 'memory.enable_memory_arena_shrinkage' has no effect: it is for GPUs",
    )


def test_whether_threads_spin_is_told_to_the_session(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "model.onnx"
    file.write_bytes(identity().SerializeToString())

    def told(text: str) -> dict[str, str]:
        made = options(text)
        asked = open_session(onnxruntime, str(file), "m", made).get_session_options()
        return {name: asked.get_session_config_entry(name) for name, _ in made.entries}

    # Between runs threads sleep unless the model wants it otherwise; within them onnxruntime decides
    assert told("") == {"session.force_spinning_stop": "1"}
    text = parameter("session.intra_op.allow_spinning", "0") + parameter("session.inter_op.allow_spinning", "true")
    assert told(text + parameter("session.force_spinning_stop", "0")) == {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "1",
    }


def test_a_global_pool_goes_before_the_model() -> None:
    text = parameter("intra_op_thread_count", "3")
    made = options(text, {"enable-global-threadpool": "1", "intra_op_thread_count": "5", "inter_op_thread_count": "4"})
    assert (made.intra_op_threads, made.inter_op_threads) == (5, 4)
    assert options(text, {"intra_op_thread_count": "5"}).intra_op_threads == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (parameter("execution_mode", "2"), "must be 0 (sequential) or 1 (parallel), got 2"),
        (parameter("intra_op_thread_count", "-1"), "'intra_op_thread_count' of model 'm' must be an integer from 0 on"),
        (parameter("session.intra_op.allow_spinning", "2"), "allow_spinning' of model 'm' must be 0 or 1, got '2'"),
        (parameter("enable_mem_arena", "on"), "parameter 'enable_mem_arena' of model 'm' must be 0 or 1, got 'on'"),
        (parameter("memory.enable_memory_arena_shrinkage", "cpu"), "must be a list like 'cpu:0;gpu:0', got 'cpu'"),
        (
            parameter("memory.enable_memory_arena_shrinkage", "cpu:0") + parameter("enable_mem_arena", "0"),
            "names the arena 'cpu:0', but 'enable_mem_arena' is 0",
        ),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "fast" } ] } }',
            "unknown Execution Accelerator 'fast' is requested",
        ),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }',
            "needs the package onnxruntime-openvino",
        ),
    ],
)
def test_values_that_mean_nothing(text: str, reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        options(text)
    assert reason in str(caught.value)


def test_openvino_where_it_is_installed() -> None:
    text = 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }'
    providers = options(text, available=[*AVAILABLE, "OpenVINOExecutionProvider"]).providers
    assert providers == (("OpenVINOExecutionProvider", ()), ("CPUExecutionProvider", ()))


@pytest.mark.parametrize("name", ["cudnn_conv_algo_search", "gpu_mem_limit", "share_session_between_instances"])
def test_what_has_no_effect_is_said(name: str) -> None:
    (remark,) = options(parameter(name, "1")).remarks
    assert remark.startswith(f"parameter '{name}' has no effect: ")


def test_all_options_make_a_session(tmp_path: Path, stub: StubMemory) -> None:
    text = parameter("intra_op_thread_count", "1") + parameter("execution_mode", "1")
    text += parameter("enable_mem_pattern", "0") + parameter("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0")
    text += parameter("session.use_device_allocator_for_initializers", "1") + "optimization { graph { level: 2 } }"
    text += 'optimization { execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" } ] } }'
    instance = load(identity(), tmp_path, text.replace("} }optimization {", "} "), stub).start()
    assert instance.infer(X=np.ones((1, 2), np.float32))["Y"].tolist() == [[1, 1]]
    assert sorted(line.partition(" has")[0] for line in instance.log.lines[1:]) == [
        "model 'm': 'gpu:0' in parameter 'memory.enable_memory_arena_shrinkage'",
        "model 'm': execution accelerator 'tensorrt'",
    ]


def test_a_library_of_operators_that_is_not_there(tmp_path: Path) -> None:
    text = refusal(identity(), tmp_path, 'model_operations { op_library_filename: "/nowhere/ops.so" }')
    assert "unable to load" in text
    assert "/nowhere/ops.so" in text


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Refusal, match=r"pip install 'stubserve\[onnxruntime\]'.*EXECUTION_ENV_PATH"):
        load(identity(), tmp_path)


# Ragged batches

RAGGED = """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "Y" source_input: "X" }
"""


def made_input(kind: str, datatype: str = "INT32", *targets: str) -> str:
    names = ", ".join(f'"{name}"' for name in targets or ("Z",))
    return f'batch_input {{ kind: {kind} target_name: [ {names} ] data_type: TYPE_{datatype} source_input: "X" }}\n'


def flat(name: str) -> tuple[str, str, list[str]]:
    return (name, "FP32", [f"n_{name}"])


@pytest.mark.parametrize("size", [3, 3000])
def test_requests_of_different_shapes(stub: StubMemory, tmp_path: Path, size: int) -> None:
    """Run as one; outputs are parted by shape, twice: the second run binds them."""
    neg = model([node("Neg", "X", "Y")], [flat("X")], [flat("Y")])
    instance = load(neg, tmp_path, RAGGED, stub).start()
    given = [
        np.arange(rows * size * width, dtype=np.float32).reshape(rows, -1) for rows, width in ((1, 2), (2, 1), (1, 5))
    ]
    for _ in range(2):
        entries = instance.run(*(request(X=array) for array in given))
        for array, (error, (output,), _) in zip(given, entries, strict=True):
            assert error is None
            np.testing.assert_array_equal(instance.array(output), -array)


def test_segments_are_summed(stub: StubMemory, tmp_path: Path) -> None:
    """What ragged batches are for: a model that sums what each request has sent, by where each begins."""
    config = RAGGED[: RAGGED.index("batch_output")].replace(
        '"Y" data_type: TYPE_FP32 dims: [ -1 ]', '"Y" data_type: TYPE_FP32 dims: [ 1 ]'
    )
    config += made_input("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "INT32", "BORDERS")
    instance = load(segment_sums(), tmp_path, config, stub).start()
    given = [np.full((1, width), width + 0.5, np.float32) for width in (1, 4, 2)]
    entries = instance.run(*(request(X=array) for array in given))
    assert [instance.array(output).tolist() for _, (output,), _ in entries] == [[[1.5]], [[18.0]], [[5.0]]]


@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
@pytest.mark.parametrize(
    ("kind", "dims", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", ["z"], [2, 2, 1]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", ["z"], [2, 4, 5]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", ["z"], [0, 2, 4, 5]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", ["z"], [0, 0]),
        ("BATCH_ITEM_SHAPE", ["z", 1], [2, 1, 1, 1]),
        ("BATCH_ITEM_SHAPE_FLATTEN", ["z"], [2, 1, 1, 1]),
    ],
)
def test_inputs_that_no_client_sends(
    stub: StubMemory, tmp_path: Path, kind: str, dims: list[Any], expected: list[int], datatype: str
) -> None:
    """Each reaches the model: it answers every row with all of it."""
    made = model(
        [
            node("Cast", "Z", "FLOATS", to=1),
            node("Reshape", "FLOATS FLAT", "LINE"),
            node("Shape", "LINE", "LENGTH"),
            node("Concat", "FOUR LENGTH", "TARGET", axis=0),
            node("Expand", "LINE TARGET", "Y"),
        ],
        [flat("X"), ("Z", datatype, dims)],
        [("Y", "FP32", ["rows", "z"])],
        [helper.make_tensor("FLAT", 7, [1], [-1]), helper.make_tensor("FOUR", 7, [1], [4])],
    )
    config = RAGGED[: RAGGED.index("batch_output")] + made_input(kind, datatype)
    instance = load(made, tmp_path, config, stub).start()
    shapes = [(1, 2), (2, 1), (1, 1)]
    entries = instance.run(*(request(X=np.zeros(shape, np.float32)) for shape in shapes))
    for shape, (error, tensors, _) in zip(shapes, entries, strict=True):
        assert error is None, error
        assert instance.array(tensors[0]).tolist() == [expected] * shape[0]


def test_what_is_wrong_with_ragged_batches(tmp_path: Path) -> None:
    flat_model = model([node("Neg", "X", "Y")], [flat("X")], [flat("Y")])
    assert refusal(identity(), tmp_path, RAGGED) == (
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', "
        "model provides [-1,-1]"
    )
    optional = RAGGED.replace("allow_ragged_batch", "optional: true allow_ragged_batch").replace("size: 8", "size: 0")
    with_weights = model([node("Neg", "X", "Y")], [flat("X")], [flat("Y")], [helper.make_tensor("X", 1, [1], [0.0])])
    assert "for ragged input 'X', which is not supported for optional input" in refusal(
        with_weights, tmp_path, optional
    )
    counts = made_input("BATCH_ELEMENT_COUNT")
    assert refusal(flat_model, tmp_path, RAGGED + counts) == (
        "unable to load model 'm', configuration expects 2 inputs, model provides 1: X"
    )
    two = model([node("Neg", "X", "Y"), node("Neg", "Z", "W")], [flat("X"), flat("Z")], [flat("Y"), flat("W")])
    assert refusal(two, tmp_path, RAGGED + counts) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for batch input 'Z', model provides "
        "TYPE_FP32"
    )
    assert refusal(two, tmp_path, RAGGED + made_input("BATCH_ELEMENT_COUNT", "FP32", "OTHER")) == (
        "unexpected inference input 'OTHER', allowed inputs are: X, Z"
    )


# States of sequences

ACCUMULATOR = """
    max_batch_size: 4
    sequence_batching { direct { }
        state { input_name: "OLD" output_name: "NEW" data_type: TYPE_FP32 dims: [ -1 ]
            initial_state { name: "z" data_type: TYPE_FP32 dims: [ 5000 ] zero_data: true } } }
"""


PLAIN_ACCUMULATOR = """
    input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def accumulator() -> Any:
    dims = ["batch", "n"]
    tensors = [("X", "FP32", dims), ("OLD", "FP32", dims)]
    return model(
        [node("Add", "X OLD", "NEW"), node("Identity", "NEW", "Y")],
        tensors,
        [("Y", "FP32", dims), ("NEW", "FP32", dims)],
    )


def test_states_of_a_batch_are_freed_one_by_one(stub: StubMemory, tmp_path: Path) -> None:
    """Who is silent keeps the memory of its own state, not that of those who shared a batch with it."""
    instance = load(accumulator(), tmp_path, ACCUMULATOR, stub)
    # What is completed out of the file is what clients see.
    assert [one.name for one in instance.completed.input] == ["X"]
    assert [one.name for one in instance.completed.output] == ["Y"]
    instance.start()

    def step(*flags: int, outputs: Any = ()) -> Any:
        x = np.ones((1, 5000), np.float32)
        return [("id", RequestOptions(flags=flag), None, outputs, [wire("X", x)]) for flag in flags]

    for flags in ((1, 1, 1), (0, 0, 0), (0, 0, 0)):
        entries = instance.run(*step(*flags), sequences=(7, 8, 9))
        assert [(error, list(outputs)) for error, outputs, _ in entries] == [(None, [])] * 3
        assert stub.channel.memory.live_blocks == 3
    instance.run(*step(2), sequences=(7,))
    assert stub.channel.memory.live_blocks == 2
    instance.log.handlers["drop_states"]({"sequences": [8]})
    assert stub.channel.memory.live_blocks == 1
    ((_, outputs, _),) = instance.run(*step(2, outputs=None), sequences=(9,))
    assert (instance.array(outputs[0]) == 4).all()
    stub.channel.free([outputs[0][3].offset])
    assert stub.channel.memory.live_blocks == 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            PLAIN_ACCUMULATOR + ACCUMULATOR.replace('"OLD"', '"OTHER"'),
            "unexpected inference input 'OTHER', allowed inputs are: OLD, X",
        ),
        (ACCUMULATOR.replace('"NEW"', '"OTHER"'), "unexpected inference output 'OTHER', allowed outputs are: NEW, Y"),
        (
            ACCUMULATOR.replace("TYPE_FP32", "TYPE_INT32"),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'OLD', model provides "
            "TYPE_FP32",
        ),
        (
            PLAIN_ACCUMULATOR + "max_batch_size: 4",
            "unable to load model 'm', configuration expects 1 inputs, model provides 2: OLD, X",
        ),
    ],
)
def test_states_that_the_file_does_not_have(tmp_path: Path, config: str, text: str) -> None:
    assert refusal(accumulator(), tmp_path, config) == text
