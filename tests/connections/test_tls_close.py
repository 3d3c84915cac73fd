"""The end of a connection over TLS: a client that has everything is not waited for, and one that has not is."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from stubserve.connections import paced_transport


class Leaving(asyncio.Transport):
    """A transport over TLS that has been closed, or is not yet; what it sends goes through a real socket."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__({"ssl_object": object(), "socket": ours})
        self.closing = True
        self.looks = 0
        self.looked_often = asyncio.Event()
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        self.looks += 1
        if self.looks >= 5:
            self.looked_often.set()
        return self.closing

    def abort(self) -> None:
        self.aborted.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_transport, "ANSWER_S", 0.01)


def test_a_client_has_time_until_it_has_everything() -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"the rest of an answer")
            transport = Leaving(ours)
            paced_transport.ensure_closed(transport)
            await transport.looked_often.wait()
            assert not transport.aborted.is_set()
            theirs.recv(1000)
            await transport.aborted.wait()

    asyncio.run(check())


def test_what_is_not_closed_yet_goes_on() -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            transport = Leaving(ours)
            transport.closing = False
            paced_transport.ensure_closed(transport)
            await transport.looked_often.wait()
            assert not transport.aborted.is_set()
            transport.closing = True
            await transport.aborted.wait()

    asyncio.run(check())


def test_a_connection_that_has_gone_is_not_looked_at_again() -> None:
    async def check() -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        gone, plain = Leaving(ours), Leaving(ours)
        extra: Any = plain
        extra._extra["ssl_object"] = None
        ours.close()
        paced_transport.ensure_closed(gone)
        paced_transport.ensure_closed(plain)
        loop = asyncio.get_running_loop()
        later = loop.create_future()
        loop.call_later(paced_transport.ANSWER_S, later.set_result, None)
        await later
        assert (gone.looks, plain.looks) == (0, 0)

    asyncio.run(check())
