"""Header blocks of one connection: heads that are remembered must be those that a decoder without memory reads.

The input is a run of blocks, each behind its length in two bytes; every block comes twice. A second decoder gets them
in pieces. What either refuses, or cuts off because it is too large, the judge must find wrong, or large. What is cut
off need not be right.
"""

from __future__ import annotations

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from stubserve.grpc.http2.fields import (
    FIELD_BYTES,
    MAX_FIELDS,
    MAX_LIST_BYTES,
    MAX_REFUSED_FIELDS,
    Field,
    FieldDecoder,
    Fields,
)
from stubserve.grpc.http2.frames import ENHANCE_YOUR_CALM, ConnectionFault
from stubserve.grpc.http2.heads import HeadDecoder, RpcHead

from ..finding import Finding, same

ATTRIBUTES = RpcHead.__slots__
# The judge reads whatever is written; ours has a bound, which it names.
NO_LIMIT = 1 << 40
OVERLONG = "a number of more than 32 bits"
# A coded string counts by its coded length before it is read; no symbol is longer than 30 bits.
LEAST_PER_CODED_BYTE = 8 / 30


def fuzz_one(data: bytes) -> None:
    whole, pieces, judge = HeadDecoder(), FieldDecoder(), Decoder(NO_LIMIT)
    at = 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        block = data[at + 2 : at + 2 + length]
        at += 2 + length
        for _ in range(2):
            try:
                expected: list[Field] | None = [(name, value) for name, value in judge.decode(block, raw=True)]
            except HPACKError:
                expected = None
            try:
                head = whole.decode(block)
                found = _in_pieces(pieces, block)
            except ConnectionFault as fault:
                if expected is not None and not _may_refuse(fault, expected):
                    raise Finding("a block is refused that can be decoded", f"{block!r}: {fault}") from None
                return
            if expected is None:
                # Strings of a field that is cut off are skipped, coded wrongly or not, and the judge stops there.
                if found.too_large:
                    return
                raise Finding("a block is read that cannot be decoded", repr(block))
            same(found.fields, expected[: len(found.fields)], "pieces are read wrongly", repr(block))
            if found.too_large != (len(found.fields) < len(expected)) or (found.too_large and not _is_large(expected)):
                raise Finding("a block's size is told wrongly", f"{block!r}: {len(found.fields)} of {len(expected)}")
            same(_said(head), _said(RpcHead(*found)), "a block is remembered wrongly", repr(block))


def _in_pieces(decoder: FieldDecoder, block: bytes) -> Fields:
    size = max(len(block) // 20, 1)
    decoder.begin()
    for at in range(0, len(block), size):
        decoder.feed(block[at : at + size])
    return decoder.end()


def _may_refuse(fault: ConnectionFault, expected: list[Field]) -> bool:
    if fault.code == ENHANCE_YOUR_CALM:
        return len(expected) > MAX_REFUSED_FIELDS or _is_large(expected)
    return str(fault) == OVERLONG


def _is_large(fields: list[Field]) -> bool:
    size = sum((len(name) + len(value)) / LEAST_PER_CODED_BYTE + FIELD_BYTES for name, value in fields)
    return len(fields) > MAX_FIELDS or size > MAX_LIST_BYTES


def _said(head: RpcHead) -> list[object]:
    return [getattr(head, name) for name in ATTRIBUTES]


HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "a:1"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("grpc-timeout", "10S"),
    ("grpc-encoding", "gzip"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
    ("user-agent", "fuzz/1"),
    ("x-data-bin", "AAEC"),
    ("x-more", "text"),
]


def blocks(*headers: list[tuple[str, str]]) -> bytes:
    encoder = Encoder()
    encoded = [encoder.encode(one) for one in headers]
    return b"".join(len(block).to_bytes(2, "big") + block for block in encoded)


SEEDS = [
    blocks(HEADERS),
    blocks(HEADERS, HEADERS, [*HEADERS, ("x-new", "1")], HEADERS),
    blocks(*([*HEADERS[:6], ("x-n", str(n))] for n in range(12))),
    b"\0\4\x3f\xe1\x1f\x82" + b"\0\1\x20" + b"\0\4\x3f\xe1\x1f\x82",
]
WORDS = [
    b"\x82",
    b"\x83",
    b"\x86",
    b"\xbe",
    b"\x40\x01a\x01b",
    b"\x00\x01a\x01b",
    b"\x20",
    b"\x3f\xe1\x1f",
    b"\x3f\xe1\xff\x7f",
    b"\0\1\xbe",
]
