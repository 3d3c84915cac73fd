"""Answers that are errors are counted by model and code, whatever the protocol; Triton's own counters stay."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.real_server import Serving, binary_request, io_config, write_model
from tests.server.ensembles import run, write_chain
from tests.server.grpc_calls import connected, request
from tests.server.openai_models import text_input, write_words

# Answers with the error whose number it is given.
ANSWERS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request.inputs()[0]) for request in requests]

        def answer(self, given):
            number = int(given.as_numpy()[0])
            if number < 0:
                raise ValueError("raised")
            if number:
                codes = {3: pb_utils.TritonError.INVALID_ARG, 4: pb_utils.TritonError.UNAVAILABLE}
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"this is {number}", codes[number]))
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given.as_numpy())])
"""
# Asks the model `answers`, and answers well all the same.
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                given = pb_utils.Tensor("INPUT0", request.inputs()[0].as_numpy())
                pb_utils.InferenceRequest(
                    model_name="answers", inputs=[given], requested_output_names=["OUTPUT0"]
                ).exec()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", given.as_numpy())]))
            return responses
"""
STREAMS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                error = pb_utils.TritonError("no text", pb_utils.TritonError.UNAVAILABLE)
                sender.send(pb_utils.InferenceResponse(error=error))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
WORDS = """
    backend: "python"
    input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
    model_transaction_policy { decoupled: true }
