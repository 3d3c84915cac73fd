"""However a message is encoded, it means what protobuf's own parser finds in it, and strings that are none do not pass.

Protobuf allows one message many encodings: numbers with more bytes than they need, fields in any order and several
times, unknown ones among them. Groups are the one kind of field that is refused (`wire.skip`).
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any
from unittest import mock

from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stubserve_stub.wire.datatypes import BYTES

from stubserve.errors import ServeError
from stubserve.grpc import infer_decode, infer_rewrite
from stubserve.grpc.infer_decode import decode, split
from stubserve.grpc.infer_rewrite import rewrite
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import Malformed, varint
from stubserve.inference.admission import admit, admit_steps
from stubserve.inference.long_work import finish
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from tests import outcomes
from tests.http.arena import Memory
from tests.inference.models import io, signature

VARINT, FIXED64, LENGTH, GROUP, END, FIXED32 = range(6)
REFUSED = Malformed.status, Malformed.text


def model() -> Signature:
    inputs = io("input", "A", "UINT8", "-1", "optional: true") + io("input", "S", "STRING", "-1", "optional: true")
    return signature("m", inputs + io("output", "O", "UINT8", "-1") + "max_batch_size: 4")


class Encoder:
    """Writes messages in any of their encodings."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance

    def number(self, value: int, most: int = 10) -> bytes:
        """A varint, now and then in more bytes than it needs."""
        short = varint(value)
        spare = most - len(short)
        if spare < 1 or self.chance.random() < 0.7:
            return short
        more = self.chance.randint(1, spare)
        return short[:-1] + bytes([short[-1] | 0x80]) + b"\x80" * (more - 1) + b"\0"

    def tag(self, number: int, wire: int) -> bytes:
        return self.number(number << 3 | wire, 5)

    def field(self, number: int, content: bytes) -> bytes:
        return self.tag(number, LENGTH) + self.number(len(content)) + content

    def unknown(self) -> bytes:
        """A field that nobody knows, or a known one of another type."""
        number, wire = self.chance.choice((1, 5, 7, 9, 30, 3000)), self.chance.choice((VARINT, FIXED64, FIXED32))
        if wire == VARINT:
            return self.tag(number, wire) + self.number(self.chance.choice((0, 5, 1 << 40)))
        if self.chance.random() < 0.5:
            return self.field(30, self.chance.randbytes(self.chance.choice((0, 3, 125, 200))))
        return self.tag(number, wire) + bytes(8 if wire == FIXED64 else 4)

    def fields(self, *fields: bytes) -> bytes:
        """Fields in any order, some twice, unknown ones among them."""
        found = list(fields)
        if self.chance.random() < 0.2:
            found.append(self.chance.choice(found))
        if self.chance.random() < 0.3:
            found.insert(self.chance.randint(0, len(found)), self.unknown())
        if self.chance.random() < 0.2:
            self.chance.shuffle(found)
        return b"".join(found)

    def shape(self, sizes: list[int]) -> bytes:
        """In one piece, in two, or one by one."""
        way = self.chance.random()
        if way < 0.1:
            # A length in two bytes, with as much behind it as the first byte would say alone.
            dims = b"".join(map(varint, sizes))
            return b"\x1a" + bytes((0x80 | len(dims), 0)) + dims + b"\xf2\x01\x7c" + bytes(124)
        if way < 0.6:
            return self.field(3, b"".join(map(self.number, sizes)))
        if way < 0.8:
            return self.field(3, self.number(sizes[0])) + self.field(3, b"".join(map(self.number, sizes[1:])))
        return b"".join(self.tag(3, VARINT) + self.number(size) for size in sizes)

    def parameter(self, key: bytes, number: int) -> bytes:
        return self.fields(self.field(1, key), self.field(2, self.fields(self.tag(2, VARINT) + self.number(number))))

    def message(self) -> bytes:
        """A request with one or two inputs that is nearly always right."""
        chance = self.chance
        inputs: list[bytes] = []
        raw: list[bytes] = []
        typed = chance.random() < 0.3
        for name in chance.choice((["A"], ["S"], ["A", "S"])):
            rows, count = chance.choice(((1, 1), (1, 5), (2, 3), (1, 300), (2, 700)))
            if name == "S":
                texts = [chance.randbytes(chance.choice((0, 1, 3, 3, 200))) for _ in range(rows * count)]
                content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
                elements = b"".join(self.field(8, text) for text in texts)
                kind = b"BYTES"
            else:
                content = chance.randbytes(rows * count)
                elements = self.field(4, b"".join(map(self.number, content)))
                kind = b"UINT8"
            said = [self.field(1, name.encode()), self.field(2, kind), self.shape([rows, count])]
            if typed:
                said.append(self.field(5, self.fields(elements)))
            else:
                raw.append(self.field(7, content))
            inputs.append(self.field(5, self.fields(*said)))
        others = [self.field(1, b"m"), self.field(3, b"7")]
        if chance.random() < 0.3:
            others.append(self.field(4, self.parameter(b"timeout", chance.choice((5, -1)))))
        if chance.random() < 0.3:
            others.append(self.field(6, self.fields(self.field(1, b"O"))))
        return self.fields(*others, *inputs, *raw)


