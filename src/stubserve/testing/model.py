"""`LoadedModel`: what a test does with a model, and the `Answer` that the model gives to a request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from stubserve_stub.api import bls
from stubserve_stub.backends.python.model import Model
from stubserve_stub.runtime.states import specs_of
from triton_python_backend_utils import InferenceRequest, InferenceResponse, TritonError

from stubserve.inference.signature import Signature
from stubserve.testing.calls import LocalCalls, Target
from stubserve.testing.execution import LocalExecutor
from stubserve.testing.request import Request, check_response, prepare
from stubserve.testing.surroundings import Surroundings

_SILENT_S = 60.0


class ModelError(Exception):
    """A model answered a request with an error. `code` is one of TritonError's."""

    def __init__(self, error: TritonError) -> None:
        super().__init__(error.message())
        self.message = error.message()
        self.code = error.code()


class Answer:
    """The responses to one request, in the order in which the model gave them: one, or any number if it is decoupled.

    `answer["OUTPUT0"]` is an output of the only response.
    """

    def __init__(self, responses: Sequence[InferenceResponse]) -> None:
        self.responses = list(responses)

    @property
    def response(self) -> InferenceResponse:
        """The only response. Raises AssertionError if there is none or more than one."""
        assert len(self.responses) == 1, f"the model gave {len(self.responses)} responses to this request, not one"
        return self.responses[0]

    @property
    def error(self) -> TritonError | None:
        """The error of the only response."""
        return self.response.error()

    @property
    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs of the only response. Raises ModelError if that is an error."""
        error = self.response.error()
        if error is not None:
            raise ModelError(error)
        return {tensor.name(): tensor.as_numpy() for tensor in self.response.output_tensors()}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the only response."""
        parameters: dict[str, Any] = json.loads(self.response.parameters() or "{}")
        return parameters

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.outputs[name]

    def __repr__(self) -> str:
        return f"<Answer of {len(self.responses)} responses>"


class LoadedModel:
    """A model that has been initialized. `testing.load` makes it; leaving its `with` block calls `finalize`."""

    def __init__(
        self,
        model: Model,
        signature: Signature,
        surroundings: Surroundings,
        arguments: dict[str, str],
        config: dict[str, Any],
        targets: Mapping[str, Target],
        check: bool,
    ) -> None:
        self.name = signature.model
        self.version = signature.version
        # The arguments of `initialize`, and the configuration as served
        self.arguments = arguments
        self.config = config
        self._model = model
        self._signature = signature
        self._surroundings = surroundings
        self._check = check
        states = specs_of(config, arguments["model_repository"])
        self._states = [spec.output for spec in states]
        self._executor = LocalExecutor(model, arguments["model_instance_name"], signature.decoupled, states)
        self._closed = False
        surroundings.allow(LocalCalls(targets, self._executor.channel))

    @property
    def instance(self) -> Any:
        """The TritonPythonModel object."""
        return self._model._object

    def infer(self, inputs: Mapping[str, Any] | None = None, /, **arrays: Any) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs of one request; `inputs` is for names that are not Python identifiers.

        Raises what the model raises, ModelError if it answers with an error, ServeError if a server would refuse the
        request, AssertionError if the answer does not fit the configuration or is not exactly one response.
        """
        (answer,) = self.execute([{**(inputs or {}), **arrays}])
        return answer.outputs

    def execute(self, requests: Sequence[Request | Mapping[str, Any]], timeout: float = _SILENT_S) -> list[Answer]:
        """Executes the requests as one batch, and waits up to `timeout` seconds for all responses of its senders.

        Raises as `infer`, but an error with which the model answers is in the Answer.
        """
        assert not self._closed, f"model '{self.name}' has been closed"
        prepared = [prepare(request, self._signature, self._states) for request in requests]
        rows = sum(request.rows for request in prepared)
        limit = self._signature.max_batch_size
        if limit and rows > limit:
            raise ValueError(
                f"a server makes no batch of {rows} for model '{self.name}': its max_batch_size is {limit}"
            )
        with self._surroundings.active():
            wires = self._executor.run(prepared, timeout)
        if self._check:
            for index, (request, responses) in enumerate(zip(prepared, wires, strict=True)):
                for wire in responses:
                    check_response(self._signature, request, index, wire)
        channel: Any = self._executor.channel
        return [Answer([bls.received(channel, wire) for wire in responses]) for responses in wires]

    def is_ready(self) -> bool:
        """What the model's `is_ready` returns; True if it has none. Raises its exceptions."""
        with self._surroundings.active():
            return not self._model.checks_readiness or self._model.is_ready()

    def close(self) -> None:
        """Calls `finalize` and forgets the model's modules. Raises what `finalize` raises."""
        if self._closed:
            return
        self._closed = True
        try:
            with self._surroundings.active():
                self._surroundings.allow(None)
                self._model.finalize()
        finally:
            self._surroundings.close()

    def __call__(self, request: InferenceRequest) -> InferenceResponse | Iterator[InferenceResponse]:
        """Answers a request of another model, as one of its `bls`."""
        (answer,) = self.execute(
            [
                Request(
                    {tensor.name(): tensor for tensor in request.inputs()},
                    list(request.requested_output_names()) or None,
                    request.request_id(),
                    request.correlation_id(),
                    request.flags(),
                    request.timeout(),
                    request._options.parameters,
                )
            ]
        )
        return iter(answer.responses) if self._signature.decoupled else answer.response

    def __enter__(self) -> LoadedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LoadedModel {self.name!r} version {self.version}>"
