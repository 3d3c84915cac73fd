"""Orders to the process that reads large JSON, and its answers: plain values, in msgpack.

The server's own objects stay out of them, because the process needs little of their content. And not pickle: a pickle
can make the server run any code, and the process is the first to read foreign bytes.
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

# Two lengths: of the part in msgpack, and of the bytes behind it
HEAD = struct.Struct("<QQ")
# Kinds of jobs; another kind is the function of a part, as `<module>:<name>`
INFER, GENERATE = "infer", "generate"
# Stands for the offset of a tensor that lies in its client's shared memory
IN_REGION = -2


def pack(value: Any) -> bytes:
    """Packs plain values. Halves of surrogate pairs, which JSON allows and UTF-8 does not, stay as they are."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(packed: bytes | bytearray) -> Any:
    """The packed value, with tuples for all sequences."""
    return msgpack.unpackb(packed, use_list=False, unicode_errors="surrogatepass", strict_map_key=False)


class UnpackedSignature(NamedTuple):
    """What a model accepts, as far as a reader of requests has to know (`signature.InputSignature`)."""

    model: str
    inputs: dict[str, TensorSignature]
    max_batch_size: int


def pack_signature(signature: Signature) -> tuple[Any, ...]:
    """What the process needs to read requests to a model."""
    inputs = [(known.name, known.datatype, known.dims) for known in signature.inputs.values()]
    return signature.model, inputs, signature.max_batch_size


def unpack_signature(packed: tuple[Any, ...]) -> UnpackedSignature:
    model, inputs, max_batch_size = packed
    return UnpackedSignature(model, {name: TensorSignature(name, *rest) for name, *rest in inputs}, max_batch_size)


def pack_request(
    request: Request, reply_format: ReplyFormat | None, regions: Sequence[tuple[str, int, int]] = ()
) -> tuple[Any, ...]:
    """What a request says. A large tensor is described by the place of its bytes.

    `regions` are, in order, the pieces of shared memory of those inputs that lie in a region.
    """
    tensors = [
        (tensor.name, tensor.datatype, tensor.shape, tensor.data, tensor.offset, tensor.nbytes, tensor.strings)
        for tensor in request.inputs
    ]
    return tensors, (request.id, request.options, request.requested_outputs), reply_format, regions


class UnpackedRequest(NamedTuple):
    """The process's answer: a request with inputs that are still to be placed, and how to reply.

    `reply_format` is None unless the job was to infer; `regions` are as they were packed.
    """

    inputs: list[Tensor]
    id: str
    options: RequestOptions
    requested_outputs: list[str] | None
    reply_format: Any
    regions: Sequence[tuple[str, int, int]]


def unpack_request(packed: tuple[Any, ...]) -> UnpackedRequest:
    tensors, (id, options, outputs), reply, regions = packed
    reply_format = None
    if reply is not None:
        slots, default_binary, empty_final, _ = reply
        named = None if slots is None else {name: Slot(*slot) for name, slot in slots.items()}
        reply_format = ReplyFormat(named, default_binary, empty_final)
    inputs = []
    for name, datatype, shape, data, offset, nbytes, strings in tensors:
        tensor = Tensor(name, datatype, shape, data, None, offset, nbytes)
        tensor.strings = strings
        inputs.append(tensor)
    return UnpackedRequest(
        inputs, id, RequestOptions(*options), None if outputs is None else list(outputs), reply_format, regions
    )
