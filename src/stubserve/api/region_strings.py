"""Many strings in a client's shared memory: read into the arena, in a thread, before anybody looks at them.

They are checked before a model gets them, and what has been checked must not change after that. Few of them are read at
once (`placement`); tensors of numbers are the stubs' to read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stubserve_stub.wire.datatypes import BYTES

from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor
from stubserve.memory.blocks import Block
from stubserve.memory.regions import RegionSpan


def are_left(request: Request) -> bool:
    """Whether a request has strings that are still to be read."""
    return request.regions is not None and any(_in_region(tensor) for tensor in request.inputs)


def read(request: Request, allocate: Callable[[int], Block]) -> LongWork[None]:
    """Reads them. Raises ServeError, where the client has taken them away or there is no memory for them."""
    for at, tensor in enumerate(request.inputs):
        span = tensor.span
        if isinstance(span, RegionSpan) and tensor.datatype == BYTES:
            block = allocate(tensor.nbytes)
            request.inputs[at] = Tensor(tensor.name, tensor.datatype, tensor.shape, None, block.whole())
            yield partial(span.place.region.read, span.place.offset, block.view)
            span.drop()


def _in_region(tensor: Tensor) -> bool:
    return tensor.datatype == BYTES and isinstance(tensor.span, RegionSpan)
