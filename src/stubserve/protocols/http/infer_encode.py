"""An inference response as an HTTP reply: JSON, and behind it the bytes of binary outputs.

The JSON is put together from bytes, without building objects: about 2 µs for a reply with one binary output. Binary
outputs are not copied; the reply's parts are views of where they lie.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from struct import Struct
from struct import error as StructError
from typing import cast

import numpy as np
import orjson
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, FP16

from stubserve.errors import ServeError, internal, invalid, unsupported
from stubserve.inference.classification import classify
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.protocols.http import compression, json_text
from stubserve.protocols.http.reply import BINARY, JSON, Reply
from stubserve.protocols.reply_format import ReplyFormat

_LENGTH = Struct("<I")
_FLOATS = frozenset((11, 12))


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
            binary, classification = slots[tensor.name]
            if classification:
                labels = signature.labels.get(tensor.name, ())
                tensor = classify(tensor, classification, signature.max_batch_size > 0, labels)
        else:
            continue
        head = _output_head(tensor.name, tensor.datatype, tuple(tensor.shape))
        if binary:
            fragments.append(b'%b,"parameters":{"binary_data_size":%d}}' % (head, tensor.nbytes))
            if tensor.nbytes:
                parts.append(tensor.buffer)
        else:
            fragments.append(b'%b,"data":%b}' % (head, json_array(tensor)))
    json = b'{%b%b%b,"outputs":[%b]}' % (
        b'"id":%b,' % json_text.string(request.id) if request.id else b"",
        _model(signature.model, signature.version),
        _parameters(response.parameters) if response.parameters else b"",
        b",".join(fragments),
    )
    parts[0] = json
    if len(parts) == 1:
        return Reply(200, JSON, None, parts)
    return Reply(200, BINARY, len(json), parts)


def encode_error(error: ServeError) -> Reply:
    """The reply that tells a client of an error."""
    reply = Reply(error.code.http_status, JSON, None, [b'{"error":%b}' % json_text.string(error.message)])
    if error.message == compression.UNSUPPORTED_TEXT:
        reply.headers = (("Accept-Encoding", compression.SUPPORTED),)
    return reply


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%b,"model_version":"%d"' % (json_text.string(name), version)


@lru_cache(maxsize=4096)
def _output_head(name: str, datatype: int, shape: tuple[int, ...]) -> bytes:
    """An output's JSON up to and with its shape."""
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (
        json_text.string(name),
        BY_NUMBER[datatype].name.encode(),
        ",".join(map(str, shape)).encode(),
    )


def _parameters(parameters: dict[str, object]) -> bytes:
    members = []
    for name, value in parameters.items():
        if not isinstance(value, str | bool | int | float):
            raise unsupported("Response parameter of type 'TRITONSERVER_PARAMETER_BYTES' is not currently supported")
        members.append(b"%b:%b" % (json_text.string(name), json_text.scalar(value)))
    return b',"parameters":{%b}' % b",".join(members)


def json_array(tensor: Tensor) -> bytes:
    """A tensor's elements as a flat JSON array."""
    kind = BY_NUMBER[tensor.datatype]
    if tensor.datatype in (FP16, BF16):
        raise invalid(
            f"sending {kind.name} data via JSON is not supported. Please use the binary data format for output"
        )
    elements = prod(tensor.shape)
    if tensor.datatype == BYTES:
        return json_text.strings(_elements(tensor, elements))
    if tensor.nbytes != elements * kind.itemsize:
        raise _size_error(tensor)
    if tensor.datatype == BOOL:
        return orjson.dumps([byte != 0 for byte in tensor.buffer])
    # A copy, for a buffer may begin anywhere.
    if tensor.datatype in _FLOATS:
        return json_text.floats(np.frombuffer(tensor.buffer, kind.numpy).astype(np.float64))
    return json_text.integers(np.frombuffer(tensor.buffer, kind.numpy).astype(kind.numpy))


def _elements(tensor: Tensor, count: int) -> list[bytes]:
    data = bytes(tensor.buffer)
    rows = strings.of_one_length(data)
    if rows is not None and len(rows) == count:
        return cast(list[bytes], rows.tolist())
    elements = []
    at = 0
    try:
        for _ in range(count):
            start = at + 4
            at = start + _LENGTH.unpack_from(data, at)[0]
            elements.append(data[start:at])
    except StructError:
        raise _size_error(tensor) from None
    if at > len(data):
        raise _size_error(tensor)
    return elements


def _size_error(tensor: Tensor) -> ServeError:
    return internal(f"output tensor shape does not match size of output for '{tensor.name}'")
