"""An inference response as an HTTP reply: JSON, and behind it the bytes of binary outputs.

The JSON is joined from bytes, without building objects: about 2 µs for a reply with one binary output. Binary outputs
are not copied; the reply's parts are views of their memory.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import orjson
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, FP16

from stubserve.api.placement import IN_REGION, ReplyFormat, Slot
from stubserve.errors import Code, ServeError, internal, invalid
from stubserve.http import compression
from stubserve.http.compression import Keep, Place
from stubserve.http.json import text as json_text
from stubserve.http.message import BINARY, JSON, Reply
from stubserve.inference.classification import classify
from stubserve.inference.long_work import LARGE_BYTES, LongWork, finish, uncounted
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, write_output
from stubserve.memory.blocks import Block

_LENGTH = Struct("<I")
# Marks a place in JSON for text that is made apart. JSON never has a NUL: strings escape it.
ELSEWHERE = b"\0"
# Up to this count `struct` makes Python numbers in less time than numpy takes to begin.
_FEW = 64
_FLOATS = frozenset((11, 12))

# A larger output that becomes text, classes or compressed is encoded in steps. Text is up to five times as long.
LARGE_OUTPUT = 64 * 1024
# Work of one step: numbers, and bytes of strings. Numbers that rapidjson writes in its own way take 1.5 µs each. Of the
# others, many at once take ten times as long, because their text is moved again and again as it grows.
_NUMBERS = 512
_STRING_BYTES = 32 * 1024
_STRINGS = 2048
# In UTF-8: the bytes of a character, and how each of them but the first begins
_LONGEST_CHARACTER = 4
_FURTHER = 0x80
# The size of a large reply's parts: each goes back to the system when it is freed, and is copied in less than a step.
_PART_BYTES = 256 * 1024


def in_heap(text: bytes) -> bytes:
    """Leaves a small text in the heap."""
    return text


def encode(
    request: Request,
    response: Response,
    signature: Signature,
    reply_format: ReplyFormat,
    long: list[list[bytes | memoryview]] | None = None,
) -> Reply:
    """The reply to a request, from a model that did not fail. Raises ServeError for an output that has no form in JSON.

    Outputs that were not asked for are left out. `long` has the texts that `encode_steps` made before, in pieces: the
    id, and then the elements of each JSON output.
    """
    slots = reply_format.slots
    fragments: list[bytes] = []
    binaries: list[bytes | memoryview] = []
    blocks: list[Block] = []
    for tensor in response.outputs:
        if slots is None:
            binary = reply_format.default_binary
        elif tensor.name in slots:
            binary, classification, region = slots[tensor.name]
            if classification:
                if region is not None or classification != IN_REGION:
                    return finish(encode_steps(request, response, signature, reply_format, uncounted, in_heap))
                fragments.append(_without_data(tensor))
                continue
        else:
            continue
        form = _output_form(tensor.name, tensor.datatype, len(tensor.shape), binary)
        if not binary:
            fragments.append(form % (*tensor.shape, json_array(tensor) if long is None else ELSEWHERE))
            continue
        fragments.append(form % (*tensor.shape, tensor.nbytes))
        if tensor.nbytes:
            binaries.append(tensor.buffer)
            if tensor.span is not None:
                blocks.append(tensor.span.block)
    id = b""
    if request.id:
        id = b'"id":%b,' % (json_text.string(request.id) if long is None else ELSEWHERE)
    json = b'{%b%b%b,"outputs":[%b]}' % (
        id,
        _model(signature.model, signature.version),
        _parameters(response.parameters) if response.parameters else b"",
        fragments[0] if len(fragments) == 1 else b",".join(fragments),
    )
    texts: list[bytes | memoryview] = [json] if long is None else _put_in(json, long)
    if not binaries:
        return Reply(200, JSON, None, texts)
    reply = Reply(200, BINARY, len(json) if long is None else sum(map(len, texts)), [*texts, *binaries])
    reply.blocks = blocks
    return reply


def encode_steps(
    request: Request, response: Response, signature: Signature, reply_format: ReplyFormat, keep: Keep, place: Place
) -> LongWork[Reply]:
    """As `encode`, but with the long work done first, in steps: classes, texts, and writing into regions.

    Texts lie where `place` puts them. Calls `keep(nbytes)` before it keeps that much more in the heap.
    """
    long: list[list[bytes | memoryview]] = []
    if request.id:
        long.append((yield from in_parts(_string_steps(request.id), place)))
    outputs = []
    slots = {}
    for tensor in response.outputs:
        slot = _slot(tensor, reply_format)
        if slot is None:
            continue
        if slot.region is not None:
            yield partial(write_output, tensor, slot.region)
            slot = Slot(False, IN_REGION)
        elif slot.classification:
            labels = signature.labels.get(tensor.name, ())
            tensor = yield from classify(tensor, slot.classification, signature.max_batch_size > 0, labels)
            keep(tensor.nbytes)
            slot = Slot(slot.binary, 0)
        if not slot.binary and not slot.classification:
            long.append((yield from in_parts(json_array_steps(tensor), place)))
        outputs.append(tensor)
        slots[tensor.name] = slot
    return encode(request, Response(outputs, response.parameters), signature, ReplyFormat(slots, False), long)


def _put_in(json: bytes, long: list[list[bytes | memoryview]]) -> list[bytes | memoryview]:
    """The JSON with the `long` texts in their places; in one piece if it is short."""
    first, *others = json.split(ELSEWHERE)
    texts: list[bytes | memoryview] = [first]
    for pieces, behind in zip(long, others, strict=True):
        texts += pieces
        texts.append(behind)
    return texts if sum(map(len, texts)) > _PART_BYTES else [b"".join(texts)]


def in_parts(pieces: Iterator[bytes], place: Place) -> LongWork[list[bytes | memoryview]]:
    """Joins small pieces to parts of _PART_BYTES, which lie where `place` puts them."""
    parts: list[bytes | memoryview] = []
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _PART_BYTES:
            parts.append(place(b"".join(gathered)))
            gathered = []
            size = 0
        yield None
    parts.append(place(b"".join(gathered)))
    return parts


def is_large(request: Request, response: Response, reply_format: ReplyFormat, accept_encoding: bytes | None) -> bool:
    """Whether to encode a response in steps: much text, many classes, much to compress, or a copy to a GPU."""
    if len(request.id) > LARGE_OUTPUT:
        return True
    if request.regions is not None and any(wanted.on_device for wanted in (reply_format.slots or {}).values()):
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
    """Whether making JSON of an output takes long."""
    return tensor.nbytes > (LARGE_BYTES if tensor.datatype == BYTES else LARGE_OUTPUT)


def _slot(tensor: Tensor, reply_format: ReplyFormat) -> Slot | None:
    """How an output goes into the reply; None if it was not asked for."""
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
    """An output's JSON, with places for its dimensions and then its size if it is binary, else its data."""
    return b'{"name":%b,"datatype":"%b","shape":[%b],%b}' % (
        json_text.string(name).replace(b"%", b"%%"),
        BY_NUMBER[datatype].name.encode(),
        b",".join([b"%d"] * dims),
        b'"parameters":{"binary_data_size":%d}' if binary else b'"data":%b',
    )


