"""The workloads that wrk cannot send: gRPC, streams of responses, and models that call models."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from . import load_client, payloads
from .load_client import Order
from .payloads import WrongAnswerError
from .servers import Program, Server
from .workloads import Figures, Metric, Subject, figures_of

RESPONSES = Metric("responses/s", True)
CUT_SHORT = Metric("% of streams cut short", None)
CALLS = Metric("calls/s", True)

PER_REQUEST = 1000
STREAMED_MODEL, CALLING_MODEL = "repeat", "calls"


class KServeOnly:
    """A workload of servers that speak KServe v2."""

    large = False

    def serves(self, program: Program) -> bool:
        return program.kserve


class GrpcLoad(KServeOnly):
    """Unary calls of `count` floats, a number of them at a time over as many connections."""

    def __init__(self, name: str, count: int, connections: int) -> None:
        self.name = f"gRPC {name}, {plural(connections, 'connection')}"
        self.large = count >= 1 << 16
        self._count = count
        self._connections = connections

    @cached_property
    def order(self) -> Order:
        message = self._request.SerializeToString()
        return Order.grpc("ModelInfer", [message], self._connections, shortest=4 * self._count)

    @cached_property
    def _request(self) -> service_pb2.ModelInferRequest:
        request = service_pb2.ModelInferRequest(model_name="identity_fp32")
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, self._count])
        request.raw_input_contents.append(payloads.float_bytes(self._count))
        return request

    def prepare(self, subject: Subject) -> None:
        with grpc_stub(subject.server) as stub:
            answer = stub.ModelInfer(self._request, timeout=60)
        if list(answer.raw_output_contents) != list(self._request.raw_input_contents):
            raise WrongAnswerError(f"{self.name}: the answer is not what was sent")
        load_client.run(subject.server.grpc_port, self.order, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        return figures_of(load_client.run(subject.server.grpc_port, self.order, seconds))


class GrpcStreams(KServeOnly):
    """Streams of a decoupled model's responses, each over a connection of its own."""

    def __init__(self, streams: int) -> None:
        self.name = f"decoupled, {plural(streams, 'gRPC stream')}"
        self._streams = streams

    @cached_property
    def order(self) -> Order:
        message = repeat_request().SerializeToString()
        return Order.grpc("ModelStreamInfer", [message], self._streams, shortest=4, per_request=PER_REQUEST)

    def prepare(self, subject: Subject) -> None:
        with grpc_stub(subject.server) as stub:
            answers = list(stub.ModelStreamInfer(iter([repeat_request()]), timeout=60))
        values = [number(answer.infer_response.raw_output_contents[0]) for answer in answers]
        require_count(self.name, values)
        load_client.run(subject.server.grpc_port, self.order, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        return {RESPONSES: load_client.run(subject.server.grpc_port, self.order, seconds).requests_per_s}


class EventStreams(KServeOnly):
    """The same as server-sent events of `generate_stream`."""

    def __init__(self, streams: int) -> None:
        self.name = f"decoupled, {plural(streams, 'event stream')}"
        path = f"/v2/models/{STREAMED_MODEL}/generate_stream"
        self.order = Order(path, streams, fields={"COUNT": PER_REQUEST}, per_request=PER_REQUEST)

    def prepare(self, subject: Subject) -> None:
        body = subject.server.post(self.order.path, {"COUNT": PER_REQUEST})
        events = [json.loads(event.removeprefix("data: ")) for event in body.decode().split("\n\n") if event]
        require_count(self.name, [event["VALUE"] for event in events])
        load_client.run(subject.server.http_port, self.order, 1)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        load = load_client.run(subject.server.http_port, self.order, seconds)
        return {RESPONSES: load.requests_per_s, CUT_SHORT: load.cut_short / load.streams * 100}


class CallsOfModels(KServeOnly):
    """One request at a time whose model calls the identity model `calls` times in one `execute`, with `floats` each."""

    def __init__(self, name: str, calls: int, floats: int) -> None:
        self.name = f"calls between models, {name}"
        self.large = floats >= 1 << 16
        self._calls = calls
        self._floats = floats

    def prepare(self, subject: Subject) -> None:
        self._request(subject.server)

    def measure(self, subject: Subject, seconds: int) -> Figures:
        begin = time.perf_counter()
        requests, spent = 0, 0.0
        while spent < seconds:
            self._request(subject.server)
            requests += 1
            spent = time.perf_counter() - begin
        return {CALLS: requests * self._calls / spent}

    def _request(self, server: Server) -> None:
        tensor = {"name": "CALLS_AND_FLOATS", "datatype": "INT32", "shape": [2], "data": [self._calls, self._floats]}
        answer = json.loads(server.post(f"/v2/models/{CALLING_MODEL}/infer", {"inputs": [tensor]}))
        if answer["outputs"][0]["data"] != [self._calls]:
            raise WrongAnswerError(f"{self.name}: the called model did not return what it was given")


@contextmanager
def grpc_stub(server: Server) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    """gRPC's own client, for answers that are looked at. It raises WrongAnswerError for a call that fails."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        try:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)
        except grpc.RpcError as error:
            raise WrongAnswerError(f"{server.name}: {error}") from error


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s'[: count > 1]}"


def repeat_request() -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name=STREAMED_MODEL)
    request.inputs.add(name="COUNT", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", PER_REQUEST))
    return request


def number(raw: bytes) -> int:
    value: int = struct.unpack("<i", raw)[0]
    return value


def require_count(name: str, values: list[int]) -> None:
    if values != list(range(PER_REQUEST)):
        raise WrongAnswerError(f"{name}: not the numbers from 0 to {PER_REQUEST - 1}: {values[:10]} ...")
