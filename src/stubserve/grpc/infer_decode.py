"""A ModelInferRequest taken apart at its first level, and read without building messages.

One pass over the fields (`split`) finds the target of a request (model, version, id), its description (parameters,
inputs, outputs) and its raw tensors, in 2 to 3 µs for a usual request of any size. A field costs about half a
microsecond however short it is, and a message may have millions of them: at most MAX_FIELDS are read.

Nearly all requests are valid and have raw contents. One pass over their inputs reads those: an input begins with its
name and data type, known from an earlier request, and goes on with its dimensions, a byte each; all its lengths are one
byte. Parameters and outputs are remembered by their bytes. At anything unexpected the pass ends, and `infer_message`
reads the description, for its values or its error. Raw contents are copied once, from the message to the arena.

Ownership: a decoded request holds the block of each tensor that lies in one. When decoding fails nothing is held.
"""

# Compiled by mypyc.
from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError
from stubserve_stub.wire.datatypes import BY_NAME
from stubserve_stub.wire.options import RequestOptions

from stubserve.api.placement import SMALL_BYTES, BodyPlacer, ReplyFormat, Store
from stubserve.errors import ServeError
from stubserve.grpc.infer_message import decode_message, read_outputs, read_parameters
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.wire import LENGTH, Malformed, TooLong, TooManyParts, fields, read_tag, read_varint, skip
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import MAX_WORDS_BYTES

if TYPE_CHECKING:
    from stubserve.memory.client_regions import ClientRegions

Form = TypeVar("Form")

_INT64_MAX = (1 << 63) - 1
# Tags of an input's fields
_NAME, _DATATYPE, _SHAPE = 0x0A, 0x12, 0x1A
# Remembered per model: so many beginnings of inputs, and so many sets of parameters and outputs
FORMS = 256
_FORM_BYTES = 4096
_ALL = ReplyFormat(None, True)
# Parameters, inputs, outputs and raw contents together
MAX_FIELDS = 2048

_MODEL_NAME = 0x0A
_MODEL_VERSION = 0x12
_ID = 0x1A
_PARAMETER = 0x22
_INPUT = 0x2A
_RAW = 0x3A


