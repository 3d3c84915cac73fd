"""`InferenceResponse`: what a model answers to one request."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

from stubserve_stub.api import parameters as params
from stubserve_stub.api.arguments import as_list, incompatible
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.tensors import Tensor


class InferenceResponse:
    """Output tensors in the order in which the client gets them, or an error; and parameters.

    Raises TypeError for arguments of the wrong types, TritonModelException for None among the tensors and for unfit
    parameters.
    """

    __slots__ = ("__weakref__", "_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[params.Parameters] = None,
    ) -> None:
        tensors = as_list(output_tensors)
        if tensors is None or not (error is None or isinstance(error, TritonError)):
            raise self._incompatible(output_tensors, error, parameters)
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise self._incompatible(output_tensors, error, parameters)
        self._output_tensors: List[Tensor] = tensors
        self._error = error
        self._parameters = None if parameters is None else params.checked(parameters)

    @staticmethod
    def _incompatible(*args: Any) -> Any:
        return incompatible(
            "__init__",
            "InferenceResponse(output_tensors: List[Tensor] = [], error: TritonError = None, "
            "parameters: object = None)",
            args,
        )

    def output_tensors(self) -> List[Tensor]:
        return list(self._output_tensors)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON text, `{}` if there are none."""
        return params.given_json(self._parameters)

    def _prune(self, requested_output_names: Sequence[str]) -> None:
        """Drops the outputs that were not requested, in place as upstream does; what is missing is no error."""
        self._output_tensors = [tensor for tensor in self._output_tensors if tensor._name in requested_output_names]
