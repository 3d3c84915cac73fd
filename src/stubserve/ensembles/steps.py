"""The inputs and outputs of an ensemble's steps: tensors, requests and calls.

A tensor flows together with the facts about its making that the next step needs.
"""

# Compiled by mypyc.
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from stubserve_stub.wire.options import RequestOptions

from stubserve.ensembles.flow import StepRun
from stubserve.ensembles.plan import Made
from stubserve.inference.call import Call, asker_of
from stubserve.inference.request import SEQUENCE_END, SEQUENCE_START, Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor

_SEQUENCE_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}


class FlowTensor:
    """A tensor under its maker's name, and whether its first dimension is a batch.

    `options` are those that it was made with, None for the caller's tensors; `overrides`: the step which made it has
    set some of them, for its readers.
    """

    __slots__ = ("is_batch", "options", "overrides", "tensor")

    def __init__(
        self, tensor: Tensor, is_batch: bool, options: RequestOptions | None = None, overrides: bool = False
    ) -> None:
        self.tensor = tensor
        self.is_batch = is_batch
        self.options = options
        self.overrides = overrides


class StepCall(Call):
    """The request of one run of a step for the ensemble's request `whole`; `on_answer` gets its responses."""

    __slots__ = ("_on_answer", "_whole", "run")

    def __init__(
        self,
        run: StepRun[FlowTensor],
        model: ServedModel,
        on_answer: Callable[[StepCall, Request, Response], None],
        whole: Request,
    ) -> None:
        super().__init__(model)
        self.run = run
        self._on_answer = on_answer
        self._whole = whole

    def respond(self, request: Request, response: Response) -> None:
        self._on_answer(self, request, response)

    def asker(self) -> str:
        return asker_of(self._whole)


class Prospect(NamedTuple):
    """A call that is still to be made, for a search for deadlocks."""

    model: ServedModel
    request: Request | None = None


def _options_of(request: Request, parameters: Mapping[str, Any] | None) -> tuple[RequestOptions, bool]:
    """The options that go on with a step's outputs, and whether the response sets some: it may name a sequence."""
    options, overrides = request.options, False
    if not parameters:
        return options, False
    given = parameters.get("sequence_id")
    if isinstance(given, (int, str)) and not isinstance(given, bool):
        options, overrides = options._replace(correlation_id=given), True
    for name, flag in _SEQUENCE_FLAGS.items():
        value = parameters.get(name)
        if isinstance(value, bool):
            options, overrides = options._replace(flags=options.flags | flag if value else options.flags & ~flag), True
    return options, overrides


def hold(tensor: Tensor, uses: int) -> Tensor:
    """Holds a tensor once for each of its uses; a tensor with several uses is shared."""
    span = tensor.span
    if span is not None:
        if uses > 1:
            span.shared = True
        for _ in range(uses):
            span.hold()
    return tensor


def drop(tensor: Tensor, holds: int = 1) -> None:
    if tensor.span is not None:
        for _ in range(holds):
            tensor.span.drop()


def drop_inputs(inputs: Mapping[str, FlowTensor]) -> None:
    """Drops the holds of a step's inputs if the step does not run."""
    for given in inputs.values():
        drop(given.tensor)


def given_inputs(read: Sequence[Made], request: Request, signature: Signature) -> dict[str, FlowTensor]:
    """The inputs of an ensemble's request that have readers, held for them; optional ones may be missing."""
    is_batch = signature.max_batch_size > 0
    given = {tensor.name: tensor for tensor in request.inputs}
    inputs: dict[str, FlowTensor] = {}
    for name, _, uses, _, _ in read:
        tensor = given.get(name)
        if tensor is not None:
            inputs[name] = FlowTensor(hold(tensor, uses), is_batch)
    return inputs


