"""The square backend, as Triton's: answers a request whose IN is n with n responses, in each of which OUT is n.

It is for tests and measurements of decoupled models, and of their statistics. These parameters of a configuration
change what it does; those that are no numbers are left out, with a line in the log:

    CUSTOM_INFER_DELAY_NS    how long each response takes
    CUSTOM_OUTPUT_DELAY_NS   how long its output takes besides
    CUSTOM_FAIL_COUNT        so many of the last responses are errors
    CUSTOM_EMPTY_COUNT       behind those, so many are left out
"""

from __future__ import annotations

import threading
from typing import List

import numpy as np

from stubserve_stub.backends.base import InstanceFacts
from stubserve_stub.backends.native import NativeRequest, NativeResponse, Output
from stubserve_stub.backends.streams import Stream, StreamingBackend, check_single, check_tensors, check_types
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_NAME

_INPUTS = {"IN": "INT32"}
_OUTPUTS = {"OUT": "INT32"}
_INT32 = BY_NAME["INT32"].number
_FAILURE = NativeResponse(error="simulated failure", code=codes.UNKNOWN)


class SquareBackend(StreamingBackend):
    """One instance of a model that answers n with n times n."""

    def instance_initialize(self, instance: InstanceFacts) -> None:
        super().instance_initialize(instance)
        dims = check_tensors(self.config, _INPUTS, _OUTPUTS)
        for name in ("IN", "OUT"):
            check_single(name, dims[name])
        check_types(self.config, {**_INPUTS, **_OUTPUTS})
        infer_ns, output_ns = self._parameter("CUSTOM_INFER_DELAY_NS"), self._parameter("CUSTOM_OUTPUT_DELAY_NS")
        self._infer_s, self._output_s = infer_ns / 1e9, output_ns / 1e9
        self._failing = self._parameter("CUSTOM_FAIL_COUNT")
        self._empty = self._parameter("CUSTOM_EMPTY_COUNT")

    def answer(self, request: NativeRequest, stream: Stream) -> None:
        given = request.inputs["IN"]
        shape = list(given.shape)
        if len(shape) == 2 and shape[0] != 1:
            raise Refusal("unexpected shape for IN input", codes.INVALID_ARG)
        (number,) = np.frombuffer(bytes(given.memory), np.int32).tolist()
        if number < 0:
            # Upstream would send 2^64 of them.
            raise Refusal("IN is how many responses are to be sent, got {}".format(number), codes.INVALID_ARG)
        wanted = "OUT" in request.outputs
        threading.Thread(target=self._square, args=(number, shape, wanted, stream), daemon=True).start()

    def _square(self, number: int, shape: List[int], wanted: bool, stream: Stream) -> None:
        outputs = [Output("OUT", _INT32, [1] * len(shape), np.int32(number).tobytes())] if wanted else []
        for index in range(number):
            if self._infer_s:
                stream.wait(self._infer_s)
            if stream.cancelled:
                break
            if index + self._empty >= number:
                continue
            if self._output_s:
                stream.wait(self._output_s)
            failing = index + self._failing + self._empty >= number
            stream.send(_FAILURE if failing else NativeResponse(outputs))
        stream.end()

    def _parameter(self, name: str) -> int:
        text: str = self.config.get("parameters", {}).get(name, {}).get("string_value", "")
        if text.isdecimal():
            return int(text)
        if text:
            line = "{} string_value from {} parameter is not a number".format(text, name)
            self.host.log(codes.LOG_INFO, "square.py", 0, line)
        return 0
