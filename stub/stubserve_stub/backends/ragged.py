"""Ragged batches: requests of one run with inputs of different shapes, and the tensors that describe these.

Three parts of a configuration belong together, with Triton's rules:

    allow_ragged_batch   such an input reaches the model without any shape: its elements of all requests, one after the
                         other, in one dimension; also where there is one request alone
    batch_input          an input of the model's that no client sends. It is made for each run out of the shapes of the
                         source input, one for each request:
        BATCH_ELEMENT_COUNT                         [requests]      how many elements each has
        BATCH_ACCUMULATED_ELEMENT_COUNT             [requests]      how many it and those before it have
        BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO   [requests + 1]  the same, with a 0 in front: where each begins
        BATCH_MAX_ELEMENT_COUNT_AS_SHAPE            [most elements] zeros; only the shape says something
        BATCH_ITEM_SHAPE                            [rows, rank]    the shape of each item of the batch
        BATCH_ITEM_SHAPE_FLATTEN                    [rows * rank]   the same, in one dimension
    batch_output         BATCH_SCATTER_WITH_INPUT_SHAPE: such an output has no rows. Each request gets as many elements
                         as its shape has, which is the configuration's, with variable dimensions as in its source input

Element counts include the batch dimension. When an output has too few elements, the requests are refused; upstream
would read or write past the end of memory.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.loading import dims_of
from stubserve_stub.backends.native import InputView, NativeOutput, NativeRequest
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import codes
from stubserve_stub.wire.datatypes import BY_CONFIG_NAME, elements_of

Shapes = Sequence[Sequence[int]]


class RaggedBatches:
    """What a configuration says about ragged batches. `inputs` are those without a shape."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.inputs: FrozenSet[str] = frozenset(
            tensor["name"] for tensor in config.get("input", ()) if tensor.get("allow_ragged_batch")
        )
        self._made: Sequence[Mapping[str, Any]] = config.get("batch_input", ())
        # As the model sees them, with the batch dimension
        rows = [-1] if int(config.get("max_batch_size", 0)) else []
        dims = {output["name"]: [*rows, *dims_of(output)] for output in config.get("output", ())}
        # Outputs that are divided by the shapes of an input, and not by rows: that input, and the output's dimensions
        self.scattered: Dict[str, Tuple[str, Sequence[int]]] = {
            name: (output["source_input"][0], dims[name])
            for output in config.get("batch_output", ())
            for name in output["target_name"]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Optional[RaggedBatches]":
        """None for a model without ragged batches."""
        ragged = cls(config)
        return ragged if ragged.inputs or ragged._made or ragged.scattered else None

    def flattened(self, view: InputView, views: Sequence[InputView]) -> InputView:
        """The joined input `view` of the requests that gave `views`, in the shape that the model sees."""
        if view.name not in self.inputs:
            return view
        return view._replace(shape=(sum(elements_of(each.shape) for each in views),))

    def made(self, requests: Sequence[NativeRequest]) -> Dict[str, InputView]:
        """The inputs that no client sends, for one run. Raises Refusal if a request lacks their source."""
        inputs: Dict[str, InputView] = {}
        for made in self._made:
            datatype, source = BY_CONFIG_NAME[made["data_type"]], made["source_input"][0]
            numbers = _KINDS[made["kind"]]([self._shape(request, source) for request in requests])
            memory = numbers.astype(datatype.numpy).reshape(-1).view(np.uint8)
            for name in made["target_name"]:
                inputs[name] = InputView(name, datatype.number, numbers.shape, memory)
        return inputs

    def parts(self, output: NativeOutput, requests: Sequence[NativeRequest]) -> List[NativeOutput]:
        """An output's part for each request. Raises Refusal if it has more or fewer elements than these parts."""
        source, dims = self.scattered[output.name]
        shapes = [self._filled(output.name, dims, source, self._shape(request, source)) for request in requests]
        counts = [elements_of(shape) for shape in shapes]
        has = elements_of(output.shape)
        if has != sum(counts):
            raise Refusal(
                f"output '{output.name}' has {has} elements (shape {list(output.shape)}), but the shapes of input "
                f"'{source}' make {' + '.join(map(str, counts)) or 'none'} of it for the requests of the batch"
            )
        size = len(output.memory) // max(has, 1)
        parts = []
        start = 0
        for shape, count in zip(shapes, counts):
            end = start + count * size
            parts.append(output._replace(shape=shape, memory=output.memory[start:end]))
            start = end
        return parts

    @staticmethod
    def _filled(name: str, dims: Sequence[int], source: str, shape: Sequence[int]) -> Sequence[int]:
        if len(dims) > len(shape) and -1 in dims[len(shape) :]:
            raise Refusal(
                f"output '{name}' has the dimensions {list(dims)}, of which input '{source}' with the shape "
                f"{list(shape)} cannot tell all"
            )
        return [shape[index] if dim == -1 else dim for index, dim in enumerate(dims)]

    @staticmethod
    def _shape(request: NativeRequest, source: str) -> Sequence[int]:
        view = request.inputs.get(source)
        if view is None:
            raise Refusal(
                f"the request has no input '{source}', from which the model's batch inputs and outputs are made",
                codes.INVALID_ARG,
            )
        return view.shape


def _counts(shapes: Shapes) -> np.ndarray:
    return np.array([elements_of(shape) for shape in shapes], np.int64)


def _starts(shapes: Shapes) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_counts(shapes))])


def _item_shapes(shapes: Shapes) -> np.ndarray:
    return np.repeat([shape[1:] for shape in shapes], [shape[0] for shape in shapes], axis=0)


_KINDS: Dict[str, Callable[[Shapes], np.ndarray]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: np.cumsum(_counts(shapes)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _starts,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(max(_counts(shapes)), np.int64),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).reshape(-1),
}
