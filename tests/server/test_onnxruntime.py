"""ONNX models in a real server: the answers are those of onnxruntime called directly, whatever the data type."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from stubserve.checking.inspection import inspect
from stubserve.checking.repository import check_repositories
from tests.environments.made import venv
from tests.onnx_models import ELEMENT_TYPES, arithmetic, identity, model, node, save, with_external_data
from tests.real_server import Serving, binary_output, write_model
from tests.server.native_models import (
    check_batches_of_many_requests,
    check_kills,
    check_strings_that_are_no_text,
    infer,
    measure_copies,
)
from tests.server.test_copies import COPIED_BYTES, TENSOR_BYTES

onnxruntime = pytest.importorskip("onnxruntime")

TYPES = [name for name in ELEMENT_TYPES if name != "BF16"]
NUMPY: dict[str, Any] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}

# Calls the ONNX model with its own input, twice its size, and answers with the difference
CALLER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                given = request.inputs()[0]
                double = pb_utils.Tensor("B", given.as_numpy() * 2)
                call = pb_utils.InferenceRequest(
                    model_name="arithmetic",
                    inputs=[pb_utils.Tensor("A", given.as_numpy()), double],
                    requested_output_names=["DIFFERENCE"],
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


def write_onnx(repository: Path, name: str, made: Any, config: str | None = "") -> None:
    """A model with a configuration of its own, or none at all (None)."""
    save(made, repository / name / "1")
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def every_type() -> Any:
    """One input and one output for every data type but BF16, which fits beside no strings."""
    return model(
        [node("Identity", f"IN_{kind}", f"OUT_{kind}") for kind in TYPES],
        [(f"IN_{kind}", kind, ["batch", "n"]) for kind in TYPES],
        [(f"OUT_{kind}", kind, ["batch", "n"]) for kind in TYPES],
    )


def arrays(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for kind in TYPES:
        if kind == "BYTES":
            texts = ["", "é", "x" * 300, "a\0b"]
            found[kind] = np.array([texts[at % 4] for at in range(rows * 2)], np.object_).reshape(rows, 2)
        else:
            found[kind] = (np.arange(rows * 2).reshape(rows, 2) % 100).astype(NUMPY.get(kind) or kind.lower())
    return found


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_onnx(path, "all", every_type(), "max_batch_size: 8192")
    numbers = [kind for kind in TYPES if kind not in ("BYTES", "BOOL")]
    computed = model(
        [node("Add", f"IN_{kind} IN_{kind}", f"OUT_{kind}") for kind in numbers],
        [(f"IN_{kind}", kind, ["batch", "n"]) for kind in numbers],
        [(f"OUT_{kind}", kind, ["batch", "n"]) for kind in numbers],
    )
    write_onnx(path, "computed", computed, None)
    write_onnx(path, "bf16", identity("BF16"), None)
    write_onnx(path, "arithmetic", arithmetic(), 'platform: "onnxruntime_onnx"')
    write_onnx(
        path,
        "batched",
        model([node("Neg", "INPUT0", "Y")], [("INPUT0", "FP32", ["n", "w"])], [("Y", "FP32", ["n", "w"])]),
        'backend: "onnxruntime" max_batch_size: 8 instance_group [ { count: 1 } ]\n'
        "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 8 }",
    )
    write_onnx(
        path,
        "scalar",
        model([node("Neg", "X", "Y")], [("X", "FP32", [])], [("Y", "FP32", [])]),
        None,
    )
    write_onnx(
        path,
        "texts",
        model([node("Identity", "texts", "same")], [("texts", "BYTES", ["n", 1])], [("same", "BYTES", ["n", 1])]),
        "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 4 }",
    )
    write_onnx(path, "plain", identity(), "instance_group [ { count: 1 } ]")
    write_onnx(path, "external", with_external_data("w.bin"), None)
    np.ones(2000, np.float32).tofile(path / "external" / "1" / "w.bin")
    write_model(path, "caller", CALLER, CALLER_CONFIG)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with Serving(repository) as serving:
        yield serving


def direct(repository: Path, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What onnxruntime answers without a server."""
    session = onnxruntime.InferenceSession(repository / name / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


@pytest.mark.parametrize("rows", [2, 3000])
@pytest.mark.parametrize("name", ["all", "computed"])
@pytest.mark.parametrize("library", [tritonclient.http, tritonclient.grpc])
def test_every_type(server: Serving, repository: Path, library: Any, name: str, rows: int) -> None:
    rows = min(rows, 4) if name == "computed" else rows  # whose batch size is the default
    kinds = server.get(f"/v2/models/{name}/config").json()["input"]
    inputs = {f"IN_{kind}": array for kind, array in arrays(rows).items() if f"IN_{kind}" in str(kinds)}
    expected = direct(repository, name, inputs)
    for _ in range(2):  # the second time outputs are bound
        answer = infer(library, server, name, inputs)
        for key, array in expected.items():
            found = answer.as_numpy(key)
            if array.dtype == np.object_:
                found = np.array([text.decode() for text in found.reshape(-1)], np.object_).reshape(found.shape)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("elements", [3, 3000])
def test_bf16(server: Serving, elements: int) -> None:
    array = np.arange(elements, dtype=np.float32) % 128
    data = (array.view(np.uint32) >> 16).astype(np.uint16).tobytes()  # the upper halves of floats
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "X",
                    "datatype": "BF16",
                    "shape": [1, elements],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    answer = server.request(
        "POST", "/v2/models/bf16/infer", header + data, {"Inference-Header-Content-Length": str(len(header))}
    )
    assert answer.status == 200, answer
    body = answer.body[int(answer.headers["inference-header-content-length"]) :]
    assert body == data


def test_configurations_are_completed(server: Serving) -> None:
    config = server.get("/v2/models/computed/config").json()
    assert (config["backend"], config["platform"], config["default_model_filename"]) == (
        "onnxruntime",
        "onnxruntime_onnx",
        "model.onnx",
    )
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert [(group["name"], group["count"], group["kind"]) for group in config["instance_group"]] == [
        ("computed", 2, "KIND_CPU")
    ]
    assert config["input"][0]["dims"] == [-1]
    metadata = server.get("/v2/models/arithmetic").json()
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"] == [{"name": name, "datatype": "FP32", "shape": [-1, -1]} for name in ("A", "B")]
    assert server.get("/v2/models/all/config").json()["max_batch_size"] == 8192


def test_only_requested_outputs(server: Serving) -> None:
    a, b = np.array([[5, 7]], np.float32), np.array([[1, 2]], np.float32)
    answer = infer(tritonclient.http, server, "arithmetic", {"A": a, "B": b}, ["DIFFERENCE"])
    assert [output["name"] for output in answer.get_response()["outputs"]] == ["DIFFERENCE"]
    assert answer.as_numpy("DIFFERENCE").tolist() == [[4, 5]]


def test_a_scalar(server: Serving) -> None:
    answer = server.infer_json("scalar", [{"name": "X", "datatype": "FP32", "shape": [1], "data": [3]}]).json()
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([1], [-3])


def test_external_data(server: Serving) -> None:
    x = np.arange(2000, dtype=np.float32)
    assert infer(tritonclient.grpc, server, "external", {"X": x}).as_numpy("Y").tolist() == (x + 1).tolist()


@pytest.mark.parametrize("width", [2, 5000])
def test_a_batch_of_many_requests(server: Serving, width: int) -> None:
    check_batches_of_many_requests(server, width)


def test_a_string_that_is_no_text_fails_its_own_request(server: Serving) -> None:
    check_strings_that_are_no_text(server)


@pytest.mark.parametrize("elements", [4, 70_000])
def test_a_model_in_python_calls_it(server: Serving, elements: int) -> None:
    array = np.arange(elements, dtype=np.float32).reshape(1, -1)
    for _ in range(3):
        np.testing.assert_array_equal(binary_output(server.infer_array("caller", array)), -array)


def test_an_error_of_a_run(server: Serving) -> None:
    tensors = [
        {"name": name, "datatype": "FP32", "shape": [1, size], "data": [0.0] * size}
        for name, size in (("A", 2), ("B", 3))
    ]
    answer = server.infer_json("arithmetic", tensors)
    assert answer.status == 500
    assert answer.error.startswith("onnx runtime error ")
    assert "running " in answer.error


def test_killed_and_back(tmp_path: Path) -> None:
    """Stubs are killed while they are asked; every success is right, and they come back."""
    write_onnx(tmp_path, "batched", model([node("Neg", "INPUT0", "Y")], [("INPUT0", "FP32", ["n", "w"])],
                                          [("Y", "FP32", ["n", "w"])]), None)  # fmt: skip
    check_kills(tmp_path, clients=4, stubs=2, rounds=2)


def test_what_does_not_load(tmp_path: Path) -> None:
    write_onnx(tmp_path, "fine", identity(), None)
    write_onnx(tmp_path, "dims", identity(), "max_batch_size: 4 output [ { name: 'Y' data_type: TYPE_FP32 dims: 4 } ]")
    (tmp_path / "cut" / "1").mkdir(parents=True)
    (tmp_path / "cut" / "1" / "model.onnx").write_bytes(identity().SerializeToString()[:-40])
    (tmp_path / "none" / "1").mkdir(parents=True)
    (tmp_path / "none" / "config.pbtxt").write_text('backend: "onnxruntime"')
    write_onnx(tmp_path, "outside", with_external_data("../../w.bin"), None)
    write_onnx(tmp_path, "mode", identity(), 'parameters { key: "execution_mode" value { string_value: "3" } }')
    with Serving(tmp_path, "--exit-on-error=false") as server:
        index = server.request("POST", "/v2/repository/index", b"").json()
        reasons = {row["name"]: row.get("reason", "") for row in index if row.get("state") != "READY"}
        assert sorted(reasons) == ["cut", "dims", "mode", "none", "outside"]
        assert (
            "model 'dims', tensor 'Y': the model expects 2 dimensions (shape [-1,-1]) but the model" in reasons["dims"]
        )
        assert "is no whole ONNX model: it is damaged, or cut off after" in reasons["cut"]
        assert "none/1/model.onnx' for model instance 'none_0'" in reasons["none"]
        assert "has weights in '../../w.bin', which is outside of its folder" in reasons["outside"]
        assert "parameter 'execution_mode' of model 'mode' must be 0 (sequential) or 1" in reasons["mode"]
        x = np.ones((1, 2), np.float32)
        assert infer(tritonclient.http, server, "fine", {"X": x}).as_numpy("Y").tolist() == [[1, 1]]


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
def test_an_environment_of_its_own(tmp_path: Path, packed: bool) -> None:
    """The package is that of the environment, another Python's and another version than the server's."""
    made = venv("3.12", "2.0.2", "onnxruntime==1.20.1")
    given = made
    if packed:
        given = tmp_path / "env.tar.gz"
        subprocess.run([sys.executable, "-m", "venv_pack", "-q", "-p", made, "-o", given], check=True)
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{given}" }} }}'
    write_onnx(tmp_path / "models", "own", identity(), f"name: 'own' max_batch_size: 8 dynamic_batching {{ }} {own}")
    write_onnx(tmp_path / "models", "usual", identity(), None)
    with Serving(tmp_path / "models", environment={"XDG_CACHE_HOME": str(tmp_path / "cache")}) as server:
        x = np.arange(20000, dtype=np.float32).reshape(2, -1)
        for name in ("own", "usual"):
            np.testing.assert_array_equal(infer(tritonclient.http, server, name, {"X": x}).as_numpy("Y"), x)
        maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in server.stub_pids()}
        root = str(tmp_path / "cache") if packed else str(made)
        loaded = [pid for pid, text in maps.items() if re.search(rf"{re.escape(root)}/.*onnxruntime_pybind11", text)]
        assert 0 < len(loaded) < len(maps)


