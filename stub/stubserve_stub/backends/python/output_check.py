"""Whether a model answers what its configuration says: names, types and shapes of its outputs.

Upstream passes on what a model gives, whatever that is, and clients stumble over it. Here a model whose outputs are not
those of its configuration is told so in the log, once for each output and kind of mistake; the answers are the same. A
check takes some microseconds, so it is made of each instance's first answers only, unless the server was told otherwise
(--check-outputs).
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.wire.datatypes import BY_NUMBER

NEVER, FIRST, ALWAYS = "never", "first", "always"

# How many answers are the first ones
_FIRST_ANSWERS = 100


class OutputCheck:
    """The check of one instance; `warn` gets the sentences. `config` is the served configuration, as JSON text."""

    def __init__(self, mode: str, model: str, config: str, warn: Callable[[str], None]) -> None:
        self._model = model
        self._warn = warn
        self._left = {NEVER: 0, FIRST: _FIRST_ANSWERS}.get(mode, -1)
        self._told: Set[Tuple[str, str]] = set()
        parsed = json.loads(config)
        self._batches = parsed.get("max_batch_size", 0) > 0
        self._streams = bool(parsed.get("model_transaction_policy", {}).get("decoupled"))
        # Type and dimensions of each output, the batch's left out
        self._outputs: Dict[str, Tuple[str, List[int]]] = {}
        for output in parsed.get("output", ()):
            dims = output["reshape"]["shape"] if "reshape" in output else output["dims"]
            self._outputs[output["name"]] = (output["data_type"], [int(dim) for dim in dims])
        # Those have a check of their own, whose failure is an error.
        self._states = {state["output_name"] for state in parsed.get("sequence_batching", {}).get("state", ())}

    @property
    def over(self) -> bool:
        """Whether no further answer needs to be looked at."""
        return self._left == 0

    def look(self, response: Optional[InferenceResponse], requested: Sequence[str], rows: Optional[int]) -> None:
        """Looks at an answer with all that the model gave; `rows` is the batch size where it is fixed."""
        if self._left == 0 or response is None or response._error is not None:
            return
        self._left -= 1
        given = set()
        for tensor in response._output_tensors:
            given.add(tensor._name)
            if tensor._name not in self._states:
                self._look_at(tensor, rows)
        if self._streams:
            return
        for name in requested:
            if name in self._outputs and name not in given:
                others = ", ".join("'{}'".format(other) for other in sorted(given)) or "none"
                self._tell(name, "missing", "is not among the outputs that it answered ({})".format(others))

    def _look_at(self, tensor: Any, rows: Optional[int]) -> None:
        name = tensor._name
        known = self._outputs.get(name)
        if known is None:
            self._tell(name, "unknown", "is not in its configuration, and is dropped")
            return
        datatype, dims = known
        answered = BY_NUMBER[tensor._datatype].config_name
        if answered != datatype:
            self._tell(name, "type", "is {}, and its configuration says {}".format(answered, datatype))
        expected = ([-1 if rows is None else rows] if self._batches else []) + dims
        shape = [int(size) for size in tensor._shape]
        if len(shape) != len(expected) or any(dim not in (-1, size) for size, dim in zip(shape, expected)):
            self._tell(name, "shape", "has shape {}, expected was {}".format(shape, expected))

    def _tell(self, name: str, kind: str, what: str) -> None:
        if (name, kind) not in self._told:
            self._told.add((name, kind))
            self._warn("model '{}': output '{}' {}".format(self._model, name, what))
