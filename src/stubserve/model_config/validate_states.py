"""Checks of implicit state, `sequence_batching.state`: in upstream's words where it has any.

Upstream finds these when it makes the scheduler, so a load fails with them and not the reading of the repository. What
it would only notice later, or never, is refused as well: states without names, names that mean two things, sizes that
are none. That growing states are for GPUs is not upstream's rule here: states lie in the memory of the host, and grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from stubserve.errors import ServeError, invalid
from stubserve.model_config.proto import ModelConfig, model_config_pb2

_TYPE_INVALID = model_config_pb2.TYPE_INVALID
_WILDCARD = -1


def state_problems(config: ModelConfig) -> Iterator[ServeError]:
    """Each error INVALID_ARG."""
    taken = {tensor.name for tensor in config.input}
    taken |= {control.name for control in config.sequence_batching.control_input}
    outputs: set[str] = set()
    for index, state in enumerate(config.sequence_batching.state):
        for error in (*_name_problems(state, config, taken, outputs), *_state_problems(state)):
            yield error.at("sequence_batching", "state", index, *error.path)
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
        for error in _initial_problems(initial, state):
            yield error.at("initial_state", 0, *error.path)


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
        # Upstream's quotes are so.
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
