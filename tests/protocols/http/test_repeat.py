"""Requests that repeat on a connection get, byte for byte, what they would get on a connection of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import numpy as np
import pytest

from tests.serving import Serving, binary_request, io_config, write_model

MOODY = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        mood = array.flat[0]
        if mood == 1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("not today"))
        if mood == 2:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)], parameters={"mood": "fine"})
        if mood == 3:
            array = array[:, :1].copy()
        if mood == 4:
            array = np.repeat(array, 400, 1)
        if mood == 5:
            return pb_utils.InferenceResponse([])
        if mood == 6:
            print("waiting", flush=True)
            while not request.is_cancelled():
                time.sleep(0.005)
            print("cancelled", flush=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 100)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "moody", MOODY, io_config(max_batch_size=4))
    with Serving(repository) as running:
        yield running


def connect(server: Serving) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", server.port, timeout=20)


def ask(connection: HTTPConnection, array: np.ndarray, **options: object) -> tuple[int, list[tuple[str, str]], bytes]:
    path, body, headers = binary_request("moody", array, **options)  # type: ignore[arg-type]
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.getheaders(), answer.read()


def vector(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_only_the_values_change(server: Serving) -> None:
    with closing(connect(server)) as connection:
        for start in range(10, 20):
            status, _, body = ask(connection, vector(start, start + 1, start + 2))
            assert status == 200
            assert np.frombuffer(body[-12:], np.float32).tolist() == [start + 100, start + 101, start + 102]


@pytest.mark.parametrize("mood", [1, 2, 3, 4, 5, 10])
def test_every_kind_of_answer_is_the_one_that_a_new_connection_gets(server: Serving, mood: int) -> None:
    with closing(connect(server)) as alone:
        expected = ask(alone, vector(mood, 0, 0))
    with closing(connect(server)) as connection:
        usual = [ask(connection, vector(10, 0, 0)) for _ in range(3)]
        assert usual[0] == usual[1] == usual[2]
        assert ask(connection, vector(mood, 0, 0)) == expected
        assert ask(connection, vector(mood, 0, 0)) == expected
        assert ask(connection, vector(10, 0, 0)) == usual[0]


def test_other_requests_in_between(server: Serving) -> None:
    with closing(connect(server)) as connection:
        for _ in range(3):
            for array in (vector(10, 11, 12), vector(10), vector(10, 11, 12), np.full((2, 3), 10, np.float32)):
                status, _, body = ask(connection, array)
                assert status == 200
                assert np.array_equal(np.frombuffer(body[-array.nbytes :], np.float32), (array + 100).ravel())
            connection.request("GET", "/v2/models/moody")
            answer = connection.getresponse()
            assert (answer.status, b'"moody"' in answer.read()) == (200, True)


def test_the_same_front_with_a_wrong_length_is_refused(server: Serving) -> None:
    with closing(connect(server)) as connection:
        for _ in range(3):
            assert ask(connection, vector(10, 0, 0))[0] == 200
        path, body, headers = binary_request("moody", vector(10, 0, 0))
        connection.request("POST", path, body[:-4], headers)
        answer = connection.getresponse()
        assert (answer.status, b"error" in answer.read()) == (400, True)
        assert ask(connection, vector(10, 0, 0))[0] == 200


def test_ids_come_back(server: Serving) -> None:
    with closing(connect(server)) as connection:
        for number in range(4):
            for _ in range(3):
                assert b'"id":"%d"' % number in ask(connection, vector(10, 0, 0), id=str(number))[2]


def test_a_request_in_several_pieces(server: Serving) -> None:
    path, body, headers = binary_request("moody", vector(10, 0, 0))
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    request = (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode() + body
    with closing(connect(server)) as connection:
        connection.connect()
        stream = connection.sock.makefile("rb")

        def answer() -> bytes:
            lines = []
            while line := stream.readline().strip():
                lines.append(line)
            length = next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length"))
            return lines[0] + stream.read(length)

        connection.sock.sendall(request)
        expected = answer()
        for cut in (0, 1, len(request) - 1, len(request) // 2, 0):
            connection.sock.sendall(request[:cut])
            connection.sock.sendall(request[cut:])
            assert answer() == expected
        connection.sock.sendall(request * 5)
        assert [answer() for _ in range(5)] == [expected] * 5


def test_a_client_that_goes_cancels_its_repeated_request(server: Serving) -> None:
    connection = connect(server)
    for _ in range(3):
        assert ask(connection, vector(10, 0, 0))[0] == 200
    path, body, headers = binary_request("moody", vector(6, 0, 0))
    connection.request("POST", path, body, headers)
    server.wait_for("waiting")
    connection.close()
    server.wait_for("cancelled")
