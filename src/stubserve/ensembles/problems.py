"""Checks of an ensemble, in upstream's words.

By itself: its steps are complete and its tensors form a data flow. A tensor is produced as an ensemble input or by one
step's output map. It is *ready* when it is an input, or when every tensor that its step reads is ready: the least fixed
point, so that a loop of steps is never ready.

Against the models of its steps: this is done at the load, because only then their configurations are complete. Names,
types and shapes must agree, and so must batches and streams. The first mention of a tensor describes it, in this order:
the ensemble's own inputs and outputs, then the steps. Later mentions must agree with it. Shapes agree if sizes do, or
if one of the two is variable; a batch dimension may match the first dimension of a model without batching. So a step
with batching can feed one without, as long as the whole shapes fit.

A *stream* is the set of responses that a decoupled model makes of one request. Tensors of two streams cannot meet,
because it is not defined which response belongs to which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stubserve_stub.wire.datatypes import shape_text

from stubserve.errors import ServeError, invalid, within
from stubserve.model_config.proto import ENSEMBLE_PLATFORM, ModelConfig, model_config_pb2


@dataclass
class _Tensor:
    name: str
    step: int  # the first that names it
    written: bool = False
    ready: bool = False
    sources: list[_Tensor] = field(default_factory=list)
    readers: list[_Tensor] = field(default_factory=list)


def ensemble_problems(config: ModelConfig) -> Iterator[ServeError]:
    """Each error INVALID_ARG."""
    name = config.name
    if config.platform != ENSEMBLE_PLATFORM:
        text = f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE_PLATFORM}"
        yield invalid(text).at("ensemble_scheduling")
    if config.instance_group:
        yield invalid(f"instance group should not be specified for ensemble '{name}'").at("instance_group")
    if config.HasField("optimization"):
        yield invalid(f"optimization should not be specified for ensemble '{name}'").at("optimization")
    if not config.ensemble_scheduling.step:
        yield invalid(f"must specify 'step' for ensemble '{name}'").at("ensemble_scheduling")
        return
    tensors: dict[str, _Tensor] = {}
    yield from _data_flow_problems(config, tensors)
    yield from _input_problems(config, tensors)
    yield from _output_problems(config, tensors)
    outputs = {output.name for output in config.output}
    for tensor in tensors.values():
        # An output may have no reader; its readiness was checked above.
        if tensor.name not in outputs and not (tensor.ready and tensor.readers):
            text = f"ensemble tensor '{tensor.name}' is unused in ensemble '{name}'"
            yield invalid(text).at("ensemble_scheduling", "step", tensor.step)


def _data_flow_problems(config: ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[ServeError]:
    """Fills `tensors`, by name."""
    for index, step in enumerate(config.ensemble_scheduling.step):
        here = ("ensemble_scheduling", "step", index)
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                yield invalid(f"must specify '{required}' in step {index} of ensemble '{config.name}'").at(*here)
        written = []
        # Maps have no order. Sorted, the first error is always the same.
        for target in sorted(step.output_map.values()):
            tensor = tensors.setdefault(target, _Tensor(target, index))
            if tensor.written:
                yield invalid(
                    f"ensemble tensor '{target}' can appear in an output map only once for ensemble '{config.name}' "
                    f"step {index}"
                ).at(*here)
            tensor.written = True
            written.append(tensor)
        for source_name in sorted(step.input_map.values()):
            source = tensors.setdefault(source_name, _Tensor(source_name, index))
            for tensor in written:
                tensor.sources.append(source)
                source.readers.append(tensor)


def _input_problems(config: ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[ServeError]:
    """Marks ready tensors, beginning with the inputs."""
    queue = []
    for index, model_input in enumerate(config.input):
        tensor = tensors.get(model_input.name)
        if tensor is None:
            # The stray quote is upstream's.
            text = f"ensemble input '{model_input.name}' for ensemble {config.name}' is not used"
            yield invalid(text).at("input", index)
            continue
        tensor.ready = True
        queue.append(tensor)
    while queue:
        for reader in queue.pop().readers:
            if not reader.ready and all(source.ready for source in reader.sources):
                reader.ready = True
                queue.append(reader)


def _output_problems(config: ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[ServeError]:
    for index, output in enumerate(config.output):
        tensor = tensors.get(output.name)
        if tensor is None:
            text = f"ensemble output '{output.name}' for ensemble {config.name}' is not used"
            yield invalid(text).at("output", index)
        elif not tensor.ready:
            text = f"output '{output.name}' for ensemble '{config.name}' is not written"
            culprit = _first_unconnected(tensor)
            if culprit is not tensor:
                text += f": at least one of its depending tensors, '{culprit.name}', is not connected"
            yield invalid(text).at("output", index)


def _first_unconnected(tensor: _Tensor) -> _Tensor:
    """Follows sources that are not ready up to one without sources, or to where a loop closes."""
    seen: set[str] = set()
    while True:
        source = next((s for s in tensor.sources if not s.ready and s.name not in seen), None)
        if source is None:
            return tensor
        seen.add(source.name)
        tensor = source


@dataclass(frozen=True, slots=True)
class _Description:
    """A tensor as `model` describes it; `whole` is the shape with the batch dimension, if any."""

    model: str
    datatype: int
    dims: Sequence[int]
    whole: Sequence[int]


def member_problems(config: ModelConfig, members: Mapping[str, ModelConfig]) -> Iterator[ServeError]:
    """The problems of an ensemble that is valid by itself; `members` are its steps' configurations by model name."""
    known: dict[str, _Description] = {}
    for tensor in (*config.input, *config.output):
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        known.setdefault(tensor.name, _describe(config, tensor.data_type, dims))
    for index, step in enumerate(config.ensemble_scheduling.step):
        member = members[step.model_name]
        if 0 < member.max_batch_size < config.max_batch_size:
            yield invalid(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{member.name} which only allows maximum batch size to be {member.max_batch_size}"
            ).at("max_batch_size")
        yield from within(_step_problems(config.name, step, member, known), "ensemble_scheduling", "step", index)
    try:
        is_decoupled(config, members)
    except ServeError as error:
        yield error.at("ensemble_scheduling")