@pytest.mark.long
def test_an_environment_without_the_package(tmp_path: Path) -> None:
    made = venv("3.12", "2.0.2")
    own = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{made}" }} }}'
    write_onnx(tmp_path, "own", identity(), f"name: 'own' max_batch_size: 8 {own}")
    with Serving(tmp_path, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index", b"").json()
        assert f"needs the package onnxruntime, which the environment {made} does not have: " in row["reason"]


def test_the_default_batch_size(tmp_path: Path) -> None:
    write_onnx(tmp_path, "m", identity(), None)
    with Serving(tmp_path, "--backend-config=onnxruntime,default-max-batch-size=16") as server:
        assert server.get("/v2/models/m/config").json()["max_batch_size"] == 16


@pytest.mark.parametrize("verbose", [0, 1])
def test_a_verbose_log_says_what_was_chosen(tmp_path: Path, verbose: int) -> None:
    write_onnx(tmp_path, "m", identity(), "parameters { key: 'enable_mem_arena' value { string_value: '1' } }")
    with Serving(tmp_path, f"--log-verbose={verbose}") as server:
        if verbose:
            server.wait_for("Configuring enable_mem_arena to 1")
    assert server.output.count("Configuring enable_mem_arena to 1") == 2 * verbose  # once for each instance


def test_the_tools_know_it(tmp_path: Path) -> None:
    write_onnx(tmp_path, "m", identity(), "max_batch_size: 2")
    assert check_repositories([tmp_path], tmp_path / "no backends").problems == ()
    finding = asyncio.run(inspect(tmp_path / "m", tmp_path / "no backends"))
    assert (finding.backend, finding.file) == ("onnxruntime", None)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    write_onnx(
        tmp_path,
        "other",
        identity(),
        'backend: "onnxruntime" parameters { key: "enable_mem_arena" value { string_value: "on" } }',
    )
    (tmp_path / "other" / "1" / "model.onnx").unlink()
    texts = [str(problem) for problem in check_repositories([tmp_path], tmp_path / "no backends").problems]
    assert len(texts) == 3
    assert "it is a pointer of Git LFS" in texts[0]
    assert any("unable to find" in text for text in texts)
    assert any("parameter 'enable_mem_arena' of model 'other' must be 0 or 1, got 'on'" in text for text in texts)


def test_a_large_tensor_is_not_copied(tmp_path: Path) -> None:
    """In the parent and in shared memory, where there is nothing but the input and the output.

    That the stub makes the output there is tested where it can be seen, in `tests/stub/backends`."""
    made = model([node("Neg", "INPUT0", "Y")], [("INPUT0", "FP32", ["n"])], [("Y", "FP32", ["n"])])
    config = "max_batch_size: 0 instance_group [ { count: 1 } ]"
    config += " input [ { name: 'INPUT0' data_type: TYPE_FP32 dims: [ -1 ] } ]"
    config += " output [ { name: 'Y' data_type: TYPE_FP32 dims: [ -1 ] } ]"
    write_onnx(tmp_path, "plain", made, config)
    array = np.arange(TENSOR_BYTES // 4, dtype=np.float32)
    answer, in_parent, committed = measure_copies(tmp_path, array)
    np.testing.assert_array_equal(answer, -array)
    assert in_parent < COPIED_BYTES
    assert 2 * TENSOR_BYTES <= committed <= 2 * TENSOR_BYTES + TENSOR_BYTES // 2


@pytest.mark.parametrize("own", [{}, {"ORT_DISABLE_TELEMETRY": "0"}])
def test_nobody_is_told_what_is_served(tmp_path: Path, own: dict[str, str]) -> None:
    """Unless the operator wants it: onnxruntime keeps a file when it tells its maker."""
    write_onnx(tmp_path / "models", "m", identity(), None)
    (tmp_path / "temporary").mkdir()
    with Serving(tmp_path / "models", environment={"TMPDIR": str(tmp_path / "temporary"), **own}) as server:
        pid, *_ = server.stub_pids()
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert f"ORT_DISABLE_TELEMETRY={own.get('ORT_DISABLE_TELEMETRY', '1')}" in variables
        if not own:
            assert list((tmp_path / "temporary").iterdir()) == []
