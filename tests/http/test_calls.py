"""A connection on a fake transport: calls one after the other, and answers when the server itself fails."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.http.connection import HttpConnection
from stubserve.http.endpoint import HttpEndpoint
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import ModelTracing
from stubserve.memory.server_memory import Memory
from tests.inference.models import io, signature
from tests.real_server import binary_request


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def get_extra_info(self, name: str) -> Any:
        return self

    def fileno(self) -> int:
        return 3

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def answer(self) -> tuple[int, bytes]:
        head, _, body = self.written.partition(b"\r\n\r\n")
        self.written = b""
        return int(head.split()[1]), body


class Model:
    """Echoes what was submitted when it is told to; or fails."""

    version = 1

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.fault: Exception | None = None
        self.answer_fault = False
        self.submitted: list[Request] = []

    def submit(self, request: Request) -> None:
        if self.fault is not None:
            raise self.fault
        self.submitted.append(request)

    def answer(self) -> None:
        request = self.submitted.pop()
        tensor = request.inputs[0]
        output = Tensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data)
        if self.answer_fault:
            del output.shape
        request.on_response(request, Response([output]))

    def cancel(self, request: Request) -> None:
        pass


def serve() -> tuple[Model, HttpConnection, Transport, HttpEndpoint]:
    memory, slow_clients = Memory(1 << 20), SlowClients()
    model = Model(signature("echo", io("input", "INPUT0", "FP32", "-1") + io("output", "OUTPUT0", "FP32", "-1")))
    server = SimpleNamespace(
        find_model=lambda name, version: model,
        max_input_size=1 << 20,
        http_forwarding=None,
        regions=None,
        grpc_port=0,
        heap=memory.heap,
        receive_buffers=ReceiveBuffers(memory, slow_clients, 1 << 19),
        slow_clients=slow_clients,
        max_connections=0,
        fair_queues=None,
        store=memory.store,
        block=memory.block,
    )
    endpoint = HttpEndpoint(cast(Any, server))
    connection = HttpConnection(endpoint, cast(Any, None), cast(Any, SimpleNamespace(connections=set())), {})
    transport = Transport()
    connection.connection_made(cast(Any, transport))
    return model, connection, transport, endpoint


class Asking:
    """A client of one connection."""

    def __init__(self) -> None:
        self.model, self.connection, self.transport, self._endpoint = serve()

    def ask(self, *values: float, **options: Any) -> tuple[int, bytes]:
        """Sends these values, and answers."""
        path, body, headers = binary_request("echo", np.array(values, np.float32), **options)
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self._endpoint.scratch[: len(data)] = data
        self.connection.buffer_updated(len(data))
        if self.model.submitted:
            self.model.answer()
        status, body = self.transport.answer()
        return status, body[-4 * len(values) :] if status == 200 else body


def test_each_of_many_like_requests_has_its_own_answer() -> None:
    async def run() -> None:
        asking = Asking()
        for number in range(6):
            assert asking.ask(number, 5) == (200, np.array([number, 5], np.float32).tobytes())
        # Of another length, and then as before
        assert asking.ask(1, 2, 3) == (200, np.array([1, 2, 3], np.float32).tobytes())
        assert asking.ask(7, 8) == (200, np.array([7, 8], np.float32).tobytes())
        # Of the same length as one another, and different before their tensors
        for id in ("a", "b", "c"):
            assert asking.ask(7, 8, id=id) == (200, np.array([7, 8], np.float32).tobytes())

    asyncio.run(run())


def test_a_model_that_was_loaded_anew_is_looked_at_anew() -> None:
    async def run() -> None:
        asking = Asking()
        for _ in range(3):
            assert asking.ask(1, 2)[0] == 200
        asking._endpoint.server.find_model = lambda name, version: newer
        newer = Model(asking.model.signature)
        asking.model = newer
        assert asking.ask(3, 4) == (200, np.array([3, 4], np.float32).tobytes())

    asyncio.run(run())


@pytest.mark.parametrize("where", ["submit", "answer"])
def test_a_request_that_meets_a_fault_between_others_is_answered(caplog: pytest.LogCaptureFixture, where: str) -> None:
    async def run() -> None:
        asking = Asking()
        model = asking.model

        for _ in range(4):
            assert asking.ask(1, 2)[0] == 200
        model.fault = RuntimeError("a slip") if where == "submit" else None
        model.answer_fault = where == "answer"
        status, text = asking.ask(1, 2)
        assert status == 500
        assert b"server's log" in text
        assert ("could not be submitted" if where == "submit" else "could not be encoded") in caplog.text
        model.fault, model.answer_fault = None, False
        assert asking.ask(1, 2)[0] == 200

    with caplog.at_level(logging.ERROR, "stubserve"):
        asyncio.run(run())
