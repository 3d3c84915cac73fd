"""The pytorch backend in this process: files, names, options, and what runs do with memory."""

from __future__ import annotations

import io
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api import dlpack
from stubserve_stub.device import gpu as stub_gpus
from stubserve_stub.device.cuda_functions import LIBRARY_VARIABLE
from stubserve_stub.device.gpu import gpu
from stubserve_stub.runtime.devices import Devices
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import address_of
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER
from stubserve_stub.wire.places import InArena, Lent, Shared

from tests.emulated_gpu import build
from tests.stub.backends.loaded import Instance, Log, request, wire
from tests.stub.runtime.stub_memory import StubMemory, stub_memory
from tests.torch_models import (
    ELEMENT_TYPES,
    IGNORE_DEPRECATIONS,
    AddsToInput,
    Arithmetic,
    ArithmeticDict,
    ArithmeticList,
    ArithmeticNamed,
    Copy,
    DictSum,
    Double,
    Evil,
    KeepsInput,
    Lengths,
    OnGpu,
    Same,
    config,
    export,
    rewrite,
    script,
    torch,
)

pytestmark = pytest.mark.filterwarnings(IGNORE_DEPRECATIONS)

PLAIN = [name for name in ELEMENT_TYPES if name != "BF16"]
X, Y = {"x": "FP32 -1"}, {"y": "FP32 -1"}
AB, BOTH = {"a": "FP32 -1", "b": "FP32 -1"}, {"SUM": "FP32 -1", "DIFFERENCE": "FP32 -1"}
BATCHES = "max_batch_size: 16"


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory(8 << 20) as memory:
        yield memory


def load(module: Any, tmp_path: Path, text: str, stub: StubMemory | None = None) -> Instance:
    """A model in TorchScript."""
    script(module, tmp_path / "m" / "1")
    return Instance(tmp_path / "m", text, stub)


def refused(instance: Instance, kind: str = "CPU") -> str:
    with pytest.raises(Refusal) as caught:
        instance.start(kind)
    return str(caught.value)


def parameter(name: str, value: str) -> str:
    return f"parameters {{ key: '{name}' value {{ string_value: '{value}' }} }}"


# Runs


@pytest.mark.parametrize("rows", [2, 3000])
@pytest.mark.parametrize("datatype", PLAIN)
def test_every_type(stub: StubMemory, tmp_path: Path, datatype: str, rows: int) -> None:
    """Inputs inside messages and in the arena."""
    text = config({"x": f"{datatype} 3"}, {"y": f"{datatype} 3"}, "max_batch_size: 8000")
    instance = load(Copy(), tmp_path, text, stub).start()
    array = (np.arange(rows * 3).reshape(rows, 3) % 2).astype(BY_NAME[datatype].numpy)
    place = stub.give(array.tobytes()) if array.nbytes > 1024 else None
    found = instance.infer(x=wire("x", array, datatype, place))["y"]
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_bf16(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Double(), tmp_path, config({"x": "BF16 -1"}, {"y": "BF16 -1"}), stub).start()
    for count in (6, 6000):
        values = torch.arange(count, dtype=torch.float32).to(torch.bfloat16)
        array = values.view(torch.int16).numpy().view(np.uint16)
        found = instance.infer(x=wire("x", array, "BF16"))["y"]
        np.testing.assert_array_equal(found, (values * 2).view(torch.int16).numpy().view(np.uint16))


def test_strings(stub: StubMemory, tmp_path: Path) -> None:
    text = config({"texts": "BYTES -1"}, {"shouted__0": "BYTES -1", "lengths__1": "INT64 -1"})
    instance = load(Lengths(), tmp_path, text, stub).start()
    found = instance.infer(texts=["é".encode(), b"", b"a\0b"])
    assert found["shouted__0"] == ["é".encode(), b"", b"A\0B"]
    assert found["lengths__1"].shape == (3,)
    ((error, _, _),) = instance.run(request(texts=[b"\xff"]))
    assert error[1] == codes.INVALID_ARG
    assert error[0].startswith("input 'texts' has a string that is no UTF-8, which TorchScript cannot take")


def test_strings_of_several_requests(stub: StubMemory, tmp_path: Path) -> None:
    described = "{ name: '%s' data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [] } }"
    text = f"{BATCHES} input [ {described % 'texts'} ] output [ {described % 'shouted'},"
    text += " { name: 'lengths' data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [] } } ]"
    instance = load(Lengths(), tmp_path, text, stub).start()
    entries = instance.run(request(texts=[b"a", b"bc"]), request(texts=[b"def"]))
    assert [entry[0] for entry in entries] == [None, None]
    assert [instance.array(entry[1][0]) for entry in entries] == [[b"A", b"BC"], [b"DEF"]]
    assert [instance.array(entry[1][1]).tolist() for entry in entries] == [[1, 2], [3]]


