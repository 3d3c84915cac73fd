"""Compares a model's outputs with its configuration: names, types and shapes.

Upstream passes on whatever a model gives, and clients stumble over it. Here the log names a wrong output, once for each
output and kind of mistake. A check takes some microseconds, so only the first answers of each instance are checked,
unless --check-outputs says otherwise. With `refuse`, as in `serve --dev`, a wrong answer becomes an error.

An answer that lacks an output and has one that the configuration does not know is always an error, unless nothing is
to be compared: its model has the name wrong. Models for upstream may leave out outputs, and others may be dropped.
"""

from __future__ import annotations

import json
from typing import Callable, Collection, Dict, List, Optional, Sequence, Set, Tuple

from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.loading import dims_of
from stubserve_stub.wire.datatypes import BY_NUMBER, fits

NEVER, FIRST, ALWAYS, REFUSE = "never", "first", "always", "refuse"

_UNKNOWN = "is not in its configuration"
_DROPPED = _UNKNOWN + ", and is dropped"
_MISSING = "is not among the outputs that it answered ({})"

# An output's name, the kind of mistake, and the text
Problem = Tuple[str, str, str]

# How many answers are the first ones
_FIRST_ANSWERS = 100


class OutputCheck:
    """The check of one instance; `warn` gets the sentences. `config` is the served configuration, as JSON text."""

    def __init__(self, mode: str, model: str, config: str, warn: Callable[[str], None]) -> None:
        self._model = model
        self._warn = warn
        self._refuses = mode == REFUSE
        # How many answers are still to be checked; below 0 for all
        self.left = {NEVER: 0, FIRST: _FIRST_ANSWERS}.get(mode, -1)
        self._told: Set[Tuple[str, str]] = set()
        parsed = json.loads(config)
        self._batches = parsed.get("max_batch_size", 0) > 0
        self._streams = bool(parsed.get("model_transaction_policy", {}).get("decoupled"))
        # Type and dimensions of each output, the batch's left out
        self._outputs: Dict[str, Tuple[str, List[int]]] = {}
        for output in parsed.get("output", ()):
            self._outputs[output["name"]] = (output["data_type"], list(dims_of(output)))
        # States are checked elsewhere, and a mistake there is an error.
        self._states = {state["output_name"] for state in parsed.get("sequence_batching", {}).get("state", ())}
        self._known = self._states.union(self._outputs)

    def look(
        self, response: Optional[InferenceResponse], requested: Collection[str], rows: Optional[int]
    ) -> Optional[InferenceResponse]:
        """Checks an answer with all of the model's outputs, and returns the answer that its client gets.

        `rows` is the batch size where it is fixed.
        """
        if self.left == 0 or response is None or response._error is not None:
            return response
        self.left -= 1
        wrong = self._problems(response, requested, rows)
        for name, kind, what in wrong:
            if (name, kind) not in self._told:
                self._told.add((name, kind))
                self._warn(self._error([(name, kind, what)]))
        if not wrong or not self._refuses:
            return response
        return InferenceResponse(error=TritonError(self._error(wrong)))

    def misnamed(self, tensors: Sequence[Tensor], requested: Collection[str]) -> str:
        """The error of an answer that lacks a requested output, if one of its `tensors` is unknown; else empty."""
        names = {tensor._name: None for tensor in tensors}
        unknown = [(name, "unknown", _UNKNOWN) for name in names if name not in self._known]
        return self._error([*unknown, *self._missing(names, requested)]) if unknown else ""

    def _error(self, wrong: "List[Problem]") -> str:
        return f"model '{self._model}': " + "; ".join(f"output '{name}' {what}" for name, _, what in wrong)

    def _problems(
        self, response: InferenceResponse, requested: Collection[str], rows: Optional[int]
    ) -> "List[Problem]":
        """The mistakes of an answer."""
        found: List[Problem] = []
        tensors = response._output_tensors
        missing = self._missing({tensor._name: None for tensor in tensors}, requested)
        for tensor in tensors:
            name, shape = tensor._name, list(tensor._shape)
            if name in self._states:
                continue
            if name not in self._outputs:
                found.append((name, "unknown", _UNKNOWN if self._refuses or missing else _DROPPED))
                continue
            datatype, dims = self._outputs[name]
            answered = BY_NUMBER[tensor._datatype].config_name
            if answered != datatype:
                found.append((name, "type", f"is {answered}, and its configuration says {datatype}"))
            expected = [-1 if rows is None else rows, *dims] if self._batches else dims
            if not fits(shape, expected):
                found.append((name, "shape", f"has shape {shape}, expected was {expected}"))
        return [*found, *(() if self._streams else missing)]

    def _missing(self, given: Collection[str], requested: Collection[str]) -> "List[Problem]":
        others = ", ".join(f"'{name}'" for name in sorted(given)) or "none"
        what = _MISSING.format(others)
        return [(name, "missing", what) for name in requested if name in self._outputs and name not in given]