def _without_data(tensor: Tensor) -> bytes:
    """The JSON of an output that goes into its client's shared memory."""
    form = _output_form(tensor.name, tensor.datatype, len(tensor.shape), False)
    return (form % (*tensor.shape, b"")).removesuffix(b',"data":}') + b"}"


def _parameters(parameters: dict[str, object]) -> bytes:
    members = [b"%b:%b" % (json_text.string(name), json_text.scalar(value)) for name, value in parameters.items()]
    return b',"parameters":{%b}' % b",".join(members)


def json_array(tensor: Tensor) -> bytes:
    """A tensor's elements as a flat JSON array."""
    elements = _check_for_json(tensor)
    if tensor.datatype == BYTES:
        found = tensor.elements
        if found is None:
            try:
                found = strings.split(bytes(tensor.buffer))
            except ValueError:
                raise _size_error(tensor) from None
        if len(found) < elements:
            raise _size_error(tensor)
        return json_text.strings(found if len(found) == elements else found[:elements])
    if elements <= _FEW:
        values = json_text.layout(tensor.datatype, elements).unpack(tensor.buffer)
        return json_text.floats(values) if tensor.datatype in _FLOATS else orjson.dumps(values)
    return b"".join(json_array_steps(tensor))


def json_array_steps(tensor: Tensor, brackets: bool = True) -> Iterator[bytes]:
    """As `json_array`, in pieces, each of little work; without `brackets` only what stands between them."""
    elements = _check_for_json(tensor)
    if brackets:
        yield b"["
    if tensor.datatype == BYTES:
        yield from _strings_steps(tensor, elements)
    else:
        values = np.frombuffer(tensor.buffer, BY_NUMBER[tensor.datatype].numpy)
        for at in range(0, elements, _NUMBERS):
            text = _numbers(tensor.datatype, values[at : at + _NUMBERS])[1:-1]
            yield b"," + text if at else text
    if brackets:
        yield b"]"