def test_no_inputs(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Constant(), tmp_path, config({}, {"y": "INT64 3"}), stub).start()
    assert instance.infer()["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("module", [Arithmetic, ArithmeticList, ArithmeticDict, ArithmeticNamed])
def test_several_outputs(stub: StubMemory, tmp_path: Path, module: Any) -> None:
    """In a tuple, a list, a dictionary; only those that are asked for are sent, in the order of the question."""
    instance = load(module(), tmp_path, config(AB, BOTH, BATCHES), stub).start()
    a, b = np.full((1, 3000), 3, np.float32), np.full((1, 3000), 1, np.float32)
    for names in (["DIFFERENCE"], ["DIFFERENCE", "SUM"], [], None):
        found = instance.infer(names, a=a, b=b)
        assert list(found) == (["SUM", "DIFFERENCE"] if names is None else names)
        for name, array in found.items():
            np.testing.assert_array_equal(array, a + b if name == "SUM" else a - b)


def test_a_dictionary_of_inputs(stub: StubMemory, tmp_path: Path) -> None:
    text = config({"right": "FP32 -1", "left": "FP32 -1"}, Y)
    instance = load(DictSum(), tmp_path, text, stub).start()
    left, right = np.array([5, 6], np.float32), np.array([1, 2], np.float32)
    assert instance.infer(right=right, left=left)["y"].tolist() == [4, 4]


def test_scalars(stub: StubMemory, tmp_path: Path) -> None:
    """Without dimensions in the model, [1] for the client; upstream refuses to send them."""

    class Total(torch.nn.Module):
        def forward(self, x):
            return x.sum()

    instance = load(Total(), tmp_path, config(X, {"y": "FP32 1"}), stub).start()
    found = instance.infer(x=np.array([1, 2, 4], np.float32))["y"]
    assert (found.shape, found.tolist()) == ((1,), [7])
    described = "[ { name: '%s' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [] } } ]"
    text = f"{BATCHES} input {described % 'x'} output {described % 'y'}"
    instance = load(Double(), tmp_path, text, stub).start()
    assert instance.infer(x=np.array([1, 2], np.float32))["y"].tolist() == [2, 4]


def test_empty_tensors(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Double(), tmp_path, config(X, Y, BATCHES), stub).start()
    assert instance.infer(x=np.empty((0, 3), np.float32))["y"].shape == (0, 3)
    assert instance.infer(x=np.empty((2, 0), np.float32))["y"].shape == (2, 0)


def test_a_batch_of_several_requests(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Arithmetic(), tmp_path, config(AB, BOTH, BATCHES), stub).start()
    for width in (2, 5000, 5000):
        parts = [np.random.default_rng(rows).random((rows, width), np.float32) for rows in (1, 3, 2)]
        wanted = [None, ["DIFFERENCE"], ["SUM"]]
        entries = instance.run(*(request(names, a=part, b=part * 2) for part, names in zip(parts, wanted, strict=True)))
        for part, names, (error, tensors, _) in zip(parts, wanted, entries, strict=True):
            assert error is None
            found = {tensor[0]: instance.array(tensor) for tensor in tensors}
            assert list(found) == (names or ["SUM", "DIFFERENCE"])
            for name, array in found.items():
                np.testing.assert_array_equal(array, part + part * 2 if name == "SUM" else part - part * 2)


class SegmentSums(torch.nn.Module):
    """Sums of parts of x, which begin where `borders` says."""

    def forward(self, x, borders):
        return torch.stack([x[int(borders[at]) : int(borders[at + 1])].sum() for at in range(len(borders) - 1)])


BORDERS = """
    batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "%s" data_type: TYPE_INT32
                  source_input: "%s" }
"""


@pytest.mark.parametrize(("x", "borders"), [("x", "borders"), ("X__0", "B__1"), ("values", "places")])
def test_ragged_batches(stub: StubMemory, tmp_path: Path, x: str, borders: str) -> None:
    """What is made for a batch is an argument like any other."""
    outputs = "output [ { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [] } } ]"
    inputs = f"input [ {{ name: '{x}' data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }} ]"
    text = f"{BATCHES} {inputs} {outputs} {BORDERS % (borders, x)}"
    instance = load(SegmentSums(), tmp_path, text, stub).start()
    parts = [np.full((1, size), size, np.float32) for size in (2, 5, 1)]
    entries = instance.run(*(request(**{x: part}) for part in parts))
    assert [entry[0] for entry in entries] == [None] * 3
    assert [instance.array(entry[1][0]).tolist() for entry in entries] == [[4], [25], [1]]
    assert refused(load(SegmentSums(), tmp_path, f"{BATCHES} {inputs} {outputs}")).startswith(
        "unable to load model 'm', configuration expects 1 inputs, model provides 2: x, borders"
    )


class Views(torch.nn.Module):
    """Results that are not laid out as they are sent: transposed, stretched, negated by a flag, a weight itself."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6, dtype=torch.float32).reshape(2, 3))

    def forward(self, x):
        negated = torch.complex(x, x).conj().imag
        return x.t(), x[:1].expand(2, 3), negated, self.weight


@pytest.mark.parametrize("mode", ["true", "false"])
def test_results_of_any_layout(stub: StubMemory, tmp_path: Path, mode: str) -> None:
    outputs = {"t": "FP32 3 2", "e": "FP32 2 3", "n": "FP32 2 3", "w": "FP32 2 3"}
    text = config({"x": "FP32 2 3"}, outputs, parameter("INFERENCE_MODE", mode))
    instance = load(Views(), tmp_path, text, stub).start()
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    found = instance.infer(x=x)
    np.testing.assert_array_equal(found["t"], x.T)
    np.testing.assert_array_equal(found["e"], [x[0], x[0]])
    np.testing.assert_array_equal(found["n"], -x)
    np.testing.assert_array_equal(found["w"], [[0, 1, 2], [3, 4, 5]])


def test_an_error_of_a_run(stub: StubMemory, tmp_path: Path) -> None:
    """It is the answer to the requests that ran together, and the next one is served."""
    instance = load(Arithmetic(), tmp_path, config(AB, BOTH, BATCHES), stub).start()
    a, b = np.ones((1, 2), np.float32), np.ones((1, 3), np.float32)
    wrong, fine = instance.run(request(a=a, b=b), request(a=a, b=a))
    assert wrong[0][1] == codes.INTERNAL
    assert wrong[0][0].startswith("PyTorch execute failure: The following operation failed in the TorchScript")
    assert "must match the size of tensor b (3)" in wrong[0][0]
    assert fine[0] is None


class Odd(torch.nn.Module):
    def forward(self, x):
        return x, (x, x)


@pytest.mark.parametrize(
    ("module", "outputs", "code", "reason"),
    [
        (
            Double,
            {"y": "INT32 -1"},
            codes.INVALID_ARG,
            "configuration expects datatype TYPE_INT32 for output 'y', model provides TYPE_FP32",
        ),
        (
            Arithmetic,
            {"y__2": "FP32 -1"},
            codes.INVALID_ARG,
            "The output y__2 in the model configuration refers to an output index which doesn't exist. This model has "
            "2 outputs",
        ),
        (
            ArithmeticDict,
            {"QUOTIENT": "FP32 -1"},
            codes.INVALID_ARG,
            "The output QUOTIENT in the model configuration is no key of the dictionary that the model returns, which "
            "has SUM, DIFFERENCE",
        ),
        (
            Odd,
            {"y__1": "FP32 -1"},
            codes.INTERNAL,
            "PyTorch execute failure: output 'y__1' must be of type Tensor or List[str], received tuple",
        ),
    ],
)
def test_results_that_are_not_as_configured(
    stub: StubMemory, tmp_path: Path, module: Any, outputs: dict[str, str], code: int, reason: str
) -> None:
    inputs = X if module in (Double, Odd) else AB
    instance = load(module(), tmp_path, config(inputs, outputs), stub).start()
    ((error, tensors, _),) = instance.run(request(**{name: np.ones(2, np.float32) for name in inputs}))
    assert (error, tensors) == ((reason, code), ())


def test_rows_that_are_none(stub: StubMemory, tmp_path: Path) -> None:
    class Row(torch.nn.Module):
        def forward(self, x):
            return x[:1]

    instance = load(Row(), tmp_path, config(X, Y, BATCHES), stub).start()
    ((error, _, _),) = instance.run(request(x=np.ones((3, 2), np.float32)))
    assert "output 'y' of model 'm' has shape [1, 2], but its first dimension must be 3" in error[0]


# Memory


def test_a_result_that_is_an_input_is_not_copied(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Same(), tmp_path, config(X, Y), stub).start()
    array = np.arange(5000, dtype=np.float32)
    place = stub.give(array.tobytes())
    ((error, (tensor,), _),) = instance.run(request(x=wire("x", array, "FP32", place)))
    assert error is None
    assert isinstance(tensor[3], Lent)
    np.testing.assert_array_equal(instance.array(tensor), array)


def test_a_result_is_copied_once(stub: StubMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = load(Double(), tmp_path, config(X, Y, BATCHES), stub).start()
    copied: list[int] = []
    place = stub.channel.place
    monkeypatch.setattr(stub.channel, "place", lambda data: copied.append(memoryview(data).nbytes) or place(data))
    before = stub.channel.memory.live_blocks
    entries = instance.run(*(request(x=np.ones((rows, 3000), np.float32)) for rows in (1, 2)))
    assert copied == [12000, 24000]
    places = [entry[1][0][3] for entry in entries]
    assert all(isinstance(place, InArena) for place in places)
    stub.channel.free([place.offset for place in places])
    assert stub.channel.memory.live_blocks == before


def test_only_a_model_that_writes_may_write(stub: StubMemory, tmp_path: Path) -> None:
    """One that does not is given its inputs read-only, so nothing has to be made writable or copied."""
    for module, writes in ((Double, False), (AddsToInput, True), (KeepsInput, True), (InPlaceInside, False)):
        instance = load(module(), tmp_path, config(X, Y, BATCHES), stub).start()
        assert instance.backend.writes_inputs is writes, module


class InPlaceInside(torch.nn.Module):
    """Writes to what it has made itself, as most networks do."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("elements", [4, 5000, 50_000])
def test_a_model_that_writes_to_its_input_harms_nobody(stub: StubMemory, tmp_path: Path, elements: int) -> None:
    """In the message, in the arena, beyond what is copied anyway; and what others read, too, stays as it is."""
    instance = load(AddsToInput(), tmp_path, config(X, Y, BATCHES), stub).start()
    array = np.arange(elements, dtype=np.float32).reshape(1, -1)
    given = stub.give(array.tobytes())
    for place in (None, Shared(*given[1:])) if elements > 256 else (None,):
        found = instance.infer(x=wire("x", array, "FP32", place))["y"]
        np.testing.assert_array_equal(found, (array + 1) * 2)
    assert stub.read(given) == array.tobytes()
    np.testing.assert_array_equal(instance.infer(x=wire("x", array, "FP32", given))["y"], (array + 1) * 2)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_model_that_keeps_its_input(stub: StubMemory, tmp_path: Path, requests: int) -> None:
    """Whatever comes after it, in one request or gathered out of several, does not change it."""
    instance = load(KeepsInput(), tmp_path, config({"x": "FP32 3000"}, {"y": "FP32 3000"}, BATCHES), stub).start()
    before = 0.0
    for number in (1.0, 2.0, 3.0, 4.0):
        entries = instance.run(*(request(x=np.full((1, 3000), number, np.float32)) for _ in range(requests)))
        for error, (tensor,), _ in entries:
            assert error is None
            assert set(instance.array(tensor).reshape(-1).tolist()) == {before}
        before = number


def test_a_full_arena_fails_what_does_not_fit(tmp_path: Path) -> None:
    with stub_memory() as stub:
        instance = load(Double(), tmp_path, config(X, Y, "max_batch_size: 64"), stub).start()
        small, large = np.zeros((1, 200), np.float32), np.zeros((40, 200), np.float32)
        stub.fill()
        entries = instance.run(request(x=small), request(x=large))
        assert entries[0][0] is None
        assert entries[1][0][1] == codes.UNAVAILABLE


# Names


def positions(tmp_path: Path, module: Any, inputs: list[str], outputs: list[str]) -> tuple[Any, list[str]]:
    described = [dict.fromkeys(names, "FP32 -1") for names in (inputs, outputs)]
    instance = load(module, tmp_path, config(*described)).start()
    execution = instance.backend._execution
    return (execution._inputs, execution._outputs), instance.log.lines


@pytest.mark.parametrize(
    ("inputs", "expected", "said"),
    [
        (["b", "a"], {"b": 1, "a": 0}, False),
        (["X__1", "Y__0"], {"X__1": 1, "Y__0": 0}, False),
        (["b__1__x", "a"], {"b__1__x": 0, "a": 1}, True),
        (["left", "right"], {"left": 0, "right": 1}, True),
        (["b", "X__1"], {"b": 0, "X__1": 1}, True),
    ],
)
def test_names_of_inputs(tmp_path: Path, inputs: list[str], expected: dict[str, int], said: bool) -> None:
    (found, _), lines = positions(tmp_path, Arithmetic(), inputs, ["OUT__0"])
    assert found == expected
    assert lines == (
        [
            f"model 'm': inputs {', '.join(inputs)} do not all follow the <name>__<index> naming convention or the "
            "names of arguments (a, b); they are taken in the order of the model configuration"
        ]
        if said
        else []
    )


def test_names_of_outputs(tmp_path: Path) -> None:
    (_, found), lines = positions(tmp_path, Arithmetic(), ["a", "b"], ["Y__1", "Z__0"])
    assert (found, lines) == ({"Y__1": 1, "Z__0": 0}, [])
    (_, found), lines = positions(tmp_path, Arithmetic(), ["a", "b"], ["sum", "difference"])
    assert found == {"sum": 0, "difference": 1}
    assert "outputs sum, difference do not all follow the <name>__<index> naming convention; they" in lines[0]


class WithDefault(torch.nn.Module):
    def forward(self, x, factor: torch.Tensor | None = None):
        return x if factor is None else x * factor


def test_arguments_with_defaults(stub: StubMemory, tmp_path: Path) -> None:
    """May be left out of the configuration, or be optional in it."""
    x = np.array([1, 2], np.float32)
    assert load(WithDefault(), tmp_path, config(X, Y), stub).start().infer(x=x)["y"].tolist() == [1, 2]
    text = config({**X, "factor": "FP32 -1"}, Y).replace("'factor'", "'factor' optional: true")
    instance = load(WithDefault(), tmp_path, text, stub).start()
    assert instance.infer(x=x)["y"].tolist() == [1, 2]
    assert instance.infer(x=x, factor=x)["y"].tolist() == [1, 4]


class NoForward(torch.nn.Module):
    @torch.jit.export
    def other(self, x):
        return x


class Constant(torch.nn.Module):
    def forward(self):
        return torch.arange(3)


class TakesNumber(torch.nn.Module):
    def forward(self, x, n: int):
        return x * n


class TakesTwo(torch.nn.Module):
    def forward(self, x, others: dict[str, torch.Tensor]):
        return x


@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        (
            Arithmetic,
            config(X, Y),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2: a, b",
        ),
        (
            Double,
            config(AB, Y),
            "unable to load model 'm', configuration expects 2 inputs, model provides 1: x",
        ),
        (
            Arithmetic,
            config({"X__0": "FP32 -1", "X__2": "FP32 -1"}, Y),
            "input 'X__2' of model 'm' is number 2, but the model has 2 of them, and the first one is number 0",
        ),
        (
            Arithmetic,
            config({"X__1": "FP32 -1", "Z__1": "FP32 -1"}, Y),
            "inputs 'X__1' and 'Z__1' of model 'm' are both number 1",
        ),
        (
            Arithmetic,
            config(AB, {"X__1": "FP32 -1", "Z__1": "FP32 -1"}),
            "outputs 'X__1' and 'Z__1' of model 'm' are both number 1",
        ),
        (
            Lengths,
            config({"texts": "FP32 -1"}, Y),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'texts', model takes a list "
            "of strings as 'texts'",
        ),
        (
            Double,
            config({"x": "BYTES -1"}, Y),
            "unable to load model 'm', configuration expects datatype TYPE_STRING for input 'x', model takes a tensor "
            "as 'x'",
        ),
        (
            Lengths,
            config({"texts": "BYTES -1 -1"}, Y),
            "Triton only supports 1 dimensional List of String as input for 'texts' for model 'm'",
        ),
        (
            TakesNumber,
            config(X, Y),
            "unable to load model 'm': An input of type 'int' was detected in the model. Only a single input of type "
            "Dict(str, Tensor) or input(s) of type Tensor or List[str] are supported",
        ),
        (
            Double,
            "output [ { name: 'y' data_type: TYPE_FP32 dims: 1 } ]",
            "unable to load model 'm', configuration expects 0 inputs, model provides 1: x",
        ),
        (
            Double,
            "input [ { name: 'x' data_type: TYPE_FP32 dims: 1 } ]",
            "model configuration must contain at least one output, none were specified",
        ),
        (
            Double,
            config(X, Y).replace("'x'", "'x' optional: true"),
            "optional input 'x' of model 'm' needs a default value in the model: argument 'x' has none",
        ),
    ],
)
def test_a_configuration_that_does_not_fit(tmp_path: Path, module: Any, text: str, reason: str) -> None:
    assert refused(load(module(), tmp_path, 'backend: "pytorch" ' + text)).startswith(reason)


