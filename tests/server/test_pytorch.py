"""PyTorch models in a real server: the answers are those of torch called directly, whatever the data type."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from stubserve.checking.inspection import inspect
from stubserve.checking.repository import check_repositories
from tests.real_server import Serving, binary_output, write_model
from tests.server.native_models import (
    check_batches_of_many_requests,
    check_kills,
    check_strings_that_are_no_text,
    infer,
    measure_copies,
)
from tests.server.test_copies import COPIED_BYTES, TENSOR_BYTES
from tests.torch_models import (
    ELEMENT_TYPES,
    IGNORE_DEPRECATIONS,
    AddsToInput,
    Arithmetic,
    Copy,
    Double,
    Evil,
    Lengths,
    OnGpu,
    config,
    export,
    script,
    torch,
)

pytestmark = pytest.mark.filterwarnings(IGNORE_DEPRECATIONS)

TYPES = [name for name in ELEMENT_TYPES if name != "BF16"]
NUMPY: dict[str, Any] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}
AB, BOTH = {"a": "FP32 -1", "b": "FP32 -1"}, {"SUM__0": "FP32 -1", "DIFFERENCE__1": "FP32 -1"}
X, Y = {"x": "FP32 -1"}, {"y": "FP32 -1"}

# Calls the TorchScript model with its own input, twice its size, and answers with the difference
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                given = request.inputs()[0]
                double = pb_utils.Tensor("b", given.as_numpy() * 2)
                call = pb_utils.InferenceRequest(
                    model_name="arithmetic",
                    inputs=[pb_utils.Tensor("a", given.as_numpy()), double],
                    requested_output_names=["DIFFERENCE__1"],
                )
                answer = call.exec()
                assert not answer.has_error(), answer.error().message()
                [output] = answer.output_tensors()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output.as_numpy())]))
            return responses
"""
CALLER_CONFIG = """
    backend: "python"
    input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1, -1 ] } ]
    output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1, -1 ] } ]
"""
SCALED = """
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        if x.shape[-1] == 13:
            raise ValueError("thirteen")
        return x * self.factor
"""
# Gives back in how many threads it runs
THREADS = """
import torch


class Threads(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([torch.get_num_threads(), torch.get_num_interop_threads()])
"""


class EveryType(torch.nn.Module):
    """Answers with its inputs, which are one for each data type."""

    def forward(self, tensors: dict[str, torch.Tensor]):
        found: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            found[name] = tensor.clone()
        return found


class Negated(torch.nn.Module):
    def forward(self, x):
        return -x


class SameTexts(torch.nn.Module):
    def forward(self, texts: list[str]):
        return texts


class Grown(torch.nn.Module):
    """Everything twice: in integers and floats of all sizes that torch adds, which not all unsigned ones are."""

    def forward(self, i8, i16, i32, i64, u8, f16, f32, f64, bf16):
        return i8 + i8, i16 + i16, i32 + i32, i64 + i64, u8 + u8, f16 + f16, f32 + f32, f64 + f64, bf16 + bf16


GROWN = ["INT8", "INT16", "INT32", "INT64", "UINT8", "FP16", "FP32", "FP64", "BF16"]


def write_torch(repository: Path, name: str, module: Any, text: str) -> Path:
    version_dir = repository / name / "1"
    script(module, version_dir)
    (repository / name / "config.pbtxt").write_text(text)
    return version_dir


def write_source(repository: Path, name: str, source: str, text: str) -> Path:
    version_dir = repository / name / "1"
    version_dir.mkdir(parents=True)
    (version_dir / "model.py").write_text(source)
    (repository / name / "config.pbtxt").write_text('backend: "pytorch" runtime: "model.py" ' + text)
    return version_dir


