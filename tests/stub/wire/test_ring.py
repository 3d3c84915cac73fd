"""The ring: order, wrapping, fullness, and two real processes on its ends."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubserve_stub.wire.layout import RING_BYTES
from stubserve_stub.wire.ring import MAX_RECORD, SPILLED, RingBroken, RingReader, RingWriter, poke, read_doorbell

WORDS_BYTES = 4096


def ring() -> tuple[RingWriter, RingReader, int]:
    memory = memoryview(mmap.mmap(-1, WORDS_BYTES + RING_BYTES))
    doorbell = os.eventfd(0)
    return (*ends(memory, doorbell), doorbell)


def ends(memory: memoryview, doorbell: int) -> tuple[RingWriter, RingReader]:
    words, records = memory[:WORDS_BYTES].cast("Q"), memory[WORDS_BYTES:]
    return RingWriter(records, words, 5, doorbell), RingReader(records, words, 5)


def take(reader: RingReader, count: int) -> list[tuple[bytes, int]]:
    return reader.take(count, lambda data, flags: (bytes(data), flags))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, MAX_RECORD), st.booleans()), max_size=200))
def test_what_goes_in_comes_out_in_order(records: list[tuple[int, bool]]) -> None:
    writer, reader, doorbell = ring()
    sent: list[tuple[bytes, int]] = []
    got: list[tuple[bytes, int]] = []
    for number, (size, spilled) in enumerate(records):
        message = bytes([number % 251]) * size
        flags = SPILLED if spilled else 0
        if not writer.put(message, flags):
            writer.announce()
            got += take(reader, read_doorbell(doorbell)[0])
            assert writer.put(message, flags)
        sent.append((message, flags))
    writer.announce()
    if len(got) < len(sent):
        got += take(reader, read_doorbell(doorbell)[0])
    assert got == sent
    os.close(doorbell)


def test_a_full_ring_refuses_and_takes_again_after_a_read() -> None:
    writer, reader, doorbell = ring()
    count = 0
    while writer.put(b"x" * 1000):
        count += 1
    assert count > RING_BYTES // 1100
    writer.announce()
    assert len(take(reader, read_doorbell(doorbell)[0])) == count
    assert writer.put(b"x" * 1000)


@pytest.mark.parametrize("nonsense", [0, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("rounds", [0, 3])
def test_a_reader_that_is_where_it_cannot_be_is_noticed(nonsense: int, rounds: int) -> None:
    writer, reader, doorbell = ring()
    for _ in range(rounds * 1000):
        writer.put(bytes(RING_BYTES // 1000))
        writer.announce()
        take(reader, read_doorbell(doorbell)[0])
    reader._words[5] = nonsense

    def fill() -> None:
        for _ in range(2000):
            writer.put(bytes(RING_BYTES // 1000))

    with pytest.raises(RingBroken):
        fill()


def test_records_are_seen_only_when_announced() -> None:
    writer, reader, doorbell = ring()
    os.set_blocking(doorbell, False)
    writer.put(b"one")
    try:
        read_doorbell(doorbell)
    except BlockingIOError:
        pass
    else:
        raise AssertionError("the doorbell rang before announce()")
    writer.announce()
    assert read_doorbell(doorbell) == (1, 0)


def test_a_poke_wakes_without_a_record() -> None:
    writer, reader, doorbell = ring()
    writer.put(b"one")
    poke(doorbell)
    writer.announce()
    poke(doorbell)
    assert read_doorbell(doorbell) == (1, 2)


def many_messages() -> list[bytes]:
    rng = random.Random(7)
    return [bytes([rng.randrange(256)]) * rng.randrange(3000) for _ in range(20_000)]


def read_many_messages(memory: int, doorbell: int) -> None:
    """What the other process does; the descriptors are the ring's."""
    _, reader = ends(memoryview(mmap.mmap(memory, 0)), doorbell)
    got: list[bytes] = []
    expected = many_messages()
    while len(got) < len(expected):
        got += [data for data, _ in take(reader, read_doorbell(doorbell)[0])]
    assert got == expected


def test_two_processes_lose_nothing() -> None:
    memory = os.memfd_create("ring")
    os.ftruncate(memory, WORDS_BYTES + RING_BYTES)
    doorbell = os.eventfd(0)
    writer, _ = ends(memoryview(mmap.mmap(memory, 0)), doorbell)
    read = f"from {__name__} import read_many_messages; read_many_messages({memory}, {doorbell})"
    with subprocess.Popen([sys.executable, "-c", read], pass_fds=[memory, doorbell]) as child:
        room = threading.Event()
        for number, message in enumerate(many_messages()):
            while not writer.put(message):
                writer.announce()
                assert child.poll() is None
                room.wait(0.0002)
            if number % 3 == 0:
                writer.announce()
        writer.announce()
        assert child.wait() == 0
    os.close(memory)
    os.close(doorbell)
