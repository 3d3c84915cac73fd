"""ONNX models on GPUs, with an emulated driver and a double of onnxruntime's sessions there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.emulated_gpu import DOWN, UP, WITHIN
from tests.onnx_models import arithmetic, identity, save
from tests.onnxruntime_double import install
from tests.real_server import Answer, binary_output, eventually
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

pytest.importorskip("onnxruntime")

ON_GPU = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
NUMBERS = np.arange(20_000, dtype=np.float32)
NBYTES = NUMBERS.nbytes


def write(repository: Path, name: str, model: object, config: str = ON_GPU) -> None:
    save(model, repository / name / "1")
    (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServing]:
    folder, repository = (tmp_path_factory.mktemp(name) for name in ("folder", "repository"))
    for name, group in (("plain", ON_GPU), ("other", ON_GPU.replace("[ 0 ]", "[ 1 ]"))):
        write(repository, name, identity(dims=["n"]), configured("-1", "-1", group))
    waits = "dynamic_batching { max_queue_delay_microseconds: 500000 }"
    write(repository, "gathers", arithmetic(), ON_GPU + waits)
    write(repository, "strings", identity("BYTES"))
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN)
    write_gpu_chain(repository, "chain", "plain", "X", "Y")
    write_gpu_chain(repository, "across", "other", "X", "Y")
    with GpuServing(repository, folder, sites=[install(folder)]) as server:
        server.wait_until_ready()
        yield server


def ask(server: GpuServing, model: str, array: np.ndarray, *names: str) -> Answer:
    return server.infer_json(model, [given(name, array.tolist(), "FP32") for name in names or ("X",)])


def test_inputs_go_up_and_outputs_come_down(server: GpuServing) -> None:
    """The double takes an input from the GPU again, to compute on the host; its outputs are there already."""
    for number in range(3):
        with server.copying() as copied:
            answer = ask(server, "plain", NUMBERS + number)
        assert answer.json()["outputs"][0]["data"] == (NUMBERS + number).tolist()
        assert copied == {UP: NBYTES, DOWN: NBYTES}


def test_tensors_stay_on_the_gpu_between_models(server: GpuServing) -> None:
    for number in range(3):
        array = NUMBERS + number
        with server.copying() as copied:
            assert (binary_output(server.infer_array("chain", array)) == np.roll(array, len(array) // 2)).all()
        # The double's own: once down, to compute on the host, and up
        assert copied == {UP: 2 * NBYTES, DOWN: 2 * NBYTES, WITHIN: 3 * NBYTES}


def test_an_input_of_another_gpu(server: GpuServing) -> None:
    assert (binary_output(server.infer_array("across", NUMBERS)) == np.roll(NUMBERS, len(NUMBERS) // 2)).all()


def test_requests_run_together(server: GpuServing) -> None:
    def sums(number: int) -> list[float]:
        answer = ask(server, "gathers", np.full((1 + number % 2, 4), number, np.float32), "A", "B")
        (found,) = [output["data"] for output in answer.json()["outputs"] if output["name"] == "SUM"]
        return list(found)

    check_together(server, "gathers", sums, lambda number: [2.0 * number] * (4 * (1 + number % 2)))


def test_strings_do_not_go_to_a_gpu(server: GpuServing) -> None:
    answer = server.infer_json("strings", [given("X", [["one", "two"]], "BYTES")])
    assert answer.json()["outputs"][0]["data"] == ["one", "two"]


def test_a_provider_that_does_not_load(repository: Path, tmp_path: Path) -> None:
    """onnxruntime goes on without it, and only prints a line; the load fails here."""
    write(repository, "m", identity())
    sites = [install(tmp_path)]
    with GpuServing(repository, tmp_path, "--exit-on-error=false", sites=sites, DOUBLE_LACKS_CUDA="1") as server:
        index = eventually(lambda: server.request("POST", "/v2/repository/index").json()[0].get("reason"))
    assert "the CUDA provider of onnxruntime does not load for model instance" in index
