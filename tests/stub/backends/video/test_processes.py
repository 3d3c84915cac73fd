"""The processes that sources are read in: whatever one of them does, it ends at once."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stubserve_stub.backends.video.options import options_of
from stubserve_stub.backends.video.processes import Player, Players, Slot
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import messages

OPTIONS = options_of({"name": "m", "parameters": {"streams": {"string_value": "2"}}})


def play(line: socket.socket, slot: Slot) -> None:
    """Does as the address says."""
    given, pictures = messages.unpack(line.recv(1 << 16))
    assert not pictures
    while given == "endless":
        pass
    if given == "resolver":
        # The resolver waits in C for a server that says nothing; so does this.
        waiting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        waiting.bind(("127.0.0.1", 0))
        line.send(messages.pack(("waits", os.getpid())))
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
        waiting.recv(1)
    if given == "descriptors":
        line.send(messages.pack(("has", [os.readlink(f"/proc/self/fd/{name}") for name in range(3)])))
        line.send(messages.pack(("has", [name for name in os.listdir("/proc/self/fd") if _is_socket(name)])))
    if given == "crash":
        os.abort()
    if given == "count":
        for intact in (True, True, False):
            slot.counts.frame(intact)
        slot.counts.drop(slot.counts.BROKEN)
        slot.picture([2, 3, 3])[:] = 7
        line.send(messages.pack(("drawn",)))
        line.send(messages.pack(("told", line.recv(1))))
    if isinstance(given, int):
        got = b""
        while len(got) < given:
            got += line.recv(1 << 16)
        line.send(messages.pack(("got", got == bytes(range(256)) * (given // 256))))


def _is_socket(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    except OSError:
        return False


@pytest.fixture(scope="module")
def players() -> Iterator[Players]:
    made = Players(OPTIONS, play)
    yield made
    # A stub has its starter for as long as it lives.
    made._starter.close()
    os.wait()


def record(player: Player) -> Any:
    found = None
    while found is None:
        found = player.receive()
    return found


@pytest.mark.parametrize("how", ["endless", "resolver"])
def test_it_ends_whatever_it_does(players: Players, how: str) -> None:
    player = players.start(-1, how, False)
    process = record(player)[1] if how == "resolver" else 0
    player.close()
    assert not process or not Path(f"/proc/{process}").exists()


def test_one_that_crashes(players: Players) -> None:
    player = players.start(-1, "crash", False)
    with pytest.raises(Refusal, match="the process that reads the source was ended by SIGABRT"):
        record(player)
    player.close()


def test_one_that_ends_without_a_word(players: Players) -> None:
    player = players.start(-1, "nothing", False)
    with pytest.raises(Refusal, match="the process that reads the source exited with 0"):
        record(player)
    player.close()


def test_counts_and_pictures_are_seen_by_the_stub(players: Players) -> None:
    """Also after the death of a player, whose successor counts on."""
    player = players.start(41, "count", False)
    assert record(player) == ("drawn",)
    assert (player.counts.number, player.counts.intact) == (44, 2)
    assert (player.picture([2, 3, 3]) == 7).all()
    player.go_on(True)
    assert record(player) == ("told", b"\1")
    assert player.close() == (44, [0, 0, 0, 1])
    with pytest.raises(ValueError, match="buffer"):
        player.picture([1 << 20, 1 << 20, 3])


def test_the_bytes_of_a_file(players: Players) -> None:
    for nbytes in (0, 256, 1 << 22):
        player = players.start(-1, memoryview(bytes(range(256)) * (nbytes // 256)), False)
        assert record(player) == ("got", True)
        player.close()


def test_it_has_nothing_of_the_others(players: Players) -> None:
    """Neither the stub's sockets, nor those of another player, which would not end."""
    first = players.start(-1, "endless", False)
    second = players.start(-1, "descriptors", False)
    assert record(second)[1] == ("/dev/null",) * 3
    assert len(record(second)[1]) == 1
    second.close()
    first.close()


def test_as_many_as_the_instance_may_have(players: Players) -> None:
    for _ in range(50):
        both = [players.start(-1, "endless", False) for _ in range(2)]
        for player in both:
            player.close()


def test_one_that_cannot_be_told_what_to_play_keeps_no_place(players: Players) -> None:
    for _ in range(5):
        with pytest.raises(OSError, match="too long"):
            players.start(-1, "a" * (1 << 20), False)


def test_they_end_with_their_stub() -> None:
    told, tell = os.pipe()
    stub = os.fork()
    if not stub:
        player = Players(OPTIONS, play).start(-1, "resolver", False)
        os.write(tell, b"%d" % record(player)[1])
        signal.pause()
    player = int(os.read(told, 100))
    os.kill(stub, signal.SIGKILL)
    os.waitpid(stub, 0)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{player}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{player}").exists()
    for end in (told, tell):
        os.close(end)
