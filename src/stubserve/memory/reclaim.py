"""Memory that stubs are granted and give back, and when the server asks for it.

A stub keeps free memory warm for its next outputs, and does not know at once that its last ones have been read. So
before memory is refused, all stubs that may have spare memory are asked for it; an idle stub is asked, too. They answer
within a millisecond and 80 µs for each megabyte, on a thread that is free while their model computes.

A stub that needs memory waits for that (`grant`), for seconds if need be, while everything else goes on. Code that
receives a request cannot: `wait` blocks the event loop, for LONGEST_WAIT_S at most. It waits only if the answers may
suffice, and not for a stub that still owes an answer (its model may be in native code that lets no other thread run).
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Any

from stubserve_stub.wire.budget import ArenaFull, Ledger

from stubserve.memory.stub_memory import StubMemory

LONGEST_WAIT_S = 0.1
# Longer than a busy machine keeps a stub from a processor: memory that is only kept warm fails no request.
_LONGEST_GRANT_WAIT_S = 5.0

# Fewer bytes are not worth a message.
_LEAST_BYTES = 64 << 10


class StubGrant:
    """The memory that a seat of a stub is granted and gives back, in its segment. `outputs` are the accounts of this.

    `send` sends the stub a control message. `read` takes the stub's own messages, which arrive on the descriptor
    `fileno`. `asked`: the stub has been asked for its spare memory, and has not answered.
    """

    def __init__(
        self,
        outputs: StubMemory,
        reclaim: Reclaim,
        usage: Callable[[], str],
        send: Callable[..., None],
        fileno: Callable[[], int],
        read: Callable[[], None],
    ) -> None:
        self._outputs = outputs
        self._reclaim = reclaim
        self._usage = usage
        self._send = send
        self.fileno = fileno
        self.read = read
        self.asked = False
        self._granting: set[asyncio.Task[None]] = set()
        reclaim.stubs.add(self)

    @property
    def index(self) -> int:
        """The stub's segment."""
        return self._outputs.index

    @property
    def spare_bytes(self) -> int:
        """About how much the stub could give back, 0 if that is not worth a message."""
        unused = self._outputs.unused_bytes
        return unused if unused >= _LEAST_BYTES else 0

    def ask_back(self) -> None:
        """Asks for all spare memory, unless an answer is still due."""
        if not self.asked:
            self.asked = True
            self._send("give_back", frees=self._outputs.take_frees())

    def on_idle(self) -> None:
        """The stub has been idle for a while: others may need the memory that it keeps warm."""
        if self.spare_bytes:
            self.ask_back()

    def on_message(self, message: dict[str, Any]) -> bool:
        """Handles a control message; False if the message is about something else. Raises ValueError."""
        kind = message["kind"]
        if kind == "need":
            granting = asyncio.ensure_future(self._grant(_bytes_in(message["least"]), _bytes_in(message["most"])))
            self._granting.add(granting)
            granting.add_done_callback(self._granting.discard)
        elif kind == "returned":
            self._outputs.returned(_bytes_in(message["nbytes"]))
            if message["asked"]:
                self.asked = False
            self._reclaim.on_news()
        else:
            return False
        return True

    def close(self) -> None:
        for granting in self._granting:
            granting.cancel()
        self._reclaim.stubs.discard(self)
        self._reclaim.on_news()

    async def _grant(self, least: int, most: int) -> None:
        error, nbytes = "", 0
        try:
            nbytes = await self._reclaim.grant(self.index, least, most)
        except ArenaFull as full:
            error = f"{full}. {self._usage()}"
        self._send("granted", nbytes=nbytes, error=error)


def _bytes_in(message: Any) -> int:
    """A number of bytes in a stub's message. Raises ValueError if it is no such number."""
    if not isinstance(message, int) or message < 0:
        raise ValueError(f"{message!r} is no number of bytes")
    return message


class Reclaim:
    """Asks stubs for memory back; `stubs` are the current ones."""

    def __init__(self, ledger: Ledger) -> None:
        self.stubs: set[StubGrant] = set()
        self._ledger = ledger
        self._news = asyncio.Event()

    def on_news(self) -> None:
        """A stub has given memory back, or is gone."""
        self._news.set()

    def wait(self, nbytes: int) -> bool:
        """Blocks until there is room for `nbytes`, if stubs can give that much. Returns whether there is room."""
        ledger = self._ledger
        waiting = [stub for stub in self._who_could_give(nbytes) if not stub.asked]
        if ledger.left + sum(stub.spare_bytes for stub in waiting) < nbytes:
            return False
        poll = select.poll()
        for stub in waiting:
            stub.ask_back()
            poll.register(stub.fileno(), select.POLLIN)
        deadline = time.monotonic() + LONGEST_WAIT_S
        while waiting and ledger.left < nbytes:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for descriptor, event in poll.poll(left * 1000):
                # Several, if they are seats of one stub
                there = [stub for stub in waiting if stub.fileno() == descriptor]
                there[0].read()
                if event != select.POLLIN or not any(stub.asked for stub in there):
                    poll.unregister(descriptor)
                    waiting = [stub for stub in waiting if stub not in there]
        return ledger.left >= nbytes

    async def grant(self, index: int, least: int, most: int) -> int:
        """Commits `least` to `most` bytes for a segment, once others gave some; returns the sum. Raises ArenaFull."""
        ledger = self._ledger
        if ledger.left < least:
            waiting = [stub for stub in self._who_could_give(least) if stub.index != index]
            for stub in waiting:
                stub.ask_back()
            deadline = time.monotonic() + _LONGEST_GRANT_WAIT_S
            while ledger.left < least and any(stub.asked and stub in self.stubs for stub in waiting):
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), deadline - time.monotonic())
                except asyncio.TimeoutError:
                    break
        granted = most if most <= ledger.left else least
        ledger.commit(index, granted)
        return granted

    def _who_could_give(self, nbytes: int) -> list[StubGrant]:
        """The stubs with spare memory; none if all of it would not be enough."""
        stubs = [stub for stub in self.stubs if stub.spare_bytes]
        return stubs if self._ledger.left + sum(stub.spare_bytes for stub in stubs) >= nbytes else []