def test_what_torchscript_has_to_have(tmp_path: Path) -> None:
    assert refused(load(NoForward(), tmp_path, config(X, Y))).endswith("/1/model.pt' has no method 'forward'")
    assert "takes a dictionary beside other arguments (x, others). Only a single input of type Dict(str" in refused(
        load(TakesTwo(), tmp_path, config(X, Y))
    )


# GPUs: torch is one for CPUs here, so a double of the few calls that reach a GPU says where things would go.


class Gpus:
    """Two GPUs, as torch's functions tell of them; `moved` is what was brought where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved: list[tuple[str, str]] = []
        self.cleaned = 0
        load = torch.jit.load
        passes = pytest.importorskip("torch.export.passes")

        def kept(kind: str, value: Any, device: Any) -> Any:
            self.moved.append((kind, str(device)))
            return value

        def on(device: Any) -> bool:
            return str(device).startswith("cuda")

        def clean() -> None:
            self.cleaned += 1

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "empty_cache", clean)
        monkeypatch.setattr(torch, "from_dlpack", self._from_dlpack)

        def moved(kind: str, move: Any) -> Any:
            return lambda value, *to: kept(kind, value, to[0]) if on(to[0]) else move(value, *to)

        monkeypatch.setattr(torch.jit, "load", lambda path, map_location: kept("script", load(path), map_location))
        monkeypatch.setattr(torch.Tensor, "to", moved("tensor", torch.Tensor.to))
        monkeypatch.setattr(torch.nn.Module, "to", moved("module", torch.nn.Module.to))
        monkeypatch.setattr(passes, "move_to_device_pass", lambda value, device: kept("program", value, device))

    def _from_dlpack(self, capsule: Any) -> Any:
        """A tensor on the host, with the bytes of one on an emulated GPU."""
        _, number = dlpack.device_of(capsule)
        datatype, memory = dlpack.imported(capsule)
        array = np.empty(memory.shape, BY_NUMBER[datatype].numpy)
        gpu(number).copy_to_host(address_of(array), address_of(memory), array.nbytes)
        self.moved.append(("tensor", f"cuda:{number}"))
        return torch.from_numpy(array)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("emulator"))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, stub: StubMemory, driver: Path) -> Iterator[Gpus]:
    """Two GPUs, also for the stub: an emulated driver, which is new for each test."""
    monkeypatch.setenv(LIBRARY_VARIABLE, str(driver))
    monkeypatch.setattr(stub_gpus, "_driver", None)
    monkeypatch.setattr(stub_gpus, "_open", {})
    line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    facts = {"line": line.detach(), "pools": 0, "gpus": 2, "limits": {}, "peers": True, "pinned": 0, "load_limits": {}}
    devices = Devices(facts, Log())  # type: ignore[arg-type]
    stub.channel.use_devices(devices)
    with other, devices._line:
        yield Gpus(monkeypatch)


def test_torchscript_on_a_gpu(gpus: Gpus, stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Double(), tmp_path, config(X, Y), stub).start("GPU", 1)
    assert gpus.moved == [("script", "cuda:1")]
    x = np.arange(3, dtype=np.float32)
    assert (instance.infer(x=x)["y"] == x * 2).all()
    assert gpus.moved[1:] == [("tensor", "cuda:1")]
    assert not gpus.cleaned


def test_a_program_on_a_gpu(gpus: Gpus, stub: StubMemory, tmp_path: Path) -> None:
    export(Double(), [torch.zeros(3)], tmp_path / "m" / "1", "model.pt")
    instance = Instance(tmp_path / "m", config({"x": "FP32 3"}, {"y": "FP32 3"}), stub).start("GPU", 0)
    assert gpus.moved[0] == ("program", "cuda:0")
    x = np.arange(3, dtype=np.float32)
    assert (instance.infer(x=x)["y"] == x * 2).all()
    assert gpus.moved[-1] == ("tensor", "cuda:0")


def test_a_module_on_a_gpu(gpus: Gpus, stub: StubMemory, tmp_path: Path) -> None:
    write_module(tmp_path, SCALED)
    instance = Instance(tmp_path / "m", config(AB, BOTH, PYTHON), stub).start("GPU", 1)
    assert ("module", "cuda:1") in gpus.moved
    x = np.arange(3, dtype=np.float32)
    assert (instance.infer(a=x, b=x)["SUM"] == x).all()
    assert gpus.moved[-1] == ("tensor", "cuda:1")


def test_switches_for_gpus_have_their_effect_there(gpus: Gpus, stub: StubMemory, tmp_path: Path) -> None:
    switches = parameter("DISABLE_CUDNN", "true") + parameter("ENABLE_CACHE_CLEANING", "true")
    before = torch.backends.cudnn.enabled
    try:
        instance = load(Double(), tmp_path, config(X, Y, switches), stub).start("GPU", 0)
        assert not torch.backends.cudnn.enabled
    finally:
        torch.backends.cudnn.enabled = before
    assert instance.log.lines == []
    instance.infer(x=np.zeros(3, np.float32))
    assert gpus.cleaned == 1


def test_a_gpu_that_torch_does_not_find(gpus: Gpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = load(Double(), tmp_path, config(X, Y))
    with pytest.raises(Refusal, match=r"instance 'm_0' is to run on GPU 2, and torch .* finds 2: install a torch"):
        instance.start("GPU", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "is to run on GPU 0" in refused(instance, "GPU")


# Options


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def write_module(tmp_path: Path, source: str) -> Path:
    version_dir = tmp_path / "m" / "1"
    version_dir.mkdir(parents=True, exist_ok=True)
    (version_dir / "model.py").write_text(textwrap.dedent(source))
    return version_dir


ASKS = """
    import torch

    class Asks(torch.nn.Module):
        def forward(self, x):
            return torch.tensor([torch.is_inference_mode_enabled(), torch.is_grad_enabled(), torch.get_num_threads()])
