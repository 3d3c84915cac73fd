"""What a request that is no inference may say: nothing that takes long to read, as the event loop reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Serving, write_model

REGION = "/v2/systemsharedmemory/region/a"


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
