"""The key of a request. Two requests have equal keys if, and only if, the answer to one is good for the other.

It covers all that a model can see of a request and that may change the answer: the tensors in their order (name, type,
shape, bytes), the parameters, the wanted outputs (in any order), correlation id and flags. `identity` stands in front:
the load's summary of the model, its version and its configuration. The request's id, priority and timeout are left out,
because they do not change an answer.

Upstream's key is a 64-bit hash of names and bytes alone. So there a tensor of another shape, or a request for other
outputs, gets an answer that is not its own.

Costs. A key is a SHA-256, so nobody can make two requests share one. Tensors of up to APART_BYTES are hashed together
with the rest, larger ones alone. Up to QUICK_BYTES a key takes about 1.5 µs and 0.6 ns a byte. More is for a thread,
because hashing releases the interpreter's lock.
"""

# Compiled by mypyc.
from __future__ import annotations

import marshal
from hashlib import sha256

from stubserve.inference.request import Request

# Larger tensors are hashed where they lie.
APART_BYTES = 8 * 1024
# With more bytes of inputs a thread makes the key, not the event loop.
QUICK_BYTES = 64 * 1024

# This form of `marshal` has no references and no marks for interned strings, so equal values give equal bytes.
_FORM = 2


def is_quick(request: Request) -> bool:
    """Whether making the key takes hardly any time."""
    nbytes = 0
    for tensor in request.inputs:
        nbytes += tensor.nbytes
    return nbytes <= QUICK_BYTES


def key_of(identity: bytes, outputs: list[str], request: Request) -> bytes:
    """The key, 32 bytes; `outputs` are all outputs of the model, in order, for a request that names none.

    Raises ValueError for a parameter without bytes. Runs in any thread.
    """
    inputs: list[object] = []
    for tensor in request.inputs:
        content: object = tensor.data
        if tensor.nbytes > APART_BYTES:
            # A tuple, so that no bytes can be equal to it
            content = (tensor.nbytes, sha256(tensor.buffer).digest())
        elif content is None:
            content = bytes(tensor.buffer)
        inputs.append((tensor.name, tensor.datatype, tuple(tensor.shape), content))
    options = request.options
    wanted = request.requested_outputs
    form = marshal.dumps(
        (
            identity,
            inputs,
            None if not options.parameters else sorted(options.parameters.items()),
            outputs if wanted is None else sorted(wanted),
            options.correlation_id,
            options.flags,
        ),
        _FORM,
    )
    return sha256(form).digest()