"""


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (parameter("INTRA_OP_THREAD_COUNT", "3"), [1, 0, 3]),
        (parameter("NUM_THREADS", "2") + parameter("INFERENCE_MODE", "true"), [1, 0, 2]),
        (parameter("NUM_THREADS", "3") + parameter("INFERENCE_MODE", "false"), [0, 0, 3]),
    ],
)
def test_inference_mode_and_threads(
    stub: StubMemory, tmp_path: Path, threads: None, parameters: str, expected: list[int]
) -> None:
    write_module(tmp_path, ASKS)
    text = config(X, {"y": "INT64 3"}, 'backend: "pytorch" runtime: "model.py" ' + parameters)
    assert Instance(tmp_path / "m", text, stub).start().infer(x=np.ones(1, np.float32))["y"].tolist() == expected


@pytest.mark.parametrize("value", [True, False])
def test_how_torchscript_is_executed(tmp_path: Path, value: bool) -> None:
    profiling = ("_jit_set_profiling_executor", "_jit_set_profiling_mode")  # which return what it was
    before = [getattr(torch._C, name)(not value) for name in profiling]
    fuser, optimizes = torch._C._jit_texpr_fuser_enabled(), torch._C._get_graph_executor_optimize()
    torch._C._jit_set_texpr_fuser_enabled(not value)
    try:
        names = ("ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
        given = [parameter(name, str(value).lower()) for name in names]
        given.append(parameter("DISABLE_OPTIMIZED_EXECUTION", "1" if value else "0"))
        instance = load(Double(), tmp_path, config(X, Y, " ".join(given))).start()
        assert instance.log.lines == []
        state = "enabled" if value else "disabled"
        for said in (f"Jit executor is {state}", f"Jit profiling is {state}", f"Tensor fuser is {state}"):
            assert (codes.LOG_INFO, f"{said} for model instance 'm'") in instance.log.said
        assert torch._C._get_graph_executor_optimize() is not value
        assert torch._C._jit_texpr_fuser_enabled() is value
        assert [getattr(torch._C, name)(value) for name in profiling] == [value, value]
    finally:
        torch._C._set_graph_executor_optimize(optimizes)
        torch._C._jit_set_texpr_fuser_enabled(fuser)
        for name, was in zip(profiling, before, strict=True):
            getattr(torch._C, name)(was)


SAID = {"Optimized execution": True, "Cache Cleaning": False, "Inference Mode": True, "cuDNN": True}


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("", "", {}),
        ("DISABLE_OPTIMIZED_EXECUTION", "true", {"Optimized execution": False}),
        ("ENABLE_CACHE_CLEANING", "true", {"Cache Cleaning": True}),
        ("INFERENCE_MODE", "false", {"Inference Mode": False}),
        ("DISABLE_CUDNN", "true", {"cuDNN": False}),
        ("ENABLE_WEIGHT_SHARING", "false", {"Weight sharing": False}),
        ("ENABLE_WEIGHT_SHARING", "true", {"Weight sharing": True}),
    ],
)
def test_the_log_says_which_switches_are_on(tmp_path: Path, name: str, value: str, changed: dict[str, bool]) -> None:
    text = config(X, Y, parameter(name, value) if name else "")
    optimizes = torch._C._get_graph_executor_optimize()
    try:
        instance = load(Double(), tmp_path, text).start()
    finally:
        torch._C._set_graph_executor_optimize(optimizes)
    assert instance.log.said == [
        (codes.LOG_INFO, f"{what} is {'enabled' if on else 'disabled'} for model instance 'm'")
        for what, on in {**SAID, **changed}.items()
    ]


def test_the_log_says_how_many_threads_were_chosen(stub: StubMemory, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        text = config(X, Y, parameter("INTRA_OP_THREAD_COUNT", "3"))
        said = load(Double(), tmp_path, text, stub).start().log.said
    finally:
        torch.set_num_threads(before)
    assert said[-1] == (codes.LOG_INFO, "Intra op thread count is set to 3 for model instance 'm'")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("DISABLE_CUDNN", "it is for GPUs"),
        ("ENABLE_CACHE_CLEANING", "it is for GPUs"),
        ("ENABLE_NVFUSER", "torch has no nvFuser any more"),
    ],
)
def test_switches_without_effect_are_named(tmp_path: Path, name: str, why: str) -> None:
    assert load(Double(), tmp_path, config(X, Y, parameter(name, "true"))).start().log.lines == [
        f"model 'm': parameter '{name}' has no effect: {why}"
    ]
    assert load(Double(), tmp_path, config(X, Y, parameter(name, "false"))).start().log.lines == []


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("INFERENCE_MODE", "yes", "parameter 'INFERENCE_MODE' of model 'm' must be 0 or 1, got 'yes'"),
        ("ENABLE_WEIGHT_SHARING", "2", "parameter 'ENABLE_WEIGHT_SHARING' of model 'm' must be 0 or 1, got '2'"),
        ("INTRA_OP_THREAD_COUNT", "-1", "parameter 'INTRA_OP_THREAD_COUNT' of model 'm' must be an integer from 0 on"),
        ("MODEL_INIT_LIBRARY", "a.so", "parameter 'MODEL_INIT_LIBRARY' of model 'm' has a compiled library"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", "[1]", "parameter 'TORCH_COMPILE_OPTIONAL_PARAMETERS' of model 'm' must"),
        ("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"model": 1}', "'model' is not an optional parameter for 'torch.comp"),
    ],
)
def test_values_that_mean_nothing(tmp_path: Path, name: str, value: str, reason: str) -> None:
    assert refused(load(Double(), tmp_path, config(X, Y, parameter(name, value)))).startswith(reason)


# Modules in Python

PYTHON = 'backend: "pytorch" runtime: "model.py" '
SCALED = """
    import torch
    from torch.nn import Linear

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.ones(1))

        def forward(self, x, y):
            return x * self.factor, x - y