def outcome(data: bytes, known: Signature, memory: Memory) -> Any:
    """As `outcomes`; or how a message that is none is refused."""
    try:
        return outcomes.outcome(lambda: decode(data, split(data), known, memory.store), known)
    except Malformed as malformed:
        return malformed.status, malformed.text


def by_protobuf(data: bytes, memory: Memory) -> Any:
    """What it is in the encoding that protobuf gives it, read by way of the message."""
    try:
        message = service_pb2.ModelInferRequest.FromString(data)
    except DecodeError:
        return REFUSED
    message.DiscardUnknownFields()
    with mock.patch.object(infer_decode, "_read", return_value=None):
        return outcome(message.SerializeToString(deterministic=True), model(), memory)


def by_rewrite(data: bytes, memory: Memory) -> Any:
    """What it is if it is long enough to be read in steps."""
    with mock.patch.object(infer_rewrite, "LARGE_BYTES", -1):
        work = rewrite(data)
    if work is None:
        return REFUSED
    try:
        return outcome(b"".join(finish(work(lambda nbytes: None))), model(), memory)
    except Malformed as malformed:
        return malformed.status, malformed.text


def holds(data: bytes, count: int) -> bool:
    """Whether these are so many strings, found in the plainest way."""
    at = 0
    for _ in range(count):
        if at + 4 > len(data):
            return False
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    return at == len(data)


def check(data: bytes, known: Signature, memory: Memory) -> None:
    theirs = by_protobuf(data, memory)
    ours = outcome(data, known, memory)
    if ours == REFUSED != theirs:
        assert any(byte & 7 in (GROUP, END) for byte in data)
        return
    assert ours == theirs
    assert outcome(data, known, memory) == theirs  # what is remembered means the same
    assert by_rewrite(data, memory) == theirs
    if len(theirs) > 2:
        for _, datatype, (rows, count), content in theirs[0]:
            assert datatype != BYTES or holds(content, rows * count)


# What is drawn of them is far too much for hypothesis to keep.
SEEDS = st.integers(0, 2**64)
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)


@ANY
@given(SEEDS)
def test_every_encoding_of_a_message_means_the_same(memory: Memory, seed: int) -> None:
    chance = Random(seed)
    known = model()
    encoder = Encoder(chance)
    for _ in range(5):
        check(encoder.message(), known, memory)


@ANY
@given(SEEDS)
def test_damaged_encodings_are_refused_or_read_alike(memory: Memory, seed: int) -> None:
    chance = Random(seed)
    known = model()
    encoder = Encoder(chance)
    for _ in range(5):
        data = bytearray(encoder.message())
        for _ in range(chance.choice((1, 1, 2, 5))):
            at = chance.randrange(len(data))
            if chance.random() < 0.2:
                del data[at : at + chance.choice((1, 1, 5))]
                data = data or bytearray(1)
            else:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0x85, 0xFF, chance.randrange(256)))
        check(bytes(data), known, memory)


@ANY
@given(SEEDS)
def test_strings_that_are_none_do_not_pass(seed: int) -> None:
    """Few and many, short and long: every way to look at them finds what the plainest one does."""
    chance = Random(seed)
    known = model()
    for _ in range(10):
        count = chance.choice((1, 2, 5, 60, 200))
        lengths = chance.choice(((3,), (1, 2, 3), (0, 1), (5, 300), (200,)))
        alphabet = chance.choice((b"ab", b"\0a", b"\0"))
        texts = [bytes(chance.choices(alphabet, k=chance.choice(lengths))) for _ in range(count)]
        data = bytearray(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        for _ in range(chance.choice((0, 1, 1, 3))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 3, 0xFF))
        if chance.random() < 0.2:
            del data[-chance.randint(1, 5) :]
        passes = holds(bytes(data), count)
        for look in (lambda request: admit(request, known), lambda request: finish(admit_steps(request, known))):
            request = Request([Tensor("S", BYTES, (1, count), bytes(data))])
            try:
                look(request)
            except ServeError:
                assert not passes
            else:
                assert passes
