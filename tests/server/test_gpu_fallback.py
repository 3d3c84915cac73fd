"""Models that are configured for GPUs, on a machine without."""

from __future__ import annotations

import json
from pathlib import Path

from tests.real_server import Serving, io_config, write_model

TELLING = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            group = json.loads(args["model_config"])["instance_group"][0]
            told = [args["model_instance_kind"], args["model_instance_device_id"], group["kind"], group["gpus"]]
            self.told = json.dumps(told).encode()

        def execute(self, requests):
            told = np.array([self.told], np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", told)]) for _ in requests]
"""
GROUPS = "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] } ]"
SAID = r"model '{}': instances for GPUs run on the CPU, as --gpu-fallback=cpu says"


def test_they_run_on_the_cpu(repository: Path) -> None:
    write_model(repository, "for_gpus", TELLING, io_config("STRING", extra=GROUPS))
    write_model(repository, "for_gpus", TELLING, io_config("STRING", extra=GROUPS + "version_policy { all {} }"), 2)
    write_model(repository, "plain")
    with Serving(repository, "--gpu-fallback=cpu") as server:
        server.wait_until_ready()
        given = [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}]
        answer = server.infer_json("for_gpus", given).json()
        assert json.loads(answer["outputs"][0]["data"][0]) == ["CPU", "0", "KIND_CPU", []]
        (group,) = server.get("/v2/models/for_gpus/config").json()["instance_group"]
        assert (group["kind"], group["gpus"]) == ("KIND_CPU", [])
        assert len(server.stub_pids()) == 3
        server.wait_for_all(SAID.format("for_gpus"), 1)
        assert SAID.format("plain") not in server.output


def test_without_the_flag_the_refusal_names_it(repository: Path) -> None:
    write_model(repository, "for_gpus", config=io_config(extra="instance_group [ { kind: KIND_GPU } ]"))
    with Serving(repository, "--exit-on-error=false") as server:
        (row,) = server.request("POST", "/v2/repository/index").json()
        assert row["state"] == "UNAVAILABLE"
        assert "no GPUs are available; --gpu-fallback=cpu serves the model on the CPU" in row["reason"]
