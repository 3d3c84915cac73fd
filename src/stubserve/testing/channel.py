"""A channel in place of the rings: responses go into a queue, and tensors are copied into their messages."""

from __future__ import annotations

import queue
from typing import Any

from stubserve_stub.api.sender import Key, Senders
from stubserve_stub.runtime.outputs import InMessages


class LocalChannel(InMessages):
    """The stub's classes use it as they use `stubserve_stub.runtime.channel.Channel`.

    `news` gets (key, wire response or None, whether it is final), and None when a sender was dropped. It may be put
    into by a destructor, hence the simple queue.
    """

    def __init__(self) -> None:
        self.news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.senders: Senders | None = None

    def respond(self, key: Key, start_ns: int, wire: Any, acknowledge: bool) -> None:
        self.news.put((key, wire, False))
        if acknowledge and self.senders is not None:
            # Whoever reads here is never behind.
            self.senders.acknowledge(key)

    def respond_last(self, key: Key, start_ns: int, wire: Any, tensors: list[Any]) -> None:
        self.news.put((key, wire, True))

    def poke(self) -> None:
        self.news.put(None)
