"""Header blocks of one connection: heads that are remembered must be those that a decoder without memory reads.

The input is a run of blocks, each behind its length in two bytes; every block comes twice.
"""

from __future__ import annotations

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from stubserve.protocols.grpc.http2.frames import ConnectionFault
from stubserve.protocols.grpc.http2.heads import MAX_HEADER_LIST_BYTES, HeadDecoder, RpcHead

from ..finding import Finding, same

FIELDS = [name for name in RpcHead.__slots__ if not name.startswith("_")]


def fuzz_one(data: bytes) -> None:
    ours, reference = HeadDecoder(), Decoder(MAX_HEADER_LIST_BYTES)
    at = 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        block = data[at + 2 : at + 2 + length]
        at += 2 + length
        for _ in range(2):
            try:
                expected = RpcHead([(name, value) for name, value in reference.decode(block, raw=True)])
            except HPACKError:
                try:
                    ours.decode(block)
                except ConnectionFault:
                    return
                raise Finding("a block is remembered that cannot be decoded", repr(block)) from None
            try:
                head = ours.decode(block)
            except ConnectionFault as fault:
                raise Finding("a block is refused that can be decoded", f"{block!r}: {fault}") from None
            same(_said(head), _said(expected), "a block is remembered wrongly", repr(block))


def _said(head: RpcHead) -> list[object]:
    return [getattr(head, name, None) for name in FIELDS]


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
