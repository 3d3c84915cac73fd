"""What the tests of several backends ask in the same way of models that no `model.py` runs.

A model called `batched` answers INPUT0 with its negative, in batches; one called `plain` answers with as many floats as
it was given, without. One called `texts` answers with the strings that it was given, in batches of four rows.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http
import uvloop
from tritonclient.utils import np_to_triton_dtype

from tests.real_server import PATIENCE_S, Answer, Serving, binary_output, binary_request
from tests.server.test_bls import eventually
from tests.server.test_copies import TENSOR_BYTES, Client, head, most_allocated, serving


def ask_eight_rows(server: Serving, width: int) -> dict[int, np.ndarray]:
    """What `batched` makes of eight rows of seven requests that come together, by the number that their rows are of."""
    answers: dict[int, np.ndarray] = {}

    def ask(number: int) -> None:
        rows = np.full((2 if number == 0 else 1, width), number, np.float32)
        answers[number] = binary_output(server.infer_array("batched", rows))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [answers[number].shape for number in range(7)] == [(2, width), *[(1, width)] * 6]
    return answers


def check_batches_of_many_requests(server: Serving, width: int) -> None:
    """Nothing of `batched` runs before eight rows are there; each gets its own, from memory freed for itself."""
    before = server.statistics("batched")
    for _ in range(3):
        for number, answer in ask_eight_rows(server, width).items():
            assert (answer == -number).all()
    after = server.statistics("batched")
    assert after["execution_count"] - before["execution_count"] == 3
    assert after["inference_count"] - before["inference_count"] == 24


def check_strings_that_are_no_text(server: Serving) -> None:
    """Of four requests that run as one batch, each with one string, the one whose string is no UTF-8 is refused."""
    given = [b"one", b"two \xff", "dr\u00fc".encode(), b""]
    answers: dict[int, Answer] = {}

    def ask(number: int) -> None:
        body = len(given[number]).to_bytes(4, "little") + given[number]
        tensor = {"name": "texts", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(body)}}
        header = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(header))}
        answers[number] = server.request("POST", "/v2/models/texts/infer", header + body, headers)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [answers[number].status for number in range(4)] == [200, 400, 200, 200], answers
    assert "input 'texts' has a string that is no UTF-8" in answers[1].error
    assert [answers[number].json()["outputs"][0]["data"] for number in (0, 2, 3)] == [["one"], ["dr\u00fc"], [""]]
    assert server.statistics("texts")["execution_count"] == 1


def check_kills(repository: Path, clients: int, stubs: int, rounds: int) -> None:
    """Stubs of `batched` are killed while they are asked; every success is right, and they come back."""
    stop = threading.Event()
    wrong: list[Any] = []
    succeeded: set[int] = set()
    numbers = set(range(1, clients + 1))
    with Serving(repository) as server:

        def ask(number: int) -> None:
            array = np.full((1, 20_000), number, np.float32)
            while not stop.is_set():
                answer = server.infer_array("batched", array)
                if answer.status == 200:
                    wrong.extend([] if (binary_output(answer) == -number).all() else [answer])
                    succeeded.add(number)
                elif answer.status not in (500, 503):
                    wrong.append(answer)

        threads = [threading.Thread(target=ask, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        try:
            for _ in range(rounds):
                eventually(lambda: succeeded == numbers)
                before = set(server.stub_pids())
                assert len(before) == stubs
                for pid in before:
                    os.kill(pid, signal.SIGKILL)
                eventually(lambda before=before: len(set(server.stub_pids()) - before) == stubs)
                eventually(lambda: server.get("/v2/models/batched/ready").status == 200)
                succeeded.clear()
            eventually(lambda: succeeded == numbers)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
    assert wrong == []


def measure_copies(repository: Path, array: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Asks `plain` for TENSOR_BYTES of floats over HTTP.

    The answer, what the parent allocated for it at most, and what was committed of shared memory, in bytes.
    """
    _, body, headers = binary_request("plain", array)
    message = head("plain", headers["Inference-Header-Content-Length"], f"Content-Length: {len(body)}") + body
    answer = memoryview(b"")
    in_parent = committed = 0

    async def measure() -> None:
        nonlocal in_parent, committed
        async with serving(repository) as (server, port):
            ledger = server.memory.ledger
            client = Client(port)
            tracemalloc.start()
            before = ledger.total

            def ask() -> None:
                nonlocal answer
                answer = client.infer(message)

            in_parent = await most_allocated(ask)
            committed = ledger.total - before
            client.close()

    try:
        uvloop.run(measure())
    finally:
        tracemalloc.stop()
    return np.frombuffer(answer[-TENSOR_BYTES:], np.float32), in_parent, committed


def infer(library: Any, server: Serving, name: str, inputs: dict[str, Any], outputs: list[str] | None = None) -> Any:
    """What a model answers to a client of Triton, by HTTP or gRPC."""
    port = server.port if library is tritonclient.http else server.grpc_port
    with library.InferenceServerClient(f"127.0.0.1:{port}") as client:
        tensors = []
        for key, array in inputs.items():
            tensor = library.InferInput(key, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        wanted = None if outputs is None else [library.InferRequestedOutput(key) for key in outputs]
        return client.infer(name, tensors, outputs=wanted)
