"""What the reader needs of the connection that it reads for."""

from __future__ import annotations

import asyncio
from typing import Protocol

from stubserve.http.head import RequestHead
from stubserve.http.reply import Reply
from stubserve.http.state import ConnectionState
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapShare


class Exchange(Protocol):
    """One client's requests, one after the other, and their answers."""

    transport: asyncio.Transport
    state: ConnectionState
    head: RequestHead
    closing: bool
    write_paused: bool

    def __hash__(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    def can_read(self) -> bool:
        """Whether another request may be read."""

    def infer(
        self, body: bytes | memoryview, block: Block | None, offset: int, share: HeapShare | None = None
    ) -> object:
        """Starts the call of `head` with its complete body, which may lie in the arena: in `block`, at `offset`.

        What is counted of it in the heap's account, in `share`, is the call's from now on.
        """

    def pass_on(self, data: bytes, last: bool) -> None:
        """Passes on the bytes of a request that is not inference, or some of them."""

    def reply(self, reply: Reply) -> None:
        """Answers the request at hand."""

    def done(self) -> None:
        """The request at hand is answered; on to the next."""

    def answer_and_close(self, status: int, message: str) -> None:
        """Answers what cannot be followed by another request."""

    def stalled(self) -> None:
        """The client does not send the rest of its request, or too slowly."""
