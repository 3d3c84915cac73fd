"""Who of those that connect comes in first, over real sockets and a real event loop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from stubserve.connections import listening
from stubserve.connections.listening import Acceptor, listen
from stubserve.http.message import has_asked
from stubserve.inference.long_work import Offload

from ..real_server import PATIENCE_S

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Held(Offload):
    """Turns come when they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Callable[[], object]] = []

    def in_turn(self, act: Callable[[], object]) -> None:
        self.turns.append(act)

    def next(self) -> None:
        self.turns.pop(0)()


class House:
    """An acceptor, the connections that have come in by it in their order, and their clients."""

    def __init__(self, listener: socket.socket) -> None:
        self.offload = Held()
        self.listener = listener
        self.inside: list[int] = []
        self.clients: list[socket.socket] = []
        self._news = asyncio.Event()
        house = self

        class Guest(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = cast(asyncio.Transport, transport)
                house.inside.append(transport.get_extra_info("peername")[1])
                house._news.set()

            def data_received(self, data: bytes) -> None:
                self.transport.write(b"got " + data)

        self.acceptor = Acceptor(self.listener, Guest, has_asked, self.offload)

    def connect(self, says: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.listener.getsockname())
        self.clients.append(client)
        client.sendall(says)
        return client

    async def has_in(self, *clients: socket.socket) -> None:
        """Waits until just these are in, in this order."""
        wanted = [client.getsockname()[1] for client in clients]
        while len(self.inside) < len(wanted):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), PATIENCE_S)
        assert self.inside == wanted

    async def has_outside(self, count: int) -> None:
        while len(self.acceptor._outside) != count:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)


def run(act: Callable[[House], Awaitable[None]], listener: socket.socket | None = None) -> None:
    async def whole() -> None:
        house = House(listener or listen("127.0.0.1", 0))
        try:
            await act(house)
        finally:
            house.acceptor.close()
            house.acceptor.close()
            await house.acceptor.wait_closed()
            house.listener.close()
            for client in house.clients:
                client.close()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_S))


def test_who_goes_in_the_middle_of_a_head_is_let_go_without_a_turn() -> None:
    """Whether it has been looked at before, or has come and gone since; who has asked all is answered all the same."""

    async def act(house: House) -> None:
        seen = [house.connect(HEAD[:-2]) for _ in range(20)]
        await house.has_outside(20)
        stays = house.connect(HEAD[:3])
        asks = house.connect(HEAD)
        await house.has_in(asks)
        for client in seen[:10]:
            client.close()
        await house.has_outside(11)
        for client in seen[10:]:
            client.shutdown(socket.SHUT_WR)
        await house.has_outside(1)
        for _ in range(20):
            house.connect(HEAD[:10]).close()
        last = house.connect(HEAD)
        last.shutdown(socket.SHUT_WR)
        await house.has_in(asks, last)
        await house.has_outside(1)
        assert last.recv(100) == b"got " + HEAD
        house.offload.next()
        await house.has_in(asks, last, stays)

    run(act)


def test_who_has_asked_comes_in_before_those_who_have_not() -> None:
    async def act(house: House) -> None:
        quiet = [house.connect() for _ in range(100)]
        halves = [house.connect(HEAD[:-2]) for _ in range(10)]
        await house.has_outside(110)
        asks = house.connect(HEAD)
        await house.has_in(asks)
        late = quiet[70]
        late.sendall(HEAD)
        await house.has_in(asks, late)
        assert late.recv(100) == b"got " + HEAD
        # Half a head is a reason to wait; the turns are those of the oldest.
        house.offload.next()
        house.offload.next()
        await house.has_in(asks, late, *quiet[:2])
        await house.has_outside(107)
        assert len(house.offload.turns) == 1
        assert halves[0].getsockname()[1] not in house.inside

    run(act)


def test_what_will_never_be_a_request_comes_in_too() -> None:
    async def act(house: House) -> None:
        garbage = house.connect(b"\x16\x03\x01")
        await house.has_in(garbage)
        long = house.connect(b"GET /" + b"a" * listening._HEAD_BYTES)
        await house.has_in(garbage, long)

    run(act)


def test_silent_clients_that_have_gone_take_no_place() -> None:
    """They are closed where they are, so that a request behind them comes in first."""

    async def act(house: House) -> None:
        stays = house.connect()
        gone = [house.connect() for _ in range(20)]
        await house.has_outside(21)
        for client in gone:
            client.close()
        asks = house.connect(HEAD)
        await house.has_in(asks)
        await house.has_outside(1)
        house.offload.next()
        await house.has_in(asks, stays)

    run(act)


def test_a_closed_acceptor_turns_away_who_is_outside() -> None:
    async def act(house: House) -> None:
        quiet = house.connect()
        await house.has_outside(1)
        house.acceptor.close()
        quiet.settimeout(PATIENCE_S)
        assert await asyncio.to_thread(quiet.recv, 1) == b""
        house.offload.next()
        assert not house.inside

    run(act)


def test_without_descriptors_it_tries_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listening, "_PAUSE_S", 0.0)

    class Listener(socket.socket):
        """A listening socket that cannot accept at first."""

        failures = 3

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def act(house: House) -> None:
        await house.has_in(house.connect(HEAD))

    good = listen("127.0.0.1", 0)
    run(act, Listener(good.family, good.type, good.proto, good.detach()))
    assert caplog.text.count("no connection can be accepted: Too many open files") == 1


def test_long_passes_of_the_loop_accept_and_look_at_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the time of this clock, accepting one connection takes 10 µs, and each pass of the loop 50 ms besides."""
    seconds = 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 1e-5
        return seconds

    monkeypatch.setattr(listening, "perf_counter", clock)

    async def act(house: House) -> None:
        loop = asyncio.get_running_loop()
        passes = 0

        def one_pass() -> None:
            nonlocal passes, seconds
            passes += 1
            seconds += 0.05
            loop.call_soon(one_pass)

        for _ in range(1000):
            house.connect()
        loop.call_soon(one_pass)
        await house.has_outside(1000)
        # 600 in each, where it were 100.
        assert passes <= 4
        # Then all go at once. Four are looked at in 10 µs.
        passes = 0
        for client in house.clients:
            client.close()
        await house.has_outside(0)
        assert passes <= 2

    run(act)