"""
INVALID_ARG, UNAVAILABLE = 3, 4
MOST_BYTES = 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "answers", ANSWERS)
    write_model(repository, "calls", CALLS)
    write_model(repository, "streams", STREAMS, io_config(extra="model_transaction_policy { decoupled: true }"))
    write_model(repository, "words", STREAMS, WORDS)
    write_chain(repository, "whole", "answers")
    write_model(repository, "halves", config=io_config("FP16"))
    write_words(repository, "plain", text_input("text_input"))
    with Serving(repository, "--openai", f"--http-max-input-size={MOST_BYTES}") as running:
        running.wait_until_ready()
        yield running


def counted(server: Serving) -> dict[tuple[str, str], int]:
    """By model and code."""
    text = server.metrics().body.decode()
    rows = re.findall(r'^stubserve_response_errors_total{code="(\w+)",model="(\w+)",version="1"} (\d+)$', text, re.M)
    return {(model, code): int(count) for code, model, count in rows}


def post(server: Serving, path: str, document: Any) -> int:
    return server.request("POST", path, json.dumps(document).encode()).status


def infer(server: Serving) -> None:
    assert run(server, "answers", INVALID_ARG).status == 400


def infer_json(server: Serving) -> None:
    inputs = [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [UNAVAILABLE]}]
    assert server.infer_json("answers", inputs).status == 503


def raise_in_it(server: Serving) -> None:
    assert run(server, "answers", -1).status == 500


def refuse(server: Serving) -> None:
    inputs = [{"name": "OTHER", "datatype": "FP32", "shape": [1], "data": [0]}]
    assert server.infer_json("answers", inputs).status == 400


def refuse_what_cannot_be_read(server: Serving) -> None:
    assert post(server, "/v2/models/answers/infer", []) == 500


def generate(server: Serving) -> None:
    assert post(server, "/v2/models/answers/generate", {"INPUT0": INVALID_ARG}) == 400


def generate_what_cannot_be_read(server: Serving) -> None:
    assert post(server, "/v2/models/answers/generate", []) == 500


def generate_stream(server: Serving) -> None:
    assert post(server, "/v2/models/streams/generate_stream", {"INPUT0": 0}) == 400


def openai(server: Serving) -> None:
    assert post(server, "/v1/completions", {"model": "words", "prompt": "x"}) == 503


def grpc(server: Serving) -> None:
    with connected(server) as client:
        assert client.refusal(request("answers", [float(INVALID_ARG)]))[0] == "INVALID_ARGUMENT"


def grpc_refuses(server: Serving) -> None:
    with connected(server) as client:
        assert client.refusal(request("answers", raw=[b"12"]))[0] == "INVALID_ARGUMENT"


def grpc_stream(server: Serving) -> None:
    with connected(server) as client:
        answers = client.stream(request("answers", [float(INVALID_ARG)]), request("answers", raw=[b"12"]))
        assert [bool(answer.error_message) for answer in answers] == [True, True]


def refuse_a_long_name(server: Serving) -> None:
    body = b'{"inputs":[],"x":"%b"}' % (b"x" * MOST_BYTES)
    answer = server.request("POST", "/v2/models/answers/infer", gzip.compress(body), {"Content-Encoding": "gzip"})
    assert (answer.status, "exceeds the maximum" in answer.error) == (400, True)


def answer_that_json_cannot_have(server: Serving) -> None:
    path, body, headers = binary_request("halves", np.ones(2, np.float16), "FP16", outputs=[{"name": "OUTPUT0"}])
    assert server.request("POST", path, body, headers).status == 400


def openai_lacks_logprobs(server: Serving) -> None:
    assert post(server, "/v1/completions", {"model": "plain", "prompt": "x", "logprobs": 1}) == 400


def call_of_a_model(server: Serving) -> None:
    assert run(server, "calls", UNAVAILABLE).status == 200


def step_of_an_ensemble(server: Serving) -> None:
    assert run(server, "whole", UNAVAILABLE).status == 503


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (infer, {("answers", "INVALID_ARG"): 1}),
        (infer_json, {("answers", "UNAVAILABLE"): 1}),
        (raise_in_it, {("answers", "INTERNAL"): 1}),
        (refuse, {("answers", "INVALID_ARG"): 1}),
        (refuse_what_cannot_be_read, {("answers", "INTERNAL"): 1}),
        (generate, {("answers", "INVALID_ARG"): 1}),
        (generate_what_cannot_be_read, {("answers", "INTERNAL"): 1}),
        (generate_stream, {("streams", "UNAVAILABLE"): 1}),
        (openai, {("words", "UNAVAILABLE"): 1}),
        (refuse_a_long_name, {("answers", "INVALID_ARG"): 1}),
        (answer_that_json_cannot_have, {("halves", "INVALID_ARG"): 1}),
        (openai_lacks_logprobs, {("plain", "INVALID_ARG"): 1}),
        (grpc, {("answers", "INVALID_ARG"): 1}),
        (grpc_refuses, {("answers", "INVALID_ARG"): 1}),
        (grpc_stream, {("answers", "INVALID_ARG"): 2}),
        (call_of_a_model, {("answers", "UNAVAILABLE"): 1}),
        (step_of_an_ensemble, {("answers", "UNAVAILABLE"): 1, ("whole", "UNAVAILABLE"): 1}),
    ],
)
def test_an_error_is_counted_once(
    server: Serving, ask: Callable[[Serving], None], expected: dict[tuple[str, str], int]
) -> None:
    before = counted(server)
    ask(server)
    assert {key: count - before[key] for key, count in counted(server).items() if count != before[key]} == expected


def test_tritons_counters_take_the_answer_for_a_success(server: Serving) -> None:
    before = server.statistics("answers")["inference_stats"]
    infer(server)
    after = server.statistics("answers")["inference_stats"]
    assert [after[kind]["count"] - before[kind]["count"] for kind in ("success", "fail")] == [1, 0]


def test_the_status_page_has_the_last_error_of_each_code(server: Serving) -> None:
    infer(server)
    errors = {error["text"]: error for error in server.metrics("/status.json").json()["errors"]}
    said = errors[f"model 'answers' version 1 answered INVALID_ARG: this is {INVALID_ARG}"]
    assert said["count"] == counted(server)["answers", "INVALID_ARG"]
    assert next(iter(errors)).startswith("model 'answers'"), "the newest comes first"


def test_the_status_page_quotes_bytes_that_are_no_text(server: Serving) -> None:
    body = b'{"inputs":[{"name":"\xff<b>","datatype":"FP32","shape":[1],"data":[0]}]}'
    assert server.request("POST", "/v2/models/answers/infer", body).status == 400
    errors = server.metrics("/status.json").json()["errors"]
    assert "'\udcff<b>'" in errors[0]["text"]


def test_all_codes_of_triton_are_there_before_the_first_error(server: Serving) -> None:
    codes = ["UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS"]
    assert [code for model, code in counted(server) if model == "calls"] == [*codes, "CANCELLED"]
    assert {count for (model, _), count in counted(server).items() if model == "calls"} == {0}