"""


def test_a_module_with_its_weights(stub: StubMemory, tmp_path: Path) -> None:
    """Inputs and outputs are taken in the order of the configuration, whatever they are called."""
    version_dir = write_module(tmp_path, SCALED)
    text = config({"b__1": "FP32 -1", "a__0": "FP32 -1"}, {"p__1": "FP32 -1", "q__0": "FP32 -1"}, PYTHON + BATCHES)
    b, a = np.array([[5, 6]], np.float32), np.array([[1, 2]], np.float32)
    instance = Instance(tmp_path / "m", text, stub).start()
    assert "model.pt': the module has the weights that it makes itself" in instance.log.lines[0]
    assert instance.infer(b__1=b, a__0=a)["p__1"].tolist() == [[5, 6]]
    for old in (False, True):
        weights = {"factor": torch.full((1,), 3.0)}
        torch.save(weights, version_dir / "model.pt", _use_new_zipfile_serialization=not old)
        instance = Instance(tmp_path / "m", text, stub).start()
        found = instance.infer(b__1=b, a__0=a)
        assert (found["p__1"].tolist(), found["q__0"].tolist()) == ([[15, 18]], [[4, 4]])
    entries = instance.run(request(b__1=b, a__0=a), request(b__1=b * 2, a__0=a))
    assert [instance.array(entry[1][0]).tolist() for entry in entries] == [[[15, 18]], [[30, 36]]]


def test_a_module_that_raises(stub: StubMemory, tmp_path: Path) -> None:
    """What it raises leaves `execute` as it is, so that the error has the lines of the model."""
    write_module(tmp_path, SCALED.replace("return x", "return undefined"))
    instance = Instance(tmp_path / "m", config(AB, BOTH, PYTHON), stub).start()
    with pytest.raises(NameError, match="undefined"):
        instance.run(request(a=np.ones(1, np.float32), b=np.ones(1, np.float32)))


def test_which_class_is_the_module(stub: StubMemory, tmp_path: Path) -> None:
    """That of the file, not one that it imports; and files beside it can be imported."""
    version_dir = write_module(
        tmp_path,
        """
        from torch.nn import Dropout as ADropout, Module
        from scale_of_torch_test import SCALE

        class Net(Module):
            def forward(self, x):
                return x * SCALE

        class Other(Module):
            pass
        """,
    )
    (version_dir / "scale_of_torch_test.py").write_text("SCALE = 5\n")
    instance = Instance(tmp_path / "m", config(X, Y, PYTHON), stub).start()
    assert instance.infer(x=np.array([2], np.float32))["y"].tolist() == [10]
    assert any("has several modules (Net, Other): the first one is served, Net" in line for line in instance.log.lines)


def test_torch_compile_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled it is only then: that needs a compiler, and takes long."""
    asked: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda module, **given: asked.append(given) or module)
    write_module(tmp_path, SCALED)
    Instance(tmp_path / "m", config(AB, BOTH, PYTHON)).start()
    assert asked == []
    given = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", '{"dynamic": true, "disable": true}')
    Instance(tmp_path / "m", config(AB, BOTH, PYTHON + given)).start()
    assert asked == [{"dynamic": True, "disable": True}]


