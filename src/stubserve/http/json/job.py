"""Orders to the process that reads large JSON, and its answers: plain values, in msgpack.

Neither side hands over the server's own objects: the process needs little of what they know. And not in a pickle, which
can have the server run anything: the process is the one that foreign bytes come to first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from stubserve_stub.wire.options import RequestOptions

from stubserve.api.placement import ReplyFormat, Slot
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature, TensorSignature
from stubserve.inference.tensor import Tensor

# Lengths of what follows: a part in msgpack, and bytes
HEAD = struct.Struct("<QQ")
INFER, GENERATE = "infer", "generate"
# In place of the offset of a tensor in its client's shared memory
IN_REGION = -2


def pack(value: Any) -> bytes:
    """Of plain values. What JSON can say and UTF-8 cannot (halves of surrogate pairs) stays as it is."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(packed: bytes | bytearray) -> Any:
    """What was packed, with tuples for all sequences."""
    return msgpack.unpackb(packed, use_list=False, unicode_errors="surrogatepass", strict_map_key=False)


class Accepted(NamedTuple):
    """What a model accepts, as far as those who read requests have to know (`signature.Accepts`)."""

    model: str
    inputs: dict[str, TensorSignature]
    max_batch_size: int


def pack_signature(signature: Signature) -> tuple[Any, ...]:
    """What is needed to read requests to a model."""
    inputs = [(known.name, known.datatype, known.dims) for known in signature.inputs.values()]
    return signature.model, inputs, signature.max_batch_size


def unpack_signature(packed: tuple[Any, ...]) -> Accepted:
    model, inputs, max_batch_size = packed
    return Accepted(model, {name: TensorSignature(name, *rest) for name, *rest in inputs}, max_batch_size)


def pack_request(
    request: Request, reply_format: ReplyFormat | None, regions: Sequence[tuple[str, int, int]] = ()
) -> tuple[Any, ...]:
    """What a request says; tensors that are not small are told of by where their bytes are.

    `regions` says in order which pieces of shared memory those inputs are that lie there.
    """
    tensors = [
        (tensor.name, tensor.datatype, tensor.shape, tensor.data, tensor.offset, tensor.nbytes, tensor.strings)
        for tensor in request.inputs
    ]
    return tensors, (request.id, request.options, request.requested_outputs), reply_format, regions


class Read(NamedTuple):
    """What the process has read: what makes a request when its inputs have been placed, and how to reply.

    `reply_format` is None but where the job was to infer; `regions` are as they were packed.
    """

    inputs: list[Tensor]
    id: str
    options: RequestOptions
    requested_outputs: list[str] | None
    reply_format: Any
    regions: Sequence[tuple[str, int, int]]


def unpack_request(packed: tuple[Any, ...]) -> Read:
    tensors, (id, options, outputs), reply, regions = packed
    reply_format = None
    if reply is not None:
        slots, default_binary, empty_final = reply
        named = None if slots is None else {name: Slot(*slot) for name, slot in slots.items()}
        reply_format = ReplyFormat(named, default_binary, empty_final)
    inputs = []
    for name, datatype, shape, data, offset, nbytes, strings in tensors:
        tensor = Tensor(name, datatype, shape, data, None, offset, nbytes)
        tensor.strings = strings
        inputs.append(tensor)
    return Read(inputs, id, RequestOptions(*options), None if outputs is None else list(outputs), reply_format, regions)
