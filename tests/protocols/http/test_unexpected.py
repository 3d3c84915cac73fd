"""Faults of the server's own, met by a connection on a fake transport: its client is answered all the same."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.instances.memory import Memory
from stubserve.protocols.arrival import Arrivals
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.pressure import Pressure
from stubserve.protocols.stall import Pace
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
    """Echoes what is submitted at once, or fails as the test says."""

    version = 1

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.fault: Exception | None = None
        self.answer_fault = False

    def submit(self, request: Request) -> None:
        if self.fault is not None:
            raise self.fault
        tensor = request.inputs[0]
        output = Tensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data)
        if self.answer_fault:
            del output.shape
        request.on_response(request, Response([output]))

    def cancel(self, request: Request) -> None:
        pass


def serve() -> tuple[Model, HttpConnection, Transport, Connections]:
    memory, pressure = Memory(1 << 20), Pressure()
    model = Model(signature("echo", io("input", "INPUT0", "FP32", "-1") + io("output", "OUTPUT0", "FP32", "-1")))
    server = SimpleNamespace(
        find_model=lambda name, version: model,
        max_input_size=1 << 20,
        http_forwarding=None,
        grpc_port=0,
        heap=memory.heap,
        arrivals=Arrivals(memory, pressure, 1 << 19),
        pressure=pressure,
        pace=Pace(),
        send_timeout_s=0,
        idle_timeout_s=0,
        store=memory.store,
        block=memory.block,
    )
    shared = Connections(cast(Any, server))
    connection = HttpConnection(shared, cast(Any, None), cast(Any, SimpleNamespace(connections=set())), {})
    transport = Transport()
    connection.connection_made(cast(Any, transport))
    return model, connection, transport, shared


@pytest.mark.parametrize("where", ["submit", "answer"])
def test_a_request_that_meets_a_fault_between_others_is_answered(caplog: pytest.LogCaptureFixture, where: str) -> None:
    async def run() -> None:
        model, connection, transport, shared = serve()
        path, body, headers = binary_request("echo", np.arange(4, dtype=np.float32))
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

        def ask() -> tuple[int, bytes]:
            shared.scratch[: len(data)] = data
            connection.buffer_updated(len(data))
            return transport.answer()

        for _ in range(4):
            assert ask()[0] == 200
        model.fault = RuntimeError("a slip") if where == "submit" else None
        model.answer_fault = where == "answer"
        status, text = ask()
        assert status == 500
        assert "unexpected error" in json.loads(text)["error"]
        assert ("could not be submitted" if where == "submit" else "could not be encoded") in caplog.text
        model.fault, model.answer_fault = None, False
        assert ask()[0] == 200

    with caplog.at_level(logging.ERROR, "stubserve"):
        asyncio.run(run())
