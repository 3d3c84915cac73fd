"""A request gets the same answer, byte for byte, on a connection of its own and after thousands of others."""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stubserve.inference.long_work import LARGE_BYTES
from tests.http.test_connection import Client, post
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
            told = {"mood": "fine", "sure": True, "late": False, "left": 3}
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)], parameters=told)
        if mood == 3:
            array = array[:, :1].copy()
        if mood == 4:
            array = np.repeat(array, 400, 1)
        if mood == 5:
            return pb_utils.InferenceResponse([])
        if mood == 6:
            print("asked to wait", flush=True)
            while not request.is_cancelled():
                time.sleep(0.005)
            print("cancelled", flush=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array + 100)])
"""
IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request):
        return pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
"""
CONFIG = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_%s dims: [-1] }
input { name: "INPUT1" data_type: TYPE_FP32 dims: [2] optional: true }
output { name: "OUTPUT0" data_type: TYPE_%s dims: [-1] }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "moody", MOODY, io_config(max_batch_size=4))
    for kind in ("FP32", "STRING", "INT16", "BOOL"):
        write_model(repository, kind.lower(), IDENTITY, CONFIG % (kind, kind))
    with Serving(repository) as running:
        yield running


WORDS = ["a", "b: c", "größe", "\u6771\u4eac", "\U0001f600", '"', "\\", "\n", "\x01", ""]
# Elements in JSON by data type, and odd ones
DATA: dict[str, tuple[list[Any], list[Any]]] = {
    "FP32": ([1, 0.1, -2.5e-7, 3, 123456.789, 1e-12], [1e39, 2**64, True, None, "x", [1]]),
    "BYTES": (WORDS, [5, None, ["a"]]),
    "INT16": ([*range(-5, 5), 32767], [32768, 1.0, False, 2**63]),
    "BOOL": ([True, False], [1, "true"]),
}


def varied(chance: random.Random) -> bytes:
    """A request, of which some are wrong: head and body, to be sent in one piece."""
    kind = chance.choice(sorted(DATA))
    batch, size = chance.choice([1, 1, 2, 4, 4, 5]), chance.choice([1, 2, 7, 300])
    count = batch * size
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": kind, "shape": [batch, size]}
    tail = b""
    if kind == "FP32" and chance.random() < 0.6:
        tail = struct.pack(f"{count}f", *(chance.random() for _ in range(count)))
        tensor["parameters"] = {"binary_data_size": len(tail) - chance.choice([0] * 9 + [4])}
    else:
        usual, odd = DATA[kind]
        tensor["data"] = data = chance.choices(usual, k=count - chance.choice([0] * 9 + [1]))
        if data and chance.random() < 0.1:
            data[0] = chance.choice(odd)
    inputs = [shuffled(chance, tensor)]
    if chance.random() < 0.3:
        second = {"name": chance.choice(["INPUT1"] * 9 + ["INPUT0"]), "datatype": "FP32", "shape": [batch, 2]}
        inputs.append(shuffled(chance, {**second, "data": [0.5] * (2 * batch)}))
    document: dict[str, Any] = {"inputs": inputs}
    if chance.random() < 0.8:
        document["id"] = chance.choice(["", "id", "urn:x:", "é", "\t"]) + str(chance.randrange(1000))
    if chance.random() < 0.3:
        document["outputs"] = [{"name": "OUTPUT0", "parameters": {"binary_data": chance.random() < 0.5}}]
    if chance.random() < 0.3:
        document["parameters"] = {"binary_data_output": chance.random() < 0.5, "x": chance.choice(WORDS)}
    if chance.random() < 0.05:
        document["odd"] = chance.choice(WORDS)
    text = json.dumps(
        shuffled(chance, document),
        ensure_ascii=chance.random() < 0.5,
        separators=chance.choice([(",", ":"), (", ", ": ")]),
    ).encode()
    if chance.random() < 0.05:
        text = text.replace(b'"id"', b'"shape"', 1)
    lines = [f"Content-Length: {len(text + tail)}", "Host: here", "Accept: */*", f"X-Trace: {chance.random()}"]
    if tail:
        lines.append(f"Inference-Header-Content-Length: {len(text)}")
    lines = [line if chance.random() < 0.5 else line.lower() for line in lines]
    chance.shuffle(lines)
    path = f"/v2/models/{kind.lower().replace('bytes', 'string')}/infer"
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + text + tail


