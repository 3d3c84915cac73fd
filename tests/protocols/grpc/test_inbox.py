"""What a stream's messages are received into."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

from stubserve.protocols.grpc.http2.inbox import SMALL_BYTES, Inbox


def test_a_message_takes_memory_as_it_comes() -> None:
    """A client can promise 4 KB on each of a thousand streams, with five bytes each."""
    inboxes = [Inbox(cast(Any, None), 0, cast(Any, None)) for _ in range(200)]
    prefix = b"\0" + SMALL_BYTES.to_bytes(4, "big")
    tracemalloc.start()
    for inbox in inboxes:
        assert not list(inbox.feed(memoryview(prefix + b"x")))
        assert inbox.partial
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000


def test_messages_in_pieces() -> None:
    messages = [b"", b"a" * 1000, b"b" * SMALL_BYTES, b"c"]
    sent = b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
    for size in (1, 3, 5, 7, 1000, len(sent)):
        inbox = Inbox(cast(Any, None), 0, cast(Any, None))
        found = [
            message.data for at in range(0, len(sent), size) for message in inbox.feed(memoryview(sent[at : at + size]))
        ]
        assert found == messages
        assert not inbox.partial
