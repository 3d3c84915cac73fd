"""Messages that something is done to before their handler gets them."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace
from typing import Any, cast

from stubserve.grpc.http2.inbox import Message, MessageRefusal
from stubserve.grpc.http2.intake import Intake
from stubserve.inference.long_work import LARGE_BYTES, Offload
from stubserve.memory.server_memory import Memory


class Taker:
    """Ends its stream at the first refusal, as a stream does."""

    def __init__(self) -> None:
        self.intake: Intake
        self.taken: list[bytes] = []
        self.refusals: list[str] = []
        self.refused = asyncio.Event()

    def take(self, message: Message) -> None:
        self.taken.append(bytes(message.data))

    def refuse(self, refusal: MessageRefusal) -> None:
        self.intake.drop()
        self.refusals.append(str(refusal))
        self.refused.set()

    def ended_by_client(self) -> None:
        pass

    def grant(self) -> None:
        pass


def test_nobody_gets_a_message_behind_one_that_is_refused() -> None:
    """It has not been decompressed, or not been prepared as its method wants it."""

    async def run() -> Taker:
        memory = Memory(16 << 20)
        offload = Offload()
        server = SimpleNamespace(offload=offload, max_input_size=1 << 20, heap=memory.heap, block=memory.block)
        taker = Taker()
        intake = taker.intake = Intake(cast(Any, server), None, taker)
        whole = gzip.compress(b"whole")
        intake.add(Message(whole, compressed=True))
        intake.add(Message(b"\xff" * (LARGE_BYTES + 1), compressed=True))
        intake.add(Message(whole, compressed=True))
        intake.add(Message(b"plain"))
        await taker.refused.wait()
        assert not intake.busy
        assert not memory.heap.taken
        offload.close()
        return taker

    taker = asyncio.run(run())
    assert taker.taken == [b"whole"]
    assert len(taker.refusals) == 1
