"""Memory that stubs have been granted and do not use, when somebody else needs it.

A stub keeps free memory warm for its next outputs, and does not know at once that its last ones have been read. So
before anybody is refused memory, the stubs that could have some to spare are asked for all of it, and so is one that is
idle. They answer on a thread that is free while their model computes, within a millisecond and 80 µs for each megabyte.

A stub that needs memory waits for that (`grant`), while everything else goes on. Code that takes a request in cannot:
`wait` blocks the event loop, for LONGEST_WAIT_S at most, only when enough could come of it, and not for a stub that
still owes an answer (its model may be in native code that lets no other thread run).
"""

from __future__ import annotations

import asyncio
import select
import time

from stubserve_stub.wire.budget import Ledger

from stubserve.instances.stub_memory import StubMemory
from stubserve.instances.stub_process import StubProcess

LONGEST_WAIT_S = 0.1
_LONGEST_GRANT_WAIT_S = 1.0

# Less is not worth a message.
_LEAST_BYTES = 64 << 10


class Spare:
    """What one stub may have to spare. `asked` is whether it has been asked for it, and has not answered."""

    def __init__(self, process: StubProcess, outputs: StubMemory) -> None:
        self._process = process
        self._outputs = outputs
        self.asked = False

    @property
    def index(self) -> int:
        """The stub's segment."""
        return self._outputs.index

    @property
    def nbytes(self) -> int:
        """About how much it could be, 0 where that is not worth a message."""
        unused = self._outputs.unused_bytes
        return unused if unused >= _LEAST_BYTES else 0

    def ask_back(self) -> None:
        """Asks for all of it, unless an answer is still due."""
        if not self.asked:
            self.asked = True
            self._process.send("give_back", frees=self._outputs.take_frees())

    def on_idle(self) -> None:
        """The stub has had nothing to do for a while: what it keeps warm, others may need."""
        if self.nbytes:
            self.ask_back()

    def on_returned(self, nbytes: int, asked: bool) -> None:
        """The stub gives something back, because it was asked or by itself."""
        self._outputs.returned(nbytes)
        if asked:
            self.asked = False

    def fileno(self) -> int:
        """Where its answer comes in."""
        return self._process.control_fileno()

    def read(self) -> None:
        """Takes what the stub has sent by now."""
        self._process.read_messages()


class Reclaim:
    """Asks stubs for memory back; `stubs` are those that there are."""

    def __init__(self, ledger: Ledger) -> None:
        self.stubs: set[Spare] = set()
        self._ledger = ledger
        self._news = asyncio.Event()

    def on_news(self) -> None:
        """A stub has given something back, or is gone."""
        self._news.set()

    def wait(self, nbytes: int) -> bool:
        """Blocks until there is room for `nbytes`, if that is to be had; whether there is."""
        ledger = self._ledger
        waiting = {stub.fileno(): stub for stub in self._who_could_give(nbytes) if not stub.asked}
        if ledger.left + sum(stub.nbytes for stub in waiting.values()) < nbytes:
            return False
        poll = select.poll()
        for descriptor, stub in waiting.items():
            stub.ask_back()
            poll.register(descriptor, select.POLLIN)
        deadline = time.monotonic() + LONGEST_WAIT_S
        while waiting and ledger.left < nbytes:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for descriptor, event in poll.poll(left * 1000):
                waiting[descriptor].read()
                if event != select.POLLIN or not waiting[descriptor].asked:
                    poll.unregister(descriptor)
                    del waiting[descriptor]
        return ledger.left >= nbytes

    async def grant(self, index: int, least: int, most: int) -> int:
        """Commits from `least` to `most` bytes for a stub's segment, when others have given some back: how many.

        Raises ArenaFull.
        """
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

    def _who_could_give(self, nbytes: int) -> list[Spare]:
        """The stubs with something to spare; none, where all of it would not be enough."""
        stubs = [stub for stub in self.stubs if stub.nbytes]
        return stubs if self._ledger.left + sum(stub.nbytes for stub in stubs) >= nbytes else []
