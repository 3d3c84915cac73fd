"""Protobuf's wire format, for the messages on every request's way; all else goes through the generated messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stubserve.memory.heap_account import WORDS_TEXT

VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5

_MAX_VARINT_BYTES = 10
_MAX_TAG_BYTES = 5
_FIRST_TAG = 1 << 3
_MAX_TAG = 0xFFFF_FFFF


class Malformed(Exception):
    """The bytes are no protobuf message of the expected type. The RPC ends with `status` and `text`."""

    status = 13
    text = "Unable to parse request"


class TooManyParts(Malformed):
    """The bytes may be a message, but have more parts than any honest client needs."""

    status = 8

    def __init__(self, what: str, most: int) -> None:
        super().__init__()
        self.text = f"the request is made of too many {what}: at most {most} are read"


class TooLong(Malformed):
    """The message has more text beside its tensors than any honest client needs."""

    status = 8
    text = WORDS_TEXT


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at `at` and the position behind it. Raises Malformed."""
    value = shift = 0
    try:
        for position in range(at, at + _MAX_VARINT_BYTES):
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
            shift += 7
    except IndexError:
        pass
    raise Malformed


def read_tag(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The tag at `at` (number and wire type of a field) and the position behind it.

    It may be longer than necessary, and is refused where protobuf's parser refuses it. Raises Malformed.
    """
    tag, behind = read_varint(data, at)
    if behind > at + _MAX_TAG_BYTES or not _FIRST_TAG <= tag <= _MAX_TAG:
        raise Malformed
    return tag, behind


def skip(data: bytes | memoryview, at: int, wire_type: int) -> int:
    """The position behind the value that begins at `at`. Raises Malformed, also for groups, which no client sends."""
    if wire_type == VARINT:
        return read_varint(data, at)[1]
    if wire_type == LENGTH:
        length, at = read_varint(data, at)
        at += length
    elif wire_type == FIXED64:
        at += 8
    elif wire_type == FIXED32:
        at += 4
    else:
        raise Malformed
    if at > len(data):
        raise Malformed
    return at


def fields(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """For each field: its tag, the positions where it and its content begin, and its end. Raises Malformed.

    If the data are only the beginning of a message, the last field ends behind them.
    """
    at = 0
    while at < len(data):
        begin = at
        tag, content = read_tag(data, at)
        if tag & 7 == LENGTH:
            length, content = read_varint(data, content)
            at = content + length
        else:
            at = skip(data, content, tag & 7)
        yield tag, begin, content, at


def varint(value: int) -> bytes:
    """A number below 2^64; negative numbers as two's complement in 64 bits."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    """A field with a length: a string, bytes, a message or packed numbers. `number` is below 16."""
    return b"%c%b%b" % (number << 3 | LENGTH, varint(len(content)), content)


def packed(values: Iterable[int]) -> bytes:
    return b"".join(map(varint, values))