def arrays(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    return {
        kind: (np.arange(rows * 2).reshape(rows, 2) % 100).astype(NUMPY.get(kind) or kind.lower()) for kind in TYPES
    }


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    kinds = {kind: f"{kind} -1" for kind in TYPES}
    write_torch(path, "all", EveryType(), config(kinds, kinds, "max_batch_size: 8192"))
    inputs = {f"I__{at}": f"{kind} -1" for at, kind in enumerate(GROWN)}
    outputs = {f"O__{at}": f"{kind} -1" for at, kind in enumerate(GROWN)}
    write_torch(path, "grown", Grown(), config(inputs, outputs, "max_batch_size: 8192"))
    write_torch(path, "arithmetic", Arithmetic(), config(AB, BOTH, 'platform: "pytorch_libtorch" max_batch_size: 8'))
    write_torch(
        path,
        "batched",
        Negated(),
        config({"INPUT0": "FP32 -1"}, {"Y": "FP32 -1"}, 'backend: "pytorch" max_batch_size: 8')
        + "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 8 }",
    )
    write_torch(path, "writes", AddsToInput(), config(X, Y))
    write_torch(path, "strings", Lengths(), config({"texts": "BYTES -1"}, {"S": "BYTES -1", "N": "INT64 -1"}))
    reshaped = "[ {{ name: '{}' data_type: TYPE_STRING dims: 1 reshape {{ shape: [] }} }} ]"
    write_torch(
        path,
        "texts",
        SameTexts(),
        f"max_batch_size: 4 input {reshaped.format('texts')} output {reshaped.format('same')}"
        "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 4 }",
    )
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    export(Double(), (torch.zeros(2, 3),), path / "exported" / "1", dynamic_shapes=(rows,))
    (path / "exported" / "config.pbtxt").write_text(
        config({"x": "FP32 3"}, {"RESULT": "FP32 3"}, 'platform: "torch_aoti" max_batch_size: 8')
    )
    version_dir = write_source(path, "module", SCALED, config(X, Y, "max_batch_size: 8"))
    torch.save({"factor": torch.full((1,), 3.0)}, version_dir / "model.pt")
    threads = "parameters { key: 'INTRA_OP_THREAD_COUNT' value { string_value: '3' } }"
    threads += "parameters { key: 'INTER_OP_THREAD_COUNT' value { string_value: '4' } }"
    write_source(path, "threads", THREADS, config(X, {"y": "INT64 2"}, threads))
    write_torch(path, "gpu", OnGpu(), config(X, Y))
    write_model(path, "caller", CALLER, CALLER_CONFIG)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with Serving(repository) as serving:
        yield serving


@pytest.mark.parametrize("rows", [2, 3000])
@pytest.mark.parametrize("library", [tritonclient.http, tritonclient.grpc])
def test_every_type(server: Serving, repository: Path, library: Any, rows: int) -> None:
    """With a dictionary in and out."""
    inputs = arrays(rows)
    module = torch.jit.load(str(repository / "all" / "1" / "model.pt"))
    expected = module({name: torch.from_numpy(array) for name, array in inputs.items()})
    answer = infer(library, server, "all", inputs)
    for name, tensor in expected.items():
        found = answer.as_numpy(name)
        assert found.dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(found, tensor.numpy())


@pytest.mark.parametrize("rows", [2, 3000])
def test_arithmetic_of_every_type(server: Serving, repository: Path, rows: int) -> None:
    """With a tuple out, and BF16, which no client has."""
    tensors = [torch.arange(rows * 2).reshape(rows, 2).remainder(50).to(ELEMENT_TYPES[kind]) for kind in GROWN]
    expected = torch.jit.load(str(repository / "grown" / "1" / "model.pt"))(*tensors)
    datas = [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]
    described = [
        {
            "name": f"I__{at}",
            "datatype": kind,
            "shape": [rows, 2],
            "parameters": {"binary_data_size": len(datas[at])},
        }
        for at, kind in enumerate(GROWN)
    ]
    header = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
    answer = server.request(
        "POST",
        "/v2/models/grown/infer",
        header + b"".join(datas),
        {"Inference-Header-Content-Length": str(len(header))},
    )
    assert answer.status == 200, answer
    body = answer.body[int(answer.headers["inference-header-content-length"]) :]
    assert body == b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in expected)


def test_what_clients_are_told(server: Serving) -> None:
    described = server.get("/v2/models/arithmetic/config").json()
    assert (described["backend"], described["platform"], described["default_model_filename"]) == (
        "pytorch",
        "pytorch_libtorch",
        "",
    )
    assert server.get("/v2/models/batched/config").json()["default_model_filename"] == "model.pt"
    assert [(group["count"], group["kind"]) for group in described["instance_group"]] == [(1, "KIND_CPU")]
    described = server.get("/v2/models/module/config").json()
    assert (described["runtime"], described["default_model_filename"]) == ("model.py", "")
    assert server.get("/v2/models/exported/config").json()["default_model_filename"] == "model.pt2"
    assert server.get("/v2/models/arithmetic").json()["platform"] == "pytorch_libtorch"


def test_only_requested_outputs(server: Serving) -> None:
    a, b = np.array([[5, 7]], np.float32), np.array([[1, 2]], np.float32)
    answer = infer(tritonclient.http, server, "arithmetic", {"b": b, "a": a}, ["DIFFERENCE__1"])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["DIFFERENCE__1"]
    assert answer.as_numpy("DIFFERENCE__1").tolist() == [[4, 5]]


def test_strings(server: Serving, repository: Path) -> None:
    texts = np.array(["é", "", "abc"], np.object_)
    answer = infer(tritonclient.grpc, server, "strings", {"texts": texts})
    module = torch.jit.load(str(repository / "strings" / "1" / "model.pt"))
    shouted, lengths = module(texts.tolist())
    assert answer.as_numpy("S").tolist() == [text.encode() for text in shouted]
    assert answer.as_numpy("N").tolist() == lengths.tolist()


