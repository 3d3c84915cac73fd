"""Ensembles for tests: models for their steps, configurations, and requests to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.real_server import Answer, Serving, binary_output

# Adds one in place: it writes to its input.
WRITER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                array += 1
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return responses
"""

# Ends its process when it is given a negative number.
MORTAL = """
    import os
    import signal
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if array[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return responses
"""

# Answers as often as its input says.
COUNTER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(request.inputs()[0].as_numpy()[0])):
                    output = pb_utils.Tensor("OUTPUT0", np.array([number], np.float32))
                    sender.send(pb_utils.InferenceResponse([output]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = "".join(f'input_map {{ key: "{name}" value: "{tensor}" }} ' for name, tensor in inputs.items())
    maps += "".join(f'output_map {{ key: "{name}" value: "{tensor}" }} ' for name, tensor in outputs.items())
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }}\n'


def one(model: str, source: str, target: str) -> str:
    return step(model, {"INPUT0": source}, {"OUTPUT0": target})


def write_ensemble(repository: Path, name: str, *steps: str, outputs: str = "OUTPUT0") -> None:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    ends = "".join(f'output {{ name: "{output}" data_type: TYPE_FP32 dims: -1 }}\n' for output in outputs.split())
    (folder / "config.pbtxt").write_text(
        'platform: "ensemble"\ninput { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }\n'
        f"{ends}ensemble_scheduling {{ {''.join(steps)} }}\n"
    )


def write_chain(repository: Path, name: str, *models: str) -> None:
    ends = ["INPUT0", *(f"t{number}" for number in range(1, len(models))), "OUTPUT0"]
    write_ensemble(repository, name, *(one(model, *ends[at : at + 2]) for at, model in enumerate(models)))


def values(answer: Answer) -> list[float]:
    assert answer.status == 200, answer
    found: list[float] = binary_output(answer).tolist()
    return found


def run(server: Serving, model: str, *numbers: float) -> Answer:
    return server.infer_array(model, np.array(numbers, np.float32))


def load(server: Serving, model: str) -> Answer:
    return server.request("POST", f"/v2/repository/models/{model}/load")


def unload(server: Serving, model: str, dependents: bool = False) -> Answer:
    body = json.dumps({"parameters": {"unload_dependents": dependents}}).encode()
    return server.request("POST", f"/v2/repository/models/{model}/unload", body)
