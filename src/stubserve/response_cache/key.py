"""The key of a request: equal for requests of which one's answer is good for the other, and for no others.

It covers all that a model can see of a request and that may change the answer: the tensors in their order (name, type,
shape, bytes), the parameters, which outputs are wanted (in any order), correlation id and flags. Before them stands
`identity`: the model, its version, its configuration, as the load has summed them up. The request's id, its priority
and its timeout are left out, because they do not change an answer.

Upstream's key is a 64-bit hash of names and bytes alone, so that there a tensor of another shape, or a request for
other outputs, gets an answer that was not its own.

Costs. A key is the SHA-256 of all that, so nobody can make two requests share one. Tensors of up to APART_BYTES are
hashed together with the rest, larger ones for themselves. Up to QUICK_BYTES that takes about 1.5 µs and 0.6 ns a byte;
more is for a thread: hashing lets go of the interpreter's lock.
"""

from __future__ import annotations

import marshal
from hashlib import sha256

from stubserve.inference.request import Request

# Tensors above this size are hashed where they lie.
APART_BYTES = 8 * 1024
# More bytes of inputs than this are not for the event loop.
QUICK_BYTES = 64 * 1024

# This form of `marshal` has no references and no marks for interned strings, so equal values give equal bytes.
_FORM = 2


def is_quick(request: Request) -> bool:
    """Whether the key is made in no time."""
    nbytes = 0
    for tensor in request.inputs:
        nbytes += tensor.nbytes
    return nbytes <= QUICK_BYTES


def key_of(identity: bytes, outputs: list[str], request: Request) -> bytes:
    """The key, 32 bytes; `outputs` are all that the model has, in order, which a request that names none wants.

    Raises ValueError for a parameter without bytes. Runs in any thread.
    """
    inputs: list[object] = []
    for tensor in request.inputs:
        content: object = tensor.data
        if tensor.nbytes > APART_BYTES:
            # A tuple, which no bytes can be taken for
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
