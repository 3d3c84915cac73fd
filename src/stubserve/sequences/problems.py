"""Checks of `sequence_batching`: control tensors, preferred sizes, slot utilisation, implicit state; upstream's words.

Upstream finds errors of states when it makes the scheduler, so they fail a load and not the reading of the repository.
Errors that upstream would only notice later, or never, are refused as well: states without names, names with two
meanings, invalid sizes. Upstream allows growing states only on GPUs; here states lie in the memory of the host, and may
grow. The stubs read the files of a model's folder `initial_state`, the first states; here they are only checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from stubserve_stub.runtime.states import FOLDER
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.errors import ServeError, internal, invalid, raise_first, within
from stubserve.inference.string_elements import holds_strings
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
    yield from within(_problems(config.sequence_batching, config.name, config.max_batch_size), "sequence_batching")


def _problems(batching: Any, name: str, max_batch_size: int) -> Iterator[ServeError]:
    for kind in _BOOLEAN_KINDS:
        found: list[tuple[int, Any]] = []
        # All kinds use the same tensors: errors of their names are reported once.
        yield from _control_problems(kind, batching, name, found, of_names=kind == _BOOLEAN_KINDS[0])
        for index, control in found[:1]:
            yield from within(_boolean_problems(control, name), "control_input", index)
    found = []
    yield from _control_problems(_CONTROL.CONTROL_SEQUENCE_CORRID, batching, name, found)
    for index, control in found[:1]:
        yield from within(_correlation_id_problems(control, name), "control_input", index)
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
    """Puts the controls of a kind, at most one, into `found`, with the index of its tensor."""
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


_TYPE_INVALID = model_config_pb2.TYPE_INVALID
_WILDCARD = -1


def state_problems(config: ModelConfig) -> Iterator[ServeError]:
    """Each error INVALID_ARG."""
    taken = {tensor.name for tensor in config.input}
    taken |= {control.name for control in config.sequence_batching.control_input}
    outputs: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        errors = (*_name_problems(state, config, taken, outputs), *_state_problems(state))
        yield from within(errors, "sequence_batching", "state", index)
        taken.add(state.input_name)
        outputs.add(state.output_name)


def _name_problems(state: Any, config: ModelConfig, taken: set[str], outputs: set[str]) -> Iterator[ServeError]:
    for field in ("input_name", "output_name"):
        if not getattr(state, field):
            yield invalid(f"sequence batching state must specify '{field}' for {config.name}").at(field)
    if state.input_name and state.input_name in taken:
        yield invalid(f"State input name '{state.input_name}' specified more than once.").at("input_name")
    if state.output_name and state.output_name in outputs:
        yield invalid(f"State output name '{state.output_name}' specified more than once.").at("output_name")
    for output in config.output:
        if output.name == state.output_name and output.data_type != state.data_type:
            yield invalid(
                f"state output '{state.output_name}' has another data type than the output of that name for "
                f"{config.name}"
            ).at("data_type")


def _state_problems(state: Any) -> Iterator[ServeError]:
    name = state.input_name
    if state.data_type == _TYPE_INVALID:
        yield invalid(f"state input '{name}' must specify 'data_type'").at("data_type")
    if not all(dim >= 1 or dim == _WILDCARD for dim in state.dims):
        yield invalid(
            f"state input '{name}' dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        ).at("dims")
    if state.use_growable_memory and not state.use_same_buffer_for_input_output:
        yield invalid(
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
            f"'{name}'."
        ).at("use_growable_memory")
    count = len(state.initial_state)
    if count > 1:
        yield invalid(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found '{count}' "
            "elements."
        ).at("initial_state")
    for initial in state.initial_state[:1]:
        yield from within(_initial_problems(initial, state), "initial_state", 0)


def _initial_problems(initial: Any, state: Any) -> Iterator[ServeError]:
    name = state.input_name
    if initial.data_type != state.data_type:
        yield invalid(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        ).at("data_type")
    if not initial.name:
        yield invalid(f"Field 'name' must be set when using initial_state for state input '{name}'.").at("name")
    if len(initial.dims) != len(state.dims):
        yield invalid(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
        ).at("dims")
    else:
        yield from _dim_problems(initial, state)
    source = initial.WhichOneof("state_data")
    if source is None:
        # The quotes are upstream's.
        yield invalid(f"initial_state setting expects state'{name}' to have state_data set")
    elif source == "data_file" and not _is_inside(initial.data_file):
        yield invalid(
            f"initial_state of state input '{name}': '{initial.data_file}' is not the name of a file in the model's "
            "folder 'initial_state'"
        ).at("data_file")


def _dim_problems(initial: Any, state: Any) -> Iterator[ServeError]:
    name = state.input_name
    for own, dim in zip(initial.dims, state.dims, strict=True):
        if own == _WILDCARD:
            error = invalid(f"'initial_state' field for state input name '{name}' contains variable dimensions.")
            yield error.at("dims")
            return
        if own < 0:
            yield invalid(f"'initial_state' dim for input name '{name}' must not be negative, got {own}").at("dims")
            return
        if dim not in (_WILDCARD, own):
            text = f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {own} != {dim}"
            yield invalid(text).at("dims")
            return


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


log = logging.getLogger("stubserve.repository")


def check_initial_states(config: Any, model_dir: Path) -> None:
    """Raises ServeError for the first file that is missing, too short, or invalid."""
    raise_first(initial_state_problems(config, model_dir))


def initial_state_problems(config: Any, model_dir: Path) -> Iterator[ServeError]:
    """The errors in the files of a configuration that is valid by itself."""
    for index, state in enumerate(config.sequence_batching.state):
        for initial in state.initial_state:
            if initial.WhichOneof("state_data") != "data_file":
                continue
            try:
                _check(config.name, state, initial, model_dir / FOLDER / initial.data_file)
            except ServeError as error:
                yield error.at("sequence_batching", "state", index, "initial_state", 0, "data_file")


def _check(model: str, state: Any, initial: Any, path: Path) -> None:
    elements = prod(initial.dims)
    try:
        size = path.stat().st_size
        if state.data_type == BYTES:
            if not holds_strings(path.read_bytes(), elements):
                raise invalid(
                    f"initial_state of state input '{state.input_name}': {initial.data_file} does not hold {elements} "
                    "strings, each behind its length in 4 bytes"
                )
            return
        with path.open("rb"):
            pass
    except OSError as error:
        raise internal(f"failed to open text file for read {path}: {error.strerror}") from None
    expected = elements * BY_NUMBER[state.data_type].itemsize
    if size < expected:
        # Upstream has no space there.
        raise invalid(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial.data_file}only has "
            f"{size} bytes."
        )
    if size > expected:
        log.warning(
            "model '%s': the initial state of '%s' has %d bytes, and its file '%s' %d: the rest is not used",
            model, state.input_name, expected, initial.data_file, size,
        )  # fmt: skip
