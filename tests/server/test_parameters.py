"""Parameters of requests mean the same, whichever way a request comes in: JSON, binary, `generate`, OpenAI, gRPC."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.real_server import PATIENCE_S, Answer, Serving, write_model
from tests.server.grpc_calls import connected

SEEN = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            parameters = json.loads(request.parameters())
            parameters.pop("id", None)
            seen = json.dumps([parameters, request.correlation_id(), request.flags(), request.timeout()])
            return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([seen.encode()], object))])
"""
CONFIG = """
backend: "python"
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
Way = Callable[[Serving, dict[str, Any], dict[str, str]], Any]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_model(repository, "seen", SEEN, CONFIG)
    pattern = "header-forward-pattern=^x-|^triton_"
    flags = ("--openai", "--allow-sagemaker=true", "--sagemaker-port=0", f"--http-{pattern}", f"--grpc-{pattern}")
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "seen"}
    with Serving(repository, *flags, environment=environment) as server:
        server.wait_until_ready()
        yield server


def outcome(answer: Answer, find: Callable[[Any], str]) -> Any:
    document = answer.json()
    if answer.status == 200:
        return json.loads(find(document))
    error = document["error"]
    assert answer.status == 400, answer
    return error if isinstance(error, str) else error["message"]


def post(serving: Serving, path: str, body: Any, headers: dict[str, str]) -> Answer:
    return serving.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)


def first_output(document: Any) -> str:
    text: str = document["outputs"][0]["data"][0]
    return text


def in_json(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    body = {"inputs": [{**TEXT, "data": ["a"]}], "parameters": parameters}
    return outcome(post(serving, "/v2/models/seen/infer", body, headers), first_output)


def in_binary(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    inputs = [{**TEXT, "parameters": {"binary_data_size": 5}}]
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    headers = {**headers, "Inference-Header-Content-Length": str(len(head))}
    return outcome(post(serving, "/v2/models/seen/infer", head + b"\1\0\0\0a", headers), first_output)


def sagemaker(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    port = int(serving.wait_for(r"Started Sagemaker HTTPService at [^ \n]*:(\d+)")[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = {"inputs": [{**TEXT, "data": ["a"]}], "parameters": parameters}
    connection.request("POST", "/invocations", json.dumps(body), headers)
    response = connection.getresponse()
    answer = Answer(response.status, dict(response.getheaders()), response.read())
    connection.close()
    return outcome(answer, first_output)


def generate(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    body = {"text_input": "a", **parameters}
    return outcome(post(serving, "/v2/models/seen/generate", body, headers), lambda made: made["text_output"])


def generate_nested(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    body = {"text_input": "a", "parameters": parameters}
    # What is unusual goes another way through the server.
    headers = {**headers, "Content-Encoding": "identity"}
    answer = post(serving, "/v2/models/seen/versions/1/generate", body, headers)
    return outcome(answer, lambda made: made["text_output"])


def generate_large(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    """Another process reads the body."""
    body = {"text_input": "a" * 300_000, **parameters}
    return outcome(post(serving, "/v2/models/seen/generate", body, headers), lambda made: made["text_output"])


def generate_stream(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    answer = post(serving, "/v2/models/seen/generate_stream", {"text_input": "a", **parameters}, headers)
    answer.body = answer.body.removeprefix(b"data: ").strip()
    return outcome(answer, lambda made: made["text_output"])


def openai(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    body = {"model": "seen", "prompt": "a", **parameters}
    return outcome(post(serving, "/v1/completions", body, headers), lambda made: made["choices"][0]["text"])


def message(parameters: dict[str, Any]) -> Any:
    asked = service_pb2.ModelInferRequest(model_name="seen")
    given = asked.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    given.contents.bytes_contents.append(b"a")
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(asked.parameters[name], kind, value)
    return asked


def grpc(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    metadata = [(name.lower(), value) for name, value in headers.items()]
    with connected(serving) as calls:
        try:
            return json.loads(calls.infer(message(parameters), metadata=metadata).raw_output_contents[0][4:])
        except Exception as error:
            return error.details()  # type: ignore[attr-defined]


def grpc_stream(serving: Serving, parameters: dict[str, Any], headers: dict[str, str]) -> Any:
    metadata = [(name.lower(), value) for name, value in headers.items()]
    with connected(serving) as calls:
        try:
            (answer,) = calls.stream(message(parameters), metadata=metadata)
        except Exception as error:
            return error.details()  # type: ignore[attr-defined]
        return answer.error_message or json.loads(answer.infer_response.raw_output_contents[0][4:])


HTTP_WAYS = (in_json, in_binary, sagemaker, generate, generate_nested, generate_large, generate_stream, openai)
EVERY_WAY = pytest.mark.parametrize("way", [*HTTP_WAYS, grpc, grpc_stream])


@EVERY_WAY
def test_what_is_the_servers_is_no_parameter(serving: Serving, way: Way) -> None:
    given = {"own": 1, "sequence_id": 7, "sequence_start": True, "timeout": 9_000_000}
    assert way(serving, given, {}) == [{"own": 1}, 7, 1, 9_000_000]


@EVERY_WAY
def test_names_of_the_servers_own_are_refused(serving: Serving, way: Way) -> None:
    assert "keys starting with 'triton_' are reserved for Triton usage" in way(serving, {"triton_own": "x"}, {})


@EVERY_WAY
def test_headers_go_before_what_the_body_says(serving: Serving, way: Way) -> None:
    seen = way(serving, {"x-user": "root", "X-USER": "root", "own": 1}, {"X-User": "me"})[0]
    assert {name.lower(): value for name, value in seen.items()} == {"own": 1, "x-user": "me"}


@pytest.mark.parametrize("way", HTTP_WAYS)
def test_headers_keep_the_spelling_of_the_client(serving: Serving, way: Way) -> None:
    assert way(serving, {}, {"X-User": "me"})[0] == {"X-User": "me"}


@pytest.mark.parametrize("path", ["/v2/models/seen/generate", "/v2/models/seen/generate_stream", "/invocations"])
def test_fields_of_a_trailer_are_no_headers(serving: Serving, path: str) -> None:
    port = serving.connect().port
    body: dict[str, Any] = {"text_input": "a"}
    if path == "/invocations":
        port = int(serving.wait_for(r"Started Sagemaker HTTPService at [^ \n]*:(\d+)")[1])
        body = {"inputs": [{**TEXT, "data": ["a"]}]}
    text = json.dumps(body).encode()
    head = b"POST %b HTTP/1.1\r\nHost: a\r\nX-User: me\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(head % path.encode() + b"%x\r\n%b\r\n0\r\nX-User: root\r\n\r\n" % (len(text), text))
        answer = client.makefile("rb").read()
    assert b" 200 " in answer.partition(b"\r\n")[0]
    assert b"me" in answer
    assert b"root" not in answer


@EVERY_WAY
def test_reserved_headers_are_refused(serving: Serving, way: Way) -> None:
    refusal = "Header 'triton_own' is reserved for Triton usage and cannot be forwarded."
    assert refusal in way(serving, {}, {"triton_own": "x"})