class Envelope:
    """A message's first level. `inputs` and `raw` are (start, end) in the message, without tags and lengths.

    `others` is the bytes of all parameters and outputs. An envelope must not outlive its message, to which it refers.
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
        # The places of parameters, inputs and outputs
        self._runs: list[tuple[int, int]] = []

    @property
    def description(self) -> bytes:
        """The bytes of all parameters, inputs and outputs."""
        return b"".join([self._data[start:stop] for start, stop in self._runs])


def split(data: bytes | memoryview) -> Envelope:
    """Takes a message apart. Raises Malformed, also for more than MAX_FIELDS fields and for a very long name."""
    envelope = Envelope(data)
    raw = envelope.raw
    inputs = envelope.inputs
    others: list[bytes | memoryview] = []
    start = stop = 0  # of the current run of description fields
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
    """The position of the first raw contents in a message with this beginning; 0 if the beginning does not show it."""
    try:
        for tag, _, content, _ in islice(fields(beginning), MAX_FIELDS):
            if tag == _RAW:
                return content
    except Malformed:
        pass
    return 0


def decode(
    data: bytes | memoryview,
    envelope: Envelope,
    signature: Signature,
    store: Store,
    block: Block | None = None,
    offset: int = 0,
    regions: ClientRegions | None = None,
) -> tuple[Request, ReplyFormat]:
    """The request that a message makes. Raises ServeError, and Malformed for a malformed description.

    With `block` the message lies in it at arena `offset`, and raw contents stay there. `regions` are clients' shared
    memory, None where that may not be used.
    """
    placer = BodyPlacer(data, block, offset, store, regions)
    try:
        found = _read(data, envelope, signature, placer)
        if found is not None:
            return found
        placer.undo()
        return decode_message(envelope.description, envelope.id, envelope.raw, signature, placer)
    except BaseException:
        placer.undo()
        raise


def _read(
    data: bytes | memoryview, envelope: Envelope, signature: Signature, placer: BodyPlacer
) -> tuple[Request, ReplyFormat] | None:
    """The request of a usual message; None where `decode_message` must read it."""
    places = envelope.raw
    if len(envelope.inputs) != len(places):
        return None
    fronts: dict[bytes, tuple[str, int]] = signature.memo.setdefault("grpc-inputs", {})
    inputs: list[Tensor] = []
    try:
        for (start, end), (first, last) in zip(envelope.inputs, places):  # noqa: B905 - of one length, see above
            item = bytes(data[start:end])
            at = 2 + item[1]
            at += 2 + item[at + 1]
            front = item[:at]
            known = fronts.get(front)
            if known is None:
                known = _read_front(front)
                if known is None:
                    return None
                _remember(fronts, front, known)
            dims = item[at + 2 :]
            if at == len(item):
                shape: tuple[int, ...] = ()
            elif item[at] != _SHAPE or item[at + 1] != len(dims) or len(dims) >= 0x80:
                return None
            elif dims.isascii():
                shape = tuple(dims)
            else:
                shape = _varints(dims)
            if last - first <= SMALL_BYTES:
                inputs.append(Tensor(known[0], known[1], shape, bytes(data[first:last])))
            else:
                inputs.append(placer.slice(known[0], known[1], shape, first, last - first))
    except (IndexError, Malformed):
        return None
    if not envelope.others:
        return Request(inputs, envelope.id), _ALL
    asked = _read_others(envelope.others, signature)
    if asked is None:
        return None
    options, reply_format = asked
    slots = reply_format.slots
    return Request(inputs, envelope.id, options, None if slots is None else list(slots)), reply_format


def _read_front(front: bytes) -> tuple[str, int] | None:
    """The name and data type with which an input begins; None if it begins otherwise, or not with short lengths."""
    length = front[1]
    at = 2 + length
    if front[0] != _NAME or length >= 0x80 or front[at] != _DATATYPE or front[at + 1] >= 0x80:
        return None
    if len(front) != at + 2 + front[at + 1]:
        return None
    try:
        kind = BY_NAME.get(front[at + 2 :].decode())
        return None if kind is None else (front[2:at].decode(), kind.number)
    except UnicodeDecodeError:
        return None


def _varints(data: bytes) -> tuple[int, ...]:
    """Dimensions of which one has more than seven bits. Raises Malformed, also for negative ones."""
    values = []
    at = 0
    while at < len(data):
        value, at = read_varint(data, at)
        if value > _INT64_MAX:
            raise Malformed
        values.append(value)
    return tuple(values)


def _read_others(others: bytes, signature: Signature) -> tuple[RequestOptions, ReplyFormat] | None:
    """The meaning of parameters and outputs; None if anything is wrong with them."""
    known: dict[bytes, tuple[RequestOptions, ReplyFormat]] = signature.memo.setdefault("grpc-others", {})
    found = known.get(others)
    if found is None:
        try:
            message = service_pb2.ModelInferRequest.FromString(others)
            options, empty_final = read_parameters(message.parameters)
            if any("shared_memory_region" in item.parameters for item in message.outputs):
                return None  # regions come and go, so nothing that is remembered may refer to one
            slots = read_outputs(message.outputs, None)
        except (DecodeError, ServeError):
            return None
        if slots is not None and len(slots) != len(message.outputs):
            return None
        found = options, ReplyFormat(slots, True, empty_final)
        if len(others) <= _FORM_BYTES:
            _remember(known, others, found)
    return found


def _remember(known: dict[bytes, Form], key: bytes, form: Form) -> None:
    if len(known) >= FORMS:
        known.clear()
    known[key] = form
