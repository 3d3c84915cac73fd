"""Pools of GPU memory as the parent knows them: what a stub may name, and when descriptors are closed."""

from __future__ import annotations

import os
from typing import Any

import pytest
from stubserve_stub.wire.places import DEVICE_BASE, POOL_SPAN

from stubserve.errors import ServeError
from stubserve.memory.device_pools import DevicePool, StubPools

CHUNK, CHUNKS = 1 << 20, 4
SPAN = CHUNKS * CHUNK
FIRST = 6


class User:
    """A stub that has chunks of others."""

    def __init__(self) -> None:
        self.gone: list[int] = []

    def pool_gone(self, pool: DevicePool) -> None:
        self.gone.append(pool.number)


class Stub:
    """A stub with a pool on GPU 1, which has told of two of its chunks. It tells of those in `late` when asked."""

    def __init__(self, *late: int) -> None:
        self.freed: list[tuple[int, int]] = []
        self.late = list(late)
        self.looks = 0
        self.pools = StubPools(FIRST, self.look, lambda span: None, lambda *block: self.freed.append(block))
        self.descriptors: list[int] = []
        self.tell(0, 2)

    def tell(self, *indices: int) -> None:
        for index in indices:
            self.descriptors.append(os.open("/dev/null", os.O_RDONLY))
            self.pools.add_chunk(1, SPAN, CHUNK, index, self.descriptors[-1])

    def look(self) -> None:
        self.looks += 1
        self.tell(*self.late)
        self.late.clear()

    def at(self, offset: int) -> int:
        return DEVICE_BASE + (FIRST + 1) * POOL_SPAN + offset


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_block_is_held_until_it_has_been_read() -> None:
    stub = Stub()
    span = stub.pools.output(stub.at(64), 128)
    assert (span.offset, span.nbytes, stub.looks) == (stub.at(64), 128, 0)
    with pytest.raises(ServeError, match="lies in memory of GPU 1, which the server cannot read"):
        span.read(span.offset, 1)
    span.drop()
    assert stub.freed == [(stub.at(64), 128)]


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        pytest.param(CHUNK, 64, id="a chunk that it has not told of"),
        pytest.param(0, CHUNK + 1, id="that goes on into such a chunk"),
        pytest.param(SPAN, 1, id="behind the pool"),
        pytest.param(2 * CHUNK, SPAN, id="that ends behind the pool"),
        pytest.param(0, -1, id="less than nothing"),
        pytest.param(-POOL_SPAN, 64, id="its pool on GPU 0, which it does not have"),
        pytest.param(-2 * POOL_SPAN, 64, id="another stub's pool"),
        pytest.param(POOL_SPAN - 1, 64, id="between two pools"),
        pytest.param(1 << 60, 64, id="no pool's"),
    ],
)
def test_memory_that_it_does_not_have(offset: int, nbytes: int) -> None:
    stub = Stub()
    with pytest.raises(ServeError, match="a stub named memory of a GPU as its own that is in none of its pools"):
        stub.pools.output(stub.at(offset), nbytes)
    assert stub.looks == 1
    # Nothing is held.
    stub.pools.close()
    assert not any(map(is_open, stub.descriptors))


def test_a_chunk_that_is_on_its_way_is_waited_for() -> None:
    stub = Stub(1)
    assert stub.pools.output(stub.at(0), 3 * CHUNK).nbytes == 3 * CHUNK
    assert stub.looks == 1


@pytest.mark.parametrize(
    "told",
    [
        pytest.param((1, SPAN, CHUNK, 0), id="twice"),
        pytest.param((1, SPAN, CHUNK, CHUNKS), id="behind the pool"),
        pytest.param((1, SPAN, CHUNK, -1), id="in front of it"),
        pytest.param((0, POOL_SPAN + 1, CHUNK, 0), id="a pool that is too large"),
        pytest.param((0, SPAN, SPAN + 1, 0), id="chunks that are larger than the pool"),
        pytest.param((0, SPAN, 0, 0), id="chunks of nothing"),
        pytest.param((-1, SPAN, CHUNK, 0), id="no GPU"),
    ],
)
def test_chunks_that_cannot_be(told: Any) -> None:
    stub = Stub()
    with pytest.raises(ValueError, match="a stub has told of"):
        stub.pools.add_chunk(*told, descriptor=-1)


def test_a_dead_stubs_memory_goes_with_its_last_block() -> None:
    stub, user = Stub(), User()
    spans = [stub.pools.output(stub.at(0), 64), stub.pools.output(stub.at(2 * CHUNK), 64)]
    spans[0].pool.users.add(user)  # type: ignore[attr-defined]
    stub.pools.close()
    spans[0].drop()
    assert all(map(is_open, stub.descriptors))
    assert user.gone == []
    spans[1].drop()
    assert not any(map(is_open, stub.descriptors))
    assert user.gone == [FIRST + 1]
    assert stub.freed == []