def test_a_string_that_is_no_text_fails_its_own_request(server: Serving) -> None:
    check_strings_that_are_no_text(server)


def test_an_exported_program(server: Serving) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert infer(tritonclient.http, server, "exported", {"x": x}).as_numpy("RESULT").tolist() == (x * 2).tolist()


def test_a_module_in_python(server: Serving) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert infer(tritonclient.http, server, "module", {"x": x}).as_numpy("y").tolist() == (x * 3).tolist()
    answer = server.infer_json("module", [{"name": "x", "datatype": "FP32", "shape": [1, 13], "data": [0.0] * 13}])
    assert answer.status == 500
    assert "ValueError: thirteen" in answer.error
    assert "module/1/model.py(12): forward" in answer.error


def test_the_log_says_which_switches_are_on(server: Serving) -> None:
    server.wait_for(r"(?m)^I\d{4} .*\] \"Inference Mode is enabled for model instance 'arithmetic'\"$")


def test_threads(server: Serving) -> None:
    x = np.ones(1, np.float32)
    assert infer(tritonclient.http, server, "threads", {"x": x}).as_numpy("y").tolist() == [3, 4]


def test_a_model_for_a_gpu(server: Serving) -> None:
    answer = server.infer_json("gpu", [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}])
    assert answer.status == 500
    assert "The model asks for a GPU itself, and this instance runs on a CPU" in answer.error


@pytest.mark.parametrize("elements", [4, 5000, 100_000])
def test_a_model_that_writes_to_its_input(server: Serving, elements: int) -> None:
    """In a message, in memory that is copied for it, in memory that is opened for it; again and again."""
    x = np.arange(elements, dtype=np.float32)
    for _ in range(5):
        found = infer(tritonclient.grpc, server, "writes", {"x": x}).as_numpy("y")
        np.testing.assert_array_equal(found, (x + 1) * 2)


@pytest.mark.parametrize("width", [2, 5000])
def test_a_batch_of_many_requests(server: Serving, width: int) -> None:
    check_batches_of_many_requests(server, width)


@pytest.mark.parametrize("elements", [4, 70_000])
def test_a_model_in_python_calls_it(server: Serving, elements: int) -> None:
    array = np.arange(elements, dtype=np.float32).reshape(1, -1)
    for _ in range(3):
        np.testing.assert_array_equal(binary_output(server.infer_array("caller", array)), -array)


def test_an_error_of_a_run(server: Serving) -> None:
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, size], "data": [0.0] * size}
        for name, size in (("a", 2), ("b", 3))
    ]
    answer = server.infer_json("arithmetic", tensors)
    assert answer.status == 500
    assert answer.error.startswith("PyTorch execute failure: ")
    assert "must match the size of tensor b (3)" in answer.error


def test_killed_and_back(tmp_path: Path) -> None:
    """The stub is killed while it is asked; every success is right, and it comes back."""
    write_torch(tmp_path, "batched", Negated(), config({"INPUT0": "FP32 -1"}, {"Y": "FP32 -1"}, "max_batch_size: 4"))
    check_kills(tmp_path, clients=2, stubs=1, rounds=1)


def test_what_does_not_load(tmp_path: Path) -> None:
    write_torch(tmp_path, "fine", Copy(), config(X, Y))
    (tmp_path / "none" / "1").mkdir(parents=True)
    (tmp_path / "none" / "config.pbtxt").write_text('backend: "pytorch" ' + config(X, Y))
    trace = tmp_path / "unpickled"
    (tmp_path / "pickle" / "1").mkdir(parents=True)
    torch.save({"w": Evil(trace)}, tmp_path / "pickle" / "1" / "model.pt")
    (tmp_path / "pickle" / "config.pbtxt").write_text(config(X, Y))
    write_torch(tmp_path, "names", Arithmetic(), config(X, Y))
    write_torch(tmp_path, "gpu", Copy(), config(X, Y, "instance_group [ { kind: KIND_GPU } ]"))
    with Serving(tmp_path, "--exit-on-error=false") as server:
        index = server.request("POST", "/v2/repository/index", b"").json()
        reasons = {row["name"]: row.get("reason", "") for row in index if row.get("state") != "READY"}
        assert sorted(reasons) == ["gpu", "names", "none", "pickle"]
        assert "KIND_GPU" in reasons["gpu"]
        assert "configuration expects 1 inputs, model provides 2: a, b" in reasons["names"]
        assert "none/1/model.pt' for model 'none'" in reasons["none"]
        assert "is no TorchScript: it is a pickle of Python objects" in reasons["pickle"]
        assert not trace.exists()
        x = np.ones(2, np.float32)
        assert infer(tritonclient.http, server, "fine", {"x": x}).as_numpy("y").tolist() == [1, 1]


