"""The files in a model's folder `initial_state`, with which the implicit states of its sequences begin.

The stubs read them; here it is only checked, before one is started, that they can.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from stubserve_stub.runtime.states import FOLDER
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.errors import ServeError, internal, invalid, raise_first
from stubserve.inference.string_elements import holds_strings

log = logging.getLogger("stubserve.repository")


def check_initial_states(config: Any, model_dir: Path) -> None:
    """Raises ServeError for the first file that is missing, too short, or not what it should be."""
    raise_first(initial_state_problems(config, model_dir))


def initial_state_problems(config: Any, model_dir: Path) -> Iterator[ServeError]:
    """What is wrong with the files of a configuration that is right in itself."""
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
