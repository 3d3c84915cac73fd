"""Requests that a model executes again and again: `iterative_sequence`, also with implicit state."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.real_server import PATIENCE_S, Serving, write_model

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

# Answers with the id of the request's sequence.
NUMBERED = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            ids = [np.array([[request.correlation_id()]], np.int32) for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", id)]) for id in ids]
"""

# Counts its executions in a state; a request for 7 is answered too much for an execution that is not the last.
REMEMBERING = """
    import json
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            config = json.loads(args["model_config"])
            self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
            self.in_place = config["sequence_batching"]["state"][0]["use_same_buffer_for_input_output"]

        def execute(self, requests):
            responses = [self.step(request) for request in requests]
            return None if self.decoupled else responses

        def step(self, request):
            wanted, done = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DONE"))
            if self.in_place:
                done += 1
            else:
                done = done + 1
            outputs = [pb_utils.Tensor("NOW_DONE", done)]
            again = done[0, 0] < wanted[0, 0]
            if again:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            if self.decoupled or not again or wanted[0, 0] == 7:
                outputs.append(pb_utils.Tensor("OUT", done[:, :1].copy()))
            response = pb_utils.InferenceResponse(outputs)
            if self.decoupled:
                request.get_response_sender().send(response, 0 if again else 1)
            return response
"""


def remembering(more: str = "", strategy: str = "direct { }", dims: int = 1) -> str:
    state = 'state { input_name: "DONE" output_name: "NOW_DONE" data_type: TYPE_INT32 dims: [ %d ] %s }'
    iterative = f"{strategy} iterative_sequence: true {state % (dims, more)}"
    return CONFIG.replace("iterative_sequence: true", iterative)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "once", MODEL, CONFIG)
    write_model(repository, "numbered", NUMBERED, CONFIG)
    write_model(repository, "streamed", MODEL, CONFIG + "model_transaction_policy { decoupled: true }")
    write_model(repository, "remembering", REMEMBERING, remembering())
    write_model(repository, "remembering_oldest", REMEMBERING, remembering(strategy="oldest { }"))
    in_place = remembering("use_same_buffer_for_input_output: true", dims=10_000)
    write_model(repository, "remembering_in_place", REMEMBERING, in_place)
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(repository, "remembering_streamed", REMEMBERING, remembering() + decoupled)
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


def test_each_request_without_an_id_is_a_sequence_of_its_own(serving: Serving) -> None:
    """Also where a connection brings the same request again and again, with other bytes for its tensors."""
    document = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1,1],"parameters":{"binary_data_size":4}}]}'
    lengths = f"Content-Length: {len(document) + 4}\r\nInference-Header-Content-Length: {len(document)}"
    front = f"POST /v2/models/numbered/infer HTTP/1.1\r\nHost: a\r\n{lengths}\r\n\r\n".encode() + document
    found = []
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S) as connection:
        for number in range(6):
            connection.sendall(front + number.to_bytes(4, "little"))
            response = http.client.HTTPResponse(connection)
            response.begin()
            found += json.loads(response.read())["outputs"][0]["data"]
    assert found == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("model", ["remembering", "remembering_oldest", "remembering_in_place"])
def test_a_state_lasts_from_one_execution_to_the_next(serving: Serving, model: str) -> None:
    found: list[int] = []

    def run(count: int) -> None:
        answer = serving.request("POST", f"/v2/models/{model}/generate", json.dumps({"IN": count}).encode())
        found.append(answer.json()["OUT"])

    threads = [threading.Thread(target=run, args=(count,)) for count in range(20, 26)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(20, 26))


def test_a_state_ends_with_its_request_whatever_its_flags_say(serving: Serving) -> None:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    flags = {"sequence_id": 3, "sequence_start": True, "sequence_end": True}
    for _ in range(2):
        answer = serving.infer_json("remembering", [tensor], parameters=flags)
        assert answer.json()["outputs"][0]["data"] == [5]


def test_new_states_in_a_stream_of_responses(serving: Serving) -> None:
    answer = serving.request("POST", "/v2/models/remembering_streamed/generate_stream", b'{"IN": 30}')
    events = answer.body.split(b"\n\n")[:-1]
    assert [json.loads(event.removeprefix(b"data: "))["OUT"] for event in events] == list(range(1, 31))


def test_only_new_states_may_be_answered_before_the_last_execution(serving: Serving) -> None:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [7]}
    answer = serving.infer_json("remembering", [tensor])
    assert (answer.status, answer.error) == (
        500,
        "model 'remembering' has answered output 'OUT' for a request that it wants to execute again; only new states "
        "may be answered then",
    )
