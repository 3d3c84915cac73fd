"""`generate` and `generate_stream` end to end. Bodies, statuses and texts are those of Triton 2.51."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, write_model

PLAIN = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if number == 5:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("five", pb_utils.TritonError.NOT_FOUND))
            if number == 6:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("six", pb_utils.TritonError.UNAVAILABLE))
            seen = "%s %s" % ([input.as_numpy().tolist() for input in request.inputs()], request.parameters())
            return pb_utils.InferenceResponse([
                pb_utils.Tensor("OUT", np.array([number], np.int32)),
                pb_utils.Tensor("SEEN", np.array([seen], object)),
                pb_utils.Tensor("F", np.array([1.5, 1e30], np.float32)),
            ], parameters={"zz": True, "aa": "x"})
"""
PLAIN_CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] },
            { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] optional: true } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] },
             { name: "F" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""

DECOUPLED = """
    import time, numpy as np
    import triton_python_backend_utils as pb_utils

    def answer(value):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], np.int32))])

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                number = int(request.inputs()[0].as_numpy()[0])
                sender = request.get_response_sender()
                if number == -9:
                    raise ValueError("minus nine")
                if number < 0:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("bad")), 1 if number == -1 else 0)
                    if number == -3:
                        sender.send(answer(7), 1)
                    elif number == -2:
                        sender.send(flags=1)
                    continue
                for value in range(number):
                    sender.send(answer(value))
                sender.send(flags=1)
"""
DECOUPLED_CONFIG = """
    backend: "python"
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    model_transaction_policy { decoupled: true }
"""

SHAPES = {"a": (0, "2, -1"), "b": (0, "-1, -1"), "c": (8, "2"), "d": (8, "-1, 2"), "e": (8, "-1")}

NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "plain", PLAIN, PLAIN_CONFIG)
    write_model(repository, "decoupled", DECOUPLED, DECOUPLED_CONFIG)
    for name, (batch, dims) in SHAPES.items():
        config = f"""
            backend: "python"
            max_batch_size: {batch}
            input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ {dims} ] }} ]
            output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }} ]
        """
        source = """
            import numpy as np
            import triton_python_backend_utils as pb_utils

            class TritonPythonModel:
                def execute(self, requests):
                    return [
                        pb_utils.InferenceResponse([
                            pb_utils.Tensor("OUT", np.array(request.inputs()[0].as_numpy().shape, np.int32))
                        ])
                        for request in requests
                    ]
        """
        write_model(repository, f"shape_{name}", source, config)
    with Serving(repository) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def standard_statuses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "plain", PLAIN, PLAIN_CONFIG)
    write_model(repository, "decoupled", DECOUPLED, DECOUPLED_CONFIG)
    with Serving(repository, "--http-status=standard") as server:
        server.wait_until_ready()
        yield server


def generate(serving: Serving, model: str, body: Any, stream: bool = False, **headers: str) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = f"/v2/models/{model}/generate{'_stream' if stream else ''}"
    return serving.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})


def events(answer: Answer) -> list[Any]:
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [json.loads(event.removeprefix(b"data: ")) for event in answer.body.split(b"\n\n")[:-1]]


def test_one_answer(serving: Serving) -> None:
    body = {"IN": 3, "id": "x1", "TEXT": ["a", "b"], "n": 1, "s": "t", "b": False, "d": 1.5, "parameters": {"in": -4}}
    answer = generate(serving, "plain", body)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    seen = "[[3], [b'a', b'b']] " + '{"id":"x1","n":1,"s":"t","b":false,"d":1.5,"in":-4}'
    assert answer.body == (
        b'{"F":[1.5,1.0000000150474662e30],"OUT":3,"SEEN":%b,"aa":"x","id":"x1","model_name":"plain",'
        b'"model_version":"1","zz":true}' % json.dumps(seen).encode()
    )
    streamed = generate(serving, "plain", body, stream=True)
    assert streamed.status == 200
    assert streamed.body == b"data: %b\n\n" % answer.body


def test_inputs_inside_parameters_and_numbers_too_large(serving: Serving) -> None:
    answer = generate(serving, "plain", {"parameters": {"IN": [2], "big": 2**63, "own": 5}})
    assert answer.json()["SEEN"] == '[[2]] {"big":9223372036854776000.0,"own":5}'


@pytest.mark.parametrize(
    ("model", "rows", "shape"),
    [
        ("b", [[1, 2, 3], [4, 5, 6]], [2, 3]),
        ("c", [[1, 2], [3, 4], [5, 6]], [3, 2]),
        ("d", [[[1, 2]], [[3, 4]]], [2, 1, 2]),
        # Triton's answer
        ("e", [[1], [2]], [1, 2]),
    ],
)
def test_rows_are_lists_in_a_list(serving: Serving, model: str, rows: list[Any], shape: list[int]) -> None:
    answer = generate(serving, f"shape_{model}", {"IN": rows})
    assert answer.status == 200
    assert answer.json()["OUT"] == shape


