"""Plans of TensorRT, with a double of the package and an emulated driver: what a machine with a GPU would be asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stubserve.gpus import DRIVER_VARIABLE
from tests.emulated_gpu import DOWN, UP, WITHIN
from tests.real_server import Answer, Serving, binary_output, eventually
from tests.server.gpu_models import (
    TURN,
    UPLOAD,
    GpuServing,
    check_together,
    configured,
    given,
    write_gpu_chain,
    write_gpu_model,
)
from tests.tensorrt_double import install, tensor, write_plan

NUMBERS = np.arange(20_000, dtype=np.float32).reshape(1, -1)
NBYTES = NUMBERS.nbytes
WIDE = NUMBERS.shape[1]


def x(*ranges: tuple[list[int], list[int], list[int]], **more: Any) -> dict[str, Any]:
    return tensor("X", [-1, WIDE], ranges=ranges or ([[1, WIDE], [4, WIDE], [8, WIDE]],), **more)


Y = tensor("Y", [-1, WIDE])


def ask(server: Serving, model: str, array: np.ndarray, name: str = "X") -> Answer:
    """A binary request with one input, for all outputs."""
    about = {"name": name, "datatype": "FP32", "shape": array.shape, "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return server.request("POST", f"/v2/models/{model}/infer", head + array.tobytes(), headers)


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {one["name"]: (one["shape"], one["data"]) for one in answer.json()["outputs"]}


COUNTING = """
    max_batch_size: 4
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    sequence_batching {
      max_sequence_idle_microseconds: 60000000
      state [ { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ]
                initial_state: { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } ]
    }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServing]:
    folder, repository = (tmp_path_factory.mktemp(name) for name in ("folder", "repository"))
    write_plan(repository, "plain", "double", x(), Y)
    waits = "dynamic_batching { max_queue_delay_microseconds: 500000 }"
    write_plan(repository, "gathers", "double", x(), Y, config=waits)
    small = [tensor(name, [-1, 2], ranges=[[[1, 2], [1, 2], [4, 2]]]) for name in "AB"]
    write_plan(repository, "sums", "sum", *small, tensor("Y", [-1, 2]), tensor("Z", [-1, 2]))
    line = tensor("X", [-1], ranges=[[[1], [4], [100_000]]])
    write_plan(repository, "positive", "positive", line, tensor("Y", [-1]), config=configured("-1", "-1"))
    values = tensor("S", [2], "INT32", host=True, ranges=[[[1, 1], [2, 2], [8, 8]]])
    made = (tensor("Y", [-1, -1]), tensor("T", [2], "INT32", host=True))
    write_plan(repository, "reshapes", "reshape", tensor("X", [6], ranges=[[[6]] * 3]), values, *made)
    ranges = [[[1, 1], [1, 4], [1, 8]], [[1, 9], [2, 16], [2, 64]]]
    group = 'instance_group [ { kind: KIND_GPU gpus: [ 1 ] profile: [ "0", "1" ] } ]'
    ranging = (tensor("X", [-1, -1], ranges=ranges), tensor("Y", [-1, -1]))
    write_plan(repository, "profiles", "double", *ranging, profiles=2, config=configured("-1, -1", "-1, -1", group))
    ones = [tensor(name, [-1, 1], ranges=[[[1, 1], [1, 1], [4, 1]]]) for name in ("X", "STATE")]
    write_plan(repository, "counts", "count", *ones, tensor("Y", [-1, 1]), tensor("NEXT", [-1, 1]), config=COUNTING)
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN)
    write_plan(repository, "plan", "double", line, tensor("Y", [-1]), config=configured("-1", "-1"))
    write_gpu_chain(repository, "chain", "plan", "X", "Y")
    with GpuServing(repository, folder, sites=[install(folder)]) as server:
        server.wait_until_ready()
        yield server


def test_a_configuration_comes_from_the_plan(server: GpuServing) -> None:
    config = server.get("/v2/models/plain/config").json()
    assert (config["platform"], config["backend"], config["max_batch_size"]) == ("tensorrt_plan", "tensorrt", 8)
    assert "dynamic_batching" in config
    (put,) = config["input"]
    assert (put["name"], put["data_type"], put["dims"]) == ("X", "TYPE_FP32", [WIDE])
    assert [(one["kind"], one["gpus"]) for one in config["instance_group"]] == [("KIND_GPU", [0, 1])]
    shaped = server.get("/v2/models/reshapes/config").json()
    assert shaped["max_batch_size"] == 0
    assert [(one["name"], one["dims"], one.get("is_shape_tensor")) for one in shaped["input"]] == [
        ("X", [6], False),
        ("S", [2], True),
    ]


def test_an_answer_costs_a_copy_up_and_one_down(server: GpuServing) -> None:
    """The second copy each is the double's own: its engines compute on the host."""
    for _ in range(3):
        with server.copying() as copied:
            assert (binary_output(ask(server, "plain", NUMBERS)) == 2 * NUMBERS).all()
        assert copied == {UP: 2 * NBYTES, DOWN: 2 * NBYTES}
    assert binary_output(ask(server, "plain", np.repeat(NUMBERS, 3, 0))).shape == (3, WIDE)


