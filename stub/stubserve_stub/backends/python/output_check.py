"""Compares a model's outputs with its configuration: names, types and shapes.

Upstream passes on whatever a model gives, and clients stumble over it. Here the log names a wrong output, once for each
output and kind of mistake; the answers are the same. A check takes some microseconds, so only the first answers of each
instance are checked, unless --check-outputs says otherwise. With `refuse`, as in `serve --dev`, a wrong answer becomes
an error.
"""

from __future__ import annotations

import json
from typing import Callable, Collection, Dict, List, Optional, Set, Tuple

from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.backends.loading import dims_of
from stubserve_stub.wire.datatypes import BY_NUMBER, fits

NEVER, FIRST, ALWAYS, REFUSE = "never", "first", "always", "refuse"

_UNKNOWN = "is not in its configuration"
_MISSING = "is not among the outputs that it answered ({})"

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
                self._warn(self._sentence(name, what))
        if not wrong or not self._refuses:
            return response
        sentences = "; ".join(f"output '{name}' {what}" for name, _, what in wrong)
        return InferenceResponse(error=TritonError(f"model '{self._model}': {sentences}"))

    def _sentence(self, name: str, what: str) -> str:
        return f"model '{self._model}': output '{name}' {what}"

    def _problems(
        self, response: InferenceResponse, requested: Collection[str], rows: Optional[int]
    ) -> List[Tuple[str, str, str]]:
        """The mistakes of an answer: for each the output's name, the kind of mistake, and the text."""
        found: List[Tuple[str, str, str]] = []
        given = set()
        for tensor in response._output_tensors:
            name, shape = tensor._name, list(tensor._shape)
            given.add(name)
            if name in self._states:
                continue
            if name not in self._outputs:
                found.append((name, "unknown", _UNKNOWN if self._refuses else _UNKNOWN + ", and is dropped"))
                continue
            datatype, dims = self._outputs[name]
            answered = BY_NUMBER[tensor._datatype].config_name
            if answered != datatype:
                found.append((name, "type", f"is {answered}, and its configuration says {datatype}"))
            expected = [-1 if rows is None else rows, *dims] if self._batches else dims
            if not fits(shape, expected):
                found.append((name, "shape", f"has shape {shape}, expected was {expected}"))
        if not self._streams:
            others = ", ".join(f"'{name}'" for name in sorted(given)) or "none"
            for name in requested:
                if name in self._outputs and name not in given:
                    found += [(name, "missing", _MISSING.format(others))]
        return found
