"""An inference response as an HTTP reply: JSON, and behind it the bytes of binary outputs.

The JSON is put together from bytes, without building objects: about 2 µs for a reply with one binary output. Binary
outputs are not copied; the reply's parts are views of where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Any, cast

import numpy as np
import orjson
from stubserve_stub.wire import json_strings, strings
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, FP16

from stubserve.api.reply_format import ReplyFormat, Slot
from stubserve.connections.offload import LARGE_BYTES
from stubserve.errors import Code, ServeError, internal, invalid, unsupported
from stubserve.http import compression
from stubserve.http.compression import Keep, Place
from stubserve.http.json import text as json_text
from stubserve.http.json.data import FORMATS
from stubserve.http.message import BINARY, JSON, Reply
from stubserve.inference.classification import classify, classify_steps
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, write_output

_LENGTH = Struct("<I")
# Up to so many numbers become Python's own by `struct`, in less time than numpy takes to begin.
_FEW = 64
_FLOATS = frozenset((11, 12))

# A larger output that becomes text, classes or compressed is encoded in steps. Numbers become up to five times as long.
LARGE_OUTPUT = 64 * 1024
# What becomes text in one step: numbers, and bytes of strings. Numbers that rapidjson writes in its own way take 1.5 µs
# each; of the others, many at once take ten times as long, for their text is moved again and again as it grows.
_NUMBERS = 512
_STRING_BYTES = 32 * 1024
# How large the parts of a large reply are: so large that the system has each back when it is freed, and copied in less
# than a step of work takes.
_PART_BYTES = 256 * 1024


def encode(request: Request, response: Response, signature: Signature, reply_format: ReplyFormat) -> Reply:
    """The reply to a request whose model did not fail. Raises ServeError where an output has no form in JSON.

    Outputs that were not asked for are left out.
    """
    slots = reply_format.slots
    fragments: list[bytes] = []
    parts: list[bytes | memoryview] = [b""]
    for tensor in response.outputs:
        if slots is None:
            binary, classification = reply_format.default_binary, 0
        elif tensor.name in slots:
            binary, classification, region = slots[tensor.name]
            if region is not None:
                write_output(tensor, region)
                fragments.append(_without_data(tensor))
                continue
            if classification:
                labels = signature.labels.get(tensor.name, ())
                tensor = classify(tensor, classification, signature.max_batch_size > 0, labels)
        else:
            continue
        shape = tensor.shape
        form = _output_form(tensor.name, tensor.datatype, len(shape), binary)
        if binary:
            fragments.append(form % (*shape, tensor.nbytes))
            if tensor.nbytes:
                parts.append(tensor.buffer)
        else:
            fragments.append(form % (*shape, json_array(tensor)))
    json = b'{%b%b%b,"outputs":[%b]}' % (
        b'"id":%b,' % json_text.string(request.id) if request.id else b"",
        _model(signature.model, signature.version),
        _parameters(response.parameters) if response.parameters else b"",
        fragments[0] if len(fragments) == 1 else b",".join(fragments),
    )
    parts[0] = json
    if len(parts) == 1:
        return Reply(200, JSON, None, parts)
    return Reply(200, BINARY, len(json), parts)


def is_large(request: Request, response: Response, reply_format: ReplyFormat, accept_encoding: bytes | None) -> bool:
    """Whether a response should be encoded in steps: because it is much text, many classes or much to compress."""
    if len(request.id) > LARGE_OUTPUT:
        return True
    for tensor in response.outputs:
        if tensor.nbytes > LARGE_OUTPUT:
            slot = _slot(tensor, reply_format)
            if slot is not None and (not slot.binary or slot.classification) and is_long_text(tensor):
                return True
            if accept_encoding is not None and compression.choose(accept_encoding) is not None:
                return True
    return False


def is_long_text(tensor: Tensor) -> bool:
    """Whether it takes long to make JSON of an output."""
    return tensor.nbytes > (LARGE_BYTES if tensor.datatype == BYTES else LARGE_OUTPUT)


def encode_steps(
    request: Request,
    response: Response,
    signature: Signature,
    reply_format: ReplyFormat,
    keep: Keep,
    place: Place,
) -> LongWork[Reply]:
    """As `encode`, in steps; the JSON is several parts, which lie where `place` puts them.

    Calls `keep(nbytes)` with what it keeps in the heap meanwhile.
    """
    text = _Text(place)
    binaries: list[bytes | memoryview] = []
    text.add(b"{")
    if request.id:
        text.add(b'"id":"')
        for at in range(0, len(request.id), _STRING_BYTES):
            text.add(json_text.string(request.id[at : at + _STRING_BYTES])[1:-1])
            yield None
        text.add(b'",')
    text.add(_model(signature.model, signature.version))
    if response.parameters:
        text.add(_parameters(response.parameters))
    between = b',"outputs":['
    for tensor in response.outputs:
        slot = _slot(tensor, reply_format)
        if slot is None:
            continue
        if slot.region is not None:
            yield partial(write_output, tensor, slot.region)
            text.add(between)
            between = b","
            text.add(_without_data(tensor))
            continue
        if slot.classification:
            labels = signature.labels.get(tensor.name, ())
            tensor = yield from classify_steps(tensor, slot.classification, signature.max_batch_size > 0, labels)
            keep(tensor.nbytes)
        text.add(between)
        between = b","
        form = _output_form(tensor.name, tensor.datatype, len(tensor.shape), slot.binary)
        if slot.binary:
            text.add(form % (*tensor.shape, tensor.nbytes))
            if tensor.nbytes:
                binaries.append(tensor.buffer)
            continue
        text.add((form % (*tensor.shape, b""))[:-1])
        for piece in json_array_steps(tensor):
            text.add(piece)
            yield None
        text.add(b"}")
    text.add(b"]}" if between == b"," else b',"outputs":[]}')
    json = text.finish()
    if not binaries:
        return Reply(200, JSON, None, json)
    return Reply(200, BINARY, sum(map(len, json)), [*json, *binaries])


class _Text:
    """Text that is put together from small pieces to parts of _PART_BYTES, which lie where `place` puts them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts: list[bytes | memoryview] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= _PART_BYTES:
            self.finish()

    def finish(self) -> list[bytes | memoryview]:
        """All parts."""
        self._parts.append(self._place(b"".join(self._pieces)))
        self._pieces = []
        self._size = 0
        return self._parts


