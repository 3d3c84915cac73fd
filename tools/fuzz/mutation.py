"""Inputs without guidance: seeds, and what becomes of them by the usual small changes. The same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

LONGEST = 1 << 14
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"0",
    b"-1",
    b"18446744073709551616",
    b"\r\n",
    b"{",
    b"[",
    b'"',
    b",",
]


def inputs(seeds: list[bytes], words: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """The seeds themselves, then `count` changed ones."""
    yield from seeds
    chance = random.Random(seed)
    pool = list(seeds)
    for _ in range(count):
        data = chance.choice(pool)
        for _ in range(chance.choice([1, 1, 2, 4, 8])):
            data = _changed(data, pool, words, chance)
        data = data[:LONGEST]
        yield data
        if chance.random() < 0.1:
            pool.append(data)


def _changed(data: bytes, pool: list[bytes], words: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    length = min(chance.choice([1, 1, 2, 4, 16, 100]), len(data) - at)
    piece = data[at : at + length]
    kind = chance.randrange(7)
    if kind == 0 and piece:
        return data[:at] + bytes([piece[0] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[: at + length] + piece * chance.choice([1, 2, 50]) + data[at + length :]
    if kind == 3:
        return data[:at] + bytes(chance.randrange(256) for _ in range(length)) + data[at + length :]
    if kind == 4:
        other = chance.choice(pool)
        return data[:at] + other[chance.randrange(len(other) + 1) :]
    if kind == 5:
        return data[:at] + chance.choice(INTERESTING) + data[at + length :]
    return data[:at] + chance.choice(words or INTERESTING) + data[at:]