def test_the_tools_know_it(tmp_path: Path) -> None:
    write_torch(tmp_path, "m", Copy(), config(X, Y, "max_batch_size: 2"))
    write_source(tmp_path, "module", SCALED, config(X, Y))
    assert check_repositories([tmp_path], tmp_path / "no backends").problems == ()
    finding = asyncio.run(inspect(tmp_path / "m", tmp_path / "no backends"))
    assert (finding.backend, finding.file) == ("pytorch", None)
    (tmp_path / "m" / "1" / "model.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    wrong = "parameters { key: 'INFERENCE_MODE' value { string_value: 'on' } }"
    write_torch(tmp_path, "other", OnGpu(), config(X, Y, 'backend: "pytorch" ' + wrong))
    (tmp_path / "module" / "1" / "model.py").unlink()
    torch.save({}, tmp_path / "module" / "1" / "model.pt")
    texts = [str(problem) for problem in check_repositories([tmp_path], tmp_path / "no backends").problems]
    assert len(texts) == 4
    assert "m/1/model.pt: error: " in texts[0]
    assert "it is a pointer of Git LFS" in texts[0]
    assert "is no TorchScript: it is a pickle of Python objects" in texts[1]
    assert any("warning: " in text and "names 'cuda:0' in its code" in text for text in texts)
    assert any("parameter 'INFERENCE_MODE' of model 'other' must be 0 or 1, got 'on'" in text for text in texts)


def test_an_environment_of_its_own(tmp_path: Path) -> None:
    """The package is the one of the environment that the model names, here one that borrows this one's packages."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(packages, "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    more = f"parameters {{ key: 'EXECUTION_ENV_PATH' value {{ string_value: '{environment}' }} }}"
    write_torch(tmp_path / "models", "m", Copy(), config(X, Y, more))
    assert check_repositories([tmp_path / "models"], tmp_path / "no backends").problems == ()
    finding = asyncio.run(inspect(tmp_path / "models" / "m", tmp_path / "no backends"))
    assert (finding.backend, finding.environment) == ("pytorch", str(environment))


def test_a_large_tensor_is_copied_once(tmp_path: Path) -> None:
    """From torch's memory to where it is sent from: in shared memory is nothing but the input and the output."""
    write_torch(tmp_path, "plain", Negated(), config({"INPUT0": "FP32 -1"}, {"Y": "FP32 -1"}))
    array = np.arange(TENSOR_BYTES // 4, dtype=np.float32)
    answer, in_parent, committed = measure_copies(tmp_path, array)
    np.testing.assert_array_equal(answer, -array)
    assert in_parent < COPIED_BYTES
    assert 2 * TENSOR_BYTES <= committed <= 2 * TENSOR_BYTES + TENSOR_BYTES // 2


class Remembering(torch.nn.Module):
    """The sum so far, twice; and how often it was asked"""

    def forward(self, x, total, count):
        total = total + x
        return total * 1, total, count + 1


def test_states_of_sequences(tmp_path: Path) -> None:
    """Implicit state of a model in TorchScript, whose results have no names; two sequences, small states and large."""
    for size in (1, 5000):
        text = f"""
            backend: "pytorch" max_batch_size: 4
            input {{ name: "x" data_type: TYPE_FP32 dims: [ {size} ] }}
            output {{ name: "SUM__0" data_type: TYPE_FP32 dims: [ {size} ] }}
            output {{ name: "COUNT__2" data_type: TYPE_INT64 dims: [ 1 ] }}
            sequence_batching {{
                direct {{ }}
                state {{ input_name: "total" output_name: "TOTAL__1" data_type: TYPE_FP32 dims: [ {size} ] }}
                state {{
                    input_name: "count" output_name: "COUNT__2" data_type: TYPE_INT64 dims: [ 1 ]
                    initial_state {{ name: "ten" data_type: TYPE_INT64 dims: [ 1 ] data_file: "ten" }}
                }}
            }}
        """
        folder = write_torch(tmp_path, f"remembers_{size}", Remembering(), text).parent
        (folder / "initial_state").mkdir()
        (folder / "initial_state" / "ten").write_bytes(np.int64(10).tobytes())
    with Serving(tmp_path) as running:
        running.wait_until_ready()
        for size in (1, 5000):
            for number in range(3):
                for sequence in (1, 2):
                    tensor = {"name": "x", "datatype": "FP32", "shape": [1, size], "data": [sequence] * size}
                    flags = {"sequence_id": sequence, "sequence_start": number == 0, "sequence_end": number == 2}
                    answer = running.infer_json(f"remembers_{size}", [tensor], parameters=flags)
                    total, count = (output["data"] for output in answer.json()["outputs"])
                    assert (total, count) == ([sequence * (number + 1)] * size, [11 + number])
