"""Checks of `sequence_batching`: control tensors, preferred sizes, slot utilisation, in upstream's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stubserve.errors import ServeError, invalid
from stubserve.model_config.proto import ModelConfig, model_config_pb2

_CONTROL = model_config_pb2.ModelSequenceBatching.Control
_VALUES = ("int32_false_true", "fp32_false_true", "bool_false_true")
_BOOLEAN_KINDS = (_CONTROL.CONTROL_SEQUENCE_START, _CONTROL.CONTROL_SEQUENCE_END, _CONTROL.CONTROL_SEQUENCE_READY)
_CORRELATION_ID_TYPES = (
    model_config_pb2.TYPE_UINT64,
    model_config_pb2.TYPE_INT64,
    model_config_pb2.TYPE_UINT32,
    model_config_pb2.TYPE_INT32,
    model_config_pb2.TYPE_STRING,
)


def sequence_problems(config: ModelConfig) -> Iterator[ServeError]:
    """Each error INVALID_ARG."""
    for error in _problems(config.sequence_batching, config.name, config.max_batch_size):
        yield error.at("sequence_batching", *error.path)


def _problems(batching: Any, name: str, max_batch_size: int) -> Iterator[ServeError]:
    for kind in _BOOLEAN_KINDS:
        found: list[tuple[int, Any]] = []
        # All kinds go through the same tensors: what is wrong with their names is said once.
        yield from _control_problems(kind, batching, name, found, of_names=kind == _BOOLEAN_KINDS[0])
        for index, control in found[:1]:
            for error in _boolean_problems(control, name):
                yield error.at("control_input", index)
    found = []
    yield from _control_problems(_CONTROL.CONTROL_SEQUENCE_CORRID, batching, name, found)
    for index, control in found[:1]:
        for error in _correlation_id_problems(control, name):
            yield error.at("control_input", index)
    if batching.HasField("oldest"):
        for size in batching.oldest.preferred_batch_size:
            if size <= 0:
                error = invalid(f"sequence batching preferred batch size must be positive for {name}")
                yield error.at("oldest", "preferred_batch_size")
            if size > max_batch_size:
                error = invalid(f"sequence batching preferred batch size must be <= max batch size for {name}")
                yield error.at("oldest", "preferred_batch_size")
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        error = invalid(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}")
        yield error.at("direct", "minimum_slot_utilization")


def _control_problems(
    kind: int, batching: Any, name: str, found: list[tuple[int, Any]], *, of_names: bool = False
) -> Iterator[ServeError]:
    """Puts the controls of a kind, of which there may be one, into `found`, each with its tensor's index."""
    seen: set[str] = set()
    for index, tensor in enumerate(batching.control_input):
        if of_names:
            if not tensor.name:
                yield invalid(f"sequence batching control tensor must have a name for {name}").at(
                    "control_input", index
                )
            elif tensor.name in seen:
                yield invalid(
                    f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for "
                    f"{name}"
                ).at("control_input", index)
            seen.add(tensor.name)
        for control in tensor.control:
            if control.kind != kind:
                continue
            if found:
                yield invalid(f"sequence batching specifies multiple {_CONTROL.Kind.Name(kind)} tensors for {name}").at(
                    "control_input", index
                )
            found.append((index, control))


def _boolean_problems(control: Any, name: str) -> Iterator[ServeError]:
    kind = _CONTROL.Kind.Name(control.kind)
    given = [values for values in _VALUES if len(getattr(control, values))]
    if not given:
        yield invalid(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {name}"
        )
    elif len(given) > 1:
        yield invalid(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {name}"
        )
    elif len(getattr(control, given[0])) != 2:
        yield invalid(f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {name}")


def _correlation_id_problems(control: Any, name: str) -> Iterator[ServeError]:
    kind = _CONTROL.Kind.Name(control.kind)
    if any(len(getattr(control, values)) for values in _VALUES):
        yield invalid(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {name}"
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        yield invalid(
            f"unexpected data type for control {kind} for {name}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
