"""Checks of an ensemble against the models of its steps: names, types and shapes meet, and so do batches and streams.

They are upstream's, in its words, and are made when the ensemble is loaded, because only then the configurations of the
models are complete. The first that names a tensor describes it: the ensemble's own inputs and outputs, then the
steps in their order. Everybody else has to agree.

Shapes agree where sizes do, or one of the two is variable; a batch dimension may stand for the first dimension of a
model that does not batch. So a step that batches can feed one that does not, as long as the whole shapes fit.

A *stream* is what a decoupled model makes of one request: any number of responses. What comes of one stream cannot meet
what comes of another, because nobody could say which response belongs to which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stubserve.errors import ServeError, invalid
from stubserve.model_config.proto import ModelConfig, model_config_pb2


@dataclass(frozen=True, slots=True)
class _Description:
    """What `model` says of a tensor; `whole` is the shape with the batch dimension that it may have."""

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
        for problem in _step_problems(config.name, step, member, known):
            yield problem.at("ensemble_scheduling", "step", index)
    try:
        is_decoupled(config, members)
    except ServeError as error:
        yield error.at("ensemble_scheduling")


def is_decoupled(config: ModelConfig, members: Mapping[str, ModelConfig]) -> bool:
    """Whether an ensemble may answer any number of times, because a model in it does.

    Raises ServeError INVALID_ARG where a step, or the caller, would get tensors of several streams.
    """
    # The stream that each tensor comes of; 0 is the request itself
    streams = {tensor.name: 0 for tensor in config.input}
    steps = list(config.ensemble_scheduling.step)
    count = 0
    while steps:
        ready = [step for step in steps if all(tensor in streams for tensor in step.input_map.values())]
        if not ready:
            break  # a cycle, which is told elsewhere
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
    # Maps come in no order of their own; sorted, the first error is always the same.
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


def _disagreement(
    ensemble: str, tensor: str, new: _Description, known: dict[str, _Description]
) -> Iterator[ServeError]:
    """The error, if there is one, of describing a tensor otherwise than whoever named it first."""
    old = known.setdefault(tensor, new)
    where = f"in ensemble {ensemble}, ensemble tensor {tensor}: "
    if old.datatype != new.datatype:
        first, second = _datatype(old.datatype), _datatype(new.datatype)
        yield invalid(
            f"{where}inconsistent data type: {first} is inferred from model {old.model} while {second} is inferred "
            f"from model {new.model}"
        )
    elif not _fits(old.dims, new.dims) and not _fits(old.whole, new.whole):
        yield invalid(
            f"{where}inconsistent shape: {_shape(old.whole)} is inferred from model {old.model} while "
            f"{_shape(new.whole)} is inferred from model {new.model}"
        )


def _fits(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _datatype(number: int) -> str:
    name: str = model_config_pb2.DataType.Name(number)
    return name


def _shape(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"