def is_decoupled(config: ModelConfig, members: Mapping[str, ModelConfig]) -> bool:
    """Whether an ensemble may answer any number of times, because a model in it does.

    Raises ServeError INVALID_ARG if a step, or the caller, would get tensors of several streams.
    """
    # The stream that each tensor belongs to; 0 is the request itself
    streams = {tensor.name: 0 for tensor in config.input}
    steps = list(config.ensemble_scheduling.step)
    count = 0
    while steps:
        ready = [step for step in steps if all(tensor in streams for tensor in step.input_map.values())]
        if not ready:
            break  # a cycle, which is reported elsewhere
        for step in ready:
            steps.remove(step)
            stream = _only_stream(config.name, step.model_name, [streams[name] for name in step.input_map.values()])
            if members[step.model_name].model_transaction_policy.decoupled:
                count += 1
                stream = count
            streams.update(dict.fromkeys(step.output_map.values(), stream))
    _only_stream(config.name, config.name, [streams[output.name] for output in config.output if output.name in streams])
    return count > 0


def _only_stream(ensemble: str, model: str, streams: Sequence[int]) -> int:
    if len(set(streams)) > 1:
        raise invalid(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return streams[0] if streams else 0


def _describe(config: ModelConfig, datatype: int, dims: Sequence[int]) -> _Description:
    return _Description(config.name, datatype, dims, [-1, *dims] if config.max_batch_size > 0 else list(dims))


def _step_problems(
    ensemble: str, step: Any, member: ModelConfig, known: dict[str, _Description]
) -> Iterator[ServeError]:
    inputs = {tensor.name: tensor for tensor in member.input}
    outputs = {tensor.name: tensor for tensor in member.output}
    # Maps have no order. Sorted, the first error is always the same.
    for name, tensor in sorted(step.input_map.items()):
        if name not in inputs:
            yield invalid(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{member.name}"
            )
    for name, one in inputs.items():
        if name in step.input_map:
            yield from _disagreement(ensemble, step.input_map[name], _describe(member, one.data_type, one.dims), known)
        elif not one.optional:
            yield invalid(
                f"in ensemble {ensemble}, input {name} in model {member.name} is not mapped to any ensemble tensors"
            )
    for name, tensor in sorted(step.output_map.items()):
        if name not in outputs:
            yield invalid(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in model "
                f"{member.name}"
            )
    for name, tensor in sorted(step.output_map.items()):
        if name in outputs:
            one = outputs[name]
            yield from _disagreement(ensemble, tensor, _describe(member, one.data_type, one.dims), known)
        if sum(one.name == name for one in member.output) > 1:
            yield invalid(
                f"in ensemble {ensemble}, multiple outputs in model {member.name} are mapped to the same ensemble "
                f"tensor {tensor}"
            )


def _disagreement(
    ensemble: str, tensor: str, new: _Description, known: dict[str, _Description]
) -> Iterator[ServeError]:
    """The error, if a description of a tensor differs from the first one."""
    old = known.setdefault(tensor, new)
    where = f"in ensemble {ensemble}, ensemble tensor {tensor}: "
    if old.datatype != new.datatype:
        first, second = map(model_config_pb2.DataType.Name, (old.datatype, new.datatype))
        yield invalid(
            f"{where}inconsistent data type: {first} is inferred from model {old.model} while {second} is inferred "
            f"from model {new.model}"
        )
    elif not _fits(old.dims, new.dims) and not _fits(old.whole, new.whole):
        yield invalid(
            f"{where}inconsistent shape: {shape_text(old.whole)} is inferred from model {old.model} while "
            f"{shape_text(new.whole)} is inferred from model {new.model}"
        )


def _fits(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
