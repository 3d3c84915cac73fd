"""Models that answer through response senders, end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.real_server import Serving, binary_output, write_model
from tests.server.grpc_calls import connected, request

SENDS = """
    import threading, numpy as np
    import triton_python_backend_utils as pb_utils

    def answer(array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                array = request.inputs()[0].as_numpy()
                what = int(array[0])
                if what == 0:
                    request.get_response_sender().send(answer(array), 1)
                elif what == 1:
                    sender = request.get_response_sender()
                    sender.send(answer(array))
                    sender.send(flags=1)
                elif what == 2:
                    threading.Thread(target=self.later, args=(request,)).start()
                elif what == 3:
                    request.get_response_sender()
                elif what == 4:
                    return [answer(array)]
                elif what == 5:
                    request.get_response_sender().send(answer(array), 1)
                    raise ValueError("after the answer")
                elif what == 6:
                    request.get_response_sender().send(answer(array))
                    raise ValueError("before the end")
                elif what == 8:
                    request.get_response_sender().send(answer(array))
                    return [answer(array)]
                elif what == 7:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None

        def later(self, request):
            array = request.inputs()[0].as_numpy()
            request.get_response_sender().send(answer(array * 2), 1)
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "sends", SENDS)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize(("what", "factor"), [(0, 1), (1, 1), (2, 2), (4, 1), (5, 1)])
def test_answers_through_a_sender(serving: Serving, what: int, factor: int, size: int) -> None:
    array = np.full(size, what, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(binary_output(serving.infer_array("sends", array)), array * factor)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (
            3,
            "'sends_0': `execute` returned None in place of a response, and nothing was sent for this request. Is ",
        ),
        (6, "ValueError: before the end"),
        (7, "while the model is not configured to handle such a flag"),
    ],
)
def test_no_client_waits_for_ever(serving: Serving, what: int, text: str) -> None:
    for size in (4, 100_000):
        answer = serving.infer_array("sends", np.full(size, what, np.float32))
        assert answer.status == 500
        assert text in answer.error


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize(
    ("what", "text"),
    [
        (6, "message: ValueError: before the end\n\nAt:\n"),
        (8, "message: Unable to send response. Non-decoupled model cannot send more than one response."),
    ],
)
def test_a_stream_gets_what_was_sent_before_the_model_failed(serving: Serving, what: int, text: str, size: int) -> None:
    array = np.full(size, what, np.float32)
    refused = serving.infer_array("sends", array)
    assert (refused.status, text in refused.error) == (500, True)
    assert "stubserve_stub" not in refused.error
    with connected(serving) as grpc:
        message = request("sends", shape=[size], raw=[array.tobytes()])
        for _ in range(2):
            (answer,) = grpc.stream(message)
            assert answer.error_message == ""
            assert answer.infer_response.raw_output_contents[0] == array.tobytes()
            assert answer.infer_response.parameters["triton_final_response"].bool_param
    body = json.dumps({"INPUT0": array.tolist()}).encode()
    events = serving.request("POST", "/v2/models/sends/generate_stream", body).body.decode().split("\n\n")
    sent, failed, _ = events
    assert json.loads(sent.removeprefix("data: "))["OUTPUT0"] == array.tolist()
    assert text in json.loads(failed.removeprefix("data: "))["error"]
