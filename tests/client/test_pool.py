"""The pool alone: what is lent, what comes back, and what it grows to."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from stubserve.client import owner
from stubserve.client.pool import BlockLoan, BlockPool, loan_of
from tests.client.helpers import names_of

MIB = 1 << 20


def lend(pool: BlockPool, nbytes: int) -> BlockLoan:
    """A loan of a block that the server has."""
    loan = pool.lend(nbytes)
    assert loan is not None
    if not loan.block.known:
        pool.registered(loan.block)
    return loan


def test_a_block_has_a_name_until_the_server_has_it() -> None:
    pool = BlockPool(MIB)
    loan = pool.lend(100_000)
    assert loan is not None
    assert names_of(os.getpid()) == [loan.block.name]
    pool.registered(loan.block)
    assert names_of(os.getpid()) == []
    loan.array((100_000,), np.dtype(np.uint8))[:] = 3


def test_what_comes_back_is_lent_again() -> None:
    pool = BlockPool(16 * MIB)
    name = lend(pool, MIB).block.name
    assert lend(pool, MIB - 5).block.name == name
    assert lend(pool, MIB // 2).block.name == name
    # Not for what is much smaller
    small = lend(pool, MIB // 4)
    assert small.block.name != name
    assert pool.counts() == (2, 1, MIB + MIB // 4)


def test_the_limit_counts_what_is_lent_and_makes_room_of_what_is_free() -> None:
    pool = BlockPool(4 * MIB)
    kept = [lend(pool, MIB) for _ in range(4)]
    assert pool.lend(70_000) is None
    names = [loan.block.name for loan in kept]
    kept.clear()
    large = lend(pool, 3 * MIB)
    assert pool.counts() == (2, 1, 4 * MIB)
    # Three had to go, and the server is to forget them.
    assert {pool.next_leaving() for _ in range(3)} < set(names)
    assert pool.next_leaving() is None
    assert large.block.nbytes == 3 * MIB


def test_what_nobody_wants_for_long_is_dropped() -> None:
    pool = BlockPool(16 * MIB, idle_s=0)
    del [lend(pool, MIB) for _ in range(3)][:]
    # They are free from this moment on, and idle at the next.
    pool.counts()
    assert pool.counts() == (0, 0, 0)


def test_a_loan_may_end_within_the_pool_itself() -> None:
    """A collection can run anywhere, also while the pool's lock is held."""
    pool = BlockPool(16 * MIB)
    loan = lend(pool, MIB)
    with pool._lock:
        ended = threading.Thread(target=loan.__del__)
        ended.start()
        ended.join(10)
        assert not ended.is_alive()


def test_arrays_know_their_loan() -> None:
    pool = BlockPool(16 * MIB)
    loan = lend(pool, MIB)
    array = loan.array((2, 3, 1000), np.dtype(np.float32))
    assert loan_of(array) is loan
    assert loan_of(array[1].T) is loan
    assert loan.offset_of(array[1]) == 4 * 3000
    assert loan_of(array.copy()) is None
    assert loan.offset_of(np.ones(3)) == 0
    assert array.flags.writeable
    assert array.ctypes.data % 4096 == 0


def test_of_a_server_that_is_gone_nothing_is_lent_again() -> None:
    pool = BlockPool(16 * MIB)
    held, free = lend(pool, MIB), lend(pool, MIB).block
    pool.lost(held.block.generation)
    pool.lost(held.block.generation)
    assert not pool.usable(held.block)
    assert pool.counts() == (1, 1, MIB)
    new = lend(pool, MIB)
    assert new.block not in (held.block, free)
    assert pool.usable(new.block)
    del held
    assert pool.counts()[0] == 1


def test_spoiled_blocks_are_not_lent_again() -> None:
    pool = BlockPool(16 * MIB)
    loan = lend(pool, MIB)
    name = loan.block.name
    loan.block.spoiled = True
    del loan
    assert pool.counts() == (0, 0, 0)
    assert pool.next_leaving() == name


def test_arrays_outlive_their_pool() -> None:
    pool = BlockPool(16 * MIB)
    array = lend(pool, MIB).array((MIB,), np.dtype(np.uint8))
    array[:] = 5
    pool.close()
    del pool
    assert (array == 5).all()


@pytest.mark.parametrize(
    ("name", "orphan"),
    [
        (owner.new_name(), False),
        (owner.new_name().replace(f"-{os.getpid()}-", "-4194999-"), True),
        ("-".join([*owner.new_name().split("-")[:4], "1", "ab"]), True),
        ("stubserve-client-1-4194999-1-ab", False),
        ("stubserve-client-of-somebody", False),
        ("stubserve-client-1-2-3-4-5", False),
        ("region-of-a-test", False),
    ],
    ids=[
        "lives",
        "no such pid",
        "another had this pid",
        "another namespace",
        "words",
        "too many parts",
        "another name",
    ],
)
def test_orphans_are_told_by_their_names(name: str, orphan: bool) -> None:
    assert owner.is_orphan(name) is orphan
