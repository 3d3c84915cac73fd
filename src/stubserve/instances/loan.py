"""Shared memory that a stub is granted and gives back, as it says so over its control socket."""

from __future__ import annotations

import asyncio
from typing import Any

from stubserve_stub.wire.budget import ArenaFull

from stubserve.instances.memory import Memory
from stubserve.instances.reclaim import Spare
from stubserve.instances.stub_memory import StubMemory
from stubserve.instances.stub_process import StubProcess


class Loan:
    """The loan of one stub, in its segment, whose accounts are `outputs`; `memory` is the server's."""

    def __init__(self, process: StubProcess, outputs: StubMemory, memory: Memory) -> None:
        self._process = process
        self._outputs = outputs
        self._memory = memory
        self._granting: set[asyncio.Task[None]] = set()
        self._spare = Spare(process, outputs)
        memory.reclaim.stubs.add(self._spare)

    def on_message(self, message: dict[str, Any]) -> bool:
        """Hears a control message; False for one that is about something else. Raises ValueError."""
        kind = message["kind"]
        if kind == "need":
            granting = asyncio.ensure_future(self._grant(_bytes_in(message["least"]), _bytes_in(message["most"])))
            self._granting.add(granting)
            granting.add_done_callback(self._granting.discard)
        elif kind == "returned":
            self._spare.on_returned(_bytes_in(message["nbytes"]), message["asked"])
            self._memory.reclaim.on_news()
        else:
            return False
        return True

    def on_idle(self) -> None:
        """The stub has had nothing to do for a while."""
        self._spare.on_idle()

    def close(self) -> None:
        """The stub is gone."""
        for granting in self._granting:
            granting.cancel()
        self._memory.reclaim.stubs.discard(self._spare)
        self._memory.reclaim.on_news()

    async def _grant(self, least: int, most: int) -> None:
        memory = self._memory
        error, nbytes = "", 0
        try:
            nbytes = await memory.reclaim.grant(self._outputs.index, least, most)
        except ArenaFull as full:
            error = f"{full}. {memory.usage()}"
        self._process.send("granted", nbytes=nbytes, error=error)


def _bytes_in(message: Any) -> int:
    """A number of bytes that a stub names. Raises ValueError if it is none."""
    if not isinstance(message, int) or message < 0:
        raise ValueError(f"{message!r} is no number of bytes")
    return message
