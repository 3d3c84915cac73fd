"""The tensors that flow through an ensemble, with what the next step has to know of how they were made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, Response
from stubserve.inference.request import unanswered as nobody
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.schedulers.ensemble.plan import Made
from stubserve.serving.ensemble_shapes import fit

_SEQUENCE_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}

SequenceTag = tuple[int | str, int]


class FlowTensor:
    """What flows: a tensor under the name that its maker knows, and whether its first dimension is a batch.

    `sequence` is the correlation id and the flags that it was made with, None for what the caller gave; `overrides`
    says that the step which made it has set them, for whoever reads it.
    """

    __slots__ = ("is_batch", "overrides", "sequence", "tensor")

    def __init__(
        self, tensor: Tensor, is_batch: bool, sequence: SequenceTag | None = None, overrides: bool = False
    ) -> None:
        self.tensor = tensor
        self.is_batch = is_batch
        self.sequence = sequence
        self.overrides = overrides


def _sequence_of(request: Request, parameters: Mapping[str, Any] | None) -> tuple[SequenceTag, bool]:
    """The sequence that a step's outputs belong to: its request's, but for what the step has said in its response."""
    correlation_id, flags = request.correlation_id, request.flags
    if not parameters:
        return (correlation_id, flags), False
    overrides = False
    given = parameters.get("sequence_id")
    if isinstance(given, (int, str)) and not isinstance(given, bool):
        correlation_id, overrides = given, True
    for name, flag in _SEQUENCE_FLAGS.items():
        value = parameters.get(name)
        if isinstance(value, bool):
            flags, overrides = (flags | flag if value else flags & ~flag), True
    return (correlation_id, flags), overrides


def hold(tensor: Tensor, uses: int) -> Tensor:
    """Holds a tensor once for each of its uses; one that has several is shared."""
    span = tensor.span
    if span is not None:
        if uses > 1:
            span.shared = True
        for _ in range(uses):
            span.hold()
    return tensor


def drop(tensor: Tensor, holds: int = 1) -> None:
    """Lets go of so many holds on a tensor."""
    if tensor.span is not None:
        for _ in range(holds):
            tensor.span.drop()


def drop_inputs(inputs: Mapping[str, FlowTensor]) -> None:
    """Gives the holds of a step's inputs back, which has come to nothing."""
    for given in inputs.values():
        drop(given.tensor)


def given_inputs(read: Sequence[Made], request: Request, signature: Signature) -> dict[str, FlowTensor]:
    """The inputs of an ensemble's request that somebody reads, held for them; optional ones may be missing."""
    is_batch = signature.max_batch_size > 0
    given = {tensor.name: tensor for tensor in request.inputs}
    inputs: dict[str, FlowTensor] = {}
    for name, _, uses, _, _ in read:
        tensor = given.get(name)
        if tensor is not None:
            inputs[name] = FlowTensor(hold(tensor, uses), is_batch)
    return inputs


def step_request(inputs: Mapping[str, FlowTensor], parent: Request, signature: Signature, asked: list[str]) -> Request:
    """The request of a step to a model of this signature, for the outputs that are `asked` of it.

    The holds on its inputs become the request's; what is not said by them is as in `parent`, the ensemble's request.
    """
    sequence = (parent.correlation_id, parent.flags)
    tensors = []
    for name, given in inputs.items():
        tensors.append(_step_input(name, given, signature))
        if given.overrides and given.sequence is not None:
            sequence = given.sequence
    request = Request(
        tensors,
        nobody,
        parent.id,
        *sequence,
        priority=parent.priority,
        timeout_us=parent.timeout_us,
        parameters=parent.parameters,
        requested_outputs=asked,
        # What it was given may lie in its client's shared memory; what it answers is the ensemble's to put there.
        regions=None if parent.regions is None else {},
        client=parent.client,
    )
    request.request_start_ns = time.monotonic_ns()
    return request


def step_outputs(
    read: Sequence[Made], request: Request, response: Response, signature: Signature
) -> dict[str, FlowTensor]:
    """The tensors of a step's response that somebody reads, held for them, by the names that its model knows."""
    is_batch = signature.max_batch_size > 0
    sequence, overrides = _sequence_of(request, response.parameters)
    made: dict[str, FlowTensor] = {}
    for name, _, uses, _, _ in read:
        # The first of a name counts: a model may answer twice under one.
        for tensor in response.outputs:
            if tensor.name == name:
                made[name] = FlowTensor(hold(tensor, uses), is_batch, sequence, overrides)
                break
    return made


def _step_input(name: str, given: FlowTensor, signature: Signature) -> Tensor:
    """A tensor as an input of a step's model; its hold becomes that of the request."""
    tensor, span = given.tensor, given.tensor.span
    if span is not None and not span.shared:
        # Whoever sent it on has no use for it any more.
        span.returned = False
    shape = tensor.shape
    batches = signature.max_batch_size > 0
    if given.is_batch != batches:
        known = signature.inputs.get(name)
        if known is not None:
            shape = fit(shape, given.is_batch, known.dims, batches)
    if not isinstance(shape, tuple):
        shape = tuple(shape)
    return Tensor(name, tensor.datatype, shape, tensor.data, span, tensor.offset, tensor.nbytes)


def ensemble_outputs(
    outputs: dict[str, FlowTensor], signature: Signature
) -> tuple[list[Tensor], dict[str, Any] | None]:
    """Tensors as outputs of the ensemble, and the parameters of its response; their holds become the response's."""
    tensors = []
    parameters: dict[str, Any] | None = None
    # Upstream keeps them in a hash map, which gives them back last one first.
    batches = signature.max_batch_size > 0
    for name, made in reversed(outputs.items()):
        tensor, sequence = made.tensor, made.sequence
        shape = tensor.shape
        if made.is_batch != batches:
            known = signature.outputs[name]
            shape = fit(shape, made.is_batch, known.dims if known.reshape is None else known.reshape, batches)
        tensors.append(Tensor(name, tensor.datatype, shape, tensor.data, tensor.span, tensor.offset, tensor.nbytes))
        if sequence is not None and tensor.nbytes:
            parameters = {
                "sequence_id": sequence[0],
                "sequence_start": bool(sequence[1] & SEQUENCE_START),
                "sequence_end": bool(sequence[1] & SEQUENCE_END),
            }
    return tensors, parameters
