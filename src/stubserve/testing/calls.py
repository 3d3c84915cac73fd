"""Business logic scripting in a test: the models that a model calls are functions, or other loaded models."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from stubserve_stub.api.bls import received
from stubserve_stub.api.tensors import Tensor as StubTensor
from triton_python_backend_utils import InferenceRequest, InferenceResponse, Tensor, TritonError

from stubserve.testing.execution import LocalChannel

# Takes the request; returns a response, or arrays by name, or for a decoupled call any number of either.
Target = Callable[[InferenceRequest], Any]


class LocalCall:
    """A call under way: answers that are not taken yet, as (response, final), and the rest to come."""

    def __init__(self, answers: Iterator[tuple[InferenceResponse, bool]]) -> None:
        self.rest = answers
        self.answers = collections.deque([next(answers)])


class LocalCalls:
    """The stub's `bls` uses it as it uses `stubserve_stub.runtime.calls.Calls`. A call runs in its caller's thread."""

    def __init__(self, targets: Mapping[str, Target], channel: LocalChannel) -> None:
        self.channel = channel
        self._targets = targets

    def open(
        self,
        target: tuple[str, int],
        decoupled: bool,
        request: Any,
        on_answer: Callable[[], None] | None = None,
        preferred: int | None = None,
    ) -> LocalCall:
        call = LocalCall(self._answers(target, decoupled, request))
        if on_answer is not None:
            on_answer()
        return call

    def wait(self, call: LocalCall) -> tuple[InferenceResponse, bool]:
        return call.answers.popleft() if call.answers else next(call.rest)

    def cancel(self, call: LocalCall) -> None:
        call.rest = iter([(received(self.channel, None), True)])  # type: ignore[arg-type]

    def discard(self, call: LocalCall) -> None: ...

    def taken(self, call: LocalCall, count: int, nbytes: int) -> None: ...

    def expect(self, loop: Any) -> None: ...

    def expect_no_more(self, loop: Any) -> None: ...

    def _answers(
        self, target: tuple[str, int], decoupled: bool, request: Any
    ) -> Iterator[tuple[InferenceResponse, bool]]:
        name, version = target
        id, options, _, names, inputs = request
        function = self._targets.get(name)
        if function is None:
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            hint = f" (in a test: stubserve.testing.load(..., bls={{'{name}': function}}))"
            yield self._received(InferenceResponse(error=TritonError(text + hint)), None), True
            return
        tensors = [
            StubTensor._received(tensor, datatype, shape, data, None) for tensor, datatype, shape, data in inputs
        ]
        made = InferenceRequest(
            id,
            options.correlation_id,
            tensors,
            names or [],
            name,
            version,
            options.flags,
            options.timeout_us,
            parameters=dict(options.parameters or {}),
        )
        result = function(made)
        if isinstance(result, InferenceResponse | Mapping):
            yield self._received(_response(result), names), True
            return
        assert decoupled, f"bls: '{name}' returned {type(result)} for a call without decoupled=True"
        for response in result:
            yield self._received(_response(response), names), False
        yield self._received(None, None), True

    def _received(self, response: InferenceResponse | None, names: list[str] | None) -> InferenceResponse:
        """The response as the calling model sees it."""
        wire = None
        if response is not None:
            produced = [tensor.name() for tensor in response.output_tensors()]
            wire = response._encode(names or produced, self.channel)
        return received(self.channel, wire)  # type: ignore[arg-type]


def _response(result: Any) -> InferenceResponse:
    if isinstance(result, InferenceResponse):
        return result
    return InferenceResponse([Tensor(name, np.asarray(array)) for name, array in result.items()])
