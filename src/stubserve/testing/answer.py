"""The answer of a model to one request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from triton_python_backend_utils import InferenceResponse, TritonError


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
        return outputs_of(self.response)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the only response."""
        parameters: dict[str, Any] = json.loads(self.response.parameters() or "{}")
        return parameters

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.outputs[name]

    def __repr__(self) -> str:
        return f"<Answer of {len(self.responses)} responses>"


def outputs_of(response: InferenceResponse) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a response by name. Raises ModelError if it is an error."""
    error = response.error()
    if error is not None:
        raise ModelError(error)
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
