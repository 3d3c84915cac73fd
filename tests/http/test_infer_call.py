"""What an inference call over HTTP holds, and for how long: what no client can tell."""

from __future__ import annotations

import asyncio
import gzip
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.api.forwarded_headers import HeaderForwarding
from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.errors import ServeError
from stubserve.http.infer import HttpInferCall
from stubserve.http.message import Reply
from stubserve.inference.long_work import LARGE_BYTES, Offload
from stubserve.inference.request import Request
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.trace import ModelTracing
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapAccount
from stubserve.memory.server_memory import Memory as ServerMemory
from tests.http.arena import Memory
from tests.inference.models import echo


class Model:
    """Takes requests."""

    tracing = ModelTracing()
    statistics = ModelStatistics()
    signature = echo("m", "UINT8", "-1")

    def __init__(self) -> None:
        self.submitted: list[Request] = []

    def submit(self, request: Request) -> None:
        self.submitted.append(request)


def call_of(model: Model, memory: Memory, replies: list[Reply], forwarding: Any = None, **head: Any) -> HttpInferCall:
    fields = {"content_encoding": None, "accept_encoding": None, "header_length": None, "infer": None, "headers": []}
    server = SimpleNamespace(
        offload=Offload(),
        heap=HeapAccount(cast(Any, SimpleNamespace(commit=lambda nbytes: None, uncommit=lambda nbytes: None))),
        max_input_size=1 << 24,
        store=memory.store,
        regions=None,
        http_forwarding=forwarding,
        block=None,
        receive_buffers=ReceiveBuffers(ServerMemory(1 << 24), SlowClients(), 1 << 24),
    )
    request_head = SimpleNamespace(**{**fields, **head})
    return HttpInferCall(cast(Any, model), cast(Any, request_head), cast(Any, server), replies.append)


def body_of(size: int) -> tuple[bytes, bytes]:
    """The head's header, and the body with a tensor of so many bytes."""
    tensor = {"name": "IN", "datatype": "UINT8", "shape": [size], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    return str(len(text)).encode(), text + bytes(size)


def test_a_header_that_may_not_be_forwarded_leaves_nothing() -> None:
    memory = Memory()
    length, body = body_of(100_000)
    headers = [(b"timeout", b"7")]
    call = call_of(Model(), memory, [], HeaderForwarding("timeout"), header_length=length, headers=headers)
    with pytest.raises(ServeError, match="is reserved for Triton usage"):
        call.start(body, None, 0)
    assert memory.allocator.live_blocks == 0


def test_a_compressed_body_is_held_while_it_is_unpacked() -> None:
    async def run() -> None:
        memory, model = Memory(), Model()
        length, body = body_of(2 * LARGE_BYTES)
        packed = gzip.compress(body)
        released: list[Block] = []
        block = Block(0, len(packed), memoryview(packed), released.append)
        call = call_of(model, memory, [], header_length=length, content_encoding=b"gzip")
        call.start(block.view, block, 0)
        block.drop()
        assert not released
        done = asyncio.Event()
        assert call.jobs is not None
        call.jobs.add(None, lambda nothing: done.set())
        await done.wait()
        assert released == [block]
        [request] = model.submitted
        assert request.inputs[0].nbytes == 2 * LARGE_BYTES

    asyncio.run(run())
