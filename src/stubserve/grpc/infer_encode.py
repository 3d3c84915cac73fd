"""An inference response as a ModelInferResponse or ModelStreamInferResponse, written as bytes.

Outputs are always raw and never copied: the message is a list of buffers, and large outputs are views of their memory.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from struct import Struct

from stubserve_stub.wire.datatypes import BY_NUMBER

from stubserve.api.placement import ReplyFormat, Slot
from stubserve.errors import internal, unsupported
from stubserve.grpc.transport import MAX_MESSAGE_BYTES, Keep, Parts
from stubserve.grpc.wire import field, packed, varint
from stubserve.inference.classification import classify
from stubserve.inference.long_work import LongWork, finish, uncounted
from stubserve.inference.request import Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, write_output

# A larger output (bytes) is made into classes in steps.
LARGE_OUTPUT = 64 * 1024

_DOUBLE = Struct("<d")
_ID = 3
_PARAMETERS = 4
_OUTPUT = 5
_SHAPE = 3
_RAW_TAG = b"\x32"
_OUTPUT_TAG, _SHAPE_TAG = 0x2A, 0x1A
# For an output below this size (bytes), its data aside, one byte holds its length.
_SHORT = 0x80 - 2
_FINAL = {
    final: field(_PARAMETERS, field(1, b"triton_final_response") + field(2, b"\x08\x01" if final else b"\x08\x00"))
    for final in (True, False)
}


def encode(
    id: str, response: Response, signature: Signature, reply_format: ReplyFormat, in_stream: bool = False
) -> Parts:
    """The ModelInferResponse of a response without error. Raises ServeError. Outputs not asked for are left out.

    In a stream it lies inside a ModelStreamInferResponse, and a parameter says whether it is the last.
    """
    slots = reply_format.slots
    head = [_model(signature.model, signature.version)]
    if id:
        head.append(field(_ID, id.encode()))
    if response.parameters:
        head.append(_parameters(response.parameters))
    if in_stream:
        head.append(_FINAL[response.final])
    parts: list[bytes | memoryview] = [b""]
    for tensor in response.outputs:
        if slots is not None:
            slot = slots.get(tensor.name)
            if slot is None:
                continue
            if slot.classification:
                return finish(encode_steps(id, response, signature, reply_format, in_stream, uncounted))
        head.append(_output(tensor.name, tensor.datatype, tensor.shape))
        parts.append(_RAW_TAG + varint(tensor.nbytes))
        parts.append(tensor.buffer)
    parts[0] = b"".join(head)
    size = sum(map(len, parts))
    if in_stream:
        parts.insert(0, b"\x12" + varint(size))
        size += len(parts[0])
    if size > MAX_MESSAGE_BYTES:
        raise internal(f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_BYTES}.")
    return parts


def takes_long(response: Response, slots: Mapping[str, Slot]) -> bool:
    """Whether to encode a response in steps: for its classes, or because it goes into its client's shared memory."""
    for tensor in response.outputs:
        slot = slots.get(tensor.name)
        if slot is not None and (slot.on_device or (slot.classification and tensor.nbytes > LARGE_OUTPUT)):
            return True
    return False


def encode_steps(
    id: str, response: Response, signature: Signature, reply_format: ReplyFormat, in_stream: bool, keep: Keep
) -> LongWork[Parts]:
    """As `encode`, but first makes classes and fills shared memory, in steps. Calls `keep(nbytes)` for memory."""
    slots = reply_format.slots or {}
    outputs = []
    for tensor in response.outputs:
        slot = slots.get(tensor.name)
        if slot is not None and slot.region is not None:
            yield partial(write_output, tensor, slot.region)
            tensor = Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
        elif slot is not None and slot.classification:
            labels = signature.labels.get(tensor.name, ())
            tensor = yield from classify(tensor, slot.classification, signature.max_batch_size > 0, labels)
            keep(tensor.nbytes)
        outputs.append(tensor)
    whole = reply_format._replace(slots={name: Slot(True, 0) for name in slots})
    made = Response(outputs, response.parameters, final=response.final)
    return encode(id, made, signature, whole, in_stream)


def encode_stream_error(message: str, id: str, model: tuple[str, str] | None, final: bool) -> Parts:
    """An error within a stream. `model` is name and version as asked for, None if the request was not executed."""
    response = _facts(id, model) + (_FINAL[final] if model is not None else b"")
    return [field(1, message.encode("utf-8", "replace")) + field(2, response)]


def encode_empty_final(id: str, model: tuple[str, str]) -> Parts:
    """A response without outputs, which marks the end of a request's responses in a stream."""
    return [field(2, _facts(id, model) + _FINAL[True])]


def _facts(id: str, model: tuple[str, str] | None) -> bytes:
    names = [*(model or ("", "")), id]
    return b"".join(field(number, text.encode()) for number, text in enumerate(names, 1) if text)


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return field(1, name.encode()) + field(2, str(version).encode())


def _output(name: str, datatype: int, shape: Sequence[int]) -> bytes:
    front = _output_front(name, datatype)
    if not shape:
        return field(_OUTPUT, front)
    try:
        dims = bytes(shape)
        short = dims.isascii()
    except ValueError:
        short = False
    if not short:
        dims = packed(shape)
    if len(front) + len(dims) < _SHORT:
        return b"%c%c%b%c%c%b" % (_OUTPUT_TAG, len(front) + 2 + len(dims), front, _SHAPE_TAG, len(dims), dims)
    return field(_OUTPUT, front + field(_SHAPE, dims))


@lru_cache(maxsize=1024)
def _output_front(name: str, datatype: int) -> bytes:
    return field(1, name.encode()) + field(2, BY_NUMBER[datatype].name.encode())


def _parameters(parameters: dict[str, object]) -> bytes:
    entries = []
    for name, value in parameters.items():
        if isinstance(value, bool):
            choice = b"\x08" + varint(value)
        elif isinstance(value, int):
            choice = b"\x10" + varint(value)
        elif isinstance(value, str):
            choice = field(3, value.encode("utf-8", "replace"))
        elif isinstance(value, float):
            choice = b"\x21" + _DOUBLE.pack(value)
        else:
            raise unsupported("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
        entries.append(field(_PARAMETERS, field(1, name.encode("utf-8", "replace")) + field(2, choice)))
    return b"".join(entries)