def test_torchscript_where_there_is_no_module(stub: StubMemory, tmp_path: Path) -> None:
    instance = load(Double(), tmp_path, config(X, Y, PYTHON), stub).start()
    assert instance.infer(x=np.array([2], np.float32))["y"].tolist() == [4]


@pytest.mark.parametrize(
    ("source", "weights", "reason"),
    [
        ("x = 1", None, "Cannot find a subclass of torch.nn.Module in '"),
        (SCALED, {"other": torch.zeros(1)}, "are not those of Scaled: Error(s) in loading state_dict for Scaled"),
        (SCALED, {"factor": torch.zeros(2)}, "size mismatch for factor"),
    ],
)
def test_modules_that_do_not_load(tmp_path: Path, source: str, weights: Any, reason: str) -> None:
    version_dir = write_module(tmp_path, source)
    if weights is not None:
        torch.save(weights, version_dir / "model.pt")
    assert reason in refused(Instance(tmp_path / "m", config(AB, BOTH, PYTHON)))


# What torch.export makes


class Structured(torch.nn.Module):
    """Takes and returns tensors in structures."""

    def forward(self, x, pair, *, scale):
        return {"a": x + pair["left"], "b": [pair["right"] * scale]}


def test_an_exported_program(stub: StubMemory, tmp_path: Path) -> None:
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    export(Arithmetic(), example, tmp_path / "m" / "1", dynamic_shapes=(rows, rows))
    three = dict.fromkeys(("a", "b"), "FP32 3")
    a, b = np.full((1, 3), 5, np.float32), np.full((2, 3), 1, np.float32)
    for inputs in (three, {"INPUT__0": "FP32 3", "INPUT__1": "FP32 3"}, {"ARGS[0]": "FP32 3", "ARGS[1]": "FP32 3"}):
        for outputs in (["OUTPUT__0", "OUTPUT__1"], ["RESULT[0]", "RESULT[1]"], ["sum", "difference"]):
            instance = Instance(tmp_path / "m", config(inputs, dict.fromkeys(outputs, "FP32 3"), BATCHES), stub).start()
            requests = [request(**dict(zip(inputs, (array, array * 2), strict=True))) for array in (a, b)]
            for array, (error, tensors, _) in zip((a, b), instance.run(*requests), strict=True):
                assert error is None
                found = [instance.array(tensor) for tensor in tensors]
                np.testing.assert_array_equal(found[0], array * 3)
                np.testing.assert_array_equal(found[1], -array)
    assert instance.backend.writes_inputs is False