@pytest.mark.parametrize("rows", [[[1, 2], [3]], [[1, 2], 3], [[1, 2, 3]], [[[1, 2]]], [[]]])
def test_rows_of_another_shape_are_refused(serving: Serving, rows: list[Any]) -> None:
    answer = generate(serving, "shape_c", {"IN": rows})
    assert answer.status in (400, 500)
    assert "shape" in answer.error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"IN": 3, "parameters": 3}, 500, "Expected JSON object for keyword: 'parameters': attempt to access JSON "
         "non-object as object"),
        ({"IN": 3, "a": [1]}, 400, "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"IN": 3, "a": None}, 400, "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"IN": 3, "parameters": {"IN": 4}}, 400, "Converting keyword: 'parameters': [request id: <id_unknown>] "
         "input 'IN' already exists in request"),
        (b'{"IN":3,"IN":4}', 400, "[request id: <id_unknown>] input 'IN' already exists in request"),
        (b'{"parameters":{"IN":3,"IN":4}}', 400, "Converting keyword: 'parameters': [request id: <id_unknown>] "
         "input 'IN' already exists in request"),
        ({"IN": 3, "parameters": {"parameters": {}}}, 400, "Converting keyword: 'parameters': parameter 'parameters' "
         "has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"INN": [3]}, 400, "parameter 'INN' has invalid type. It should be either 'int', 'bool', or 'string'. "
         "The inputs of model 'plain' are 'IN' (INT32), 'TEXT' (BYTES)."),
        ({"IN": [[1], [2], [3, 4]]}, 400, "The schema can not convert input 'IN' to tensor with proper shape"),
        ({"IN": "x"}, 500, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ({"IN": [1, 2]}, 400, "The schema can not convert input 'IN' to tensor with proper shape"),
        ({"IN": 3, "TEXT": 5}, 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"IN": 3, "id": 5}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({}, 400, "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model "
         "'plain'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s)."),
        ([], 500, "attempt to get members for non-object"),
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
    ],
)  # fmt: skip
def test_refusals(serving: Serving, body: Any, status: int, text: str, stream: bool) -> None:
    answer = generate(serving, "plain", body, stream)
    assert (answer.status, answer.error) == (status, text)
    assert answer.headers["content-type"] == "application/json"


def test_unknown_model_encoding_and_method(serving: Serving) -> None:
    assert generate(serving, "nosuch", {}).status == 404
    answer = generate(serving, "plain", {"IN": 3}, content_encoding="gzip")
    assert answer.error == "Unsupported content-encoding, only 'identity' is supported."
    assert generate(serving, "plain", {"IN": 3}, content_encoding="identity").status == 200
    assert serving.get("/v2/models/plain/generate").status == 405


@pytest.mark.parametrize(
    ("model", "values", "shape"),
    [
        ("a", 1, None), ("a", [1, 2], [2, 1]), ("a", [1, 2, 3], None), ("a", [1] * 6, [2, 3]), ("a", [], [2, 0]),
        ("b", 1, [1, 1]), ("b", [1] * 6, [1, 6]), ("c", [1, 2], [1, 2]), ("c", [1] * 6, [3, 2]), ("c", 1, None),
        ("d", [1] * 6, [1, 3, 2]), ("d", [], [1, 0, 2]), ("e", [1] * 6, [1, 6]),
    ],
)  # fmt: skip
def test_shapes(serving: Serving, model: str, values: Any, shape: list[int] | None) -> None:
    answer = generate(serving, f"shape_{model}", {"IN": values})
    if shape is None:
        assert answer.error == "The schema can not convert input 'IN' to tensor with proper shape"
    else:
        assert answer.json()["OUT"] == shape


@pytest.mark.parametrize("number", [0, 1, 3, 1000])
def test_streams(serving: Serving, number: int) -> None:
    answer = generate(serving, "decoupled", {"IN": number, "id": "q"}, stream=True)
    assert answer.status == 200
    common = {"id": "q", "model_name": "decoupled", "model_version": "1"}
    assert events(answer) == [{"OUT": value, **common} for value in range(number)]


@pytest.mark.parametrize(
    ("number", "expected"),
    [(-1, [{"error": "bad"}]), (-2, [{"error": "bad"}]),
     (-3, [{"error": "bad"}, {"OUT": 7, "model_name": "decoupled", "model_version": "1"}])],
)  # fmt: skip
def test_errors_are_events(serving: Serving, number: int, expected: list[Any]) -> None:
    answer = generate(serving, "decoupled", {"IN": number}, stream=True)
    assert (answer.status, events(answer)) == (400, expected)


