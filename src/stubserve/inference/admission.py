"""The checks that every inference request passes, whichever way it came in.

`admit` does what upstream calls normalisation: it compares a request with its model's signature, in upstream's order
and with upstream's texts, so that the first of several faults is the one that upstream reports. Upstream keeps a
request's inputs in a hash map whose iteration runs from the last added to the first (up to a dozen inputs); where
that shows in a text or decides between two faults, the loops here run backwards too.

Hardly any request has a fault, and then the order does not matter. So `admit` first looks once at each input, front to
back (`_is_plain`, 0.5 µs an input). Only a request with a fault, or with something special (a reshaped input, an empty
batch, a correlation id), goes through the checks one after the other.

A request that passes leaves with its batch size set and its inputs in the shape that the model sees. It is marked, so
that a second `admit` is free. A request that fails is left as it was.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BYTES, name_of, shape_text

from stubserve.errors import ServeError, invalid
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request, Response, refusal
from stubserve.inference.signature import Signature, TensorSignature
from stubserve.inference.string_elements import StringWalk, check_strings, holds_strings, walk_quickly
from stubserve.inference.tensor import Tensor

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def admit(request: Request, signature: Signature, walks: Mapping[str, StringWalk] | None = None) -> None:
    """Checks a request, and makes it ready to be queued.

    Raises ServeError. `walks`: inputs with strings that are walked already.
    """
    if request.admitted or (walks is None and _is_plain(request, signature)):
        return
    inputs = request.inputs
    if len(inputs) > 1:
        _check_duplicates(request)
    if request.requested_outputs is not None:
        _check_outputs(request.requested_outputs, signature)
    if not signature.required_inputs <= len(inputs) <= len(signature.inputs):
        raise _wrong_count(request, signature)
    known = signature.inputs
    for tensor in reversed(inputs):
        if tensor.name not in known:
            raise invalid(f"unexpected inference input '{tensor.name}' for model '{signature.model}'")
    batch_size = _batch_size(request, signature) if signature.max_batch_size else 1
    shapes = [_model_shape(request, tensor, known[tensor.name], signature) for tensor in reversed(inputs)]
    for tensor in reversed(inputs):
        _check_size(request, tensor, known[tensor.name], signature, walks)
    if signature.correlation_control is not None:
        _check_correlation_id(request, signature, *signature.correlation_control)
    for tensor, shape in zip(reversed(inputs), shapes, strict=True):
        if shape is not None:
            tensor.shape = shape
    request.batch_size = batch_size or 1
    request.admitted = True


def _is_plain(request: Request, signature: Signature) -> bool:
    """Admits a request in which nothing is wrong and nothing is special. Returns whether it did."""
    inputs = request.inputs
    known_inputs = signature.inputs
    if not signature.required_inputs <= len(inputs) <= len(known_inputs):
        return False
    if signature.correlation_control is not None and request.options.correlation_id:
        return False
    if request.requested_outputs is not None:
        for name in request.requested_outputs:
            if name not in signature.outputs:
                return False
    most = signature.max_batch_size
    batch_size = 0
    seen = 0
    for tensor in inputs:
        known = known_inputs.get(tensor.name)
        if known is None or tensor.datatype != known.datatype or known.reshape is not None or seen & known.bit:
            return False
        seen |= known.bit
        shape = tensor.shape
        if most:
            if not shape or not 0 < shape[0] <= most or (batch_size and shape[0] != batch_size):
                return False
            batch_size = shape[0]
        if len(shape) != len(known.whole_dims):
            return False
        elements = 1
        for size, dim in zip(shape, known.whole_dims):  # noqa: B905 - of one length, and the keyword costs as much again
            if size != dim and (dim != -1 or size < 0):
                return False
            elements *= size
        if known.is_bytes:
            if tensor.strings != elements and (tensor.strings >= 0 or not holds_strings(tensor.buffer, elements)):
                return False
        elif tensor.nbytes != elements * known.itemsize:
            return False
    request.batch_size = batch_size or 1
    request.admitted = True
    return True


def duplicate_input(id: str, name: str) -> ServeError:
    """The refusal of a second input of the same name. Protocols find the second input before they read its data."""
    return refusal(id, f"input '{name}' already exists in request")


def duplicate_output(id: str, name: str) -> ServeError:
    """The refusal of an output that is requested twice. Protocols find it while they read the requested outputs."""
    return refusal(id, f"output '{name}' already exists in request")


def size_mismatch(id: str, name: str, signature: Signature, expected: int, got: int) -> ServeError:
    """The refusal of a tensor with bytes that do not fill its shape."""
    return refusal(
        id,
        f"input byte size mismatch for input '{name}' for model '{signature.model}'. Expected {expected}, got {got}",
    )


def admit_steps(request: Request, signature: Signature) -> LongWork[None]:
    """As `admit`, in steps, for requests with large inputs."""
    walks = {}
    for tensor in request.inputs:
        if tensor.datatype == BYTES and tensor.name in signature.inputs and tensor.nbytes > strings.SMALL:
            walks[tensor.name] = yield from walk_quickly(tensor)
    admit(request, signature, walks)


def reshape_outputs(response: Response, signature: Signature) -> None:
    """Gives outputs the shape that clients expect, where the configuration has the model use another one.

    An output that does not fit the configured reshape keeps its own shape: a model's result is not hidden.
    """
    if not signature.reshaped_outputs:
        return
    for tensor in response.outputs:
        known = signature.outputs.get(tensor.name)
        if known is not None and known.reshape is not None:
            batched = 1 if signature.max_batch_size else 0
            seen = tensor.shape[batched:]
            if _fits(seen, known.reshape):
                tensor.shape = (*tensor.shape[:batched], *_carry_over(seen, known.reshape, known.dims))


def _check_duplicates(request: Request) -> None:
    seen = set()
    for tensor in request.inputs:
        if tensor.name in seen:
            raise duplicate_input(request.id, tensor.name)
        seen.add(tensor.name)


def _check_outputs(names: Collection[str], signature: Signature) -> None:
    unknown = [name for name in names if name not in signature.outputs]
    if unknown:
        raise invalid(f"unexpected inference output '{min(unknown)}' for model '{signature.model}'")


def _wrong_count(request: Request, signature: Signature) -> ServeError:
    given = [tensor.name for tensor in reversed(request.inputs)]
    missing = [name for name, tensor in signature.inputs.items() if not tensor.optional and name not in given]
    if signature.required_inputs >= len(signature.inputs):
        wanted = f"expected {signature.required_inputs} inputs"
    else:
        wanted = f"expected number of inputs between {signature.required_inputs} and {len(signature.inputs)}"
    # Upstream drops the last character of the list to lose a comma, and loses the bracket when nothing is missing.
    return request.refuse(
        f"{wanted} but got {len(given)} inputs for model '{signature.model}'. Got input(s) [{_quoted(given)}], "
        f"but missing required input(s) {'[' if missing else ''}{_quoted(missing)}]. "
        "Please provide all required input(s).",
    )


def _batch_size(request: Request, signature: Signature) -> int:
    size: int | None = None
    for tensor in reversed(request.inputs):
        if not tensor.shape:
            raise request.refuse(
                f"input '{tensor.name}' has no shape but model requires batch dimension for '{signature.model}'",
            )
        if size is None:
            size = tensor.shape[0]
        elif tensor.shape[0] != size:
            raise request.refuse(
                f"input '{tensor.name}' batch size does not match other inputs for '{signature.model}'",
            )
    if size is None:
        return 1
    if size < 0:
        # Only gRPC can send a datatype that is not specified. Upstream then finds the number of bytes wrong.
        raise _unspecified(request, request.inputs[-1], signature)
    if size > signature.max_batch_size:
        raise request.refuse(
            f"inference request batch-size must be <= {signature.max_batch_size} for '{signature.model}'",
        )
    return size


def _model_shape(
    request: Request, tensor: Tensor, known: TensorSignature, signature: Signature
) -> tuple[int, ...] | None:
    """The shape in which the model sees the input; None if the input came in that shape."""
    if tensor.datatype != known.datatype:
        raise request.refuse(
            f"inference input '{tensor.name}' data-type is '{name_of(tensor.datatype)}', "
            f"but model '{signature.model}' expects '{name_of(known.datatype)}'",
        )
    shape = tensor.shape
    batched = 1 if signature.max_batch_size else 0
    if not _fits(shape[batched:], known.dims):
        if any(size < 0 for size in shape):
            raise _unspecified(request, tensor, signature)
        expected = (-1, *known.dims) if batched else known.dims
        raise request.refuse(
            f"unexpected shape for input '{tensor.name}' for model '{signature.model}'. "
            f"Expected {shape_text(expected)}, got {shape_text(shape)}. {_BATCH_NOTE if batched else ''}",
        )
    if known.reshape is None:
        return None
    return (*shape[:batched], *_carry_over(shape[batched:], known.dims, known.reshape))


def _unspecified(request: Request, tensor: Tensor, signature: Signature) -> ServeError:
    return request.refuse(
        f"All input dimensions should be specified for input '{tensor.name}' for model '{signature.model}', "
        f"got {shape_text(tensor.shape)}",
    )


def _check_size(
    request: Request,
    tensor: Tensor,
    known: TensorSignature,
    signature: Signature,
    walks: Mapping[str, StringWalk] | None,
) -> None:
    elements = prod(tensor.shape)
    if not elements and signature.max_batch_size and not tensor.nbytes and not tensor.shape[0]:
        # Upstream takes an empty batch for no batch dimension at all, and so misses the bytes of one item.
        elements = prod(tensor.shape[1:])
    if known.is_bytes and walks is not None and tensor.name in walks:
        walk = walks[tensor.name]
        if not walk.holds(elements):
            raise walk.refusal(request, tensor, elements, signature.model)
    elif known.is_bytes:
        check_strings(request, tensor, elements, signature.model)
    elif tensor.nbytes != elements * known.itemsize:
        raise size_mismatch(request.id, tensor.name, signature, elements * known.itemsize, tensor.nbytes)


def _check_correlation_id(request: Request, signature: Signature, control: str, datatype: int) -> None:
    # The sequence batcher refuses a request without an id.
    if not request.options.correlation_id:
        return
    is_string = isinstance(request.options.correlation_id, str)
    if is_string != (datatype == BYTES):
        raise request.refuse(
            f"sequence batching control '{control}' data-type is '{'BYTES' if is_string else 'UINT64'}', "
            f"but model '{signature.model}' expects '{name_of(datatype)}'",
        )


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    if len(shape) != len(dims):
        return False
    return all(size == dim if dim != -1 else size >= 0 for size, dim in zip(shape, dims, strict=True))


def _carry_over(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Iterable[int]:
    """`target` with its variable dimensions taken, in order, from those of `source` as `shape` has them."""
    variable = iter([size for size, dim in zip(shape, source, strict=True) if dim == -1])
    return [next(variable) if dim == -1 else dim for dim in target]


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
