"""Remote models whose other server is late, lies, talks without end, or is the same one."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, binary_request, eventually
from tests.server.test_remote import write_remote

FOUR = np.arange(4, dtype=np.float32)
QUEUE = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1500000 } }"

# Answers a request: the connection, the path, and the JSON of its body
Says = Callable[[socket.socket, dict[str, Any]], None]


def tensors(dims: str, kind: str = "TYPE_FP32") -> str:
    return "".join(
        f'{what} [ {{ name: "{name}" data_type: {kind} dims: [ {dims} ] }} ]\n'
        for what, name in (("input", "INPUT0"), ("output", "OUTPUT0"))
    )


class Other:
    """The other server. `models` says what it does with a request for a model; `asked` are the requests that came."""

    def __init__(self) -> None:
        self.models: dict[str, Says] = {}
        self.asked: collections.Counter[str] = collections.Counter()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as file:
            while line := file.readline():
                model = line.split(b"/")[3].decode()
                head = http.client.parse_headers(file)
                body = file.read(int(head["Content-Length"]))
                if line.startswith(b"GET"):  # whether it is ready
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.asked[model] += 1
                self.models[model](connection, json.loads(body[: int(head["Inference-Header-Content-Length"])]))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def answer(connection: socket.socket, array: np.ndarray = FOUR) -> None:
    output = {"name": "OUTPUT0", "datatype": "FP32", "shape": list(array.shape)}
    send(connection, {"outputs": [{**output, "parameters": {"binary_data_size": array.nbytes}}]}, array.tobytes())


def send(connection: socket.socket, document: Any, binary: bytes = b"", status: int = 200) -> None:
    text = json.dumps(document).encode()
    connection.sendall(
        b"HTTP/1.1 %d X\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b%b"
        % (status, len(text), len(text) + len(binary), text, binary)
    )


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    server = Other()
    yield server
    server.close()


@pytest.fixture(scope="module")
def here(other: Other, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("here")
    url = f"http://127.0.0.1:{other.port}"
    write_remote(repository, "queued", url, tensors("4") + QUEUE, connections="2", EXECUTE_TIMEOUT_SECS="0.5")
    write_remote(repository, "left", url, tensors("4"), connections="1")
    write_remote(repository, "slow", url, tensors("4"), timeout_s="1")
    for name in ("four", "lying", "hops"):
        write_remote(repository, name, url, tensors("4"))
    write_remote(repository, "many", url, tensors("-1"))
    with Serving(repository, "--shm-limit=96M") as server:
        server.wait_until_ready()
        yield server


def begin(server: Serving, model: str) -> http.client.HTTPConnection:
    """Sends a request; its answer is still to come."""
    connection = server.connect()
    path, body, headers = binary_request(model, FOUR)
    connection.request("POST", path, body, headers)
    return connection


def pending(server: Serving, model: str) -> int:
    found = re.search(
        rf'nv_inference_pending_request_count{{model="{model}",version="1"}} (\d+)', server.metrics().body.decode()
    )
    assert found is not None
    return int(found[1])


def refusal(server: Serving, model: str, text: str = "the other server does not answer") -> None:
    """The model is asked in vain, and says so without what is no client's business."""
    got = server.infer_array(model, FOUR)
    assert got.status == 503
    assert got.error == f"remote model '{model}': {text}"


def test_requests_beyond_its_connections_wait_in_the_servers_queue(here: Serving, other: Other) -> None:
    """There they can be cancelled, and time out; and nobody takes the wait for execution."""
    go = threading.Event()

    def says(connection: socket.socket, _: Any) -> None:
        assert go.wait(PATIENCE_S)
        answer(connection)

    other.models["queued"] = says
    running = [begin(here, "queued") for _ in range(2)]
    eventually(lambda: other.asked["queued"] == 2)
    waiting = [begin(here, "queued") for _ in range(3)]
    eventually(lambda: pending(here, "queued") == 3)
    waiting.pop().close()
    eventually(lambda: pending(here, "queued") == 2)
    for one in waiting:
        response = one.getresponse()
        assert response.status == 503
        assert b"timeout expired" in response.read()
        one.close()
    go.set()
    for one in running:
        assert one.getresponse().status == 200
        one.close()
    assert other.asked["queued"] == 2
    assert "EXECUTE_TIMEOUT_SECS allows" not in here.output
    assert here.infer_array("queued", FOUR).status == 200


def test_a_client_that_leaves_frees_its_connection_at_once(here: Serving, other: Other) -> None:
    came, left = threading.Event(), threading.Event()

    def says(connection: socket.socket, _: Any) -> None:
        came.set()
        assert not connection.recv(1)
        left.set()

    other.models["left"] = says
    client = begin(here, "left")
    assert came.wait(PATIENCE_S)
    other.models["left"] = lambda connection, _: answer(connection)
    client.close()
    assert left.wait(PATIENCE_S)
    assert (binary_output(here.infer_array("left", FOUR)) == FOUR).all()


