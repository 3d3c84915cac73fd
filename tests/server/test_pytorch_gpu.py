"""PyTorch models on GPUs, with an emulated driver and a double of the calls of torch that reach one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.emulated_gpu import DOWN, UP, WITHIN
from tests.real_server import Answer, binary_output
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
from tests.server.torch_double import install
from tests.torch_models import IGNORE_DEPRECATIONS, Double, Same, torch

pytestmark = pytest.mark.filterwarnings(IGNORE_DEPRECATIONS)

ON_GPU = "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
NUMBERS = np.arange(20_000, dtype=np.float32)
NBYTES = NUMBERS.nbytes


def write(repository: Path, name: str, module: torch.nn.Module, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    torch.jit.save(torch.jit.script(module), repository / name / "1" / "model.pt")
    text = config.replace('"X"', '"INPUT__0"').replace('"Y"', '"OUTPUT__0"')
    (repository / name / "config.pbtxt").write_text('platform: "pytorch_libtorch"\n' + text)


class Writes(torch.nn.Module):
    """Writes to its input, and returns it"""

    def forward(self, x):
        return x.add_(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuServing]:
    folder, repository = (tmp_path_factory.mktemp(name) for name in ("folder", "repository"))
    write(repository, "double", Double(), configured("-1", "-1", ON_GPU))
    write(repository, "same", Same(), configured("-1", "-1", ON_GPU))
    write(repository, "writes", Writes(), configured("-1", "-1", ON_GPU))
    write(repository, "other", Double(), configured("-1", "-1", ON_GPU.replace("[ 0 ]", "[ 1 ]")))
    waits = ON_GPU + "dynamic_batching { max_queue_delay_microseconds: 500000 }"
    write(repository, "gathers", Double(), configured("-1", "-1", waits).replace("_size: 0", "_size: 8"))
    write_gpu_model(repository, "upload", UPLOAD)
    write_gpu_model(repository, "turn", TURN)
    for name in ("double", "other"):
        write_gpu_chain(repository, "chain_" + name, name, "INPUT__0", "OUTPUT__0")
    with GpuServing(repository, folder, sites=[install(folder)]) as server:
        server.wait_until_ready()
        yield server


def ask(server: GpuServing, model: str, array: np.ndarray) -> Answer:
    return server.infer_json(model, [given("INPUT__0", array.tolist())])


def test_inputs_go_up_and_results_come_down(server: GpuServing) -> None:
    """The double takes the input from the GPU again, to compute on the host, where its results are then."""
    for number in range(3):
        with server.copying() as copied:
            answer = ask(server, "double", NUMBERS + number)
        assert answer.json()["outputs"][0]["data"] == (2 * (NUMBERS + number)).tolist()
        assert copied == {UP: NBYTES, DOWN: NBYTES}


@pytest.mark.parametrize(("model", "more"), [("same", 0), ("writes", 1)])
def test_what_becomes_of_an_input(server: GpuServing, model: str, more: int) -> None:
    for number in range(3):
        answer = ask(server, model, NUMBERS + number)
        assert answer.json()["outputs"][0]["data"] == (NUMBERS + number + more).tolist()


def test_tensors_stay_on_the_gpu_between_models(server: GpuServing) -> None:
    for number in range(3):
        array = NUMBERS + number
        with server.copying() as copied:
            answer = server.infer_array("chain_double", array)
            assert (binary_output(answer) == np.roll(2 * array, len(array) // 2)).all()
        # The double's own: once down, to compute on the host, and up
        assert copied == {UP: 2 * NBYTES, DOWN: 2 * NBYTES, WITHIN: 3 * NBYTES}


def test_an_input_of_another_gpu(server: GpuServing) -> None:
    answer = server.infer_array("chain_other", NUMBERS)
    assert (binary_output(answer) == np.roll(2 * NUMBERS, len(NUMBERS) // 2)).all()


def test_requests_run_together(server: GpuServing) -> None:
    def doubled(number: int) -> list[float]:
        answer = ask(server, "gathers", np.full((1 + number % 2, 4), number, np.float32))
        return list(answer.json()["outputs"][0]["data"])

    check_together(server, "gathers", doubled, lambda number: [2.0 * number] * (4 * (1 + number % 2)))
