"""Connections with something unsent, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import socket

from stubserve.connections.sent_memory import unsent
from stubserve.connections.slow_clients import PAUSE_S, RATE_S, SlowClients
from stubserve.errors import ServeError
from tests.clock import Clock


class Sender:
    """A connection whose client reads as the test says."""

    def __init__(self, unsent: int) -> None:
        self.unsent = unsent
        self.given_up: ServeError | None = None
        self.timed_out = False

    def give_up(self, error: ServeError) -> None:
        self.given_up = error

    def send_timed_out(self) -> None:
        self.timed_out = True


def test_who_takes_nothing_is_closed_and_who_takes_a_byte_is_not(clock: Clock) -> None:
    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        stuck, slow, done = Sender(1000), Sender(1000), Sender(1000)
        for sender in (stuck, slow, done):
            clients.watch_unread(sender)
        done.unsent = 0
        for _ in range(14):
            clock.turns(5)
            slow.unsent -= 1
            clients.sweep()
        assert stuck.timed_out
        assert not slow.timed_out
        assert not done.timed_out

    asyncio.run(run())


def test_a_timeout_begins_anew_with_each_answer(clock: Clock) -> None:
    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        sender = Sender(1000)
        clients.watch_unread(sender)
        sender.unsent = 0
        clock.turns(50)
        clients.sweep()
        sender.unsent = 500
        clients.watch_unread(sender)
        clock.turns(50)
        clients.sweep()
        assert not sender.timed_out

    asyncio.run(run())


def test_who_does_not_read_yields_to_who_needs_memory(clock: Clock) -> None:
    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        stuck, quick, done = Sender(10 << 20), Sender(1 << 30), Sender(1000)
        for sender in (stuck, quick, done):
            clients.watch_unread(sender)
        done.unsent = 0
        clients.make_room()
        assert stuck.given_up is None  # it has only begun
        clock.turns(PAUSE_S)
        quick.unsent -= 100 << 20
        assert not clients.make_room()  # its memory comes back a little later
        assert stuck.given_up is not None
        clients.make_room()
        assert quick.given_up is None
        assert done.given_up is None

    asyncio.run(run())


def test_what_has_left_is_not_looked_at_any_more(clock: Clock) -> None:
    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        sender = Sender(1000)
        clients.watch_unread(sender)
        clients.unwatch_unread(sender)
        clients.unwatch_unread(sender)
        clock.turns(100)
        clients.sweep()
        clients.make_room()
        assert sender.given_up is None
        assert not sender.timed_out

    asyncio.run(run())


def test_an_answer_does_not_pay_for_the_time_since_the_one_before(clock: Clock) -> None:
    """A client that has read an answer asks again much later, on the same connection."""

    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        sender = Sender(4 << 20)
        clients.watch_unread(sender)
        sender.unsent = 0
        clock.turns(10 * PAUSE_S)
        sender.unsent = 4 << 20
        clients.watch_unread(sender)
        clients.make_room()
        assert sender.given_up is None
        clock.turns(PAUSE_S)
        clients.make_room()
        assert sender.given_up is not None

    asyncio.run(run())


def test_a_client_is_not_slow_because_the_event_loop_was(clock: Clock) -> None:
    """While the loop does something else nothing is sent, so nothing can be read, for however long that is."""

    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        sender = Sender(64 << 20)
        clients.watch_unread(sender)
        for _ in range(10):
            clock.stands(100)
            clients.make_room()
            clients.sweep()
            assert sender.given_up is None
            assert not sender.timed_out
            # A turn of the loop, in which the client gets more and takes it
            clock.turns(RATE_S / 2)
            sender.unsent -= 1 << 20
        clients.make_room()
        clock.turns(PAUSE_S)
        clients.make_room()
        assert sender.given_up is not None

    asyncio.run(run())


def test_a_client_is_not_slow_because_more_was_written_to_it(clock: Clock) -> None:
    """A stream of messages, of which as many are made as are taken."""

    async def run() -> None:
        clients = SlowClients(send_timeout_s=60)
        sender = Sender(1 << 20)
        clients.watch_unread(sender)
        for _ in range(10):
            clock.turns(PAUSE_S)
            sender.unsent += 10 << 20
            clients.wrote_more(sender, 10 << 20)
            sender.unsent -= 10 << 20
            clients.sweep()
            clients.make_room()
            assert sender.given_up is None
        clock.turns(PAUSE_S)
        clients.make_room()
        assert sender.given_up is not None

    asyncio.run(run())


class Writing(asyncio.Transport):
    """A transport over a real socket, with so much that waits in front of it."""

    def __init__(self, ours: socket.socket, waiting: int) -> None:
        super().__init__({"socket": ours})
        self.waiting = waiting

    def get_write_buffer_size(self) -> int:
        return self.waiting


def test_what_the_kernel_holds_for_a_client_is_not_taken_yet() -> None:
    """A client that reads is seen to read before there is room in the socket for more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        theirs.connect(listener.getsockname())
        ours, _ = listener.accept()
        with ours, theirs:
            ours.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += ours.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            transport = Writing(ours, 1000)
            before = unsent(transport)
            assert 1000 < before <= 1000 + sent
            theirs.setblocking(True)
            left = 200_000
            while left:
                left -= len(theirs.recv(left))
            assert unsent(transport) < before
            # Where nothing waits here, nothing is held for it.
            transport.waiting = 0
            assert unsent(transport) == 0
