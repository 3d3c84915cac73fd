"""The repeat and square backends, as in Triton: decoupled models for tests, built in as Python models.

`repeat` answers with each element of IN, after its DELAY in milliseconds. Inputs are IN (INT32), DELAY (UINT32, of IN's
shape) and WAIT (UINT32, one element); each response has an element as OUT and its index as IDX. The instance takes the
next request after WAIT milliseconds, so responses of several requests may mix. Without elements only the end is sent.

`square` answers a request with n as IN by n responses with n as OUT. These parameters of a configuration change
that; values that are no numbers are ignored, with a line in the log:

    CUSTOM_INFER_DELAY_NS    how long each response takes
    CUSTOM_OUTPUT_DELAY_NS   how long its output takes besides
    CUSTOM_FAIL_COUNT        so many of the last responses are errors
    CUSTOM_EMPTY_COUNT       behind those, so many are left out

The `_check` functions compare the configuration with these tensors, in upstream's texts.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from stubserve_stub.api.constants import ErrorCode
from stubserve_stub.api.exceptions import TritonError
from stubserve_stub.api.logger import Logger
from stubserve_stub.api.requests import InferenceRequest, get_input_tensor_by_name
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.backends.python.streaming import Answers, StreamingBackend, StreamingModel, is_cancelled
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.datatypes import shape_text


class _Repeat(StreamingModel):
    def check(self) -> None:
        if int(self.config.get("max_batch_size", 0)):
            raise Refusal("repeat backend only supports models with max_batch_size == 0")
        dims = _check_tensors(self.config, ("IN", "DELAY", "WAIT"), ("OUT", "IDX"))
        if len(dims["IN"]) != 1:
            raise Refusal(f"expected IN shape to have one dimension, got {shape_text(dims['IN'])}")
        _check_alike(dims["IN"], dims["DELAY"])
        _check_single(dims, "WAIT", "OUT", "IDX")
        _check_types(self.config, IN="INT32", DELAY="UINT32", WAIT="UINT32", OUT="INT32", IDX="UINT32")

    def answers(self, request: InferenceRequest) -> Answers:
        given, delay = _input(request, "IN"), _input(request, "DELAY")
        _check_alike(given.shape, delay.shape)
        elements, delays = given.copy(), delay.tolist()

        def send(sender: InferenceResponseSender) -> None:
            for index, milliseconds in enumerate(delays):
                if is_cancelled(sender, milliseconds / 1000):
                    return
                outputs = [
                    Tensor("OUT", elements[index : index + 1]),
                    Tensor("IDX", np.array([index], np.uint32)),
                ]
                sender.send(InferenceResponse(outputs))

        return send

    def execute(self, requests: List[InferenceRequest]) -> None:
        super().execute(requests)
        for request in requests:
            is_cancelled(request.get_response_sender(), int(_input(request, "WAIT").reshape(-1)[0]) / 1000)


class _Square(StreamingModel):
    def check(self) -> None:
        _check_single(_check_tensors(self.config, ("IN",), ("OUT",)), "IN", "OUT")
        _check_types(self.config, IN="INT32", OUT="INT32")
        self._infer_s = self._parameter("CUSTOM_INFER_DELAY_NS") / 1e9
        self._output_s = self._parameter("CUSTOM_OUTPUT_DELAY_NS") / 1e9
        self._failing, self._empty = self._parameter("CUSTOM_FAIL_COUNT"), self._parameter("CUSTOM_EMPTY_COUNT")

    def answers(self, request: InferenceRequest) -> Answers:
        given = _input(request, "IN")
        if given.ndim == 2 and len(given) != 1:
            raise Refusal("unexpected shape for IN input", ErrorCode.INVALID_ARG)
        number = int(given.reshape(-1)[0])
        if number < 0:
            # Upstream would send 2^64 of them.
            raise Refusal(f"IN is how many responses are to be sent, got {number}", ErrorCode.INVALID_ARG)
        output = Tensor("OUT", np.full([1] * given.ndim, number, np.int32))

        def send(sender: InferenceResponseSender) -> None:
            for index in range(number):
                if is_cancelled(sender, self._infer_s):
                    return
                if index + self._empty >= number:
                    continue
                is_cancelled(sender, self._output_s)
                failing = index + self._failing + self._empty >= number
                error = TritonError("simulated failure", ErrorCode.UNKNOWN) if failing else None
                sender.send(InferenceResponse([] if failing else [output], error))

        return send

    def _parameter(self, name: str) -> int:
        text: str = self.config.get("parameters", {}).get(name, {}).get("string_value", "")
        if text and not text.isdecimal():
            Logger.log_info(f"{text} string_value from {name} parameter is not a number")
        return int(text) if text.isdecimal() else 0


class RepeatBackend(StreamingBackend):
    model_class = _Repeat


class SquareBackend(StreamingBackend):
    model_class = _Square


def _input(request: InferenceRequest, name: str) -> np.ndarray:
    tensor: Optional[Tensor] = get_input_tensor_by_name(request, name)
    assert tensor is not None, "the server asks for all inputs"
    return tensor.as_numpy()


def _check_tensors(config: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]) -> Dict[str, List[int]]:
    """The dimensions of all inputs and outputs. Raises Refusal for their wrong number or order.

    Upstream compares data types last: see `_check_types`.
    """
    given = (("input", inputs, config["input"]), ("output", outputs, config["output"]))
    for what, expected, tensors in given:
        if len(tensors) != len(expected):
            plural = "" if len(expected) == 1 else "s"
            raise Refusal(f"expected {len(expected)} {what}{plural}, got {len(tensors)}")
    dims: Dict[str, List[int]] = {}
    for what, expected, tensors in given:
        for ordinal, name, tensor in zip(("first", "second", "third"), expected, tensors):
            if tensor["name"] != name:
                raise Refusal(f"expected {ordinal} {what} tensor name to be {name}, got {tensor['name']}")
            dims[name] = [int(dim) for dim in tensor["dims"]]
    return dims


def _check_single(dims: Mapping[str, Sequence[int]], *names: str) -> None:
    """Raises Refusal for a tensor that may have other than one element."""
    for name in names:
        if list(dims[name]) != [1]:
            raise Refusal(f"expected {name} shape to be [1], got {shape_text(dims[name])}")


def _check_types(config: Mapping[str, Any], **expected: str) -> None:
    """Raises Refusal for an input or output of another data type."""
    for tensor in (*config["input"], *config["output"]):
        name, kind = tensor["name"], expected[tensor["name"]]
        if tensor["data_type"] != "TYPE_" + kind:
            raise Refusal(f"expected {name} datatype to be {kind}, got {tensor['data_type']}")


def _check_alike(given: Sequence[int], delay: Sequence[int]) -> None:
    if list(given) != list(delay):
        raise Refusal(
            f"expected IN and DELAY shape to match, got {shape_text(given)} and {shape_text(delay)}",
            ErrorCode.INVALID_ARG,
        )
