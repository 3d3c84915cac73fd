"""A ModelInferRequest taken apart at its first level, without building messages.

What decides where a request goes (model, version, id), what describes it (parameters, inputs, outputs) and where its
raw tensors lie are found in one pass over the fields, 2 to 3 µs for a usual request whatever its size.

A field costs about half a microsecond however short it is, and a message may be made of millions of them: no more than
MAX_FIELDS are read.
"""

from __future__ import annotations

from stubserve.grpc.wire import LENGTH, Malformed, TooLong, TooManyParts, read_tag, read_varint, skip
from stubserve.memory.heap_account import MAX_WORDS_BYTES

# Parameters, inputs, outputs and raw contents together.
MAX_FIELDS = 2048

_MODEL_NAME = 0x0A
_MODEL_VERSION = 0x12
_ID = 0x1A
_PARAMETER = 0x22
_INPUT = 0x2A
_RAW = 0x3A


class Envelope:
    """`inputs` and `raw` are the (start, end) of inputs and of raw contents in the message, without tags and lengths.

    `others` is the bytes of all parameters and outputs.
    """

    __slots__ = ("_data", "_runs", "id", "inputs", "model_name", "model_version", "others", "raw")

    def __init__(self, data: bytes | memoryview) -> None:
        self.model_name = ""
        self.model_version = ""
        self.id = ""
        self.inputs: list[tuple[int, int]] = []
        self.others = b""
        self.raw: list[tuple[int, int]] = []
        self._data = data
        # Where parameters, inputs and outputs are
        self._runs: list[tuple[int, int]] = []

    @property
    def description(self) -> bytes:
        """The bytes of all parameters, inputs and outputs."""
        return b"".join([self._data[start:stop] for start, stop in self._runs])

    def forget_description(self) -> None:
        """Keeps only what the answer needs; the rest may be long."""
        self._data = self.others = b""
        self._runs = self.inputs = self.raw = []


def split(data: bytes | memoryview) -> Envelope:
    """Takes a message apart. Raises Malformed, also where it has more than MAX_FIELDS fields, or a very long name."""
    envelope = Envelope(data)
    raw = envelope.raw
    inputs = envelope.inputs
    others: list[bytes | memoryview] = []
    start = stop = 0  # of the run of description fields at hand
    at = 0
    end = len(data)
    try:
        for _ in range(MAX_FIELDS):
            if at >= end:
                break
            begin = at
            tag = data[at]
            at += 1
            if tag & 7 != LENGTH or tag > _RAW:
                tag, at = read_tag(data, begin)
                if tag & 7 != LENGTH or tag > _RAW:
                    at = skip(data, at, tag & 7)
                    continue
            length = data[at]
            if length < 0x80:
                at += 1
            elif data[at + 1] < 0x80:
                length += (data[at + 1] - 1) << 7
                at += 2
            else:
                length, at = read_varint(data, at)
                if MAX_WORDS_BYTES < length <= end - at and tag < _PARAMETER:
                    raise TooLong
            content = at
            at += length
            if at > end:
                raise Malformed
            if tag == _RAW:
                raw.append((content, at))
            elif tag >= _PARAMETER:
                if begin != stop:
                    envelope._runs.append((start, stop))
                    start = begin
                stop = at
                if tag == _INPUT:
                    inputs.append((content, at))
                else:
                    others.append(data[begin:at])
            elif tag == _MODEL_NAME:
                envelope.model_name = str(data[content:at], "utf-8")
            elif tag == _MODEL_VERSION:
                envelope.model_version = str(data[content:at], "utf-8")
            elif tag == _ID:
                envelope.id = str(data[content:at], "utf-8")
            else:
                raise Malformed  # field number 0
        else:
            if at < end:
                raise TooManyParts("fields", MAX_FIELDS)
    except (IndexError, UnicodeDecodeError):
        raise Malformed from None
    envelope._runs.append((start, stop))
    if others:
        envelope.others = b"".join(others)
    return envelope


def first_raw(beginning: memoryview) -> int:
    """Where in a message, of which this is the beginning, the first raw contents start; 0 if that is not seen here."""
    at = 0
    end = len(beginning)
    try:
        for _ in range(MAX_FIELDS):
            if at >= end:
                break
            tag, at = read_tag(beginning, at)
            if tag & 7 != LENGTH:
                at = skip(beginning, at, tag & 7)
                continue
            length, at = read_varint(beginning, at)
            if tag == _RAW:
                return at
            at += length
    except Malformed:
        pass
    return 0
