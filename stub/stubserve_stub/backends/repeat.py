"""The repeat backend, as Triton's: answers with each element of IN, after as many milliseconds as DELAY has for it.

It is for tests of decoupled models. Inputs are IN (INT32), DELAY (UINT32, of IN's shape) and WAIT (UINT32, one
element); each response has an element as OUT and its index as IDX. The instance takes the next request after WAIT
milliseconds, so the responses of several requests may mix. Without elements there is no response but the end.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Sequence

import numpy as np

from stubserve_stub.backends.base import InstanceFacts
from stubserve_stub.backends.loading.contract import shape_text
from stubserve_stub.backends.native import NativeRequest, NativeResponse, Output
from stubserve_stub.backends.streams import Stream, StreamingBackend, check_single, check_tensors, check_types
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_NAME

_INPUTS = {"IN": "INT32", "DELAY": "UINT32", "WAIT": "UINT32"}
_OUTPUTS = {"OUT": "INT32", "IDX": "UINT32"}
_INT32, _UINT32 = BY_NAME["INT32"].number, BY_NAME["UINT32"].number


class RepeatBackend(StreamingBackend):
    """One instance of a model that answers element by element."""

    def instance_initialize(self, instance: InstanceFacts) -> None:
        super().instance_initialize(instance)
        _check(self.config)

    def answer(self, request: NativeRequest, stream: Stream) -> None:
        given, delay = request.inputs["IN"], request.inputs["DELAY"]
        _check_alike(given.shape, delay.shape)
        elements = bytes(given.memory)
        delays: List[int] = np.frombuffer(bytes(delay.memory), np.uint32).tolist()
        threading.Thread(target=_repeat, args=(elements, delays, request.outputs, stream), daemon=True).start()

    def after_batch(self, requests: Sequence[NativeRequest]) -> None:
        for request in requests:
            (milliseconds,) = np.frombuffer(bytes(request.inputs["WAIT"].memory), np.uint32).tolist()
            time.sleep(milliseconds / 1000)


def _repeat(elements: bytes, delays: Sequence[int], wanted: Sequence[str], stream: Stream) -> None:
    for index, milliseconds in enumerate(delays):
        stream.wait(milliseconds / 1000)
        if stream.cancelled:
            break
        outputs = [
            Output("OUT", _INT32, (1,), elements[4 * index : 4 * index + 4]),
            Output("IDX", _UINT32, (1,), np.uint32(index).tobytes()),
        ]
        stream.send(NativeResponse([output for output in outputs if output.name in wanted]))
    stream.end()


def _check(config: Dict[str, Any]) -> None:
    """Raises Refusal for a configuration of another model."""
    if int(config.get("max_batch_size", 0)):
        raise Refusal("repeat backend only supports models with max_batch_size == 0")
    dims = check_tensors(config, _INPUTS, _OUTPUTS)
    if len(dims["IN"]) != 1:
        raise Refusal("expected IN shape to have one dimension, got {}".format(shape_text(dims["IN"])))
    _check_alike(dims["IN"], dims["DELAY"])
    for name in ("WAIT", "OUT", "IDX"):
        check_single(name, dims[name])
    check_types(config, {**_INPUTS, **_OUTPUTS})


def _check_alike(given: Sequence[int], delay: Sequence[int]) -> None:
    if list(given) != list(delay):
        raise Refusal(
            "expected IN and DELAY shape to match, got {} and {}".format(shape_text(given), shape_text(delay)),
            codes.INVALID_ARG,
        )