@pytest.mark.parametrize("piece", [b"HTTP/1.1 100 Continue\r\n\r\n", b"A: b\r\n", b"x"])
def test_a_deadline_is_one_for_the_whole_call(here: Serving, other: Other, piece: bytes) -> None:
    ended = threading.Event()

    def says(connection: socket.socket, _: Any) -> None:
        connection.settimeout(0.2)
        head = {b"A": b"HTTP/1.1 200 OK\r\n", b"x": b"HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n"}
        connection.sendall(head.get(piece[:1], b""))
        try:
            while True:
                connection.sendall(piece)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        return
        finally:
            ended.set()

    other.models["slow"] = says
    refusal(here, "slow")
    assert ended.wait(PATIENCE_S)


@pytest.mark.parametrize("model", ["four", "many"])
@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked\r\n", b"", b"Content-Length: 99999999999\r\n"])
def test_an_endless_answer_ends_where_its_memory_does(here: Serving, other: Other, model: str, head: bytes) -> None:
    sent: list[int] = []

    def says(connection: socket.socket, _: Any) -> None:
        piece = bytes(1 << 16)
        total = 0
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
            while total < 1 << 30:
                connection.sendall(b"10000\r\n" + piece + b"\r\n" if b"chunked" in head else piece)
                total += len(piece)
        finally:
            sent.append(total)

    other.models[model] = says
    if model == "four":
        refusal(here, model)
    else:
        got = here.infer_array(model, FOUR)
        assert got.status == 503
        assert "in shared memory" in got.error
    eventually(lambda: sent)
    assert sent[0] < 256 << 20
    # Nothing of it is left, and there is room for what is large and right.
    large = np.zeros(5 << 20, np.float32)
    other.models["many"] = lambda connection, _: answer(connection, large)
    assert len(binary_output(here.infer_array("many", FOUR))) == len(large)


@pytest.mark.parametrize(
    "bad",
    [
        {"outputs": [{"name": "OUTPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]},
        {"outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [-1], "data": []}]},
        [],
        {"outputs": [{}]},
    ],
)
def test_an_answer_that_lies_is_told_in_the_log(here: Serving, other: Other, bad: Any) -> None:
    other.models["lying"] = lambda connection, _: send(connection, bad)
    refusal(here, "lying", "the other server has given an answer that is none")
    here.wait_for(
        rf"remote model 'lying': the other server has given an answer that is none: http://127.0.0.1:{other.port}: "
    )
    other.models["lying"] = lambda connection, _: answer(connection)
    assert here.infer_array("lying", FOUR).status == 200


def test_errors_of_the_other_server_are_short(here: Serving, other: Other) -> None:
    other.models["four"] = lambda connection, _: send(connection, {"error": "x" * 50_000}, status=400)
    got = here.infer_array("four", FOUR)
    assert (got.status, len(got.error)) == (400, 4096 + len("remote model 'four': "))
    other.models["four"] = lambda connection, _: send(connection, {"error": "x" * 50_000_000}, status=400)
    refusal(here, "four")


def test_a_circle_ends(here: Serving, other: Other) -> None:
    """What a client says is what a server in the circle would have passed on."""
    seen: list[Any] = []

    def says(connection: socket.socket, asked: dict[str, Any]) -> None:
        seen.append(asked["parameters"])
        answer(connection)

    other.models["hops"] = says
    for hops in (None, 3, -1_000_000, 4):
        given = {} if hops is None else {"parameters": {"stubserve_hops": hops}}
        array = {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": FOUR.tolist()}
        got: Answer = here.infer_json("hops", [array], **given)
        assert got.status == (200 if hops != 4 else 400)
    assert "has come through 4 remote models, as if these asked each other in a circle" in got.error
    assert [parameters["stubserve_hops"] for parameters in seen] == [1, 4, 1]


def test_what_is_the_operators_stays_out_of_errors(repository: Path) -> None:
    token = repository.parent / "token"
    token.write_text("secret\nsecret")
    write_remote(repository, "password", "http://user:secret@127.0.0.1:1", tensors("4"))
    write_remote(repository, "token", "http://127.0.0.1:1", tensors("4"), token_file=str(token))
    write_remote(repository, "absent", "http://127.0.0.1:1")
    write_remote(repository, "unreached", "http://127.0.0.1:1", tensors("4"))
    with Serving(repository, "--exit-on-error=false") as here:
        here.wait_for("Started HTTPService")
        index = here.request("POST", "/v2/repository/index").body.decode()
        assert "has a user or a password" in index
        assert "must have one token" in index
        assert "the other server cannot be reached" in index
        got = here.infer_array("unreached", FOUR)
        assert got.error == "remote model 'unreached': the other server cannot be reached"
        ready = here.get("/v2/models/unreached/ready").body.decode()
        for text in (index, ready):
            assert "secret" not in text
            assert "127.0.0.1" not in text
        here.wait_for("'unreached': the other server cannot be reached: http://127.0.0.1:1: .*refused")
