"""The memory that a stub puts its outputs into: its own segment's heap, against what the server has granted it.

What is used again and again costs no message. A stub that needs more than it has been granted asks the server, which
may have to ask other stubs for theirs first, and waits for the answer. What it does not need any more it gives back:
by itself where it is much, and all of it when the server asks, because others need memory or the stub is idle. Then the
control thread does it, for the main thread may be in `execute` for long.

A block is one output as a rule. One that holds the outputs of several requests, which were computed as one, is `split`:
each part is freed for itself, and the last one frees the block.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Dict, List, Optional, Sequence

from stubserve_stub.runtime.control import Control
from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.budget import ArenaFull, NotGranted
from stubserve_stub.wire.places import InArena
from stubserve_stub.wire.stub_arena import StubArena

# What a stub asks for at least, and keeps although it does not use it: it would have to ask again.
_GRAIN = 4 << 20


class OutputMemory:
    """The memory of one stub's outputs. Until `connect` there is only what `arena.grant` has from the start. Safe on
    any thread."""

    def __init__(self, arena: StubArena) -> None:
        self._arena = arena
        self._retain = min(64 << 20, arena.limit // 16)
        self._grain = min(_GRAIN, arena.limit // 64)
        self._allocator = Allocator(arena, arena.own, self._retain)
        self._guard = threading.Lock()
        # The parts of blocks that have been split: their block and how many of its parts are left, which they share
        self._parts: Dict[int, List[int]] = {}
        self._control: Optional[Control] = None
        # One asks at a time; and what the server says to that
        self._asking = threading.Lock()
        self._answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()

    def connect(self, control: Control) -> None:
        """From now on the server can be asked for memory, and may ask for it."""
        self._control = control
        control.handle("granted", self._answers.put)
        control.handle("give_back", lambda message: self.give_back(message["frees"]))

    def renew_locks(self) -> None:
        """In a process that was forked from the stub's: another thread may have held them at the fork."""
        self._guard, self._asking = threading.Lock(), threading.Lock()

    @property
    def live_blocks(self) -> int:
        """How many outputs the server has not freed."""
        return self._allocator.live_blocks

    def place(self, data: Any) -> InArena:
        """Copies contiguous bytes into the stub's segment. Raises ArenaFull."""
        source = memoryview(data).cast("B")
        offset = self.reserve(source.nbytes)
        self._arena.view(offset, source.nbytes)[:] = source
        return InArena(offset, source.nbytes)

    def reserve(self, nbytes: int) -> int:
        """Where there is room in the stub's segment for an output that is still to be written. Raises ArenaFull."""
        while True:
            try:
                with self._guard:
                    return self._allocator.allocate(nbytes)
            except NotGranted as short:
                missing = short.nbytes
            self._get(missing)

    def split(self, block: int, parts: Sequence[int]) -> None:
        """From now on a block is freed in parts: by the offsets at which they begin, of which each is another one."""
        shared = [block, len(parts)]
        with self._guard:
            for part in parts:
                self._parts[part] = shared

    def free(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs."""
        if not offsets:
            return
        grant = self._arena.grant
        with self._guard:
            self._free(offsets)
            surplus = grant.slack - self._grain
            if surplus > 0:
                grant.slack -= surplus
        if surplus > 0 and self._control is not None:
            self._control.send("returned", nbytes=surplus, asked=False)

    def give_back(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs, and wants back whatever is not used."""
        grant = self._arena.grant
        with self._guard:
            self._free(offsets)
            self._allocator.trim()
            slack, grant.slack = grant.slack, 0
        assert self._control is not None
        self._control.send("returned", nbytes=slack, asked=True)

    def _free(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if self._parts:
                shared = self._parts.pop(offset, None)
                if shared is not None:
                    offset, left = shared[0], shared[1] - 1
                    shared[1] = left
                    if left:
                        continue
            self._allocator.free(offset)

    def _get(self, missing: int) -> None:
        """Gets more granted, or makes room of what is kept warm. Raises ArenaFull.

        Not with the lock held: the thread that hears the answer may need it first.
        """
        grant = self._arena.grant
        if self._control is None:
            raise ArenaFull("no room for {} bytes in shared memory: there is no server to ask for it".format(missing))
        with self._asking:
            self._control.send("need", least=missing, most=max(missing, self._grain))
            answer = self._answers.get()
        with self._guard:
            if not answer["error"]:
                grant.slack += answer["nbytes"]
                return
            before = grant.slack
            self._allocator.trim()
            if grant.slack - before < missing:
                raise ArenaFull(answer["error"])
