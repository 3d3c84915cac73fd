"""Checks of an ensemble that need no other model: its steps are complete and its tensors form a data flow.

A tensor is produced by being an ensemble input or by one step's output map. It is *ready* when it is an input, or when
every tensor that its step reads is ready: the least fixed point, so that a loop of steps is never ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stubserve.errors import invalid
from stubserve.model_config.proto import ModelConfig

ENSEMBLE_PLATFORM = "ensemble"


@dataclass
class _Tensor:
    name: str
    written: bool = False
    ready: bool = False
    sources: list[_Tensor] = field(default_factory=list)
    readers: list[_Tensor] = field(default_factory=list)


def validate_ensemble(config: ModelConfig) -> None:
    """Raises: ServeError INVALID_ARG."""
    name = config.name
    if config.platform != ENSEMBLE_PLATFORM:
        raise invalid(f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE_PLATFORM}")
    if config.instance_group:
        raise invalid(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise invalid(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise invalid(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        raise invalid(f"must specify 'step' for ensemble '{name}'")
    tensors = _data_flow(config)
    _mark_ready(config, tensors)
    _validate_outputs(config, tensors)
    outputs = {output.name for output in config.output}
    for tensor in tensors.values():
        # An output may have no reader, and is known to be ready by now.
        if tensor.name not in outputs and not (tensor.ready and tensor.readers):
            raise invalid(f"ensemble tensor '{tensor.name}' is unused in ensemble '{name}'")


def _data_flow(config: ModelConfig) -> dict[str, _Tensor]:
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(config.ensemble_scheduling.step):
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                raise invalid(f"must specify '{required}' in step {index} of ensemble '{config.name}'")
        written = []
        # Maps come in no order of their own; sorted, the first error is always the same.
        for target in sorted(step.output_map.values()):
            tensor = tensors.setdefault(target, _Tensor(target))
            if tensor.written:
                raise invalid(
                    f"ensemble tensor '{target}' can appear in an output map only once for ensemble '{config.name}' "
                    f"step {index}"
                )
            tensor.written = True
            written.append(tensor)
        for source_name in sorted(step.input_map.values()):
            source = tensors.setdefault(source_name, _Tensor(source_name))
            for tensor in written:
                tensor.sources.append(source)
                source.readers.append(tensor)
    return tensors


def _mark_ready(config: ModelConfig, tensors: dict[str, _Tensor]) -> None:
    queue = []
    for model_input in config.input:
        tensor = tensors.get(model_input.name)
        if tensor is None:
            # The stray quote is upstream's.
            raise invalid(f"ensemble input '{model_input.name}' for ensemble {config.name}' is not used")
        tensor.ready = True
        queue.append(tensor)
    while queue:
        for reader in queue.pop().readers:
            if not reader.ready and all(source.ready for source in reader.sources):
                reader.ready = True
                queue.append(reader)


def _validate_outputs(config: ModelConfig, tensors: dict[str, _Tensor]) -> None:
    for output in config.output:
        tensor = tensors.get(output.name)
        if tensor is None:
            raise invalid(f"ensemble output '{output.name}' for ensemble {config.name}' is not used")
        if tensor.ready:
            continue
        text = f"output '{output.name}' for ensemble '{config.name}' is not written"
        culprit = _first_unconnected(tensor)
        if culprit is not tensor:
            text += f": at least one of its depending tensors, '{culprit.name}', is not connected"
        raise invalid(text)


def _first_unconnected(tensor: _Tensor) -> _Tensor:
    """Follows sources that are not ready up to one that has none, or to where a loop closes."""
    seen: set[str] = set()
    while True:
        source = next((s for s in tensor.sources if not s.ready and s.name not in seen), None)
        if source is None:
            return tensor
        seen.add(source.name)
        tensor = source
