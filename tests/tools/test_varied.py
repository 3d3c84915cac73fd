"""The requests that differ: a pool is the same in each run, no two of its requests are, and answers are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real_server import PATIENCE_S, Serving
from tools.bench import load_client, varied_models, wrk
from tools.bench.load_client import Order
from tools.bench.payloads import WrongAnswerError
from tools.bench.streaming import grpc_stub
from tools.bench.varied import VariedRequest, Variety

MAKERS: dict[str, Callable[[Variety], VariedRequest]] = {
    "binary": lambda variety: variety.binary("mixed"),
    "numbers": lambda variety: variety.json_numbers("numbers"),
    "text": lambda variety: variety.json_texts("texts", 1),
    "texts": lambda variety: variety.json_texts("texts", 32),
    "flags": lambda variety: variety.json_flags("flags"),
    "generate": lambda variety: variety.generate("texts"),
    "call": lambda variety: variety.floats("ask"),
    "chain": lambda variety: variety.floats("ask_3"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    repository = tmp_path_factory.mktemp("models")
    varied_models.write_varied(repository)
    with Serving(repository) as server:
        yield server


@pytest.mark.parametrize("kind", MAKERS)
def test_answers_are_right_and_a_wrong_one_is_found(server: Serving, kind: str) -> None:
    variety = Variety()
    for _ in range(32):
        request = MAKERS[kind](variety)
        request.send(server.port)
    wrong = replace(request, outputs=[replace(request.outputs[0], name="OUT_OTHER")])
    with pytest.raises(WrongAnswerError):
        wrong.send(server.port)


def texts(variety: Variety) -> list[bytes]:
    return variety.pool(lambda: MAKERS["text"](variety).raw)


def test_a_pool_is_the_same_in_each_run_and_has_no_request_twice() -> None:
    first = texts(Variety())
    assert first == texts(Variety())
    assert len(set(first)) == len(first)


def served(server: Serving) -> int:
    """How many requests have been answered."""
    count: int = server.statistics("mixed")["inference_stats"]["success"]["count"]
    return count


def test_wrk_sends_them_byte_by_byte(server: Serving, tmp_path: Path) -> None:
    if not wrk.available():
        pytest.skip("wrk is not installed")
    variety = Variety()
    before = served(server)
    requests = [variety.binary("mixed") for _ in range(64)]
    wrk.write_verbatim(tmp_path / "load.lua", [request.raw for request in requests])
    load = wrk.run_script(server.port, tmp_path / "load.lua", connections=4, seconds=1)
    assert 0 < load.requests <= served(server) - before


def test_calls_differ_too(server: Serving) -> None:
    variety = Variety()
    calls = [variety.grpc("mixed") for _ in range(32)]
    with grpc_stub(server) as stub:
        for call in calls:
            call.check(stub.ModelInfer(call.request, timeout=PATIENCE_S))
        with pytest.raises(WrongAnswerError):
            calls[0].check(stub.ModelInfer(calls[1].request, timeout=PATIENCE_S))
    messages = [call.request.SerializeToString() for call in calls]
    assert len(set(messages)) == len(messages)
    before = served(server)
    load = load_client.run(server.grpc_port, Order.grpc("ModelInfer", messages, 4, shortest=16), 0.5)
    assert load.requests == served(server) - before