def on_devices(
    made: Sequence[Made], members: Mapping[int, ServedModel], requested: Collection[str] | None
) -> dict[str, bool]:
    """The outputs to ask of a step, and of each whether it may stay in memory of a GPU.

    It may where every reader takes it there: the models of the steps, and the caller, who has `requested` outputs of
    the ensemble.
    """
    by_caller: Mapping[str, bool] = requested if isinstance(requested, dict) else {}
    return {
        name: (not is_output or by_caller.get(tensor, False))
        and all(members[step.index].signature.takes_devices for step in readers)
        for name, tensor, _, readers, is_output in made
    }


def step_request(
    inputs: Mapping[str, FlowTensor], parent: Request, signature: Signature, asked: Collection[str]
) -> Request:
    """The request of a step to a model of this signature, for the outputs that are `asked` of it.

    The holds on its inputs become the request's. All else is as in `parent`, the ensemble's request.
    """
    options = parent.options
    tensors = []
    for name, given in inputs.items():
        tensors.append(_step_input(name, given, signature))
        if given.overrides and given.options is not None:
            options = given.options
    # The inputs may lie in the client's shared memory; the ensemble itself writes the outputs there.
    request = Request(tensors, parent.id, options, asked, None if parent.regions is None else {})
    request.client = parent.client
    request.request_start_ns = time.monotonic_ns()
    return request


def step_outputs(
    read: Sequence[Made], request: Request, response: Response, signature: Signature
) -> dict[str, FlowTensor]:
    """The tensors of a step's response that have readers, held for them, by the names that its model knows."""
    is_batch = signature.max_batch_size > 0
    options, overrides = _options_of(request, response.parameters)
    made: dict[str, FlowTensor] = {}
    for name, _, uses, _, _ in read:
        # The first output of a name counts: a model may answer twice with one name.
        for tensor in response.outputs:
            if tensor.name == name:
                made[name] = FlowTensor(hold(tensor, uses), is_batch, options, overrides)
                break
    return made


def _step_input(name: str, given: FlowTensor, signature: Signature) -> Tensor:
    """A tensor as an input of a step's model; its hold becomes that of the request."""
    tensor, span = given.tensor, given.tensor.span
    if span is not None and not span.shared:
        # The sender of the tensor does not use it any more.
        span.returned = False
    shape = tensor.shape
    batches = signature.max_batch_size > 0
    if given.is_batch != batches:
        known = signature.inputs.get(name)
        if known is not None:
            shape = fit(shape, given.is_batch, known.dims, batches)
    if not isinstance(shape, tuple):
        shape = tuple(shape)
    return tensor.renamed(name, shape)


def ensemble_outputs(
    outputs: dict[str, FlowTensor], signature: Signature
) -> tuple[list[Tensor], dict[str, Any] | None]:
    """Tensors as outputs of the ensemble, and the parameters of its response; their holds become the response's."""
    tensors = []
    parameters: dict[str, Any] | None = None
    # Upstream keeps them in a hash map, which iterates from the last to the first.
    batches = signature.max_batch_size > 0
    for name, made in reversed(outputs.items()):
        tensor, options = made.tensor, made.options
        shape = tensor.shape
        if made.is_batch != batches:
            known = signature.outputs[name]
            shape = fit(shape, made.is_batch, known.dims if known.reshape is None else known.reshape, batches)
        tensors.append(tensor.renamed(name, shape))
        if options is not None and tensor.nbytes:
            flags = {name: bool(options.flags & flag) for name, flag in _SEQUENCE_FLAGS.items()}
            parameters = {"sequence_id": options.correlation_id, **flags}
    return tensors, parameters


def fit(shape: Sequence[int], is_batch: bool, dims: Sequence[int], wants_batch: bool) -> Sequence[int]:
    """`shape` for a model with or without batching; `dims` are those of its configuration, without a batch.

    As upstream: a tensor of a model without batching gets a batch dimension of 1 on its way into a model that batches,
    if its shape is that of one item. A batch of one loses the dimension on its way into a model without batching, if
    only that makes it fit. All other shapes stay, for the next model to accept or refuse.
    """
    if is_batch == wants_batch:
        return shape
    if wants_batch:
        matches = len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))
        return (1, *shape) if matches else shape
    if len(shape) == len(dims) + 1 and shape[0] == 1:
        return tuple(shape[1:])
    return shape
