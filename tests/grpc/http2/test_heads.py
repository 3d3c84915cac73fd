"""Header blocks: what is remembered of them is little, whatever clients send."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hpack import Encoder

from stubserve.grpc.http2.heads import HeadDecoder, trailers


def refuse() -> None:
    for number in range(20):
        trailers(5, f"Request for unknown model: '{number}{'x' * 1_000_000}' is not found")


def decode() -> None:
    decoder = HeadDecoder()
    KEPT.append(decoder)
    for number in range(64):
        # Sensitive ones are never put into the table that both sides keep.
        decoder.decode(Encoder().encode([("x", f"{number}{'y' * 20_000}", True)], huffman=False))


KEPT: list[HeadDecoder] = []


@pytest.mark.parametrize("act", [refuse, decode])
def test_what_is_remembered_is_little(act: Callable[[], None]) -> None:
    tracemalloc.start()
    act()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 20


def test_repeated_heads_are_remembered() -> None:
    decoder = HeadDecoder()
    block = Encoder().encode([("x", "y", True)])
    assert decoder.decode(block) is decoder.decode(block)


def test_a_few_bytes_do_not_become_many_texts() -> None:
    """A client names an entry of its table, of 4 KB, with one byte: as often as it likes, in a thousand streams."""
    encoder, decoder = Encoder(), HeadDecoder()
    name, value = "x", "v" * 3900
    KEPT.append(decoder)
    decoder.decode(encoder.encode([(name, value)]))
    tracemalloc.start()
    heads = [decoder.decode(encoder.encode([(name, value)] * 15 + [("n", str(number), True)])) for number in range(200)]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(heads[0].metadata) == 16
    assert kept < 2 << 20