def _strings_steps(tensor: Tensor, elements: int) -> Iterator[bytes]:
    data = tensor.buffer
    at = 0
    left = elements
    while left:
        if left < elements:
            yield b","
        length = int.from_bytes(data[at : at + 4], "little")
        if length > _STRING_BYTES and at + 4 + length <= len(data):
            start = at + 4
            at = start + length
            yield from _long_string_steps(memoryview(data)[start:at])
            left -= 1
        else:
            found, at = _strings(tensor, data, at, min(left, _STRINGS), at + _STRING_BYTES)
            yield json_text.strings(found)[1:-1]
            left -= len(found)


def _long_string_steps(text: memoryview) -> Iterator[bytes]:
    """The JSON of a long string. Pieces end where a character ends, if these bytes are UTF-8."""
    yield b'"'
    at = 0
    while at < len(text):
        end = at + _STRING_BYTES
        for _ in range(_LONGEST_CHARACTER - 1):
            if end < len(text) and text[end] & 0xC0 == _FURTHER:
                end -= 1
        yield json_text.quoted(bytes(text[at:end]))[1:-1]
        at = end
    yield b'"'


def _string_steps(text: str) -> Iterator[bytes]:
    yield b'"'
    for at in range(0, len(text), _STRING_BYTES):
        yield json_text.string(text[at : at + _STRING_BYTES])[1:-1]
    yield b'"'


def _check_for_json(tensor: Tensor) -> int:
    """The number of a tensor's elements. Raises ServeError if the tensor has no form in JSON."""
    kind = BY_NUMBER[tensor.datatype]
    if tensor.datatype in (FP16, BF16):
        raise invalid(
            f"sending {kind.name} data via JSON is not supported. Please use the binary data format for output"
        )
    elements = prod(tensor.shape)
    if tensor.datatype != BYTES and tensor.nbytes != elements * kind.itemsize:
        raise _size_error(tensor)
    return elements


def _numbers(datatype: int, values: np.ndarray[Any, Any]) -> bytes:
    if datatype == BOOL:
        return orjson.dumps((values != 0).tolist())
    if datatype in _FLOATS:
        return json_text.floats(values.astype(np.float64))
    return json_text.integers(values)


def _strings(tensor: Tensor, data: bytes | memoryview, at: int, count: int, end: int) -> tuple[list[bytes], int]:
    """The next `count` strings of a tensor, or those that begin before `end`, and the position behind them."""
    found: list[bytes] = []
    length_at = _LENGTH.unpack_from
    try:
        while len(found) < count and at < end:
            start = at + 4
            following = start + length_at(data, at)[0]
            if found and following > end:
                break
            at = following
            found.append(bytes(data[start:at]))
    except StructError:
        raise _size_error(tensor) from None
    if at > len(data):
        raise _size_error(tensor)
    return found, at


def _size_error(tensor: Tensor) -> ServeError:
    return internal(f"output tensor shape does not match size of output for '{tensor.name}'")
