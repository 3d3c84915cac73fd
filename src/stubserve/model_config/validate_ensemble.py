"""Checks of an ensemble that need no other model: its steps are complete and its tensors form a data flow.

A tensor is produced by being an ensemble input or by one step's output map. It is *ready* when it is an input, or when
every tensor that its step reads is ready: the least fixed point, so that a loop of steps is never ready.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stubserve.errors import ServeError, invalid
from stubserve.model_config.proto import ModelConfig

ENSEMBLE_PLATFORM = "ensemble"


@dataclass
class _Tensor:
    name: str
    step: int  # that names it first
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
    if config.model_warmup:
        yield invalid(f"model_warmup can not be specified for ensemble '{name}'").at("model_warmup")
    if not config.ensemble_scheduling.step:
        yield invalid(f"must specify 'step' for ensemble '{name}'").at("ensemble_scheduling")
        return
    tensors: dict[str, _Tensor] = {}
    yield from _data_flow_problems(config, tensors)
    yield from _input_problems(config, tensors)
    yield from _output_problems(config, tensors)
    outputs = {output.name for output in config.output}
    for tensor in tensors.values():
        # An output may have no reader; whether it is ready was checked above.
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
        # Maps come in no order of their own; sorted, the first error is always the same.
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
    """Marks what is ready, beginning with the inputs."""
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
    """Follows sources that are not ready up to one that has none, or to where a loop closes."""
    seen: set[str] = set()
    while True:
        source = next((s for s in tensor.sources if not s.ready and s.name not in seen), None)
        if source is None:
            return tensor
        seen.add(source.name)
        tensor = source
