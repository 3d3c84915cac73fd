"""Messages that something is done to before their handler gets them."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any, cast

from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2.message import Message
from stubserve.grpc.http2.message_decoder import MessageDecoder
from stubserve.inference.long_work import LARGE_BYTES, Offload
from stubserve.memory.server_memory import Memory


def test_nobody_gets_a_message_behind_one_that_is_refused() -> None:
    """It has not been decompressed, or not been rewritten as its method wants it."""
    taken: list[bytes] = []
    refusals: list[str] = []

    async def run() -> None:
        memory = Memory(16 << 20)
        offload = Offload()
        server = SimpleNamespace(
            offload=offload,
            max_input_size=1 << 20,
            heap=memory.heap,
            block=memory.block,
            receive_buffers=ReceiveBuffers(memory, SlowClients(), 1 << 20),
        )
        refused = asyncio.Event()

        def over(refusal: BaseException | None) -> None:
            """Ends the stream at the first refusal, as a stream does."""
            assert refusal is not None
            messages.drop()
            refusals.append(str(refusal))
            refused.set()

        messages = MessageDecoder(cast(Any, server), None, lambda data, *_: taken.append(bytes(data)), over)
        whole = gzip.compress(b"whole")
        messages.add(Message(whole, compressed=True))
        messages.add(Message(b"\xff" * (LARGE_BYTES + 1), compressed=True))
        messages.add(Message(whole, compressed=True))
        messages.add(Message(b"plain"))
        await refused.wait()
        assert not messages.busy
        assert not memory.heap.taken
        offload.close()

    asyncio.run(run())
    assert taken == [b"whole"]
    assert len(refusals) == 1
