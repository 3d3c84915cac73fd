"""The clients that measure gRPC and event streams, against a real server: they count right, and say what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.real_server import Serving
from tools.bench import load_client, repository, streaming
from tools.bench.load_client import Order
from tools.bench.streaming import EventStreams, GrpcLoad, GrpcStreams
from tools.bench.wrk import LoadError

SECONDS = 0.5

TEN_EVENTS = replace(EventStreams(2).order, fields={"COUNT": 10}, per_request=10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    models = tmp_path_factory.mktemp("models")
    repository.write_model(models, "identity_fp32")
    repository.write_configured(models, "repeat", repository.REPEATING, repository.REPEATING_CONFIG)
    repository.write_configured(models, "calls", repository.CALLING, repository.CALLING_CONFIG)
    with Serving(models) as running:
        running.wait_until_ready()
        yield running


@pytest.mark.parametrize("count", [16, 1 << 20])
def test_unary_calls_are_counted(server: Serving, count: int) -> None:
    before = server.statistics("identity_fp32")["inference_count"]
    load = load_client.run(server.grpc_port, GrpcLoad("", count, 3).order, SECONDS)
    assert load.requests == load.streams == server.statistics("identity_fp32")["inference_count"] - before
    assert 0 < load.p50_us <= load.p99_us


def test_responses_of_streams_are_counted(server: Serving) -> None:
    load = load_client.run(server.grpc_port, GrpcStreams(3).order, SECONDS)
    assert load.requests == load.streams * streaming.PER_REQUEST
    assert not load.cut_short


def test_events_are_counted(server: Serving) -> None:
    load = load_client.run(server.port, TEN_EVENTS, SECONDS)
    # What is under way when the time is up is counted as far as it came.
    assert load.streams <= load.requests / 10 <= load.streams + 2
    assert not load.cut_short


def test_a_stream_that_ends_early_is_counted(server: Serving) -> None:
    load = load_client.run(server.port, replace(TEN_EVENTS, per_request=11), SECONDS)
    assert load.cut_short == load.streams


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        (Order.grpc("ModelInfer", [b"\x0a\x04none"], 1, 1), "a call failed: .*unknown model"),
        (Order.grpc("ModelStreamInfer", [b"\x0a\x04none"], 1, 1, 1), "a response of a stream is an error"),
        (replace(GrpcLoad("", 16, 1).order, shortest=10_000), "right ones at least 10000"),
        (Order("/v2/models/none/generate_stream", 1, fields={}, per_request=1), "a stream was refused: .* 404"),
    ],
)
def test_what_goes_wrong_spoils_the_load(server: Serving, order: Order, complaint: str) -> None:
    port = server.port if order.fields is not None else server.grpc_port
    with pytest.raises(LoadError, match=complaint):
        load_client.run(port, order, SECONDS)


def test_the_calling_model_calls(server: Serving) -> None:
    before = server.statistics("identity_fp32")["inference_count"]
    tensor = {"name": "CALLS_AND_FLOATS", "datatype": "INT32", "shape": [2], "data": [7, 16]}
    answer = server.infer_json("calls", [tensor])
    assert answer.json()["outputs"][0]["data"] == [7]
    assert server.statistics("identity_fp32")["inference_count"] - before == 7
