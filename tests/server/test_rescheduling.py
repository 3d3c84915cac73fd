"""Requests that a model executes again and again: `iterative_sequence`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest

from tests.real_server import Serving, write_model

MODEL = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
            self.steps = {}

        def execute(self, requests):
            responses = []
            for request in requests:
                wanted = int(request.inputs()[0].as_numpy().reshape(-1)[0])
                key = request.correlation_id()
                if not key:  # an empty place of the batch
                    responses.append(pb_utils.InferenceResponse([]))
                    continue
                assert (request.flags() == 1) == (key not in self.steps)
                step = self.steps[key] = self.steps.get(key, 0) + 1
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[step]], np.int32))])
                if step < wanted:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    if self.decoupled:
                        request.get_response_sender().send(response)
                    responses.append(None)
                elif self.decoupled:
                    request.get_response_sender().send(response, 1)
                else:
                    responses.append(response)
            return None if self.decoupled else responses
"""
CONFIG = """
    backend: "python"
    max_batch_size: 4
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    sequence_batching { iterative_sequence: true }
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "once", MODEL, CONFIG)
    write_model(repository, "streamed", MODEL, CONFIG + "model_transaction_policy { decoupled: true }")
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


def test_one_response_after_many_executions(serving: Serving) -> None:
    answer = serving.request("POST", "/v2/models/once/generate", b'{"IN": 50}')
    assert answer.json()["OUT"] == 50
    assert serving.statistics("once")["execution_count"] >= 50


def test_a_response_per_execution_for_many_at_once(serving: Serving) -> None:
    found: list[list[int]] = []

    def run() -> None:
        answer = serving.request("POST", "/v2/models/streamed/generate_stream", b'{"IN": 30}')
        events = answer.body.split(b"\n\n")[:-1]
        found.append([json.loads(event.removeprefix(b"data: "))["OUT"] for event in events])

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(1, 31))] * 6


def test_a_request_of_a_client_s_sequence_is_all_of_it(serving: Serving) -> None:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [3]}
    begun = serving.infer_json("once", [tensor], parameters={"sequence_id": 3, "sequence_start": True})
    assert begun.json()["outputs"][0]["data"] == [3]
    on = serving.infer_json("once", [tensor], parameters={"sequence_id": 3, "sequence_end": True})
    assert (on.status, "must specify the START flag" in on.error) == (400, True)
