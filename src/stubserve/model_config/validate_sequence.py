"""Checks of `sequence_batching`: control tensors, preferred sizes, slot utilisation, in upstream's words."""

from __future__ import annotations

from typing import Any

from stubserve.errors import invalid
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


def validate_sequence_batching(config: ModelConfig) -> None:
    """Raises: ServeError INVALID_ARG."""
    name, batching = config.name, config.sequence_batching
    for kind in _BOOLEAN_KINDS:
        control = _control_of(kind, batching, name)
        if control is not None:
            _validate_boolean_values(control, name)
    correlation_id = _control_of(_CONTROL.CONTROL_SEQUENCE_CORRID, batching, name)
    if correlation_id is not None:
        _validate_correlation_id(correlation_id, name)
    if batching.HasField("oldest"):
        for size in batching.oldest.preferred_batch_size:
            if size <= 0:
                raise invalid(f"sequence batching preferred batch size must be positive for {name}")
            if size > config.max_batch_size:
                raise invalid(f"sequence batching preferred batch size must be <= max batch size for {name}")
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise invalid(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}")


def _control_of(kind: int, batching: Any, name: str) -> Any | None:
    """The one control of a kind, or None."""
    found = None
    seen: set[str] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            raise invalid(f"sequence batching control tensor must have a name for {name}")
        if tensor.name in seen:
            raise invalid(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {name}"
            )
        seen.add(tensor.name)
        for control in tensor.control:
            if control.kind != kind:
                continue
            if found is not None:
                raise invalid(f"sequence batching specifies multiple {_CONTROL.Kind.Name(kind)} tensors for {name}")
            found = control
    return found


def _validate_boolean_values(control: Any, name: str) -> None:
    kind = _CONTROL.Kind.Name(control.kind)
    given = [values for values in _VALUES if len(getattr(control, values))]
    if not given:
        raise invalid(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {name}"
        )
    if len(given) > 1:
        raise invalid(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {name}"
        )
    if len(getattr(control, given[0])) != 2:
        raise invalid(f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {name}")


def _validate_correlation_id(control: Any, name: str) -> None:
    kind = _CONTROL.Kind.Name(control.kind)
    if any(len(getattr(control, values)) for values in _VALUES):
        raise invalid(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {name}"
        )
    if control.data_type not in _CORRELATION_ID_TYPES:
        raise invalid(
            f"unexpected data type for control {kind} for {name}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
