"""`InferenceResponse`: a model's answer to one request, and its form on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence, Tuple

from stubserve_stub.api import parameters as params
from stubserve_stub.api.arguments import as_list, incompatible
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import RegionWriter, failed, response_of
from stubserve_stub.wire import codes
from stubserve_stub.wire.arena import ArenaFull

if TYPE_CHECKING:
    # These import msgpack, which is missing where only the public module is wanted.
    from stubserve_stub.runtime.states import StateUpdate
    from stubserve_stub.wire.messages import WireResponse


class InferenceResponse:
    """Output tensors in the order in which the client gets them, or an error; and parameters.

    Raises TypeError for wrong types, TritonModelException for None among the tensors and for unfit parameters.
    """

    __slots__ = ("__weakref__", "_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[params.Parameters] = None,
    ) -> None:
        tensors = list(output_tensors) if type(output_tensors) is list else as_list(output_tensors)
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

    def _encode(
        self,
        requested: Collection[str],
        placer: Any,
        update: Optional[StateUpdate] = None,
        partly: bool = False,
        in_regions: Optional[RegionWriter] = None,
        misnamed: Optional[Callable[[Sequence[Tensor], Collection[str]], str]] = None,
    ) -> WireResponse:
        """The response for the wire, an error where its outputs find no memory. Keeps only the outputs in `requested`.

        As in upstream, a missing output is no error, and the model loses the other outputs, too. But where an output is
        dropped and one is missing, `misnamed` has the text of the error, if it is one. `update` keeps the new states of
        the request's sequence, `partly` if need be. `in_regions` writes outputs into the client's regions.
        """
        error = self._error
        if error is not None:
            return failed(error.message(), int(error.code()))
        if update is not None:
            failure = self._keep(update, update.keep, placer, partly)
            if failure is not None:
                return failure
        refusal = params.refusal(self._parameters) if self._parameters else ""
        if refusal:
            return failed(refusal, codes.INTERNAL)
        given = self._output_tensors
        self._output_tensors = kept = [tensor for tensor in given if tensor._name in requested]
        if len(kept) < len(given) and len(kept) < len(requested) and misnamed is not None:
            refusal = misnamed(given, requested)
            if refusal:
                return failed(refusal, codes.INTERNAL)
        return response_of(self._outputs(requested, placer, in_regions), self._parameters, placer, in_regions)

    def _outputs(
        self, requested: Collection[str], placer: Any, in_regions: Optional[RegionWriter]
    ) -> Iterator[Tuple[str, int, Sequence[int], Any]]:
        """The outputs as `response_of` takes them. Raises ArenaFull, Refusal for one in memory of a GPU."""
        for tensor in self._output_tensors:
            name = tensor._name
            if tensor._on_device:
                stays = isinstance(requested, dict) and bool(requested[name])
                yield name, tensor._datatype, tensor._shape, tensor._placed(placer, stays, in_regions)
            elif tensor._elements is not None and in_regions is None:
                yield name, tensor._datatype, tensor._shape, tensor._elements
            else:
                yield (name, *tensor._payload())

    def _keep(self, update: StateUpdate, keep: Callable[..., None], *how: Any) -> Optional[WireResponse]:
        """Has `keep`, a function of `update`, keep its states; the error if they cannot be kept."""
        if not update.sequence:
            return None
        answered: Dict[str, Any] = {}
        for tensor in self._output_tensors:
            if tensor._on_device and tensor._name not in update.outputs:
                answered[tensor._name] = (tensor._datatype, tensor._shape, b"")  # not a state, and so not looked at
            else:
                answered[tensor._name] = tensor._payload()
        try:
            keep(answered, *how)
        except (Refusal, ArenaFull) as error:
            return failed(str(error), error.code)
        return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """The response's output of that name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None
