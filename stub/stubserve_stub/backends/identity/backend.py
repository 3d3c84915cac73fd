"""The identity backend, as in Triton: each `OUTPUT<x>` is `INPUT<x>`, of any data type.

It is for tests and measurements: it copies nothing, so it measures the server. Rules, texts and the example parameters
of every response are those of Triton's backend. These parameters of a configuration slow it down on purpose:

    creation_delay_sec               how long a load takes
    execute_delay_ms                 how long a batch takes
    instance_wise_delay_multiplier   instance n of the model takes n times this as long, the first one as long as said
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence, Tuple

from stubserve_stub.backends.base import InstanceSetup
from stubserve_stub.backends.loading import dims_of
from stubserve_stub.backends.native import InputView, NativeBackend, NativeOutput, NativeRequest, NativeResponse
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, nbytes_of, shape_text

_INPUT, _OUTPUT = "INPUT", "OUTPUT"

# Triton's backend shows with these how a backend sends parameters.
_EXAMPLES: Dict[str, Any] = {"param0": "an example string parameter", "param1": 42, "param2": False}


class IdentityBackend(NativeBackend):
    def instance_initialize(self, instance: InstanceSetup) -> None:
        super().instance_initialize(instance)
        tensors = _checked(self.config)
        # Data type and shape of inputs that may be missing, by the name of the output; -1 counts as 1
        self._optional: Dict[str, Tuple[int, List[int]]] = {
            _OUTPUT + index: (BY_CONFIG_NAME[datatype].number, [1 if dim < 0 else dim for dim in shape])
            for index, (datatype, shape, optional) in tensors.items()
            if optional
        }
        delay_ms = self._parameter("execute_delay_ms")
        number = instance.name.rpartition("_")[2]
        multiplier = self._parameter("instance_wise_delay_multiplier") * int(number if number.isdecimal() else 0)
        self._delay_s = delay_ms * max(multiplier, 1) / 1000
        time.sleep(self._parameter("creation_delay_sec"))

    def compute(self, requests: List[NativeRequest]) -> List[NativeResponse]:
        if self._delay_s:
            time.sleep(self._delay_s)
        return [self._answer(request) for request in requests]

    def _answer(self, request: NativeRequest) -> NativeResponse:
        outputs = []
        for name in request.outputs:
            source = _INPUT + name[len(_OUTPUT) :]
            given = request.inputs.get(source)
            if given is None:
                if name not in self._optional:
                    text = f"failed to get input '{source}'"
                    return NativeResponse(error=text, code=codes.UNSUPPORTED)
                given = self._zeros(name, request.rows)
            outputs.append(NativeOutput(name, given.datatype, given.shape, given.memory))
        return NativeResponse(outputs, _EXAMPLES)

    def _zeros(self, output: str, rows: int) -> InputView:
        """Zeros in place of a missing input; empty texts for BYTES."""
        datatype, shape = self._optional[output]
        shape = [rows, *shape] if self._batches else shape
        return InputView("", datatype, shape, bytes(nbytes_of(datatype, shape)))

    def _parameter(self, name: str) -> int:
        """A parameter of the configuration, 0 where there is none. Raises Refusal if it is no integer of 0 or more."""
        text = self.config.get("parameters", {}).get(name, {}).get("string_value", "0")
        if not text.isdecimal():
            raise Refusal(f"parameter '{name}' of the identity backend must be an integer from 0 on, got '{text}'")
        return int(text)


def _checked(config: Dict[str, Any]) -> Dict[str, Tuple[str, Sequence[int], bool]]:
    """Data type, shape and whether it may be missing, of each input, by what follows INPUT. Raises Refusal."""
    inputs, outputs = config["input"], config["output"]
    if len(inputs) != len(outputs):
        raise Refusal("model configuration must have equal input/output pairs")
    found = {}
    expected = {}
    for given, answered in zip(inputs, outputs):
        found[_index(given, _INPUT, "input")] = (given["data_type"], dims_of(given), bool(given.get("optional")))
        expected[_index(answered, _OUTPUT, "output")] = (answered["data_type"], dims_of(answered))
    for index, (datatype, shape) in sorted(expected.items()):
        if index not in found:
            raise Refusal("expected input and output indices to match")
        if found[index][0] != datatype:
            raise Refusal(f"expected input and output datatype to match, got {found[index][0]} and {datatype}")
        if found[index][1] != shape:
            raise Refusal(
                f"expected input and output shape to match, got {shape_text(found[index][1])} and {shape_text(shape)}"
            )
    return found


def _index(tensor: Dict[str, Any], prefix: str, what: str) -> str:
    name: str = tensor["name"]
    if not name.startswith(prefix):
        raise Refusal(f"expected {what} name to follow {prefix}<index> pattern, got '{name}'")
    return name[len(prefix) :]