def test_a_failed_execution_is_an_event(serving: Serving) -> None:
    answer = generate(serving, "decoupled", {"IN": -9}, stream=True)
    ((_, text),) = events(answer)[0].items()
    assert text.startswith("Failed to process the request(s) for model 'decoupled_0', message: ValueError: minus nine")


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [(0, 200, NOT_ONE), (1, 200, None), (3, 200, NOT_ONE), (-1, 400, "bad"), (-2, 400, "bad"), (-3, 400, NOT_ONE)],
)
def test_one_answer_of_a_decoupled_model(serving: Serving, number: int, status: int, text: str | None) -> None:
    answer = generate(serving, "decoupled", {"IN": number})
    assert answer.status == status
    if text is None:
        assert answer.body == b'{"OUT":0,"model_name":"decoupled","model_version":"1"}'
    else:
        assert answer.error == text


def test_a_model_error_and_the_connection_goes_on(serving: Serving) -> None:
    connection = serving.connect()
    for path, body in (
        ("generate", b'{"error":"five"}'),
        ("generate_stream", b'data: {"error":"five"}\n\n'),
    ):
        connection.request("POST", f"/v2/models/plain/{path}", b'{"IN":5}')
        response = connection.getresponse()
        assert (response.status, response.read()) == (400, body)
    connection.close()


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("plain", b'{"IN":3,"id":"a: b","TEXT":["x: \\n","\xc3\xa9"],"s":"\\u00e9:","parameters":{"n":1}}'),
        ("plain", b'{"IN":5}'),
        ("plain", b'{"IN":"x"}'),
        ("plain", b'{"IN":3,"IN":":"}'),
        ("plain", b'{"IN":3,"a":"::","a":4}'),
        ("plain", b'{"IN":3,"a":"\\u003a","a":4}'),
        ("plain", b'{"IN":3,"TEXT":"' + b"long" * 10_000 + b'"}'),
        ("plain", b"{"),
        ("plain", b""),
        ("decoupled", b'{"IN":0}'),
        ("decoupled", b'{"IN":1}'),
        ("decoupled", b'{"IN":3}'),
        ("decoupled", b'{"IN":-2}'),
        ("nobody", b"{}"),
    ],
)
def test_it_does_not_matter_how_a_request_arrives(serving: Serving, model: str, body: bytes) -> None:
    """In pieces it is read by uvicorn, for the app; whole and with a head like others it is answered without them."""
    head = f"POST /v2/models/{model}/generate HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    answers = []
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S) as connection:
        for pieces in ([head[:-1], head[-1:] + body], [head + body], [head + body], [head + body[:-1], body[-1:]]):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.02)  # not to be read as one; where it is nevertheless, the answer is the same
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            found = sorted((name.lower(), value) for name, value in answer.getheaders())
            answers.append((answer.status, found, answer.read()))
    assert answers == [answers[0]] * 4


def test_a_client_that_goes_is_forgotten(serving: Serving) -> None:
    """While its request runs; the next one on another connection is answered."""
    body = b'{"IN":3}'
    head = b"POST /v2/models/plain/generate HTTP/1.1\r\nHost: here\r\nContent-Length: 8\r\n\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE_S) as connection:
            connection.sendall(head + body)
    assert generate(serving, "plain", {"IN": 3}).status == 200


def test_infer_refuses_decoupled_models(serving: Serving) -> None:
    answer = serving.infer_json("decoupled", [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}])
    assert answer.status == 501
    assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"


def test_statistics_of_responses(serving: Serving) -> None:
    before = serving.statistics("decoupled")["response_stats"].get("1", {"success": {"count": 0}})
    generate(serving, "decoupled", {"IN": 2}, stream=True)
    statistics = serving.statistics("decoupled")
    assert statistics["response_stats"]["1"]["success"]["count"] == before["success"]["count"] + 1
    assert set(statistics["response_stats"]["0"]) == {
        "compute_infer", "compute_output", "success", "fail", "empty_response", "cancel",
    }  # fmt: skip
    assert len(statistics["response_stats"]) <= 256
    assert all(kind["ns"] >= 0 for place in statistics["response_stats"].values() for kind in place.values())


@pytest.mark.parametrize(
    ("path", "body", "of_triton", "standard"),
    [
        ("plain/generate", b'{"IN":5}', 400, 404),  # an error of the model's own
        ("plain/generate", b'{"IN":6}', 400, 503),
        ("plain/generate", b"{", 500, 400),
        ("plain/infer", b"[1", 500, 400),
        ("plain/infer", b"[1" + b" " * (1 << 20), 500, 400),  # read by a process of its own
        ("plain/generate", b"{}", 400, 400),
        ("nosuch/generate", b'{"IN":5}', 404, 404),
        ("decoupled/infer", b'{"inputs":[]}', 501, 501),
        ("decoupled/generate", b'{"IN":3}', 200, 400),
        ("decoupled/generate", b'{"IN":-9}', 400, 500),
        ("decoupled/generate_stream", b'{"IN":-9}', 400, 500),
    ],
)
def test_statuses_are_those_of_triton_or_of_http(
    serving: Serving, standard_statuses: Serving, path: str, body: bytes, of_triton: int, standard: int
) -> None:
    for server, expected in ((serving, of_triton), (standard_statuses, standard)):
        assert server.request("POST", f"/v2/models/{path}", body).status == expected
