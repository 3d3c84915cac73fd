"""Instances on GPUs, with an emulated driver: which there are, what their models are told, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from stubserve.gpus import DRIVER_VARIABLE
from tests.emulated_gpu import build, compiler
from tests.onnx_models import identity, save
from tests.real_server import Serving, eventually, io_config, write_model
from tests.server.test_gpu_fallback import SAID, TELLING


@pytest.fixture
def gpus(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two GPUs of compute capability 9.0."""
    return {DRIVER_VARIABLE: str(build(tmp_path))}


def write(repository: Path, name: str, groups: str = "") -> None:
    write_model(repository, name, TELLING, io_config("STRING", extra=groups))


def told(server: Serving, model: str) -> tuple[str, str, str, tuple[int, ...]]:
    """What one of a model's instances was told of where it runs."""
    given = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
    answer = server.infer_json(model, given).json()
    kind, number, configured, devices = json.loads(answer["outputs"][0]["data"][0])
    return kind, number, configured, tuple(devices)


def test_a_group_has_an_instance_on_each_gpu(repository: Path, gpus: dict[str, str]) -> None:
    write(repository, "all", "instance_group [ { kind: KIND_GPU } ]")
    write(repository, "one", "instance_group [ { kind: KIND_GPU gpus: [ 1 ] } ]")
    write(repository, "unsaid")
    write(repository, "on_cpu", "instance_group [ { kind: KIND_CPU } ]")
    with Serving(repository, environment=gpus) as server:
        server.wait_until_ready()
        server.wait_for(r"GPU 1: Emulated GPU, 1024 MiB, compute capability 9\.0")
        for model in ("all", "unsaid"):
            seen = set()
            eventually(lambda model=model, seen=seen: seen.add(told(server, model)) or len(seen) == 2)
            assert seen == {("GPU", number, "KIND_GPU", (0, 1)) for number in "01"}
        assert told(server, "one") == ("GPU", "1", "KIND_GPU", (1,))
        assert told(server, "on_cpu") == ("CPU", "0", "KIND_CPU", ())
        (group,) = server.get("/v2/models/all/config").json()["instance_group"]
        assert (group["kind"], group["gpus"]) == ("KIND_GPU", [0, 1])
        # No driver is in the server, and as long as models do not load one, none is in a stub.
        pids = [server.process.pid, *server.stub_pids()]
        assert len(pids) == 1 + 2 + 1 + 2 + 1
        assert all("libcuda" not in Path(f"/proc/{pid}/maps").read_text() for pid in pids)


def test_what_is_refused(repository: Path, gpus: dict[str, str]) -> None:
    write(repository, "far", "instance_group [ { kind: KIND_GPU gpus: [ 0, 7 ] } ]")
    identity = io_config(extra="instance_group [ { kind: KIND_GPU } ]").replace('"python"', '"identity"')
    write_model(repository, "native", config=identity)
    write_model(repository, "unsaid", config=io_config().replace('"python"', '"identity"'))
    with Serving(repository, "--exit-on-error=false", environment=gpus) as server:
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["far"]["reason"].endswith(
            "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute "
            "compatibility of 7.500000 are: 0, 1; --gpu-fallback=cpu serves the model on the CPU"
        )
        assert rows["native"]["reason"].endswith(
            "has kind KIND_GPU, and the identity backend runs on CPUs only; "
            "--gpu-fallback=cpu serves the model on the CPU"
        )
        (group,) = server.get("/v2/models/unsaid/config").json()["instance_group"]
        assert group["kind"] == "KIND_CPU"


def test_an_onnx_model_runs_on_a_gpu_only_where_it_asks_for_one(repository: Path, gpus: dict[str, str]) -> None:
    """The package here is the one for CPUs: the load says so, and what to install."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    for name, groups in (("asks", "instance_group [ { kind: KIND_GPU } ]"), ("unsaid", "")):
        save(identity(), write_model(repository, name, config=f'backend: "onnxruntime" {groups}') / "1")
    with Serving(repository, "--exit-on-error=false", environment=gpus) as server:
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert "has no CUDAExecutionProvider, only " in rows["asks"]["reason"]
        assert "pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime" in rows["asks"]["reason"]
        (group,) = server.get("/v2/models/unsaid/config").json()["instance_group"]
        assert group["kind"] == "KIND_CPU"


def test_the_fallback_is_for_gpus_that_are_not_there(repository: Path, gpus: dict[str, str]) -> None:
    write(repository, "far", "instance_group [ { kind: KIND_GPU gpus: [ 0, 7 ] } ]")
    write(repository, "near", "instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]")
    with Serving(repository, "--gpu-fallback=cpu", environment=gpus) as server:
        server.wait_until_ready()
        assert told(server, "far") == ("CPU", "0", "KIND_CPU", ())
        assert told(server, "near") == ("GPU", "0", "KIND_GPU", (0,))
        server.wait_for_all(SAID.format("far"), 1)
        assert SAID.format("near") not in server.output


def test_a_gpu_that_is_too_old(repository: Path, gpus: dict[str, str]) -> None:
    write(repository, "unsaid")
    with Serving(repository, "--min-supported-compute-capability=9.5", environment=gpus) as server:
        server.wait_until_ready()
        assert told(server, "unsaid") == ("CPU", "0", "KIND_CPU", ())


def test_a_driver_that_does_not_work_is_said_once(repository: Path) -> None:
    write(repository, "unsaid")
    write(repository, "other")
    with Serving(repository, environment={DRIVER_VARIABLE: "libc.so.6"}) as server:
        server.wait_until_ready()
        assert told(server, "unsaid") == ("CPU", "0", "KIND_CPU", ())
        server.wait_for_all("no model can run on a GPU: the CUDA driver libc.so.6 is too old", 1)


def test_a_driver_that_crashes_ends_no_server(repository: Path, tmp_path: Path) -> None:
    """A library whose first function ends its process."""
    library = tmp_path / "libcuda.so.1"
    source = tmp_path / "crash.c"
    source.write_text("#include <stdlib.h>\nvoid cuGetProcAddress_v2(void) { abort(); }\n")
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    write(repository, "unsaid")
    with Serving(repository, environment={DRIVER_VARIABLE: str(library)}) as server:
        server.wait_until_ready()
        assert told(server, "unsaid") == ("CPU", "0", "KIND_CPU", ())
        server.wait_for(r"no model can run on a GPU: its process ended with -6")