def _slot(tensor: Tensor, reply_format: ReplyFormat) -> Slot | None:
    """How an output goes into the reply; None where it was not asked for."""
    slots = reply_format.slots
    return Slot(reply_format.default_binary, 0) if slots is None else slots.get(tensor.name)


def encode_error(error: ServeError) -> Reply:
    """The reply that tells a client of an error."""
    reply = Reply(error.code.http_status, JSON, None, [b'{"error":%b}' % json_text.string(error.message)])
    if error.message == compression.UNSUPPORTED_TEXT:
        reply.headers = (("Accept-Encoding", compression.SUPPORTED),)
    elif error.code is Code.UNAUTHENTICATED:
        reply.headers = (("WWW-Authenticate", "Bearer"),)
    elif error.retry_after_s:
        reply.headers = (("Retry-After", str(error.retry_after_s)),)
    return reply


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%b,"model_version":"%d"' % (json_text.string(name), version)


@lru_cache(maxsize=1024)
def _output_form(name: str, datatype: int, dims: int, binary: bool) -> bytes:
    """An output's JSON, with places for its dimensions and, behind them, its size if it is binary, else its data."""
    return b'{"name":%b,"datatype":"%b","shape":[%b],%b}' % (
        json_text.string(name).replace(b"%", b"%%"),
        BY_NUMBER[datatype].name.encode(),
        b",".join([b"%d"] * dims),
        b'"parameters":{"binary_data_size":%d}' if binary else b'"data":%b',
    )


def _without_data(tensor: Tensor) -> bytes:
    """The JSON of an output that its client finds in its shared memory."""
    form = _output_form(tensor.name, tensor.datatype, len(tensor.shape), False)
    return (form % (*tensor.shape, b"")).removesuffix(b',"data":}') + b"}"