def test_structures_of_tensors(stub: StubMemory, tmp_path: Path) -> None:
    example = (torch.zeros(2), {"right": torch.zeros(2), "left": torch.zeros(2)})
    export(Structured(), example, tmp_path / "m" / "1", kwargs={"scale": torch.zeros(1)})
    inputs = {"ARGS[0]": "FP32 2", "ARGS[1][left]": "FP32 2", "ARGS[1][right]": "FP32 2", "KWARGS[scale]": "FP32 1"}
    outputs = {"RESULT[b][0]": "FP32 2", "RESULT[a]": "FP32 2"}
    instance = Instance(tmp_path / "m", config(inputs, outputs), stub).start()
    values = [np.array(value, np.float32) for value in ([1, 2], [10, 20], [5, 6], [3])]
    found = instance.infer(**dict(zip(inputs, values, strict=True)))
    assert {name: array.tolist() for name, array in found.items()} == {"RESULT[b][0]": [15, 18], "RESULT[a]": [11, 22]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            config({"a": "FP32 4", "b": "FP32 3"}, Y, BATCHES),
            "model 'm', tensor 'a': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 2 dimensions (an initial batch dimension",
        ),
        (
            config({"a": "FP32 3", "b": "FP32 3"}, {"y": "FP32 -1"}, BATCHES),
            "model 'm', tensor 'y': the model expects 2 dimensions (shape [-1,3])",
        ),
        (
            config({"a": "INT32 3", "b": "FP32 3"}, Y, BATCHES),
            "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'a', model provides "
            "TYPE_FP32",
        ),
        (
            config({"a": "FP32 3"}, Y, BATCHES),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2: a, b",
        ),
    ],
)
def test_dimensions_that_differ(tmp_path: Path, text: str, reason: str) -> None:
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    export(Arithmetic(), example, tmp_path / "m" / "1", dynamic_shapes=(rows, rows))
    assert refused(Instance(tmp_path / "m", text)).startswith(reason)


def test_a_program_that_cannot_be_batched(tmp_path: Path) -> None:
    export(Double(), (torch.zeros(2, 3),), tmp_path / "m" / "1")
    text = config({"x": "FP32 3"}, {"y": "FP32 3"}, BATCHES)
    assert "for the model to support batching the shape should have at least 1 dimension and the first" in refused(
        Instance(tmp_path / "m", text)
    )


def test_a_program_that_takes_more_than_tensors(tmp_path: Path) -> None:
    export(TakesNumber(), (torch.zeros(2), 3), tmp_path / "m" / "1")
    text = config({"x": "FP32 2", "n": "INT64 1"}, {"y": "FP32 2"})
    assert "which is no tensor: export it with tensors only" in refused(Instance(tmp_path / "m", text))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, about parts of its own
def test_a_compiled_package(stub: StubMemory, tmp_path: Path) -> None:
    """Compiling takes a minute, and needs a compiler; it is done here only."""
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    example = (torch.zeros(2, 3), torch.zeros(2, 3))
    program = torch.export.export(Arithmetic(), example, dynamic_shapes=(rows, rows))
    version_dir = tmp_path / "m" / "1"
    version_dir.mkdir(parents=True)
    torch._inductor.aoti_compile_and_package(program, package_path=str(version_dir / "model.pt2"))
    three = {"INPUT__0": "FP32 3", "ARGS[1]": "FP32 3"}
    for inputs in ({"INPUT__0": "FP32 3", "INPUT__1": "FP32 3"}, {"ARGS[0]": "FP32 3", "ARGS[1]": "FP32 3"}, three):
        outputs = {"RESULT[1]": "FP32 3", "RESULT[0]": "FP32 3"}
        instance = Instance(tmp_path / "m", config(inputs, outputs, BATCHES), stub).start()
        a = np.full((1, 3), 5, np.float32)
        found = instance.infer(**dict(zip(inputs, (a, a * 2), strict=True)))
        np.testing.assert_array_equal(found["RESULT[0]"], a * 3)
        np.testing.assert_array_equal(found["RESULT[1]"], -a)