def test_requests_run_together(server: GpuServing) -> None:
    def doubled(number: int) -> bytes:
        return binary_output(ask(server, "gathers", NUMBERS + number)).tobytes()

    check_together(server, "gathers", doubled, lambda number: (2 * (NUMBERS + number)).tobytes())


def test_small_tensors_travel_in_messages(server: GpuServing) -> None:
    answer = server.infer_json("sums", [given("A", [[1.0, 2.0], [3.0, 4.0]]), given("B", [[1.0, 1.0], [1.0, 1.0]])])
    assert outputs(answer) == {"Y": ([2, 2], [2, 3, 4, 5]), "Z": ([2, 2], [0, 1, 2, 3])}
    only = server.infer_json("sums", [given("A", [[1.0, 2.0]]), given("B", [[1.0, 1.0]])], outputs=[{"name": "Z"}])
    assert outputs(only) == {"Z": ([1, 2], [0, 1])}


def test_an_output_whose_shape_its_values_say(server: GpuServing) -> None:
    for values in ([1.0, -2.0, 3.0], [-1.0], list(map(float, range(100)))):
        kept = [value for value in values if value > 0]
        assert outputs(server.infer_json("positive", [given("X", values)])) == {"Y": ([len(kept)], kept)}


def test_a_tensor_of_a_shape(server: GpuServing) -> None:
    numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    for shape in ([2, 3], [6, 1]):
        answer = server.infer_json("reshapes", [given("X", numbers), given("S", shape, "INT32")])
        assert outputs(answer) == {"Y": (shape, numbers), "T": ([2], shape)}
    far = server.infer_json("reshapes", [given("X", numbers), given("S", [9, 1], "INT32")])
    assert (far.status, far.error) == (
        400,
        "request specifies an invalid shape for input 'S' for reshapes_0. Error details: model expected the shape of "
        "dimension 0 to be between 1 and 8 but received 9",
    )


