"""What a request that is no inference may say: nothing that takes long to read, as the event loop reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.real_server import Answer, Serving, binary_output, write_model

REGION = "/v2/systemsharedmemory/region/a"
PAD = b"x" * 5_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository: Path = tmp_path_factory.mktemp("models")
    write_model(repository, "echo")
    with Serving(repository, "--model-control-mode=explicit", "--allow-client-shm=true") as server:
        server.wait_until_ready()
        yield server


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/echo/unload",
        "/v2/logging",
        "/v2/trace/setting",
        f"{REGION}/register",
        f"{REGION}/unregister",
        "/v2/cudasharedmemory/region/a/register",
    ],
)
def test_a_question_is_short(serving: Serving, path: str) -> None:
    answer = serving.request("POST", path, b" " * 65_535 + b"{}")
    assert answer.status == 400
    assert answer.error == (
        "request JSON size of 65537 bytes exceeds the maximum allowed input size of 65536 bytes. "
        "This route needs no larger one."
    )


def test_a_load_has_few_values(serving: Serving) -> None:
    path = "/v2/repository/models/echo/load"
    answer = serving.request("POST", path, json.dumps({"parameters": {}, "x": [1] * 100_001}).encode())
    assert answer.status == 400
    assert answer.error == "the load request has more than 100000 values and escaped characters"
    # A file may be long.
    config = serving.request("POST", path, b"")
    assert config.status == 200
    long = {"parameters": {"config": json.dumps({"max_batch_size": 0}), "file:1/model.py": "AAAA" * 100_000}}
    assert "no model" not in serving.request("POST", path, json.dumps(long).encode()).error


# JSON as Triton takes it and orjson does not: a number that is none, a name twice, bytes that are not UTF-8
ODD = [
    b'{"x":[' + b"[]," * 2_000 + b"NaN]}",
    b'{"x":1,"x":"' + b" " * 5_000 + b'"}',
    b'{"x":"' + b"\\n" * 2_500 + b'\xff"}',
]


@pytest.mark.parametrize("text", ODD)
def test_a_question_has_little_json_that_is_odd(serving: Serving, text: bytes) -> None:
    answer = serving.request("POST", "/v2/repository/index", text)
    assert answer.status == 400
    assert answer.error == (
        f"request JSON of {len(text)} bytes is not plain JSON, or has a name twice in one object; here such JSON may "
        "have 4096 bytes"
    )


def test_another_process_reads_odd_json_that_is_not_short(tmp_path: Path) -> None:
    write_model(tmp_path, "echo")
    with Serving(tmp_path) as server:
        server.wait_until_ready()

        def reads_elsewhere() -> bool:
            children = psutil.Process(server.process.pid).children(recursive=True)
            return any("stubserve.http.json.worker" in child.cmdline() for child in children)

        def infer(count: int) -> Answer:
            numbers = b",".join([b"1.5", b"NaN"] * count)
            one = b'{"name":"INPUT0","datatype":"FP32","shape":[%d],"data":[%b]}' % (2 * count, numbers)
            body = b'{"inputs":[%b],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}' % one
            return server.request("POST", "/v2/models/echo/infer", body)

        def generate(text: bytes) -> Answer:
            return server.request("POST", "/v2/models/echo/generate", b'{"INPUT0":[1,2],"long":"%b",%b}' % (PAD, text))

        assert [answer.status for answer in (infer(100), server.request("POST", "/v2/models/echo/infer", b"{]"))] == [
            200,
            500,
        ]
        assert not reads_elsewhere()
        values = binary_output(infer(1_000))
        assert values[0] == 1.5
        assert np.isnan(values[1])
        assert reads_elsewhere()
        first = generate(b'"x":1,"x":2')
        assert (first.status, first.json()["OUTPUT0"]) == (200, [1.0, 2.0])
        refused = generate(b'"x":NaN,]')
        assert refused.status == 500
        assert refused.error.startswith(
            "failed to parse the request JSON buffer: Missing a name for object member. at "
        )