def _parameters(parameters: dict[str, object]) -> bytes:
    members = []
    for name, value in parameters.items():
        if not isinstance(value, str | bool | int | float):
            raise unsupported("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
        members.append(b"%b:%b" % (json_text.string(name), json_text.scalar(value)))
    return b',"parameters":{%b}' % b",".join(members)


def json_array(tensor: Tensor) -> bytes:
    """A tensor's elements as a flat JSON array."""
    if tensor.json is not None:
        return tensor.json
    elements = _check_for_json(tensor)
    if tensor.datatype == BYTES:
        return json_strings.array(_elements(tensor, elements))
    if elements <= _FEW:
        values = _unpacker(tensor.datatype, elements)(tensor.buffer)
        return json_text.floats(values) if tensor.datatype in _FLOATS else orjson.dumps(values)
    return _numbers(tensor.datatype, np.frombuffer(tensor.buffer, BY_NUMBER[tensor.datatype].numpy))


def json_array_steps(tensor: Tensor) -> Iterator[bytes]:
    """As `json_array`, in pieces, each of little work; some are empty."""
    if tensor.json is not None:
        yield tensor.json
        return
    elements = _check_for_json(tensor)
    if not elements:
        yield b"[]"
        return
    front = b"["
    if tensor.datatype == BYTES:
        for strings_ in _element_steps(tensor, elements):
            if strings_:
                yield front + json_strings.array(strings_)[1:-1]
                front = b","
    else:
        values = np.frombuffer(tensor.buffer, BY_NUMBER[tensor.datatype].numpy)
        for at in range(0, elements, _NUMBERS):
            yield front + _numbers(tensor.datatype, values[at : at + _NUMBERS])[1:-1]
            front = b","
    yield b"]"


def _check_for_json(tensor: Tensor) -> int:
    """How many elements a tensor has. Raises ServeError where it has no form in JSON."""
    kind = BY_NUMBER[tensor.datatype]
    if tensor.datatype in (FP16, BF16):
        raise invalid(
            f"sending {kind.name} data via JSON is not supported. Please use the binary data format for output"
        )
    elements = prod(tensor.shape)
    if tensor.datatype != BYTES and tensor.nbytes != elements * kind.itemsize:
        raise _size_error(tensor)
    return elements


@lru_cache(maxsize=1024)
def _unpacker(datatype: int, elements: int) -> Callable[[bytes | memoryview], tuple[Any, ...]]:
    return Struct(f"{elements}{FORMATS[datatype]}").unpack


def _numbers(datatype: int, values: np.ndarray[Any, Any]) -> bytes:
    if datatype == BOOL:
        return orjson.dumps((values != 0).tolist())
    if datatype in _FLOATS:
        return json_text.floats(values.astype(np.float64))
    return json_text.integers(values)


def _elements(tensor: Tensor, count: int) -> list[bytes]:
    data = bytes(tensor.buffer)
    if count == 1 and len(data) >= 4 and len(data) == 4 + _LENGTH.unpack_from(data)[0]:
        return [data[4:]]
    rows = strings.of_one_length(data)
    if rows is not None and len(rows) == count:
        return cast(list[bytes], rows.tolist())
    elements = []
    length_at = _LENGTH.unpack_from
    at = 0
    try:
        for _ in range(count):
            start = at + 4
            at = start + length_at(data, at)[0]
            elements.append(data[start:at])
    except StructError:
        raise _size_error(tensor) from None
    if at > len(data):
        raise _size_error(tensor)
    return elements


def _element_steps(tensor: Tensor, count: int) -> Iterator[list[bytes]]:
    """As `_elements`, some at a time."""
    data = tensor.buffer
    elements: list[bytes] = []
    at = size = 0
    try:
        for _ in range(count):
            start = at + 4
            at = start + _LENGTH.unpack_from(data, at)[0]
            elements.append(bytes(data[start:at]))
            size += at - start + 16
            if size > _STRING_BYTES:
                yield elements
                elements = []
                size = 0
    except StructError:
        raise _size_error(tensor) from None
    if at > len(data):
        raise _size_error(tensor)
    yield elements


def _size_error(tensor: Tensor) -> ServeError:
    return internal(f"output tensor shape does not match size of output for '{tensor.name}'")
