"""What messages hold while they arrive, in a server's real memory; the clock is the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.connections.receive_buffers import FIRST_AHEAD, MOST_AHEAD, ReceiveBuffer, ReceiveBuffers
from stubserve.connections.slow_clients import RATE_S, SLOW_RATE, SlowClients
from stubserve.errors import ServeError
from stubserve.memory.server_memory import Memory
from tests.clock import Clock

MIB = 1 << 20
LIMIT = 64 * MIB


class Receiver:
    """A connection: lets go of its message when it is told to."""

    def __init__(self) -> None:
        self.buffer: ReceiveBuffer | None = None
        self.error: ServeError | None = None

    def give_up(self, error: ServeError) -> None:
        assert self.buffer is not None
        self.error = error
        self.buffer.drop()


class Server:
    """Memory with the rules over it."""

    def __init__(self) -> None:
        self.memory = Memory(LIMIT)
        clients = SlowClients()
        self.memory.make_room = clients.make_room
        self.receive_buffers = ReceiveBuffers(self.memory, clients, LIMIT // 2)

    @property
    def committed(self) -> int:
        return sum(self.memory.ledger.committed().values())

    def receive(self, length: int, connection: object = None, start: int = 0) -> Receiver:
        receiver = Receiver()
        receiver.buffer = self.receive_buffers.arena_buffer(connection or receiver, receiver, length, start)
        return receiver

    def collect(self) -> Receiver:
        receiver = Receiver()
        receiver.buffer = self.receive_buffers.heap_buffer(receiver, receiver)
        return receiver


@pytest.fixture
def server(clock: Clock) -> Iterator[Server]:
    server = Server()
    yield server
    assert server.memory.ingress.live_blocks == 0
    assert server.memory.heap.taken == 0


def fill(receiver: Receiver, upto: int) -> None:
    """Bytes arrive as a socket brings them: as many as there is place for."""
    buffer = receiver.buffer
    while buffer.moved < upto:
        place = buffer.rest
        count = min(len(place), upto - buffer.moved)
        assert count
        place[:count] = b"x" * count
        buffer.advance(count)


def test_a_claim_takes_next_to_nothing(server: Server) -> None:
    claims = [server.receive(LIMIT // 2) for _ in range(2)]
    for claim in claims:
        claim.buffer.add(memoryview(b"x"))
    assert server.committed <= len(claims) * FIRST_AHEAD
    server.memory.block(LIMIT // 4).drop()
    for claim in claims:
        claim.buffer.drop()


def test_memory_comes_ahead_of_the_bytes_but_not_far(server: Server) -> None:
    length = 7 * MIB
    one = server.receive(length, start=ALIGNMENT - 1)
    for upto in (1000, FIRST_AHEAD, MIB, 5 * MIB + 17, length - 1):
        fill(one, upto)
        assert server.committed <= upto + min(max(upto, FIRST_AHEAD), MOST_AHEAD) + 8192
    assert one.buffer.moved < one.buffer.length
    fill(one, length)
    assert one.buffer.moved == one.buffer.length
    assert bytes(one.buffer.view) == b"x" * length
    one.buffer.drop()
    # Whole and warm now: the next one of its size has all of its place at once.
    again = server.receive(length, start=ALIGNMENT - 1)
    assert len(again.buffer.rest) == length
    again.buffer.drop()


def test_what_was_given_up_in_the_middle_goes_back_to_the_system(server: Server) -> None:
    one = server.receive(32 * MIB)
    fill(one, 20 * MIB)
    one.buffer.drop()
    assert server.committed == 0


def test_who_trickles_yields_to_who_needs_memory(server: Server, clock: Clock) -> None:
    trickler = server.receive(48 * MIB)
    fill(trickler, 40 * MIB)
    clock.turns(10)
    fill(trickler, 40 * MIB + 100)
    quick = server.receive(48 * MIB)
    clock.turns(RATE_S)
    fill(quick, 20 * MIB)
    clock.turns(RATE_S)
    fill(trickler, 40 * MIB + 200)
    fill(quick, 48 * MIB)
    assert "the transfer was slow" in trickler.error.message
    assert "--shm-limit" in trickler.error.message
    quick.buffer.drop()


def test_the_slowest_goes_first_and_no_more_than_is_needed(server: Server, clock: Clock) -> None:
    slow, slower = server.receive(20 * MIB), server.receive(20 * MIB)
    fill(slow, 18 * MIB)
    fill(slower, 18 * MIB)
    clock.turns(10)
    fill(slow, 18 * MIB + 1)
    fill(slower, 18 * MIB + 1)
    clock.turns(10)
    fill(slow, 19 * MIB)
    fill(slower, 18 * MIB + 2)
    clock.turns(RATE_S / 2)
    server.memory.block(40 * MIB).drop()
    assert slower.error is not None
    assert slow.error is None
    slow.buffer.drop()


def test_who_is_quick_or_new_does_not_yield(server: Server, clock: Clock) -> None:
    quick, new = server.receive(40 * MIB), server.receive(40 * MIB)
    for step in range(1, 9):
        clock.turns(RATE_S)
        fill(quick, int(step * RATE_S * 2 * SLOW_RATE))
    fill(new, 20 * MIB)
    with pytest.raises(ServeError, match="--shm-limit"):
        server.memory.block(48 * MIB)
    assert quick.error is None
    assert new.error is None
    quick.buffer.drop()
    new.buffer.drop()


def test_a_message_that_needs_memory_does_not_yield_to_itself(server: Server, clock: Clock) -> None:
    block = server.memory.block(40 * MIB)
    one = server.receive(60 * MIB)
    fill(one, 10 * MIB)
    clock.turns(10)
    with pytest.raises(ServeError, match="--shm-limit"):
        fill(one, 60 * MIB)
    assert one.error is None
    one.buffer.drop()
    block.drop()


def test_several_of_one_connection_have_a_share_together(server: Server) -> None:
    connection = object()
    first, second = server.receive(30 * MIB, connection), server.receive(30 * MIB, connection)
    fill(first, 20 * MIB)
    with pytest.raises(ServeError, match="--connection-share"):
        fill(second, 30 * MIB)
    second.buffer.drop()
    # Alone it may hold what there is.
    fill(first, 30 * MIB)
    third = server.receive(48 * MIB, connection)
    first.buffer.drop()
    fill(third, 40 * MIB)
    third.buffer.drop()


def test_bytes_of_unknown_length_are_counted_and_yield_too(server: Server, clock: Clock) -> None:
    chunked = server.collect()
    for _ in range(40):
        chunked.buffer.add(bytes(MIB))
    assert server.memory.heap.taken == 40 * MIB
    clock.turns(10)
    server.memory.block(40 * MIB).drop()
    assert chunked.error is not None
    assert server.memory.heap.taken == 0


def test_who_takes_a_finished_message_takes_its_share(server: Server) -> None:
    chunked = server.collect()
    chunked.buffer.add(bytes(MIB))
    data, share = chunked.buffer.finish()
    assert len(data) == server.memory.heap.taken == MIB
    share.drop()


def test_nobody_yields_to_what_never_fits(server: Server, clock: Clock) -> None:
    slow = server.receive(40 * MIB)
    fill(slow, 30 * MIB)
    clock.turns(10)
    with pytest.raises(ServeError, match="--shm-limit"):
        server.memory.block(LIMIT + MIB)
    with pytest.raises(ServeError, match="--shm-limit"):
        server.receive(LIMIT + MIB)
    assert slow.error is None
    slow.buffer.drop()
