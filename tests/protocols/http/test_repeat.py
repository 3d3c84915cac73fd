"""Requests that repeat on a connection get, byte for byte, what they would get on a connection of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.protocols.http.test_connection import Client, post
from tests.real_server import Serving, binary_request, io_config, write_model

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


def request(array: np.ndarray, **options: object) -> bytes:
    """Head and body, to be sent in one piece: a server that reads half of it first takes another way."""
    _, body, headers = binary_request("moody", array, **options)  # type: ignore[arg-type]
    return post(body, "moody", *(f"{name}: {value}" for name, value in headers.items()))


def ask(client: Client, array: np.ndarray, **options: object) -> tuple[int, dict[str, str], bytes]:
    client.send(request(array, **options))
    return client.answer()


def vector(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def test_only_the_values_change(server: Serving) -> None:
    with Client(server) as client:
        for start in range(10, 20):
            status, _, body = ask(client, vector(start, start + 1, start + 2))
            assert status == 200
            assert np.frombuffer(body[-12:], np.float32).tolist() == [start + 100, start + 101, start + 102]


@pytest.mark.parametrize("mood", [1, 2, 3, 4, 5, 10])
def test_every_kind_of_answer_is_the_one_that_a_new_connection_gets(server: Serving, mood: int) -> None:
    with Client(server) as alone:
        expected = ask(alone, vector(mood, 0, 0))
    with Client(server) as client:
        usual = [ask(client, vector(10, 0, 0)) for _ in range(3)]
        assert usual[0] == usual[1] == usual[2]
        assert ask(client, vector(mood, 0, 0)) == expected
        assert ask(client, vector(mood, 0, 0)) == expected
        assert ask(client, vector(10, 0, 0)) == usual[0]


def numbers(*values: float | str) -> bytes:
    """The same as JSON, with all values of one width, so that requests differ in nothing but their digits."""
    data = ",".join(f"{value:>5}" for value in values)
    text = f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,{len(values)}],"data":[{data}]}}]}}'
    return post(text.encode(), "moody")


def test_numbers_in_json(server: Serving) -> None:
    with Client(server) as client:
        for start in range(10, 20):
            client.send(numbers(start, 2.5, -3))
            status, _, body = client.answer()
            assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [start + 100, 102.5, 97])


@pytest.mark.parametrize(
    "values",
    [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0), (10, "true", 0), (10, "null", 0), (10, "0,1", 0),
     (10, "[1]", 0), (10, "1]", 0), (10, "1e99", 0), (10, "0x1", 0), (10, '"1"', 0), (10, "", 0), (10, "NaN", 0)],
)  # fmt: skip
def test_any_numbers_in_json_are_answered_as_on_a_new_connection(server: Serving, values: tuple[float | str]) -> None:
    with Client(server) as alone:
        alone.send(numbers(*values))
        expected = alone.answer()
    with Client(server) as client:
        for request, answer in [(numbers(10, 0, 0), None)] * 3 + [(numbers(*values), expected)] * 2:
            client.send(request)
            found = client.answer()
            assert answer is None or found == answer
        client.send(numbers(10, 0, 0))
        assert client.answer()[0] == 200


def test_something_else_in_place_of_the_numbers(server: Serving) -> None:
    usual = numbers(10, 2.5, -3)
    data = usual[usual.rindex(b"[") : usual.index(b"]}]}") + 1]
    other = usual.replace(data, b'{"a":1}'.ljust(len(data)))
    with Client(server) as alone:
        alone.send(other)
        expected = alone.answer()
    assert expected[0] == 500
    with Client(server) as client:
        for request in [usual] * 3 + [other]:
            client.send(request)
            answer = client.answer()
        assert answer == expected


def test_other_requests_in_between(server: Serving) -> None:
    with Client(server) as client:
        for _ in range(3):
            for array in (vector(10, 11, 12), vector(10), vector(10, 11, 12), np.full((2, 3), 10, np.float32)):
                status, _, body = ask(client, array)
                assert status == 200
                assert np.array_equal(np.frombuffer(body[-array.nbytes :], np.float32), (array + 100).ravel())
            client.send(b"GET /v2/models/moody HTTP/1.1\r\nHost: here\r\n\r\n")
            status, _, body = client.answer()
            assert (status, b'"moody"' in body) == (200, True)


def test_the_same_front_with_a_wrong_length_is_refused(server: Serving) -> None:
    with Client(server) as client:
        for _ in range(3):
            assert ask(client, vector(10, 0, 0))[0] == 200
        front = request(vector(10, 0, 0))[:-12]
        client.send(front.replace(b"\nContent-Length: ", b"\nContent-Length: 1") + bytes(1012))
        status, _, body = client.answer()
        assert (status, b"error" in body) == (400, True)


def test_ids_come_back(server: Serving) -> None:
    with Client(server) as client:
        for number in range(4):
            for _ in range(3):
                assert b'"id":"%d"' % number in ask(client, vector(10, 0, 0), id=str(number))[2]


def test_a_request_in_several_pieces_and_several_in_one(server: Serving) -> None:
    whole = request(vector(10, 0, 0))
    with Client(server) as client:
        client.send(whole)
        expected = client.answer()
        for cut in (0, 1, len(whole) - 1, len(whole) // 2, 0):
            client.send(whole[:cut], whole[cut:])
            assert client.answer() == expected
        client.send(whole * 5)
        assert [client.answer() for _ in range(5)] == [expected] * 5


def test_a_client_that_goes_cancels_its_repeated_request(server: Serving) -> None:
    with Client(server) as client:
        for _ in range(3):
            assert ask(client, vector(10, 0, 0))[0] == 200
        client.send(request(vector(6, 0, 0)))
        server.wait_for("waiting")
    server.wait_for("cancelled")