# Files


def load_file(data: bytes, tmp_path: Path, name: str = "model.pt") -> str:
    path = tmp_path / "m" / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return refused(Instance(tmp_path / "m", config(X, Y)))


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no PyTorch model: it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS: `git lfs pull` gets the file"),
        (b"<html>", "no PyTorch model: it is no archive; it is a web page or XML"),
        (b"something else", "no PyTorch model: it is no archive"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    assert reason in load_file(data, tmp_path, name)


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    whole = script(Double(), tmp_path / "other").read_bytes()
    for size in (10, 1000, len(whole) - 1):
        text = load_file(whole[:size], tmp_path)
        assert f"/1/model.pt' is no whole PyTorch model: it is damaged, or cut off after {size} bytes" in text
    (tmp_path / "m" / "1" / "model.pt").unlink()
    whole = export(Double(), (torch.zeros(2),), tmp_path / "other").read_bytes()
    assert "/1/model.pt2' is no whole PyTorch model" in load_file(whole[:-30], tmp_path, "model.pt2")


def test_a_zip_archive_of_something_else(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros(3))
    assert load_file(buffer.getvalue(), tmp_path).endswith("is no PyTorch model: it is a zip archive of something else")


def test_damage_inside(tmp_path: Path) -> None:
    path = script(Double(), tmp_path / "m" / "1")
    rewrite(path, lambda name, data: b"garbage" if name == "data.pkl" else data)
    assert refused(Instance(tmp_path / "m", config(X, Y))).startswith("failed to load model 'm': '")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    text = config(X, Y, 'backend: "pytorch"')
    assert refused(Instance(tmp_path / "m", text)) == f"unable to find '{tmp_path}/m/1/model.pt' for model 'm'"
    text = refused(Instance(tmp_path / "m", config(X, Y, PYTHON)))
    assert text == f"unable to find '{tmp_path}/m/1/model.py' or '{tmp_path}/m/1/model.pt' for model 'm'"


def test_another_name(stub: StubMemory, tmp_path: Path) -> None:
    script(Double(), tmp_path / "m" / "1", "best.pt")
    text = config(X, Y, 'backend: "pytorch" default_model_filename: "best.pt"')
    assert Instance(tmp_path / "m", text, stub).start().infer(x=np.ones(1, np.float32))["y"].tolist() == [2]


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_pickles_are_refused(tmp_path: Path, old: bool, whole: bool) -> None:
    """State dicts and whole modules, in both formats of torch.save: none is unpickled."""
    path = tmp_path / "m" / "1" / "model.pt"
    path.parent.mkdir(parents=True)
    trace = tmp_path / "unpickled"
    torch.save(Evil(trace) if whole else {"w": Evil(trace)}, path, _use_new_zipfile_serialization=not old)
    text = refused(Instance(tmp_path / "m", config(X, Y)))
    assert "/1/model.pt' is no TorchScript: it is a pickle of Python objects, as torch.save writes" in text
    assert 'are read with `runtime: "model.py"` in config.pbtxt' in text
    assert not trace.exists()


@pytest.mark.parametrize("old", [True, False])
def test_weights_that_are_code_are_not_unpickled(tmp_path: Path, old: bool) -> None:
    version_dir = write_module(tmp_path, SCALED)
    trace = tmp_path / "unpickled"
    torch.save({"factor": Evil(trace)}, version_dir / "model.pt", _use_new_zipfile_serialization=not old)
    text = refused(Instance(tmp_path / "m", config(AB, BOTH, PYTHON)))
    assert "/1/model.pt' cannot be read as weights; nothing else is unpickled, because that runs code" in text
    assert not trace.exists()


def test_exported_programs_are_not_unpickled(tmp_path: Path) -> None:
    """torch itself would: what it cannot read as weights it unpickles."""
    path = export(Double(), (torch.zeros(2),), tmp_path / "m" / "1")
    trace = tmp_path / "unpickled"
    pickled = io.BytesIO()
    torch.save((Evil(trace),), pickled)
    changed: list[str] = []

    def put(name: str, data: bytes) -> bytes:
        if "sample_inputs" not in name:
            return data
        changed.append(name)
        return pickled.getvalue()

    rewrite(path, put)
    assert changed
    text = refused(Instance(tmp_path / "m", config({"x": "FP32 2"}, {"y": "FP32 2"})))
    assert "has a pickle in it that asks for posix.mkdir: nothing executable is unpickled" in text
    assert not trace.exists()


def test_a_model_for_a_gpu(stub: StubMemory, tmp_path: Path) -> None:
    """A device in its code is named in the log, and explained where it fails; one of weights alone does not matter."""
    instance = load(OnGpu(), tmp_path, config(X, Y), stub).start()
    assert "names 'cuda:0' in its code: where it gets there, it fails on a CPU" in instance.log.lines[0]
    ((error, _, _),) = instance.run(request(x=np.ones(2, np.float32)))
    assert error[0].startswith("PyTorch execute failure: ")
    assert "The model asks for a GPU itself, and this instance runs on a CPU" in error[0]
    path = script(InPlaceInside(), tmp_path / "m" / "1")
    # How a pickle has a short text: its kind, its length, and what it says.
    rewrite(path, lambda _, data: data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"))
    assert b"cuda:0" in path.read_bytes()
    text = config({"x": "FP32 4"}, {"y": "FP32 4"})
    assert Instance(tmp_path / "m", text, stub).start().log.lines == []
    assert "The model asks for a GPU itself, and this instance" in refused(Instance(tmp_path / "m", text), "MODEL")


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "path", [])
    script_text = config(X, Y, 'backend: "pytorch"')
    with pytest.raises(Refusal) as caught:
        Instance(tmp_path / "m", script_text)
    assert "needs the package torch, which the environment" in str(caught.value)
    assert "pip install 'stubserve[pytorch]'" in str(caught.value)