def test_a_request_runs_in_the_profile_that_allows_it(server: GpuServing) -> None:
    for shape in ((1, 8), (2, 9), (1, 64)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        assert (binary_output(ask(server, "profiles", array)) == 2 * array).all()
    wide = ask(server, "profiles", np.zeros((1, 65), np.float32))
    assert wide.status == 400
    assert "Error details: model expected the shape of dimension 1 to be between 9 and 64 but received 65" in wide.error


def test_a_sequence_has_its_state(server: GpuServing) -> None:
    seen = []
    for step in range(3):
        sequence = {"sequence_id": 5, "sequence_start": step == 0, "sequence_end": step == 2}
        answer = server.infer_json("counts", [given("X", [[1.0]])], parameters=sequence, outputs=[{"name": "Y"}])
        seen.append(outputs(answer)["Y"])
    assert seen == [([1, 1], [1])] * 3


def test_tensors_stay_on_the_gpu_between_models(server: GpuServing) -> None:
    """Only the client's bytes, and those of the double, which computes on the host, cross."""
    with server.copying() as copied:
        answer = server.infer_array("chain", NUMBERS.reshape(-1))
        assert (binary_output(answer) == np.roll(2 * NUMBERS.reshape(-1), WIDE // 2)).all()
    assert copied.pop(WITHIN) == 3 * NBYTES
    assert copied == {UP: 2 * NBYTES, DOWN: 2 * NBYTES}


OTHER_VERSION = "TensorRT 10.9.0.34: The engine plan file is not compatible with this version of TensorRT"
HALF = (
    configured(str(WIDE), "-1").replace("TYPE_FP32", "TYPE_FP16", 1).replace("max_batch_size: 0", "max_batch_size: 8")
)


@pytest.mark.parametrize(
    ("more", "config", "reason"),
    [
        ({"version": "8.6.1"}, "", OTHER_VERSION),
        ({"version": "8.6.1"}, "", "trtexec --onnx=model.onnx"),
        ({"fails": "context"}, "", "unable to create an execution context for 'm_0': Error Code 2: OutOfMemory"),
        ({}, "max_batch_size: 9", "configuration specified max-batch 9 but TensorRT engine only supports max-batch 8"),
        ({}, 'instance_group [ { kind: KIND_GPU profile: [ "3" ] } ]', "profile 3, and the plan has 1 (0 to 0)"),
        ({}, "instance_group [ { kind: KIND_CPU } ]", "'m', TensorRT backend supports only GPU device"),
        ({}, HALF, "configuration expects datatype TYPE_FP16 for input 'X', model provides TYPE_FP32"),
    ],
)
def test_a_plan_that_is_refused(
    repository: Path, tmp_path: Path, more: dict[str, str], config: str, reason: str
) -> None:
    write_plan(repository, "m", "double", x(), Y, config=config, **more)
    assert reason in reason_of(repository, tmp_path)


def test_a_configuration_as_many_repositories_have_it(repository: Path, tmp_path: Path) -> None:
    """A network for pictures: fixed dimensions, batches, two instances on one GPU, graphs of CUDA."""
    dims = [3, 64, 64]
    picture = tensor("X", [-1, *dims], ranges=[[[1, *dims], [2, *dims], [4, *dims]]])
    write_plan(
        repository,
        "detector",
        "double",
        picture,
        tensor("Y", [-1, *dims]),
        config="""
            name: "detector"
            platform: "tensorrt_plan"
            max_batch_size: 4
            input [ { name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 64, 64 ] } ]
            output [ { name: "Y" data_type: TYPE_FP32 dims: [ 3, 64, 64 ] } ]
            instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
            dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 }
            optimization { cuda { graphs: true } }
        """,
    )
    with GpuServing(repository, tmp_path, sites=[install(tmp_path)]) as server:
        server.wait_until_ready()
        server.wait_for("'optimization { cuda }' has no effect with backend 'tensorrt'")
        pictures = np.random.default_rng(25).random((3, *dims), np.float32)
        for _ in range(4):
            assert (binary_output(ask(server, "detector", pictures)) == 2 * pictures).all()
        assert len(server.stub_pids()) == 2


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([x(dtype="FP8"), Y], "input 'X' has the data type FP8 of TensorRT, which has no counterpart"),
        ([x(format="CHW4"), Y], "input 'X' has the format CHW4, and only LINEAR can be sent"),
    ],
)
def test_tensors_that_cannot_be_sent(
    repository: Path, tmp_path: Path, tensors: list[dict[str, Any]], reason: str
) -> None:
    write_plan(repository, "m", "double", *tensors)
    assert reason in reason_of(repository, tmp_path)


def test_a_file_that_is_no_plan(repository: Path, tmp_path: Path) -> None:
    write_plan(repository, "m", "double", x(), Y)
    (repository / "m" / "1" / "model.plan").write_text("version https://git-lfs.github.com/spec/v1\n")
    reason = reason_of(repository, tmp_path)
    assert "Magic tag does not match" in reason
    assert "git lfs pull" in reason


def reason_of(repository: Path, folder: Path) -> str:
    with GpuServing(repository, folder, "--exit-on-error=false", sites=[install(folder)]) as server:
        return str(eventually(lambda: server.request("POST", "/v2/repository/index").json()[0].get("reason")))


def test_without_the_package_it_says_what_to_install(repository: Path, tmp_path: Path) -> None:
    write_plan(repository, "m", "double", x(), Y)
    with GpuServing(repository, tmp_path, "--exit-on-error=false") as server:
        server.wait_for("the backend tensorrt needs the package tensorrt, which the environment")


def test_without_a_gpu_the_package_is_not_asked_for(repository: Path, tmp_path: Path) -> None:
    write_plan(repository, "m", "double", x(), Y)
    with Serving(repository, "--exit-on-error=false", environment={DRIVER_VARIABLE: ""}) as server:
        server.wait_for("TensorRT backend supports only GPU device: no instance is on a GPU")


def test_what_fails_while_it_runs_is_the_answer_of_its_requests(repository: Path, tmp_path: Path) -> None:
    write_plan(repository, "m", "double", x(), Y, fails="run", warning="CUDA lazy loading is not enabled")
    with GpuServing(repository, tmp_path, sites=[install(tmp_path)]) as server:
        server.wait_until_ready()
        server.wait_for("CUDA lazy loading is not enabled")
        answer = ask(server, "m", NUMBERS)
        assert answer.status == 500
        assert answer.error.endswith(
            "TensorRT failed to run the engine for 'm_0': [pluginV2Runner.cpp::execute::265] Error Code 1: Cuda "
            "Runtime (an illegal address)"
        )


def test_a_gpu_without_room_refuses_with_the_reason(repository: Path, tmp_path: Path) -> None:
    write_plan(repository, "m", "double", x(([1, WIDE], [4, WIDE], [40, WIDE])), Y)
    flag = f"--cuda-memory-pool-byte-size=0:{2 << 20}"
    with GpuServing(repository, tmp_path, flag, EMULATED_GPUS="1", sites=[install(tmp_path)]) as server:
        server.wait_until_ready()
        answer = ask(server, "m", np.repeat(NUMBERS, 40, 0))
        assert answer.status == 503
        assert "in the pool of GPU 0, which has" in answer.error


def test_an_output_without_room_is_refused_with_the_reason(repository: Path, tmp_path: Path) -> None:
    """Also one that the engine has allocated while it runs."""
    line = tensor("X", [-1], ranges=[[[1], [4], [400_000]]])
    write_plan(repository, "m", "positive", line, tensor("Y", [-1]), config=configured("-1", "-1"))
    flag = f"--cuda-memory-pool-byte-size=0:{2 << 20}"
    with GpuServing(repository, tmp_path, flag, sites=[install(tmp_path)], EMULATED_GPUS="1") as server:
        server.wait_until_ready()
        answer = ask(server, "m", np.ones(400_000, np.float32))
        assert answer.status == 503
        assert "no room for 1600000 bytes in the pool of GPU 0, which has" in answer.error
