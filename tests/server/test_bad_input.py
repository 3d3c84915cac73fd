"""Requests that are wrong, over a real connection that must go on: one for each row of what can go wrong."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from tests.real_server import IDENTITY, Answer, Serving, binary_output, binary_request, io_config, write_model

GOOD = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "echo", IDENTITY, io_config("FP32", "-1", 4))
    write_model(repository, "words", IDENTITY, io_config("STRING", "-1"))
    with Serving(repository, "--http-max-input-size=1000000") as running:
        yield running


@pytest.fixture
def connection(server: Serving) -> Iterator[http.client.HTTPConnection]:
    one = server.connect()
    yield one
    # Whatever was asked, the connection still serves.
    one.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [GOOD]}))
    assert one.getresponse().status == 200
    one.close()


def ask(
    connection: http.client.HTTPConnection, body: object, path: str = "/v2/models/echo/infer", **headers: str
) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    return Answer(response.status, dict(response.getheaders()), response.read())


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"name": "INPUT9"}, 400, "unexpected inference input 'INPUT9' for model 'echo'"),
        ({"shape": [1, 3]}, 500, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ({"shape": [5, 1], "data": [1] * 5}, 400, "inference request batch-size must be <= 4 for 'echo'"),
        ({"shape": [2]}, 400, "unexpected shape for input 'INPUT0' for model 'echo'. Expected [-1,-1], got [2]."),
        ({"shape": [-1, 2]}, 500, "Unable to parse 'shape'"),
        ({"datatype": "INT32"}, 400, "data-type is 'INT32', but model 'echo' expects 'FP32'"),
        ({"datatype": "FP31"}, 400, "invalid datatype for input INPUT0"),
        ({"datatype": "STRING"}, 400, "invalid datatype for input INPUT0. In requests STRING is called BYTES."),
        ({"datatype": "TYPE_FP32"}, 400, "invalid datatype for input INPUT0. In requests TYPE_FP32 is called FP32."),
        ({"data": ["a", "b"]}, 500, "Unable to parse 'data': attempt to access JSON non-number as double"),
    ],
)
def test_a_wrong_input_is_told_what_is_wrong(
    connection: http.client.HTTPConnection, change: dict[str, object], status: int, text: str
) -> None:
    answer = ask(connection, {"inputs": [{**GOOD, **change}]})
    assert text in answer.error
    assert answer.status == status


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/models/nobody/infer", 404),
        ("/v2/models/echo/versions/9/infer", 404),
        ("/v2/models/../echo/infer", 404),
        ("/v2/models/..%2f..%2fetc/infer", 404),
        ("/v2/models/%2e%2e/config", 405),
        ("/v2/models/echo/versions/99999999999999999999/infer", 400),
        (f"/v2/models/echo/versions/{'9' * 5000}/infer", 400),
        (f"/v2/models/echo/versions/{'9' * 5000}/generate", 400),
    ],
)
def test_names_and_versions_that_are_none(connection: http.client.HTTPConnection, path: str, status: int) -> None:
    assert ask(connection, {"inputs": [GOOD]}, path).status == status


def test_binary_sizes_that_do_not_add_up(connection: http.client.HTTPConnection) -> None:
    path, body, headers = binary_request("echo", np.zeros((1, 1000), np.float32))
    length = headers["Inference-Header-Content-Length"]
    short = ask(connection, body[:-7], Inference_Header_Content_Length=length)
    assert short.status == 400
    assert "expecting 7 additional bytes for model 'echo'" in short.error
    long = ask(connection, body + b"1234", Inference_Header_Content_Length=length)
    assert long.status == 400
    assert "unexpected additional input data for model 'echo'" in long.error
    for wrong in ("-1", "abc", str(len(body) + 1), "99999999999999"):
        assert ask(connection, body, Inference_Header_Content_Length=wrong).status == 400


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_decompression_bomb_does_not_go_off(
    server: Serving, connection: http.client.HTTPConnection, compress: Callable[[bytes], bytes]
) -> None:
    parent = psutil.Process(server.process.pid)
    before = parent.memory_info().rss
    answer = ask(connection, compress(b"[" + b" " * (1 << 28)), Content_Encoding="gzip")
    assert answer.status == 400
    assert "Use --http-max-input-size to increase the limit." in answer.error
    assert parent.memory_info().rss < before + (64 << 20)


def test_strings_that_are_cut_short(connection: http.client.HTTPConnection) -> None:
    many = b"\3\0\0\0abc" * 999
    for data, count in (
        (b"\x05\0\0\0abc", 1),
        (b"\x01", 1),
        (b"\xff\xff\xff\xffa", 1),
        (b"\x01\0\0\0ab", 1),
        (many + b"\x05\0\0\0abc", 1000),
        (many + b"\xff\xff\xff\xffabc", 1000),
        (many + b"\x03\0\0\0ab", 1000),
        (many + b"\x03\0\0", 1000),
    ):
        tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [count]}
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}]}).encode()
        answer = ask(connection, head + data, "/v2/models/words/infer", Inference_Header_Content_Length=str(len(head)))
        assert (answer.status, " string " in answer.error) == (400, True), (data, answer)


def test_random_rubbish_never_breaks_anything(server: Serving) -> None:
    chance = random.Random(3)
    path, body, headers = binary_request("echo", np.zeros((1, 400), np.float32))
    good = bytearray(json.dumps({"inputs": [GOOD]}).encode())
    connection = server.connect()
    seen = set()
    for _ in range(1500):
        if chance.random() < 0.5:
            data = bytearray(good)
            extra = {}
        else:
            data = bytearray(body)
            extra = dict(headers)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.choice(b'\0{}[]":,0123456789.-eE\\ux \xff\xc3a')
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        connection.request("POST", path, bytes(data), extra)
        response = connection.getresponse()
        response.read()
        seen.add(response.status)
        assert response.status in (200, 400, 404, 500, 501)
    connection.close()
    assert {200, 400, 500} <= seen
    assert "unexpected error" not in server.output
    array = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(binary_output(server.infer_array("echo", array)), array)


def test_other_methods_are_refused(server: Serving) -> None:
    for method, path in (("PUT", "/v2/models/echo"), ("DELETE", "/v2/models/echo"), ("POST", "/v2/models/echo")):
        answer = server.request(method, path)
        assert (answer.status, answer.error) == (405, "Method Not Allowed")
