"""How much of the loop's time one connection's reads get."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2 import connection, frames
from stubserve.grpc.http2.budget import SHORT_BYTES, ClientBudget
from stubserve.grpc.http2.connection import Http2Connection
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.inference.long_work import SLICE_S, Offload
from stubserve.settings.fronts import GrpcSettings
from tools.fuzz.server import Transport

KIB = 1024


class Busy(Offload):
    """Somebody waits for a turn, or nobody does."""

    def __init__(self, busy: bool) -> None:
        self._waiting: Any = [None] if busy else []


def a_share(busy: bool = False) -> ClientBudget:
    return ClientBudget(GrpcSettings(), Busy(busy), memoryview(bytearray(256 * KIB)))


def test_what_is_quick_reads_on() -> None:
    share = a_share()
    assert not share.read_took(SLICE_S)
    assert len(share.room) == 256 * KIB


def test_what_takes_long_waits_and_reads_less() -> None:
    share = a_share()
    sizes = []
    for _ in range(6):
        assert share.read_took(SLICE_S * 1.1)
        sizes.append(len(share.room) // KIB)
    assert sizes == [128, 64, 32, 16, 16, 16]
    assert not share.read_took(SLICE_S / 2)
    assert len(share.room) == 16 * KIB
    assert not share.read_took(SLICE_S / 10)
    assert len(share.room) == 32 * KIB
    for _ in range(9):
        share.read_took(0.0)
    assert len(share.room) == 256 * KIB


@pytest.mark.parametrize("busy", [False, True])
def test_while_others_wait_for_turns_long_is_shorter(busy: bool) -> None:
    assert a_share(busy).read_took(SLICE_S / 3) is busy
    assert not a_share(busy).read_took(SLICE_S / 5)


class Wire(Transport):
    """What a connection reads from; it says `reads` or `rests`."""

    def state(self) -> str:
        return "rests" if self.paused else "reads"


def a_connection(monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[Http2Connection, Wire, Offload]:
    """One whose reads take so long, when they are more than short."""
    clock = itertools.count()
    monkeypatch.setattr(connection, "perf_counter", lambda: 1 + next(clock) * seconds)
    offload = Offload()
    server = SimpleNamespace(offload=offload, slow_clients=SlowClients(), max_connections=0)
    one, wire = Http2Connection(Endpoint(cast(Any, server), {}, GrpcSettings())), Wire()
    one.connection_made(cast(Any, wire))
    return one, wire, offload


def receive(one: Http2Connection, data: bytes) -> None:
    one.get_buffer(0)[: len(data)] = data
    one.buffer_updated(len(data))


def unknown_frame(size: int) -> bytes:
    return size.to_bytes(3, "big") + b"\xf0" + bytes(5 + size)


def test_a_connection_whose_read_took_long_reads_on_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        one, wire, offload = a_connection(monkeypatch, SLICE_S * 2)
        receive(one, frames.PREFACE + frames.settings({}))
        assert wire.state() == "reads"
        turns: list[str] = []
        offload.in_turn(lambda: turns.append(wire.state()))
        receive(one, unknown_frame(SHORT_BYTES))
        assert wire.state() == "rests"
        offload.in_turn(lambda: turns.append(wire.state()))
        while offload.busy:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        assert turns == ["rests", "reads"]
        one.connection_lost(None)

    asyncio.run(act())


def test_one_that_is_not_read_from_rests_until_it_may_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        one, wire, offload = a_connection(monkeypatch, SLICE_S * 2)
        receive(one, frames.PREFACE + frames.settings({}))
        receive(one, unknown_frame(SHORT_BYTES))
        one.pause_writing()
        # Its client reads again before its turn has come, and once more does not.
        one.resume_writing()
        assert wire.state() == "rests"
        one.pause_writing()
        while offload.busy:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        assert wire.state() == "rests"
        one.resume_writing()
        assert wire.state() == "reads"
        one.connection_lost(None)

    asyncio.run(act())


def test_a_connection_that_is_gone_has_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act() -> None:
        one, wire, offload = a_connection(monkeypatch, SLICE_S * 2)
        receive(one, frames.PREFACE + frames.settings({}))
        receive(one, unknown_frame(SHORT_BYTES))
        wire.close()
        one.connection_lost(None)
        while offload.busy:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0)
        assert wire.state() == "rests"

    asyncio.run(act())
