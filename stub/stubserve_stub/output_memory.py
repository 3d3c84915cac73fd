"""The memory that a stub puts its outputs into: its own segment's heap, against what the server has granted it.

What is used again and again costs no message. A stub that needs more than it has been granted asks the server, which
may have to ask other stubs for theirs first, and waits for the answer. What it does not need any more it gives back:
by itself where it is much, and all of it when the server asks, because others need memory or the stub is idle. Then the
control thread does it, for the main thread may be in `execute` for long.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, Sequence, Tuple

from stubserve_stub.wire.allocator import Allocator
from stubserve_stub.wire.budget import ArenaFull, NotGranted
from stubserve_stub.wire.stub_arena import StubArena

# What a stub asks for at least, and keeps although it does not use it: it would have to ask again.
_GRAIN = 4 << 20


class OutputMemory:
    """One stub's. Nothing is granted until `connect`. Safe on any thread."""

    def __init__(self, arena: StubArena) -> None:
        self._arena = arena
        self._retain = min(64 << 20, arena.limit // 16)
        self._grain = min(_GRAIN, arena.limit // 64)
        self._allocator = Allocator(arena, arena.own, self._retain)
        self._guard = threading.Lock()
        self._ask: Callable[..., Dict[str, Any]] = _nobody_to_ask
        self._send: Callable[..., None] = lambda *_, **__: None

    def connect(self, ask: Callable[..., Dict[str, Any]], send: Callable[..., None]) -> None:
        """From now on the server can be asked (`Questions.answer_to`), and told by control messages."""
        self._ask, self._send = ask, send

    def renew_lock(self) -> None:
        """In a process that was forked from the stub's: another thread may have held the lock at the fork."""
        self._guard = threading.Lock()

    @property
    def live_blocks(self) -> int:
        """How many outputs the server has not freed."""
        return self._allocator.live_blocks

    def place(self, data: Any) -> Tuple[int, int]:
        """Copies contiguous bytes into the stub's segment: (offset, nbytes). Raises ArenaFull."""
        source = memoryview(data).cast("B")
        while True:
            try:
                with self._guard:
                    offset = self._allocator.allocate(source.nbytes)
                break
            except NotGranted as short:
                missing = short.nbytes
            self._get(missing)
        self._arena.view(offset, source.nbytes)[:] = source
        return offset, source.nbytes

    def free(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs."""
        if not offsets:
            return
        grant = self._arena.grant
        with self._guard:
            for offset in offsets:
                self._allocator.free(offset)
            surplus = grant.slack - self._grain
            if surplus > 0:
                grant.slack -= surplus
        if surplus > 0:
            self._send("returned", nbytes=surplus, asked=False)

    def give_back(self, offsets: Sequence[int]) -> None:
        """The server is done with these outputs, and wants back whatever is not used."""
        grant = self._arena.grant
        with self._guard:
            for offset in offsets:
                self._allocator.free(offset)
            self._allocator.trim()
            slack, grant.slack = grant.slack, 0
        self._send("returned", nbytes=slack, asked=True)

    def _get(self, missing: int) -> None:
        """Gets more granted, or makes room of what is kept warm. Raises ArenaFull.

        Not with the lock held: the thread that hears the answer may need it first.
        """
        grant = self._arena.grant
        answer = self._ask("memory", least=missing, most=max(missing, self._grain))
        with self._guard:
            if "error" not in answer:
                grant.slack += answer["value"]
                return
            before = grant.slack
            self._allocator.trim()
            if grant.slack - before < missing:
                raise ArenaFull(answer["error"])


def _nobody_to_ask(*_: Any, **__: Any) -> Dict[str, Any]:
    return {"error": "there is no server to ask for memory before 'initialize'"}