def shuffled(chance: random.Random, members: dict[str, Any]) -> dict[str, Any]:
    return dict(chance.sample(sorted(members.items()), len(members)))


def test_the_same_answer_alone_and_after_thousands_of_others(server: Serving) -> None:
    chance = random.Random(13)
    requests = [varied(chance) for _ in range(300)]
    expected = []
    for request in requests:
        with Client(server) as alone:
            alone.send(request)
            expected.append(alone.answer())
    assert {status for status, _, _ in expected} == {200, 400, 500}
    assert sum(status == 200 for status, _, _ in expected) > len(requests) // 3
    with Client(server) as client:
        for at in chance.choices(range(len(requests)), k=3000):
            client.send(requests[at])
            assert client.answer() == expected[at], requests[at]


def test_the_same_answer_from_compiled_modules(server: Serving) -> None:
    python = Path(sys.prefix, "compiled", "bin", "python")
    if not python.exists():
        pytest.skip("stubserve is not compiled here")
    compiled = Serving(Path(server.command[4]))
    compiled.command[0] = str(python)
    chance = random.Random(14)
    with compiled, Client(compiled) as one, Client(server) as other:
        for _ in range(2000):
            request = varied(chance)
            one.send(request)
            other.send(request)
            assert one.answer() == other.answer(), request


def request(array: np.ndarray, **options: object) -> bytes:
    """Head and body, to be sent in one piece: a server that reads half of it first takes another way."""
    _, body, headers = binary_request("moody", array, **options)  # type: ignore[arg-type]
    return post(body, "moody", *(f"{name}: {value}" for name, value in headers.items()))


def ask(client: Client, array: np.ndarray, **options: object) -> tuple[int, dict[str, str], bytes]:
    client.send(request(array, **options))
    return client.answer()


def vector(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


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


def test_parameters_of_an_answer_keep_their_types(server: Serving) -> None:
    """Also from compiled modules. Python takes False for 0, so the bytes are compared."""
    answer = server.infer_array("moody", np.full((1, 1), 2, np.float32))
    told = b'"parameters":{"mood":"fine","sure":true,"late":false,"left":3}'
    assert told in answer.body, answer.body


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


def test_a_client_that_goes_cancels_its_request(server: Serving) -> None:
    with Client(server) as client:
        for _ in range(3):
            assert ask(client, vector(10, 0, 0))[0] == 200
        client.send(request(vector(6, 0, 0)))
        server.wait_for("asked to wait")
    server.wait_for("cancelled")


# Of the larger size the JSON is read by a process of its own.
@pytest.mark.parametrize("size", [7, LARGE_BYTES])
@pytest.mark.parametrize("kind", sorted(DATA))
def test_json_of_any_size_is_read_alike(server: Serving, kind: str, size: int) -> None:
    model = kind.lower().replace("bytes", "string")
    usual = [value for value in DATA[kind][0] if not isinstance(value, float)]
    sent = [usual[at % len(usual)] for at in range(size)]
    tensor = {"name": "INPUT0", "datatype": kind, "shape": [1, size], "data": sent}
    answer = server.infer_json(model, [tensor], id="it")
    assert answer.status == 200, answer.body[:300]
    assert (answer.json()["id"], answer.json()["outputs"][0]["data"]) == ("it", sent)
    answer = server.request("POST", f"/v2/models/{model}/generate", json.dumps({"id": "it", "INPUT0": sent}).encode())
    assert answer.status == 200, answer.body[:300]
    assert answer.json()["OUTPUT0"] == sent
